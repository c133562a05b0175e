"""A step goes only so far; what it did not come to is due at once, and the next step goes on with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core import settle
from gangflow.xce.core.state import GroupState
from gangflow.xce.machine import next_deadline
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G = GroupState


def chain() -> Stage:
    """Two groups that restart and lost a part of their places: g1 can go on only with h5, and g2 only with what g1 leaves."""
    stage = Stage(hosts(5, cpu=1_000))
    stage.run(plan(job(), replicas(count=2, least=1)))
    stage.bring_up()
    stage.run(plan(job(tasks=2), name="second", priority=90))
    for group_id, excluded in (("g1", ("h1", "h2")), ("g2", ("h4", "h5"))):
        stage.ask(inp.RestartGroup(group_id))
        group = replace(stage.group(group_id), excluded=excluded)
        stage.state = replace(stage.state, groups={**stage.state.groups, group_id: group})
    stage.gone()
    assert (stage.group().state, stage.group("g2").state) == (G.RESTARTING, G.RESTARTING)
    stage.facts["h5"] = hosts(6, cpu=1_000)[5]
    return stage


def test_a_grant_that_frees_a_place_lets_the_next_one_in_at_once() -> None:
    stage = chain()
    stage.up_host("h5")
    assert (stage.group().state, stage.group("g2").state) == (G.PREPARING, G.PREPARING)
    assert stage.state.offer_ms == 0


def test_what_the_last_session_of_a_step_frees_is_offered_in_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario 29: nobody waits for the next event of somebody else."""
    monkeypatch.setattr(settle, "SESSIONS_MAX", 1)
    stage = chain()
    stage.up_host("h5")
    assert (stage.group().state, stage.group("g2").state) == (G.PREPARING, G.RESTARTING)
    assert stage.state.offer_ms == stage.now_ms
    assert next_deadline(stage.state) == stage.now_ms, "a Tick is due at once"
    stage.wait(0)
    assert stage.group("g2").state is G.PREPARING
    assert stage.state.offer_ms == stage.now_ms, "it left a place in its turn, too"
    stage.wait(0)
    assert stage.state.offer_ms == 0, "nobody waits for that"
