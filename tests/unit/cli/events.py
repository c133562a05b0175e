"""Durable records for the tests of what is shown: real events, as a watcher gets them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gangflow.channel import ELIGIBLE, Eligible, Serving, WeightsId
from gangflow.xce.core import events as ev
from gangflow.xce.core.plan import Cause, ClaimPlan, GroupPlan, MemberKind, MemberPlan
from gangflow.xce.core.state import Claim, ClaimState, Exit, GroupState, PendCode, Reason, SlotState, Task
from gangflow.xce.rest.event_views import event_view
from gangflow.xce.rest.messages import EventView

PLAN = GroupPlan(
    "grpo",
    (MemberPlan("actor", MemberKind.JOB, ("train",)), MemberPlan("rollout", MemberKind.REPLICA_SET, ("serve",), replicas=2)),
)
BEGIN_MS = 1_000


def views(events: Iterable[ev.Event], step_ms: int = 1_000) -> list[EventView]:
    """The records of a history, one each `step_ms`."""
    found = [event_view(seq, BEGIN_MS + step_ms * (seq - 1), event) for seq, event in enumerate(events, 1)]
    return [view for view in found if view is not None]


def changed(before: str, state: str, cause: str = "", message: str = "") -> ev.GroupChanged:
    return ev.GroupChanged("g1", GroupState(before), GroupState(state), cause, message)


def waits(text: str, blocker: str = "", member: str = "", index: int = -1) -> ev.ReasonNoted:
    reason = Reason(PendCode.WAITING_CAPACITY, text, (("gpus", 1_000),), "", blocker)
    return ev.ReasonNoted("g1", reason, member, index)


def placed(member: str, index: int, incarnation: int, *hosts: str) -> ev.SlotPlaced:
    tasks = tuple(Task(number, host) for number, host in enumerate(hosts))
    return ev.SlotPlaced("g1", member, index, incarnation, 1, tasks)


def moved(member: str, index: int, incarnation: int, state: str, before: str = "RUNNING") -> ev.SlotChanged:
    return ev.SlotChanged("g1", member, index, incarnation, SlotState(before), SlotState(state))


def exited(member: str, index: int, incarnation: int, cause: str = "", state: str = "", **exit_: Any) -> ev.SlotExited:
    """Over: stopped on purpose without a cause, DONE with that state."""
    how = Exit(Cause(cause) if cause else None, incarnation, BEGIN_MS, **exit_)
    return ev.SlotExited("g1", member, index, incarnation, SlotState.READY, SlotState(state or "EXIT"), how)


def claim(state: str, message: str = "", until_ms: int = 0, **more: Any) -> ev.ClaimChanged:
    made = Claim("g1/ckpt", "g1", ClaimPlan("ckpt"), ClaimState(state), message=message, until_ms=until_ms, **more)
    return ev.ClaimChanged(made)


def weights(version: int, sha: str = "abcdef0123456789") -> WeightsId:
    return WeightsId(1, version, sha)


def eligible(membership: int, serving: dict[tuple[int, int], int], holding: Iterable[tuple[int, int]]) -> ev.ValueWritten:
    """`rollouts/eligible`: (slot, incarnation) → version that it serves, and who may finish its work."""
    rollouts = tuple(Serving(*key, f"http://h/{key[0]}", weights(version)) for key, version in serving.items())
    keys = tuple(holding)
    value = Eligible(membership, 1, weights(max(serving.values(), default=0)), rollouts, keys, keys)
    return ev.ValueWritten("g1", ELIGIBLE, value.render(), membership)
