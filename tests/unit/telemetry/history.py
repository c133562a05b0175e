"""A group's life by hand, as the journal has it: a rollout dies and is replaced, then the group succeeds."""

from __future__ import annotations

from gangflow.xce.core import events as ev
from gangflow.xce.core.plan import Cause, ClaimPlan, GroupPlan, MemberKind, MemberPlan
from gangflow.xce.core.state import Claim, ClaimState, Exit, GroupState, PendCode, Reason, SlotState, Task

G, S = GroupState, SlotState
PLAN = GroupPlan("grpo", (MemberPlan("actor", MemberKind.JOB, ("a",)), MemberPlan("rollout", MemberKind.REPLICA_SET, ("r",))))
CLAIM = Claim("g1/ckpt", "g1", ClaimPlan("ckpt", "directory"))


def _claim(state: ClaimState) -> ev.ClaimChanged:
    return ev.ClaimChanged(Claim("g1/ckpt", "g1", ClaimPlan("ckpt", "directory"), state, attempt=1))


def _placed(member: str, incarnation: int, *hosts: str) -> ev.SlotPlaced:
    return ev.SlotPlaced("g1", member, 0, incarnation, 1, tuple(Task(index, host) for index, host in enumerate(hosts)))


def _starts(member: str, incarnation: int) -> ev.SlotChanged:
    return ev.SlotChanged("g1", member, 0, incarnation, S.PREPARED, S.STARTING)


def _exits(member: str, incarnation: int, state: S, cause: Cause | None = None, message: str = "") -> ev.SlotExited:
    return ev.SlotExited("g1", member, 0, incarnation, S.READY, state, Exit(cause, incarnation, 0, message=message))


HISTORY: tuple[tuple[ev.Event, int], ...] = (
    (ev.TermStarted("cluster", 1), 0),
    (ev.GroupSubmitted("g1", PLAN), 1_000),
    (ev.ReasonNoted("g1", Reason(PendCode.WAITING_CAPACITY, "1 GPU short")), 1_001),
    (_placed("actor", 1, "h0", "h1", "h0"), 2_000),
    (_placed("rollout", 1, "h1"), 2_000),
    (_claim(ClaimState.PROVISIONING), 2_000),
    (ev.GroupPlaced("g1", 99_000), 2_000),
    (ev.TryVoided("g1", 1, "refused", "a port is taken", 3_000), 2_500),
    (ev.GroupPlaced("g1", 99_000), 3_000),
    (_claim(ClaimState.READY), 3_100),
    (ev.BarrierReleased("g1", 1, 99_000), 4_000),
    (_starts("actor", 1), 4_000),
    (_starts("rollout", 1), 4_000),
    (ev.GroupChanged("g1", G.STARTING, G.RUNNING), 5_000),
    (_exits("rollout", 1, S.EXIT, Cause.SIGNAL, "killed by SIGKILL"), 6_000),
    (ev.GroupChanged("g1", G.RUNNING, G.DEGRADED), 6_000),
    (_placed("rollout", 2, "h2"), 6_100),
    (_starts("rollout", 2), 6_200),
    (ev.GroupChanged("g1", G.DEGRADED, G.RUNNING), 7_000),
    (_exits("actor", 1, S.DONE), 9_000),
    (ev.GroupChanged("g1", G.RUNNING, G.STOPPING), 9_000),
    (_exits("rollout", 2, S.EXIT), 9_500),
    (ev.GroupChanged("g1", G.STOPPING, G.SUCCEEDED), 9_600),
)
