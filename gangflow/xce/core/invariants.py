"""The invariants of design 6.1, as far as a state or a step can show them. Checked after every step of a test, and on demand.

An empty list means that all hold; each entry begins with the invariant's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gangflow.xce.core import events as ev
from gangflow.xce.core.counts import ACTIVE, BEFORE_START, RUNS, at_rest, gone, required, satisfied, slots_of
from gangflow.xce.core.deadlines import CLAIM_TIMED, REPORTED, REPORTED_GROUP, TIMED
from gangflow.xce.core.evolve import apply, apply_all
from gangflow.xce.core.invariants_capacity import capacity
from gangflow.xce.core.invariants_changes import changes, targets_kept
from gangflow.xce.core.invariants_claims import claims, unready, without_claims
from gangflow.xce.core.plan import MemberKind
from gangflow.xce.core.policy import recent
from gangflow.xce.core.runtime_limit import limit_of
from gangflow.xce.core.state import (
    ClaimState,
    Group,
    GroupState,
    HostState,
    Next,
    PendCode,
    Reason,
    Slot,
    SlotState,
    State,
    TaskPhase,
)

G, S, P = GroupState, SlotState, TaskPhase
NOTHING_RUNS = frozenset({S.PENDING, S.BACKOFF, S.EXIT, S.DONE, S.RETIRED})
FREE = frozenset({S.DONE, S.RETIRED, S.EXIT})


def check(state: State) -> list[str]:
    """What is wrong with this state, by invariant."""
    found = [*capacity(state)]
    for group in state.groups.values():
        found.extend(f"{fault} [{group.id} {group.state.value}]" for fault in _group(state, group))
    found.extend(_cluster(state))
    found.extend(changes(state))
    return found


def _group(state: State, group: Group) -> Iterator[str]:
    yield from _states(group)
    for slot in group.slots.values():
        for fault in _slot(state, group, slot):
            yield f"{fault} ({slot.member}[{slot.index}] {slot.state.value})"
    yield from _deadlines(state, group)
    yield from _reasons(group)
    yield from _budgets(state, group)
    yield from _ended(state, group)


def _states(group: Group) -> Iterator[str]:
    slots = list(group.slots.values())
    if group.state is G.PREPARING:
        for member in group.plan.members:
            placed = sum(1 for slot in slots_of(group, member) if slot.state in BEFORE_START)
            if placed < required(group, member):
                yield f"I2 {placed} of {required(group, member)} {member.name} are placed"
    if group.state is G.SUSPENDED and not at_rest(group):
        yield "I2 suspended, and something is held"
    if group.state is G.PENDING and any(slot.tasks and slot.state is not S.RELEASING for slot in slots):
        yield "I2 waits for its start, and holds something that is not on its way back"
    for slot in slots:
        if slot.member in group.stopped and (slot.state in RUNS or slot.state in BEFORE_START or slot.state is S.PENDING):
            yield f"I15 {slot.member} was stopped, and its slot {slot.index} is {slot.state.value}"
    if group.state is G.RUNNING and not satisfied(group):
        yield "I2 RUNNING, and a minimum is broken"
    if group.state is G.DEGRADED and satisfied(group):
        yield "I2 DEGRADED, and every minimum holds"
    if (group.goal is not None) != (group.state is G.STOPPING or group.state.terminal):
        yield f"I15 goal {group.goal}"
    if group.state.terminal and any(slot.tasks or slot.live for slot in slots):
        yield "I5 ended, and something is held"


def _slot(state: State, group: Group, slot: Slot) -> Iterator[str]:
    if slot.state in RUNS and (group.state not in ACTIVE or slot.epoch != group.epoch):
        yield f"I1 runs in epoch {slot.epoch} of {group.epoch}"
    if slot.state in BEFORE_START and group.state is not G.PREPARING and group.state not in ACTIVE:
        yield "I2 placed for a group that is not starting"
    if slot.state in NOTHING_RUNS and not gone(slot):
        yield "I5 counts as gone, and a task is not"
    if (slot.live or slot.state in BEFORE_START) and gone(slot):
        yield "I15 counts as held, and every task is gone"
    # What was scaled away keeps its allocation until the change that it is part of takes it; see the invariants of changes.
    if slot.state in FREE and slot.tasks and not (slot.state is S.RETIRED and slot.out):
        yield "I6 over, and holds capacity"
    if slot.state in (S.STARTING, S.RUNNING) and not slot.until_ms:
        yield "I6 is waited for without a limit"
    if (slot.state is S.READY and not slot.ready_ms) or (slot.state in BEFORE_START and slot.ready_ms):
        yield f"I15 first ready at {slot.ready_ms}"
    if slot.state is S.EXIT and not (group.state is G.STOPPING or group.state.terminal):
        yield "I15 nothing follows its exit"
    if slot.state is S.PENDING and slot.tasks and not (slot.until_ms or slot.next in (Next.RESTART, Next.SCALE)):
        yield "I6 waits, and holds capacity without a limit"
    if slot.state is S.DONE and (slot.exit is None or slot.exit.cause is not None or slot.exit.incarnation != slot.incarnation):
        yield f"I11 finished, with the exit {slot.exit}"
    if slot.state is S.PREPARED and any(task.phase is not P.PREPARED for task in slot.tasks):
        yield "I1 a task is not prepared"
    lost = [t.host for t in slot.tasks if t.phase is not P.GONE and state.hosts[t.host].state is HostState.FENCED]
    if lost:
        yield f"I6 its tasks on the fenced {lost[0]} are not gone"
    if slot.state in RUNS or slot.state in BEFORE_START:
        for task in slot.tasks:
            if task.phase is not P.GONE and state.hosts[task.host].state is HostState.LOST:
                yield f"I4 counts as running on the lost {task.host}"


def _deadlines(state: State, group: Group) -> Iterator[str]:
    now = state.now_ms
    barrier = group.plan.barrier
    longest = {G.PREPARING: barrier.timeout_ms, G.STARTING: barrier.start_timeout_ms}.get(group.state)
    if longest is not None and not group.since_ms <= group.until_ms <= group.since_ms + longest:
        yield f"I6 {group.state.value} since {group.since_ms} until {group.until_ms}"
    grace = state.grace_until_ms if group.state in REPORTED_GROUP else 0
    if group.until_ms and max(group.until_ms, grace) <= now and group.state is not G.STOPPING:
        yield f"I6 its deadline {group.until_ms} passed at {now}"
    for slot in group.slots.values():
        grace = state.grace_until_ms if slot.state in REPORTED else 0
        if slot.until_ms and max(slot.until_ms, grace) <= now and slot.state in TIMED:
            yield f"I6 the deadline {slot.until_ms} of {slot.member}[{slot.index}] passed at {now}"
        if group.state in ACTIVE and limit_of(slot) and max(limit_of(slot), state.grace_until_ms) <= now:
            yield f"I6 {slot.member}[{slot.index}] ran beyond its runtime limit, {limit_of(slot)}"
        longest = max((rule.backoff.max_ms for rule in group.plan.rules), default=0)
        if slot.state is S.BACKOFF and slot.until_ms > now + longest:
            yield f"I6 {slot.member}[{slot.index}] backs off for {slot.until_ms - now} ms"
        if slot.state is S.PENDING and slot.until_ms > now + group.plan.recovery_timeout_ms:
            yield f"I6 {slot.member}[{slot.index}] has a first claim for {slot.until_ms - now} ms"
    for claim in state.claims.values():
        if claim.group == group.id and claim.state in CLAIM_TIMED and claim.until_ms and claim.until_ms <= now:
            yield f"I6 the deadline {claim.until_ms} of claim {claim.id} passed at {now}"


def _reasons(group: Group) -> Iterator[str]:
    if group.state is G.PENDING and group.reason is None:
        yield "I9 waits without a reason"
    if group.state is G.SUSPENDED and (group.reason is None or group.reason.code is not PendCode.SUSPENDED):
        yield f"I9 suspended, and its reason is {group.reason}"
    if group.state.terminal and group.reason is not None:
        yield "I9 ended, and waits"
    reasons: list[Reason | None] = [group.reason]
    for slot in group.slots.values():
        reasons.append(slot.reason)
        if slot.state is S.PENDING and group.state not in ACTIVE and slot.reason is not None:
            yield f"I9 {slot.member}[{slot.index}] has a reason of its own, and its group waits as a whole"
        if slot.state in (S.PENDING, S.BACKOFF) and group.state in ACTIVE and slot.reason is None:
            yield f"I9 {slot.member}[{slot.index}] is {slot.state.value} without a reason"
    for reason in reasons:
        if reason is not None and reason.code is PendCode.WAITING_CAPACITY and not any(n > 0 for _, n in reason.shortfall):
            yield f"I9 capacity is short, but of nothing: {reason.text}"


def _budgets(state: State, group: Group) -> Iterator[str]:
    for use in group.budgets:
        rule = group.plan.rules[use.rule]
        counted = len(recent(rule, use, state.now_ms))
        if rule.max_restarts >= 0 and counted > rule.max_restarts:
            yield f"I10 rule {use.rule} paid {counted} restarts of {rule.max_restarts}"


def _ended(state: State, group: Group) -> Iterator[str]:
    if not group.state.terminal:
        return
    if group.state is G.SUCCEEDED:
        jobs = [m for m in group.plan.members if m.kind is MemberKind.JOB and m.primary]
        for member in jobs:
            slot = group.slots[member.name, 0]
            if slot.state is not S.DONE and slot.key not in group.tolerated and member.name not in group.stopped:
                yield f"I11 SUCCEEDED, and {member.name} is {slot.state.value}"
        if not any(group.slots[member.name, 0].state is S.DONE for member in jobs):
            yield "I11 SUCCEEDED, and no job is DONE"
    if group.state is G.FAILED and not group.cause:
        yield "I11 FAILED without a cause"
    for claim in state.claims.values():
        if claim.group == group.id and claim.state not in (ClaimState.RELEASING, ClaimState.GONE):
            yield f"I5 ended, and claim {claim.id} is {claim.state.value}"


def _cluster(state: State) -> Iterator[str]:
    for name, host in state.hosts.items():
        if host.state is HostState.LOST and host.until_ms <= state.now_ms:
            yield f"I6 {name} should be FENCED since {host.until_ms}"
        for key in host.superseded:
            group = state.groups.get(key.group)
            slot = group.slots.get((key.member, key.index)) if group is not None else None
            if slot is None or slot.incarnation != key.incarnation or not 0 <= key.task < len(slot.tasks):
                continue
            if slot.tasks[key.task].phase is not P.GONE and slot.tasks[key.task].host == name:
                yield f"I4 {key} is superseded, and the newest"
    yield from claims(state)


# --- one step -------------------------------------------------------------------------------------------------------------


def check_step(before: State, events: Sequence[ev.Event], after: State) -> list[str]:
    """What is wrong with a step: its events must give the state after, and each must be allowed where it happened."""
    found: list[str] = []
    now = after.now_ms
    state = before
    for event in events:
        found.extend(_event(state, event))
        older, state = state, apply(state, event, now)
        found.extend(targets_kept(older, event, state))
    if state != after:
        found.append("I8 the events do not give the state")
    if apply_all(before, events, now) != after:
        found.append("I14 the events, applied at once, do not give the state")
    if not events and after is not before:
        found.append("I14 nothing happened, and the state is another")
    return found


def _event(state: State, event: ev.Event) -> Iterator[str]:
    if isinstance(event, ev.BarrierReleased):
        yield from _release(state, event)
    elif isinstance(event, ev.SlotPlaced):
        old = state.groups[event.group].slots[event.member, event.index]
        if event.incarnation != old.incarnation + 1:
            yield f"I4 incarnation {event.incarnation} after {old.incarnation}"
        if old.live or not gone(old):
            yield f"I4 {event.member}[{event.index}] is placed while {old.state.value}"
        for task in event.tasks:
            if state.hosts[task.host].state is not HostState.UP:
                yield f"I3 placed on {task.host}, which is {state.hosts[task.host].state.value}"
    elif isinstance(event, ev.SlotChanged):
        slot = state.groups[event.group].slots[event.member, event.index]
        if event.freed and not gone(slot):
            yield f"I5 {event.member}[{event.index}] is freed before it is gone"
        if event.state is S.STARTING:
            yield from _start(state, event, slot)
    elif isinstance(event, ev.HostExcluded):
        yield from _exclusion(state.groups[event.group], event.host)
    elif isinstance(event, ev.SlotExited):
        slot = state.groups[event.group].slots[event.member, event.index]
        if not gone(slot):
            yield f"I5 {event.member}[{event.index}] exited before it is gone"


def _exclusion(group: Group, host: str) -> Iterator[str]:
    if len(group.excluded) >= group.plan.exclusion.at_most:
        yield f"I6 {host} is excluded beside {', '.join(group.excluded)}"
    slots = [slot for slot in group.slots.values() if slot.state is not S.RETIRED and not slot.out]
    elsewhere = [s for s in slots if s.state in (S.READY, S.DONE) and host not in {task.host for task in s.tasks}]
    if 2 * len(elsewhere) <= len(slots):
        yield f"I6 {host} is excluded with {len(elsewhere)} of {len(slots)} slots up elsewhere"


def _release(state: State, event: ev.BarrierReleased) -> Iterator[str]:
    group = state.groups[event.group]
    if group.state is not G.PREPARING or event.epoch != group.epoch + 1:
        yield f"I1 epoch {event.epoch} is released in {group.state.value} of {group.epoch}"
    for member in group.plan.members:
        ready = sum(1 for slot in slots_of(group, member) if slot.state is S.PREPARED)
        if ready < required(group, member):
            yield f"I1 released with {ready} of {required(group, member)} {member.name} prepared"
    for slot in group.slots.values():
        if slot.state is S.PLACED:
            yield f"I1 released while {slot.member}[{slot.index}] is PLACED"
        for task in slot.tasks if slot.state is S.PREPARED else ():
            host = state.hosts[task.host]
            if host.state is not HostState.UP or task.token != host.boot or task.host in group.excluded:
                yield f"I1 released with {slot.member}[{slot.index}] on {task.host} ({host.state.value}, token {task.token})"
    yield from without_claims(state, group)
    for slot in group.slots.values():
        if slot.live:
            yield f"I4 epoch {event.epoch} is released while {slot.member}[{slot.index}] is {slot.state.value}"


def _start(state: State, event: ev.SlotChanged, slot: Slot) -> Iterator[str]:
    group = state.groups[event.group]
    if group.state not in ACTIVE or slot.epoch != group.epoch:
        yield f"I1 {slot.member}[{slot.index}] of epoch {slot.epoch} starts in {group.state.value} of {group.epoch}"
    yield from (f"I1 {slot.member}[{slot.index}] starts with {fault}" for fault in unready(state, group, slot))
