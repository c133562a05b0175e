"""What a closed asker does; the rest is tested where recipes ask: judges, critic, reference."""

from __future__ import annotations

import pytest

from gangflow.recipes.services.asking import Asking, ServiceFailed


def test_a_closed_one_asks_no_more_and_says_no_more_that_it_waits() -> None:
    told: list[str] = []

    def waiting(reason: str) -> None:
        told.append(reason)
        asking.close()  # as another thread does that ends the program

    asking = Asking(lambda member: [], patience_s=60.0, waiting=waiting)
    with pytest.raises(ServiceFailed, match="critic is asked no more; last: critic has no endpoint"):
        asking.ask("critic", "/values", {})
    assert told == ["critic has no endpoint"]


def test_a_closed_one_does_not_even_ask_once() -> None:
    asking = Asking(lambda member: ["http://127.0.0.1:1"], patience_s=60.0)
    asking.close()
    with pytest.raises(ServiceFailed, match="ref is asked no more"):
        asking.ask("ref", "/logprobs", {})
    assert asking.repeated == 0
