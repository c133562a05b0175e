"""The state machines as tables: every edge that exists, and when it is taken. `docs/states.md` shows them; a test keeps it so.

An edge that is not here raises `InvalidTransition`. An edge from a state to itself is a change of what the entity waits for.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from gangflow.errors import GangflowError
from gangflow.xce.core.state import ChangeState, ClaimState, GroupState, HostState, SlotState, TaskPhase

G, S, C, H, T, D = GroupState, SlotState, ClaimState, HostState, TaskPhase, ChangeState

GROUP: Mapping[GroupState, Mapping[GroupState, str]] = {
    G.PENDING: {
        G.PENDING: "the backoff of a voided try is over",
        G.PREPARING: "one session decision placed every required slot",
        G.SUSPENDING: "suspended while a voided try is still being unprepared",
        G.SUSPENDED: "suspended before anything was placed",
        G.STOPPING: "ended while a voided try is still being unprepared",
        G.FAILED: "ended before anything was placed",
        G.CANCELLED: "ended before anything was placed",
    },
    G.PREPARING: {
        G.STARTING: "the barrier is released: the commit point",
        G.PENDING: "the try is voided: a timeout, a refusal or a lost host",
        G.SUSPENDING: "suspended",
        G.STOPPING: "ended, or the last try failed",
    },
    G.STARTING: {
        G.RUNNING: "every job is ready or DONE, every replica set has its minimum ready",
        G.RESTARTING: "a rule or an operator restarts the group, or a machine was lost before it was ever RUNNING",
        G.SUSPENDING: "suspended",
        G.STOPPING: "ended, failed, or not ready in time",
    },
    G.RUNNING: {
        G.DEGRADED: "a minimum is broken and being repaired",
        G.RESTARTING: "a rule or an operator restarts the group",
        G.SUSPENDING: "suspended",
        G.STOPPING: "every primary job ended, a rule fails the group, or it was ended",
    },
    G.DEGRADED: {
        G.RUNNING: "every minimum holds again",
        G.RESTARTING: "a rule or an operator restarts it; or nothing of it runs, and no lost place came back in time",
        G.SUSPENDING: "suspended",
        G.STOPPING: "every primary job ended, a rule or a floor fails the group, or it was ended",
    },
    G.RESTARTING: {
        G.PREPARING: "every old slot is confirmed gone and has a place: epoch + 1",
        G.RESTARTING: "the backoff of the restart is over",
        G.PENDING: "back to placement: the first start failed by a machine, or the first claim on a lost place expired",
        G.SUSPENDING: "suspended",
        G.STOPPING: "ended",
    },
    G.SUSPENDING: {
        G.SUSPENDED: "every slot is confirmed gone",
        G.STOPPING: "ended",
    },
    G.SUSPENDED: {
        G.PENDING: "resumed: it waits for a place with its first submission time",
        G.CANCELLED: "cancelled; nothing of it runs",
    },
    G.STOPPING: {
        G.SUCCEEDED: "every slot is confirmed gone; the goal was SUCCEEDED",
        G.FAILED: "every slot is confirmed gone; the goal was FAILED",
        G.CANCELLED: "every slot is confirmed gone; the goal was CANCELLED",
    },
    G.SUCCEEDED: {},
    G.FAILED: {},
    G.CANCELLED: {},
}

SLOT: Mapping[SlotState, Mapping[SlotState, str]] = {
    S.PENDING: {
        S.PLACED: "a place was granted, or its own came back: a new incarnation",
        S.PENDING: "it joins a group restart, its first claim on a lost place expired, or a change holds places for it",
        S.RETIRED: "the group ends, its member was stopped, or it was scaled away",
    },
    S.PLACED: {
        S.PREPARED: "the agents of all its tasks accepted them",
        S.RELEASING: "voided before it was started",
    },
    S.PREPARED: {
        S.STARTING: "the barrier is released; or, in a running group, its own claims are READY",
        S.PLACED: "an agent restarted: the preparation is void",
        S.RELEASING: "voided before it was started",
    },
    S.STARTING: {
        S.RUNNING: "every task's process runs",
        S.DONE: "a job, every task ended with 0",
        S.EXIT: "failed, and every process is gone",
        S.LOST: "a host or agent of it is lost",
        S.STOPPING: "failed, restarted or ended, with processes left to stop",
    },
    S.RUNNING: {
        S.READY: "every task's probe succeeded, or there is no probe",
        S.DONE: "a job, every task ended with 0",
        S.EXIT: "failed, and every process is gone",
        S.LOST: "a host or agent of it is lost",
        S.STOPPING: "failed, restarted or ended, with processes left to stop",
        S.DRAINING: "every primary job ended and the termination delay runs, or it is scaled away or drained",
    },
    S.READY: {
        S.RUNNING: "a probe fails; from here `ready_timeout` runs again",
        S.DONE: "a job, every task ended with 0",
        S.EXIT: "failed, and every process is gone",
        S.LOST: "a host or agent of it is lost",
        S.STOPPING: "failed, restarted or ended, with processes left to stop",
        S.DRAINING: "every primary job ended and the termination delay runs, or it is scaled away or drained",
    },
    S.DRAINING: {
        S.STOPPING: "its time to drain is over, or its group restarts, is suspended or ends",
        S.EXIT: "it ended by itself",
        S.DONE: "a job, every task ended with 0",
        S.LOST: "a host or agent of it is lost",
    },
    S.STOPPING: {
        S.STOPPING: "what it becomes afterwards changed",
        S.EXIT: "every process is confirmed gone",
    },
    S.LOST: {
        S.LOST: "what it becomes afterwards changed",
        S.STOPPING: "its host came back and still holds it",
        S.EXIT: "its host is fenced, or came back without it",
    },
    S.RELEASING: {
        S.RELEASING: "what it becomes afterwards changed",
        S.PENDING: "unprepared: it wants a place, or waits for its group's restart",
        S.BACKOFF: "unprepared: it is tried again later",
        S.RETIRED: "unprepared, and not wanted any more",
    },
    S.EXIT: {
        S.BACKOFF: "a rule restarts it",
        S.PENDING: "it wants a place, or waits for its group's restart",
        S.RETIRED: "a rule tolerated the exit, its member was stopped, or it was scaled away",
    },
    S.BACKOFF: {
        S.PLACED: "the backoff is over and its hosts are up: a new incarnation in place",
        S.PENDING: "the backoff is over and it has no place, or it joins a group restart",
        S.BACKOFF: "an operator restarts it now",
        S.RETIRED: "the group ends, its member was stopped, or it was scaled away",
    },
    S.DONE: {S.PENDING: "the group restarts, or an operator runs it again"},
    S.RETIRED: {
        S.PENDING: "the group restarts or is resumed, an operator brings it back, or its member is scaled up",
        S.RETIRED: "what it held for a change of targets is given back",
    },
}

CLAIM: Mapping[ClaimState, Mapping[ClaimState, str]] = {
    C.NEW: {
        C.PROVISIONING: "its users are placed; or it is standalone",
        C.READY: "standalone: a group that ended retained it",
        C.GONE: "never made, and not wanted any more",
    },
    C.PROVISIONING: {
        C.READY: "the provider made it",
        C.FAILED: "the provider failed, or its deadline passed",
        C.RELEASING: "not wanted any more",
    },
    C.READY: {
        C.LOST: "its host is gone, its user moved away, or its provider found it missing",
        C.GONE: "retained: it lives on as a standalone claim",
        C.RELEASING: "not wanted any more",
    },
    C.FAILED: {
        C.PROVISIONING: "tried again, within the try",
        C.RELEASING: "not wanted any more",
    },
    C.LOST: {
        C.PROVISIONING: "made again",
        C.RELEASING: "not wanted any more",
    },
    C.RELEASING: {C.GONE: "the provider confirmed"},
    C.GONE: {C.PROVISIONING: "made again for a new try"},
}

HOST: Mapping[HostState, Mapping[HostState, str]] = {
    H.UP: {
        H.UP: "its agent registered again",
        H.CLOSED: "an operator closed it",
        H.LOST: "the verdict that it, or its agent, is dead",
    },
    H.LOST: {
        H.UP: "its agent registered again",
        H.CLOSED: "its agent registered again, and an operator had closed it",
        H.FENCED: "nothing of it can run any more",
    },
    H.FENCED: {
        H.UP: "its agent registered again",
        H.CLOSED: "its agent registered again, and an operator had closed it",
    },
    H.UNKNOWN: {},
    H.CLOSED: {
        H.UP: "an operator opened it",
        H.CLOSED: "its agent registered again, or an operator drains it, too",
        H.LOST: "the verdict that it, or its agent, is dead",
    },
}

CHANGE: Mapping[ChangeState, Mapping[ChangeState, str]] = {
    D.ACCEPTED: {
        D.DRAINING: "slots that it takes out are told to drain",
        D.PLACING: "nothing has to go first",
        D.DONE: "nothing has to go and all found its place at once; or its group does not run, and only targets are set",
        D.FAILED: "a newer change superseded it, or its group ended",
    },
    D.DRAINING: {
        D.PLACING: "everything that it takes out is confirmed gone",
        D.DONE: "all is gone and placed at once; or its group restarts or is suspended: its targets stand",
        D.FAILED: "a newer change superseded it, its time is over, or its group ended",
    },
    D.PLACING: {
        D.DONE: "every slot that it added has a place; or its group restarts or is suspended: its targets stand",
        D.FAILED: "a newer change superseded it, its time is over, or its group ended",
    },
    D.DONE: {},
    D.FAILED: {},
}

TASK: Mapping[TaskPhase, Mapping[TaskPhase, str]] = {
    T.PLACED: {
        T.PREPARED: "its agent accepted it",
        T.GONE: "refused or unprepared",
    },
    T.PREPARED: {
        T.PLACED: "its agent restarted",
        T.RUNNING: "its process runs",
        T.GONE: "ended or unprepared; verified",
    },
    T.RUNNING: {
        T.READY: "its ready probe succeeded",
        T.RUNNING: "its probe's error, or its process id, became known",
        T.GONE: "its whole process tree is verified gone",
    },
    T.READY: {
        T.RUNNING: "its ready probe fails",
        T.READY: "its process id became known",
        T.GONE: "its whole process tree is verified gone",
    },
    T.GONE: {},
}

TRANSITIONS: Mapping[str, Mapping[StrEnum, Mapping[StrEnum, str]]] = {
    "group": GROUP,  # type: ignore[dict-item]  # Mapping is invariant in its key; every key here is a StrEnum
    "slot": SLOT,  # type: ignore[dict-item]
    "claim": CLAIM,  # type: ignore[dict-item]
    "host": HOST,  # type: ignore[dict-item]
    "task": TASK,  # type: ignore[dict-item]
    "change": CHANGE,  # type: ignore[dict-item]
}
"""Entity → state → next state → when."""


class InvalidTransition(GangflowError):
    """An edge that no table has: a fault of this program. Nothing of the batch is journalled, and nothing acts."""

    code = "invalid_transition"
    exit_code = 70
    remedy = "report it with the story below; the journal is intact up to the batch before"

    def __init__(self, entity: str, name: str, before: StrEnum, after: StrEnum, story: tuple[str, ...] = ()) -> None:
        lines = "".join(f"\n  {line}" for line in story)
        super().__init__(f"{entity} {name}: no edge {before.value} → {after.value}{lines}")
        self.entity = entity
        self.name = name
        self.before = before
        self.after = after
        self.story = story
        """The recent inputs and events that touched the entity, oldest first."""

    def told(self, story: tuple[str, ...]) -> InvalidTransition:
        """The same, with the entity's story."""
        return InvalidTransition(self.entity, self.name, self.before, self.after, story)


def check_edge(entity: str, name: str, before: StrEnum, after: StrEnum) -> None:
    """Raise InvalidTransition unless the entity's table has the edge."""
    if after not in TRANSITIONS[entity][before]:
        raise InvalidTransition(entity, name, before, after)
