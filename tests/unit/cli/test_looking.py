"""`gangflow logs` before there is one."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.cli import looking
from gangflow.errors import NotFound
from gangflow.xce.rest.views import group_view
from tests.unit.xce.rest.fake import pending, state_of

STATE = state_of(pending("g2", "other"))


class Waiting:
    """A run whose slots have no log yet."""

    id, name = "g2", "other"

    @property
    def client(self) -> Waiting:
        return self

    def status(self) -> Any:
        return group_view(STATE, STATE.groups["g2"], 1)

    def log(self, *_: Any) -> Any:
        raise NotFound("nobody keeps stdout of g2/0/rollout/0/0/0")

    follow_log = log


@pytest.mark.parametrize("follow", [False, True])
def test_what_has_not_started_is_said_to_wait(monkeypatch: pytest.MonkeyPatch, follow: bool) -> None:
    monkeypatch.setattr(looking, "attach", lambda *_, **__: Waiting())
    member = Waiting().status().members[0].name
    with pytest.raises(NotFound) as error:
        looking.show_log("other", member, follow=follow, stream="stdout", incarnation=0, task=0, address="")
    assert error.value.message.startswith(f"other.{member}[0] has not started; it waits for ")
    assert "gangflow status" in error.value.advice
