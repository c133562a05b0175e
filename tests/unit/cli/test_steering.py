"""`gangflow restart` of several names."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.cli import steering
from gangflow.errors import GangflowError, NotFound
from gangflow.xce.rest.views import group_view
from tests.unit.xce.rest.fake import running, state_of

STATE = state_of(running())


class FakeRun:
    """A run that notes what it is told to do."""

    def __init__(self, told: list[Any]) -> None:
        self.id, self.name, self.told, self.client = "g1", "grpo", told, self

    def status(self) -> Any:
        return group_view(STATE, STATE.groups["g1"], 1)

    def restart(self, *words: Any, **_: Any) -> None:
        self.told.append(words)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    done: list[Any] = []

    def attach(name: str, *, address: str) -> FakeRun:
        if name not in ("g1", "grpo"):
            raise NotFound(f"no live group {name!r}")
        return FakeRun(done)

    monkeypatch.setattr(steering, "attach", attach)
    return done


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("grpo rollout[1]", "did you mean 'grpo.rollout[1]'"),
        ("grpo rollout 0", r"did you mean 'grpo.rollout[0]'"),
        ("grpo rollout", "did you mean 'grpo.rollout'"),
        ("grpo g9", "no live group 'g9'"),
        ("grpo.rollout[0] grpo.rollout[7]", "no slot 7"),
    ],
)
def test_nothing_is_restarted_where_one_of_the_names_is_wrong(told: list[Any], words: str, said: str) -> None:
    with pytest.raises(GangflowError) as error:
        steering.restart_named(words.split(), "", address="")
    assert said in error.value.message
    assert told == []


def test_groups_and_slots(told: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    steering.restart_named(["g1", "g1.rollout[0]"], "", address="")
    assert told == [(), ("g1", "rollout", 0, 3)]
    assert "is being restarted" in capsys.readouterr().out
