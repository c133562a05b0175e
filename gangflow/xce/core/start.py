"""Place → prepare → release: the two-phase start of a group (design 3.3). The release is the commit point."""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.durations import lasting
from gangflow.xce.core.asks import Grant
from gangflow.xce.core.claims import release_bound, unready_claim, want
from gangflow.xce.core.counts import ACTIVE, BEFORE_START, required, slots_of
from gangflow.xce.core.events import BarrierReleased, GroupPlaced, ReasonNoted, SlotPlaced, TryVoided
from gangflow.xce.core.evolve_group import PREPARING_REASON
from gangflow.xce.core.judge import end_group
from gangflow.xce.core.policy import TAKEN_BACK, grow
from gangflow.xce.core.reach import on_usable_hosts, usable
from gangflow.xce.core.state import ClaimState, Group, GroupState, Next, Slot, SlotState, Task, TaskPhase
from gangflow.xce.core.teardown import change, now_slot, stop
from gangflow.xce.core.turn import Setback, SlotId, Turn
from gangflow.xce.renew import replace

G, S, P = GroupState, SlotState, TaskPhase


def fresh(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """The same places for a new incarnation: nothing is prepared or runs yet."""
    return tuple(replace(t, phase=P.PLACED, token="", pid=0, started_ms=0, message="", edge=0) for t in tasks)


def place(turn: Turn, group_id: str, key: SlotId, tasks: tuple[Task, ...]) -> None:
    """A new incarnation of the slot on these places."""
    group, slot = now_slot(turn, group_id, key)
    if slot.tasks and {t.host for t in slot.tasks} != {t.host for t in tasks}:
        turn.freed = True
    running = group.state in ACTIVE
    epoch = group.epoch if running else group.epoch + 1
    until = turn.now_ms + group.plan.barrier.timeout_ms if running else 0
    turn.emit(SlotPlaced(group_id, *key, slot.incarnation + 1, epoch, fresh(tasks), until))
    group, slot = now_slot(turn, group_id, key)
    want(turn, group, slot)


def grant_group(turn: Turn, group_id: str, grant: Grant) -> None:
    """A session placed all required slots of a waiting group."""
    for member, index, tasks in grant.slots:
        place(turn, group_id, (member, index), tasks)
    _placed(turn, group_id)


def replace_group(turn: Turn, group_id: str, placed: dict[SlotId, tuple[Task, ...]]) -> None:
    """A group restart has all its places again: those that it kept, and those that were granted anew."""
    for key, slot in list(turn.draft.groups[group_id].slots.items()):
        if key in placed:
            place(turn, group_id, key, placed[key])
        elif slot.tasks and slot.next is Next.RESTART and on_usable_hosts(turn, turn.draft.groups[group_id], slot):
            place(turn, group_id, key, slot.tasks)
        elif slot.next is Next.RESTART:
            change(turn, turn.draft.groups[group_id], slot, S.PENDING, freed=True)
    _placed(turn, group_id)


def _placed(turn: Turn, group_id: str) -> None:
    # What this batch was told of an earlier try is not about this one.
    turn.setbacks.pop(group_id, None)
    timeout = turn.draft.groups[group_id].plan.barrier.timeout_ms
    turn.emit(GroupPlaced(group_id, turn.now_ms + timeout))


def prepare(turn: Turn, group_id: str) -> None:
    """A group that is PREPARING: void the try, release the barrier, or go on waiting."""
    group = turn.draft.groups[group_id]
    setback = turn.setbacks.pop(group_id, None)
    if setback is None and turn.passed(group.until_ms) and not _complete(turn, group):
        setback = Setback(
            "barrier_timeout", f"not prepared after {lasting(group.plan.barrier.timeout_ms)}: {missing(turn, group)}"
        )
    if setback is not None:
        void(turn, group, setback)
    elif _complete(turn, group):
        _release(turn, group)
    elif group.plan.claims:
        _explain(turn, group)


def _explain(turn: Turn, group: Group) -> None:
    """The claim that a try waits for is named, and why its provider could not make it: it may wait for as long as it lasts."""
    waits = [unready_claim(turn, group, slot) for slot in group.slots.values() if slot.state in BEFORE_START]
    failed = next((claim for claim in waits if claim is not None and claim.state is ClaimState.FAILED), None)
    if failed is not None:
        text = f"placed; attempt {failed.attempt} to make claim {failed.id} failed ({failed.message}); it is tried again"
        reason = replace(PREPARING_REASON, text=text)
    elif (slow := next((claim for claim in waits if claim is not None), None)) is not None:
        if slow.attempt > 1 and slow.state is ClaimState.PROVISIONING:
            # Why it failed before says more.
            return
        what = slow.state.value if slow.state is ClaimState.LOST else f"made by {slow.plan.provider}"
        reason = replace(PREPARING_REASON, text=f"placed; waits for claim {slow.plan.name}, which is {what}")
    else:
        reason = PREPARING_REASON
    if group.reason != reason:
        turn.emit(ReasonNoted(group.id, reason))


def fit_to_start(turn: Turn, group: Group, slot: Slot) -> bool:
    """PREPARED by the present boot of every agent, on hosts that are UP and not excluded, all its claims READY."""
    if slot.state is not S.PREPARED or unready_claim(turn, group, slot) is not None:
        return False
    for task in slot.tasks:
        host = turn.host(task.host)
        if host is None or not usable(turn, group, task.host) or task.token != host.boot:
            return False
    return True


def _complete(turn: Turn, group: Group) -> bool:
    for slot in group.slots.values():
        if slot.state in BEFORE_START and not fit_to_start(turn, group, slot):
            return False
    for member in group.plan.members:
        if sum(1 for slot in slots_of(group, member) if slot.state is S.PREPARED) < required(group, member):
            return False
    return True


def _release(turn: Turn, group: Group) -> None:
    turn.emit(BarrierReleased(group.id, group.epoch + 1, turn.now_ms + group.plan.barrier.start_timeout_ms))
    for key, slot in list(turn.draft.groups[group.id].slots.items()):
        if slot.state is S.PREPARED:
            start_slot(turn, group.id, key)


def start_slot(turn: Turn, group_id: str, key: SlotId) -> None:
    """The slot may start; its ready timeout runs from here."""
    group, slot = now_slot(turn, group_id, key)
    member = group.plan.member(slot.member)
    run_until = turn.now_ms + member.runtime_limit_ms if member.runtime_limit_ms else 0
    change(turn, group, slot, S.STARTING, until_ms=turn.now_ms + member.ready_timeout_ms, run_until_ms=run_until)


def void(turn: Turn, group: Group, setback: Setback) -> None:
    """Nothing of this try starts; the group waits for the next one, or fails with the cause of the last."""
    last = setback.cause not in TAKEN_BACK and group.attempt + 1 >= group.plan.barrier.max_attempts
    if setback.permanent or last:
        end_group(turn, group.id, G.FAILED, setback.cause, setback.message)
        return
    note_void(turn, group, setback.cause, setback.message)
    for key, slot in list(turn.draft.groups[group.id].slots.items()):
        if slot.state in BEFORE_START:
            stop(turn, group.id, key, Next.PLACE)
    release_bound(turn, turn.draft.groups[group.id])


def note_void(turn: Turn, group: Group, cause: str, message: str) -> None:
    """The try counts, unless an operator took it back, and the next one waits for its backoff."""
    wait = grow(group.plan.barrier.backoff, group.attempt)
    attempt = group.attempt + (cause not in TAKEN_BACK)
    turn.emit(TryVoided(group.id, attempt, cause, message, turn.now_ms + wait))


def missing(turn: Turn, group: Group) -> str:
    """What a try that is PREPARING still waits for, in words."""
    waits = []
    for slot in group.slots.values():
        if slot.state not in BEFORE_START or fit_to_start(turn, group, slot):
            continue
        claim = unready_claim(turn, group, slot)
        if claim is not None:
            detail = f" ({claim.message})" if claim.message else ""
            waits.append(f"{slot.member}[{slot.index}]: claim {claim.plan.name} is {claim.state.value}{detail}")
            continue
        hosts = {task.host: None for task in slot.tasks if task.phase is P.PLACED}
        waits.append(f"{slot.member}[{slot.index}]: {', '.join(hosts) or 'its host'} did not prepare it")
    return few(waits)


def few(told: Sequence[str]) -> str:
    """The first four of what a message has to tell, and how many more there are."""
    return "; ".join(told[:4]) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")


def not_ready_message(turn: Turn, group: Group, slot: Slot) -> str:
    """Which address was tried and what was last heard there: `http://10.0.0.3:30001/health: connection refused`."""
    member = group.plan.member(slot.member)
    for task in slot.tasks:
        if task.phase in (P.READY, P.GONE):
            continue
        host = turn.host(task.host)
        address = host.facts.address if host is not None else task.host
        probe = member.ready
        port = dict(task.ports).get(probe.port, 0) if probe is not None else 0
        tried = f"{address}:{port}" if port else address
        if probe is not None and probe.kind == "http":
            tried = f"http://{tried}{probe.target}"
        error = task.message or ("its start was not acknowledged" if task.phase is P.PREPARED else "no answer")
        return f"tried {tried} on {task.host}: {error}"
    return "its tasks ended"
