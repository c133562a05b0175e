"""How events change a group."""

from __future__ import annotations

from gangflow.xce.core import events as ev
from gangflow.xce.core.draft import Draft
from gangflow.xce.core.lifecycle import InvalidTransition, check_edge
from gangflow.xce.core.limits import CHANGES_KEPT
from gangflow.xce.core.state import Blame, Group, GroupState, KeyValue, PendCode, Reason, Slot, SlotState
from gangflow.xce.renew import replace

WAITS_AS_A_WHOLE = frozenset(
    {GroupState.RESTARTING, GroupState.PENDING, GroupState.SUSPENDING, GroupState.SUSPENDED, GroupState.STOPPING}
)
PREPARING_REASON = Reason(PendCode.PREPARING, "placed; waits for its claims and for its hosts to prepare")


def submitted(draft: Draft, event: ev.GroupSubmitted) -> None:
    """All slots are PENDING."""
    plan = event.plan
    slots = {
        (member.name, index): Slot(member=member.name, index=index, since_ms=draft.now_ms)
        for member in plan.members
        for index in range(member.replicas)
    }
    draft.put_group(
        Group(
            id=event.group,
            plan=plan,
            submitted_ms=draft.now_ms,
            since_ms=draft.now_ms,
            slots=slots,
            targets=tuple((member.name, member.replicas) for member in plan.members),
            extents=tuple((member.name, member.replicas) for member in plan.members),
        )
    )
    draft.set(next_group=max(draft.next_group, number(event.group) + 1))


def number(group_id: str) -> int:
    """12 of `g12`; 0 for what is not a group's id."""
    return int(group_id[1:]) if group_id[:1] == "g" and group_id[1:].isdecimal() else 0


def move(draft: Draft, group: Group, state: GroupState, until_ms: int) -> Group:
    """The group in its next state, or InvalidTransition."""
    check_edge("group", group.id, group.state, state)
    since = group.since_ms if state is group.state else draft.now_ms
    return replace(group, state=state, since_ms=since, until_ms=until_ms)


def placed(draft: Draft, event: ev.GroupPlaced) -> None:
    """The group is PREPARING."""
    group, _ = draft.open(event.group)
    group = move(draft, group, GroupState.PREPARING, event.until_ms)
    draft.put_group(replace(group, reason=PREPARING_REASON))


def released(draft: Draft, event: ev.BarrierReleased) -> None:
    """The group is STARTING, in its next epoch."""
    group, _ = draft.open(event.group)
    group = move(draft, group, GroupState.STARTING, event.until_ms)
    draft.put_group(replace(group, epoch=event.epoch, reason=None))


def voided(draft: Draft, event: ev.TryVoided) -> None:
    """The group is PENDING until its backoff is over."""
    group, _ = draft.open(event.group)
    group = move(draft, group, GroupState.PENDING, event.until_ms)
    counts = event.attempt > group.attempt
    what = f"try {event.attempt} of {group.plan.barrier.max_attempts} failed" if counts else "the try was taken back"
    reason = Reason(PendCode.BACKOFF, f"{what}: {event.message or event.cause}")
    draft.put_group(
        replace(group, attempt=event.attempt, cause=event.cause, message=event.message, reason=reason, below_floor_ms=())
    )


def changed(draft: Draft, event: ev.GroupChanged) -> None:
    """Any other edge."""
    group, slots = draft.open(event.group)
    if group.state is not event.before:
        raise InvalidTransition("group", group.id, group.state, event.state)
    check_edge("group", group.id, group.state, event.state)
    fields: dict[str, object] = {}
    if event.state is GroupState.RUNNING:
        # Satisfied (again): what went wrong before is over, and earlier tries do not count against later ones.
        fields = {"first_running_ms": group.first_running_ms or draft.now_ms, "attempt": 0, "cause": "", "message": ""}
    elif event.state is not event.before and event.state in WAITS_AS_A_WHOLE:
        fields = {"below_floor_ms": (), "reason": None}
        for key, slot in slots.items():
            # From here on the group waits as a whole: a reason of its own would say that its slot had been asked for already.
            if slot.state is SlotState.PENDING and slot.reason is not None:
                slots[key] = replace(slot, reason=None)
    if event.before is GroupState.SUSPENDED and event.state is GroupState.PENDING:
        # Resumed: why it was suspended, and earlier tries, do not count any more.
        fields |= {"attempt": 0, "cause": "", "message": ""}
    if event.state is GroupState.SUSPENDED:
        why = event.cause or group.cause or "user"
        said = event.message or group.message
        text = f"suspended ({why}{f': {said}' if said else ''}); waits for a resume"
        fields |= {"reason": Reason(PendCode.SUSPENDED, text)}
    if event.state.terminal:
        fields = {"ended_ms": draft.now_ms, "reason": None, "goal": event.state}
    if event.cause or event.message:
        fields |= {"cause": event.cause, "message": event.message}
    if event.goal is not None:
        fields["goal"] = event.goal
    since = group.since_ms if event.state is group.state else draft.now_ms
    draft.put_group(replace(group, state=event.state, since_ms=since, until_ms=event.until_ms, **fields))


