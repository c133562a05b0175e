"""Three inputs in one batch, in every order, on a group in every state: what comes together is judged together, and well.

Each input is right by itself, at that moment; every invariant is looked at after the batch. Of the thousands of triples the
ordinary run plays some; `SEEDS=2000` (as `make nightly` has it) plays all.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice, permutations

import pytest

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.inputs import Input
from gangflow.xce.core.state import GroupState
from gangflow.xce.placement import Scheduler
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G = GroupState
EVERY = 1 if int(os.environ.get("SEEDS", "40")) >= 2_000 else 5
"""Of the triples of each state, every so many-th is played."""
STATES = ("preparing", "starting", "running", "degraded", "scaled down", "restarting", "suspending")


class Placed(Stage):
    """A stage with the real placement."""

    scheduler = Scheduler


def staged(state: str) -> Placed:
    """A job and two replicas, one of them required, on three hosts with little room."""
    stage = Placed(hosts(3, cpu=3_000))
    rollout = replace(replicas(count=2, least=1, drain_ms=2_000), max_replicas=4)
    stage.submit(plan(job(drain_ms=2_000), rollout, recovery_timeout_ms=5_000))
    if state == "preparing":
        return stage
    if state == "starting":
        stage.prepare()
        return stage
    stage.bring_up()
    stage.bring_up()
    if state == "degraded":
        stage.exit("rollout", 1)
    elif state != "running":
        commands: dict[str, inp.Command] = {
            "scaled down": inp.ScaleGroup("g1", (("rollout", 1),)),
            "restarting": inp.RestartGroup("g1"),
            "suspending": inp.SuspendGroup("g1"),
        }
        stage.feed(commands[state])
    return stage


def inputs(stage: Stage) -> list[Input]:
    """What agents and operators may say now."""
    actor, rollout = stage.slot("actor"), stage.slot("rollout", 1)
    host = actor.tasks[0].host if actor.tasks else "h0"
    slot = ("g1", "rollout", 1, rollout.incarnation)
    found: list[Input] = [
        inp.ScaleGroup("g1", (("rollout", 4),), 5_000),
        inp.ScaleGroup("g1", (("rollout", 1),), 5_000),
        inp.SuspendGroup("g1"),
        inp.ResumeGroup("g1"),
        inp.RestartGroup("g1"),
        inp.StopMember("g1", "rollout"),
        inp.RestartSlot(*slot),
        inp.DrainSlot(*slot),
        inp.HostGone(host, 0),
        inp.HostGone(host, 4_000),
        inp.CloseHost(host, drain=True),
        inp.OpenHost(host),
        inp.EndGroup("g1", G.CANCELLED),
    ]
    if rollout.tasks:
        key, there = stage.key(rollout), rollout.tasks[0].host
        found += [inp.TaskExited(key, there, None, 1), inp.TaskRefused(key, there, "no"), inp.TaskUnready(key, there, "503")]
    if actor.tasks:
        key = stage.key(actor)
        found += [inp.TaskExited(key, host, None, 0), inp.TaskExited(key, host, None, 1), inp.HostUp(stage.facts[host], "b9")]
    return found


@pytest.mark.parametrize("state", STATES)
def test_any_three_inputs_in_any_order(state: str) -> None:
    stage = staged(state)
    before, now_ms, choice = stage.state, stage.now_ms, inputs(stage)
    for batch in islice(permutations(choice, 3), 0, None, EVERY):
        stage.state, stage.now_ms = before, now_ms
        stage.feed(*batch)
        stage.events.clear()


@pytest.mark.parametrize("failure", ["exit", "refusal"])
def test_a_failure_a_stop_and_a_restart(failure: str) -> None:
    """One that was found here: whatever the ordinary run passes over, this it plays."""
    stage = staged("starting")
    slot = stage.slot("rollout", 0)
    key, host = stage.key(slot), slot.tasks[0].host
    said = {"exit": inp.TaskExited(key, host, None, 1), "refusal": inp.TaskRefused(key, host, "no")}
    stage.feed(said[failure], inp.StopMember("g1", "rollout"), inp.RestartSlot("g1", "rollout", 0, 1))
    assert stage.group().stopped == ()
    stage.bring_up()
    assert stage.group().state is G.RUNNING
