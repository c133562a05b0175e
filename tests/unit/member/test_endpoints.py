"""The group as a member sees it: READY slots, eligible rollouts, and what an event changes."""

from __future__ import annotations

import json
from typing import Any

from gangflow.channel import ELIGIBLE, Eligible, Serving, WeightsId
from gangflow.member.endpoints import CoordinatorFacts, Picture, changed, coordinator_facts, listed
from gangflow.xce.rest.messages import ValueView
from tests.unit.member.fake_xce import FakeXce

WEIGHTS = WeightsId(1, 0, "a" * 64)


def group() -> FakeXce:
    xce = FakeXce({"actor": 1, "rollout": 2, "reward": 1})
    xce.ready("rollout", 0, "10.0.0.1:1")
    xce.ready("rollout", 1, "10.0.0.2:1")
    xce.ready("reward", 0, "10.0.0.3:1")
    return xce


def eligible(*indices: int) -> str:
    rollouts = tuple(Serving(index, 1, f"http://10.0.0.{index + 1}:1", WEIGHTS) for index in indices)
    return Eligible(1, 1, WEIGHTS, rollouts, ((0, 1), (1, 1)), ((0, 1), (1, 1))).render()


def follow(picture: Picture, xce: FakeXce) -> Picture:
    for event in xce.history:
        picture = changed(picture, event.seq, event.type, event.data)
    return picture


def urls(picture: Picture, member: str) -> list[str]:
    return [endpoint.url for endpoint in picture.endpoints(member)]


def test_without_a_coordinator_ready_slots_are_the_endpoints() -> None:
    picture = listed(group().view(), None, None)
    assert urls(picture, "rollout") == ["http://10.0.0.1:1", "http://10.0.0.2:1"]
    assert urls(picture, "actor") == []


def test_with_one_only_eligible_rollouts_are() -> None:
    """Scenario 46: READY is not enough: who was not admitted by the coordinator is not asked."""
    value = ValueView(seq=9, key=ELIGIBLE, value=eligible(1), version=1)
    picture = listed(group().view(), CoordinatorFacts(), value)
    assert urls(picture, "rollout") == ["http://10.0.0.2:1"]
    assert urls(picture, "reward") == ["http://10.0.0.3:1"]


def test_before_the_coordinators_first_word_nobody_is() -> None:
    assert urls(listed(group().view(), CoordinatorFacts(), None), "rollout") == []


def test_an_exit_takes_a_rollout_out_before_the_coordinator_says_so() -> None:
    xce = group()
    value = ValueView(seq=9, key=ELIGIBLE, value=eligible(0, 1), version=1)
    picture = listed(xce.view(), CoordinatorFacts(), value)
    xce.slot("rollout", 0, "EXIT")
    picture = follow(picture, xce)
    assert urls(picture, "rollout") == ["http://10.0.0.2:1"]
    assert not picture.holds("rollout", (0, 1))


def test_the_next_incarnation_is_not_the_one_that_was_admitted() -> None:
    xce = group()
    value = ValueView(seq=9, key=ELIGIBLE, value=eligible(0, 1), version=1)
    picture = listed(xce.view(), CoordinatorFacts(), value)
    xce.slot("rollout", 0, "EXIT")
    xce.ready("rollout", 0, "10.0.0.1:1")
    assert urls(follow(picture, xce), "rollout") == ["http://10.0.0.2:1"]


def test_an_older_write_never_replaces_a_newer_one() -> None:
    """The value is read after the view, so the stream repeats writes that it has already."""
    xce = group()
    view = xce.view()
    xce.write(ELIGIBLE, eligible())
    xce.write(ELIGIBLE, eligible(0, 1))
    picture = listed(view, CoordinatorFacts(), xce.values[ELIGIBLE])
    first, second = (e for e in xce.history if e.type == "ValueWritten")
    assert urls(changed(picture, first.seq, first.type, first.data), "rollout") == urls(picture, "rollout") != []
    assert follow(picture, xce).eligible_version == second.data["version"]


def test_events_that_are_older_than_the_list_change_nothing() -> None:
    xce = group()
    xce.slot("rollout", 0, "EXIT")
    picture = listed(xce.view(), None, None)
    assert follow(picture, xce) == picture


def test_a_probe_that_fails_takes_it_out_but_it_may_finish() -> None:
    xce = group()
    picture = listed(xce.view(), None, None)
    xce.slot("rollout", 0, "RUNNING")
    picture = follow(picture, xce)
    assert urls(picture, "rollout") == ["http://10.0.0.2:1"]
    assert picture.holds("rollout", (0, 1))
    xce.slot("rollout", 0, "READY")
    assert follow(picture, xce).stale_view, "its address is in the view only"


def test_nonsense_in_the_value_makes_nobody_eligible() -> None:
    value = ValueView(seq=9, key=ELIGIBLE, value='{"rollouts": 3}', version=1)
    assert urls(listed(group().view(), CoordinatorFacts(), value), "rollout") == []


def test_the_coordinators_facts_are_its_specs() -> None:
    document: dict[str, Any] = {"name": "g", "coordinator": {"min_rollouts": 2, "max_staleness": 1, "quorum_timeout": "5s"}}
    assert coordinator_facts(document) == CoordinatorFacts("rollout", 2, 1, 5.0)
    assert coordinator_facts(json.loads('{"coordinator": {}}')) == CoordinatorFacts()
    assert coordinator_facts({"name": "g"}) is None