def reason_noted(draft: Draft, event: ev.ReasonNoted) -> None:
    """A group or a slot has another reason to wait."""
    group, slots = draft.open(event.group)
    if event.member:
        slots[event.member, event.index] = replace(slots[event.member, event.index], reason=event.reason)
    else:
        draft.put_group(replace(group, reason=event.reason))


def budget_spent(draft: Draft, event: ev.BudgetSpent) -> None:
    """The budget is as the event says."""
    group, _ = draft.open(event.group)
    use = event.use
    key = (use.rule, use.member, use.index)
    kept = [old for old in group.budgets if (old.rule, old.member, old.index) != key]
    draft.put_group(replace(group, budgets=(*kept, use)))


def floor_crossed(draft: Draft, event: ev.FloorCrossed) -> None:
    """Since when the member is below its floor."""
    group, _ = draft.open(event.group)
    kept = tuple(entry for entry in group.below_floor_ms if entry[0] != event.member)
    below = (*kept, (event.member, event.since_ms)) if event.since_ms else kept
    draft.put_group(replace(group, below_floor_ms=below))


def host_excluded(draft: Draft, event: ev.HostExcluded) -> None:
    """One more host is excluded."""
    group, _ = draft.open(event.group)
    if event.host not in group.excluded:
        draft.put_group(replace(group, excluded=(*group.excluded, event.host)))


def host_readmitted(draft: Draft, event: ev.HostReadmitted) -> None:
    """It is excluded no more, and nothing is held against it."""
    group, _ = draft.open(event.group)
    excluded = tuple(host for host in group.excluded if host != event.host)
    blames = tuple(blame for blame in group.blames if blame.host != event.host)
    draft.put_group(replace(group, excluded=excluded, blames=blames))


def host_blamed(draft: Draft, event: ev.HostBlamed) -> None:
    """What counts against the host is as the event says."""
    group, _ = draft.open(event.group)
    kept = tuple(blame for blame in group.blames if blame.host != event.blame.host)
    new: tuple[Blame, ...] = (event.blame,) if event.blame.at_ms else ()
    draft.put_group(replace(group, blames=(*kept, *new)))


def targets_set(draft: Draft, event: ev.TargetsSet) -> None:
    """Other targets; slots come in (new ones are PENDING) or go out."""
    group, slots = draft.open(event.group)
    extents = dict(group.extents)
    for key in event.added:
        old = slots.get(key)
        slots[key] = replace(old, out=False) if old is not None else Slot(member=key[0], index=key[1], since_ms=draft.now_ms)
        extents[key[0]] = max(extents.get(key[0], 0), key[1] + 1)
    for key in event.removed:
        slots[key] = replace(slots[key], out=True)
    if any(extents[member] != extent for member, extent in group.extents):
        order = {member.name: number for number, member in enumerate(group.plan.members)}
        ordered = dict(sorted(slots.items(), key=lambda item: (order[item[0][0]], item[0][1])))
        slots.clear()
        slots.update(ordered)
    draft.put_group(replace(group, targets=event.targets, extents=tuple(extents.items())))


def change_moved(draft: Draft, event: ev.ChangeMoved) -> None:
    """The change is as the event says; the newest few are kept."""
    group, _ = draft.open(event.group)
    change = event.change
    old = next((one for one in group.changes if one.id == change.id), None)
    if old is None:
        changes = (*group.changes, change)[-CHANGES_KEPT:]
        draft.put_group(replace(group, changes=changes, next_change=group.next_change + 1))
        return
    if old.state is not change.state:
        check_edge("change", f"{group.id}/{change.id}", old.state, change.state)
    draft.put_group(replace(group, changes=tuple(change if one is old else one for one in group.changes)))


def member_stopped(draft: Draft, event: ev.MemberStopped) -> None:
    """Whether the member is wanted."""
    group, _ = draft.open(event.group)
    stopped = tuple(name for name in group.stopped if name != event.member)
    draft.put_group(replace(group, stopped=(*stopped, event.member) if event.stopped else stopped))


def failure_judged(draft: Draft, event: ev.FailureJudged) -> None:
    """A tolerated exit is noted; any other judgement changes nothing by itself."""
    key = (event.member, event.index)
    group, _ = draft.open(event.group)
    if event.action == "tolerate" and key not in group.tolerated:
        draft.put_group(replace(group, tolerated=(*group.tolerated, key)))


def coordinator_started(draft: Draft, event: ev.CoordinatorStarted) -> None:
    """The newest coordinator's term."""
    group, _ = draft.open(event.group)
    draft.put_group(replace(group, coordinator_term=event.term))


def value_written(draft: Draft, event: ev.ValueWritten) -> None:
    """The value and its version."""
    draft.own("values")[event.group, event.name] = KeyValue(event.value, event.version, event.term)


def forgotten(draft: Draft, event: ev.GroupForgotten) -> None:
    """The group is gone, with its claims and values."""
    draft.drop_group(event.group)
    claims = [claim.id for claim in draft.claims.values() if claim.group == event.group]
    values = [key for key in draft.values if key[0] == event.group]
    for name, gone in (("claims", claims), ("values", values)):
        if gone:
            mine = draft.own(name)
            for key in gone:
                del mine[key]
