"""Would a group that waits fit if nothing else ran? Pure; the scheduler itself answers, on a state that has nothing else.

Who waits for more than the cluster has waits for hosts, and not for whoever happens to run: naming a blocker would mislead.
"""

from __future__ import annotations

from dataclasses import replace

from gangflow.xce.core.asking import ask_for
from gangflow.xce.core.asks import AskKind, Refusal
from gangflow.xce.core.counts import to_place
from gangflow.xce.core.state import Group, GroupState, HostState, PendCode, Reason, State
from gangflow.xce.placement import Scheduler

_OF_CAPACITY = frozenset({PendCode.WAITING_CAPACITY, PendCode.WAITING_SHAPE, PendCode.WAITING_TOPOLOGY})


def too_large(state: State, group: Group) -> str:
    """What is missing even with nothing else running, and whether hosts that are away would change that; empty: it would fit.

    Takes some tens of milliseconds on a thousand hosts: not for the event loop.
    """
    if group.state is not GroupState.PENDING or group.reason is None or group.reason.code not in _OF_CAPACITY:
        return ""
    bare = replace(group, slots={key: replace(slot, tasks=()) for key, slot in group.slots.items()})
    missing = _refused(replace(state, groups={group.id: bare}, claims={}), bare)
    if missing is None:
        return ""
    up = {name: replace(host, state=HostState.UP, closed="") for name, host in state.hosts.items()}
    free = replace(bare, excluded=())
    still = _refused(replace(state, groups={group.id: free}, hosts=up, claims={}), free)
    if still is None:
        return f"{missing.text}; it would fit if every host were up, open and not excluded"
    return f"{missing.text}; no host that this cluster knows could change that"


def _refused(state: State, group: Group) -> Reason | None:
    wanted = [slot for member in group.plan.members for slot in to_place(group, member)]
    if not wanted:
        return None
    ask = replace(ask_for(group, AskKind.MINIMUM, wanted), claims=())
    answers = Scheduler().decide(state, [ask])
    return next((answer.reason for answer in answers if isinstance(answer, Refusal)), None)
