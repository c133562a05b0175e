"""State → views: pure, and the only place that knows both."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from gangflow.xce.core.claim_ids import holds
from gangflow.xce.core.plan import ClaimPlan, MemberKind, MemberPlan
from gangflow.xce.core.state import (
    Change,
    Claim,
    Exit,
    Group,
    GroupState,
    Host,
    HostState,
    Reason,
    Slot,
    SlotState,
    State,
    Task,
)
from gangflow.xce.rest.rights import Stand, of_claim, users_of
from gangflow.xce.rest.schema import (
    ChangeView,
    ClaimView,
    ExitView,
    GpuView,
    GroupView,
    MemberView,
    QueueItem,
    ReasonView,
    SlotName,
    SlotView,
    TaskView,
)
from gangflow.xce.rest.sight import EVERYTHING, Sight

SLOT_WORDS: Mapping[SlotState, str] = {
    SlotState.PENDING: "PEND",
    SlotState.PLACED: "PEND",
    SlotState.PREPARED: "PEND",
    SlotState.STARTING: "RUN",
    SlotState.RUNNING: "RUN",
    SlotState.READY: "RUN",
    SlotState.DONE: "DONE",
    SlotState.EXIT: "EXIT",
    SlotState.LOST: "UNKWN",
    SlotState.BACKOFF: "PEND",
    SlotState.DRAINING: "RUN",
    SlotState.STOPPING: "RUN",
    SlotState.RELEASING: "PEND",
    SlotState.RETIRED: "EXIT",
}
"""LSF's word for each state; a live slot on a host that does not answer is UNKWN whatever its state."""

GROUP_WORDS: Mapping[GroupState, str] = {
    GroupState.PENDING: "PEND",
    GroupState.PREPARING: "PEND",
    GroupState.STARTING: "RUN",
    GroupState.RUNNING: "RUN",
    GroupState.DEGRADED: "RUN",
    GroupState.RESTARTING: "RUN",
    GroupState.SUSPENDING: "USUSP",
    GroupState.SUSPENDED: "PSUSP",
    GroupState.STOPPING: "RUN",
    GroupState.SUCCEEDED: "DONE",
    GroupState.FAILED: "EXIT",
    GroupState.CANCELLED: "EXIT",
}


def group_view(
    state: State, group: Group, seq: int, *, now_ms: int = 0, document: bool = True, sight: Sight = EVERYTHING
) -> GroupView:
    """One group with its members, slots and claims; `document` adds the spec as it was submitted.

    Who sees a part of it only gets its state and reason, and his own members, as if it had no others.
    """
    plan = group.plan
    whole, his = sight.whole(group), sight.members(group)
    return GroupView(
        seq=seq,
        id=group.id,
        name=plan.name,
        owner=plan.owner,
        state=group.state,
        lsf=GROUP_WORDS[group.state],
        epoch=group.epoch,
        attempt=group.attempt,
        cause=group.cause,
        message=sight.text(group.message) if whole else "",
        priority=plan.priority,
        reason=reason_view(sight.reason(group.reason)),
        submitted_ms=group.submitted_ms,
        since_ms=group.since_ms,
        until_ms=group.until_ms,
        first_running_ms=group.first_running_ms,
        ended_ms=group.ended_ms,
        satisfied_now=satisfied_now(group),
        satisfied_once=group.first_running_ms > 0,
        goal=group.goal,
        tolerated=_slot_names(group.tolerated, his),
        excluded=group.excluded if whole else (),
        stopped=tuple(member for member in group.stopped if member in his),
        changes=tuple(change_view(group, change, sight=sight) for change in group.changes),
        plain=plan.plain,
        coordinator_term=group.coordinator_term,
        now_ms=now_ms,
        document=_document(plan.document) if document and whole else None,
        members=tuple(member_view(state, group, member, sight) for member in plan.members if member.name in his),
        claims=tuple(claims_of(state, group, sight)),
    )


def change_view(group: Group, change: Change, seq: int = 0, *, sight: Sight = EVERYTHING) -> ChangeView:
    """A change of targets, of the members that the caller may look at."""
    his = sight.members(group)
    return ChangeView(
        seq=seq,
        group=group.id,
        id=change.id,
        state=change.state,
        targets={member: count for member, count in change.targets if member in his},
        before={member: count for member, count in change.before if member in his},
        ups=_slot_names(change.ups, his),
        downs=_slot_names(change.downs, his),
        accepted_ms=change.accepted_ms,
        until_ms=change.until_ms,
        ended_ms=change.ended_ms,
        message=sight.text(change.message),
    )


def _slot_names(keys: Iterable[tuple[str, int]], members: Container[str]) -> tuple[SlotName, ...]:
    return tuple(SlotName(member=member, index=index) for member, index in keys if member in members)


def satisfied_now(group: Group) -> bool:
    """Every job runs or is DONE (or its exit was tolerated) and every replica set has its minimum ready, at this moment."""
    return all(_satisfied(group, member) >= min(member.min_replicas, target_of(group, member)) for member in group.plan.members)


def target_of(group: Group, member: MemberPlan) -> int:
    """How many slots of a member are wanted now."""
    return dict(group.targets).get(member.name, member.replicas)


def slots_of(group: Group, member: str) -> list[Slot]:
    """The slots of a member, by index."""
    return [slot for slot in group.slots.values() if slot.member == member]


def _satisfied(group: Group, member: MemberPlan) -> int:
    if member.kind is MemberKind.JOB:
        enough = {SlotState.RUNNING, SlotState.READY, SlotState.DONE}
        return sum(slot.state in enough or slot.key in group.tolerated for slot in slots_of(group, member.name))
    return sum(slot.state is SlotState.READY for slot in slots_of(group, member.name))


def member_view(state: State, group: Group, member: MemberPlan, sight: Sight = EVERYTHING) -> MemberView:
    """A member with its slots."""
    slots = slots_of(group, member.name)
    return MemberView(
        id=f"{group.id}.{member.name}",
        name=member.name,
        kind=member.kind,
        owner=member.owner or group.plan.owner,
        profile=member.profile,
        container=member.container.image if member.container is not None else "",
        stopped=member.name in group.stopped,
        runtime_limit_ms=member.runtime_limit_ms,
        warn_before_ms=member.warn_before_ms,
        drain_ms=member.drain_ms,
        primary=member.primary,
        target=target_of(group, member),
        min=member.min_replicas,
        max=member.max_replicas,
        ready=_satisfied(group, member),
        restarts=sum(slot.restarts for slot in slots),
        slots=tuple(slot_view(state, group, slot, sight) for slot in slots),
    )


def slot_view(state: State, group: Group, slot: Slot, sight: Sight = EVERYTHING) -> SlotView:
    """A slot with its tasks and their addresses."""
    tasks = tuple(task_view(state, task) for task in slot.tasks)
    addresses: dict[str, tuple[str, ...]] = {}
    for task in tasks:
        for name, number in task.ports.items():
            addresses[name] = (*addresses.get(name, ()), f"{task.address}:{number}")
    return SlotView(
        id=f"{group.id}.{slot.member}[{slot.index}]",
        member=slot.member,
        index=slot.index,
        state=slot.state,
        lsf=slot_word(slot, state.hosts),
        incarnation=slot.incarnation,
        epoch=slot.epoch,
        hosts=tuple(dict.fromkeys(task.host for task in tasks)),
        tasks=tasks,
        addresses=addresses,
        since_ms=slot.since_ms,
        until_ms=slot.until_ms,
        ready_ms=slot.ready_ms,
        restarts=slot.restarts,
        reason=reason_view(sight.reason(slot.reason)),
        exit=exit_view(slot.exit),
        run_until_ms=slot.run_until_ms,
        warned=slot.warned,
        out=slot.out,
    )


def slot_word(slot: Slot, hosts: Mapping[str, Host]) -> str:
    """LSF's word for a slot: UNKWN where something may be running on a host that does not answer."""
    if slot.live:
        silent = {HostState.UNKNOWN, HostState.LOST}
        for task in slot.tasks:
            host = hosts.get(task.host)
            if host is None or host.state in silent:
                return "UNKWN"
    return SLOT_WORDS[slot.state]


def task_view(state: State, task: Task) -> TaskView:
    """A task; its token of preparation is nobody's business."""
    host = state.hosts.get(task.host)
    return TaskView(
        index=task.index,
        host=task.host,
        address=host.facts.address if host is not None else "",
        phase=task.phase,
        pid=task.pid,
        ports=dict(task.ports),
        gpus=tuple(GpuView(device=device, milli=milli) for device, milli in task.gpus),
        counters=dict(task.counters),
        started_ms=task.started_ms,
    )


def reason_view(reason: Reason | None) -> ReasonView | None:
    """A pend reason, if there is one."""
    if reason is None:
        return None
    return ReasonView(
        code=reason.code,
        text=reason.text,
        shortfall=dict(reason.shortfall),
        domain=reason.domain,
        blocker=reason.blocker,
        excluded=dict(reason.excluded),
    )


def exit_view(exit: Exit | None) -> ExitView | None:
    """How the last incarnation ended, if one did."""
    if exit is None:
        return None
    return ExitView(
        cause=exit.cause,
        incarnation=exit.incarnation,
        at_ms=exit.at_ms,
        code=exit.code,
        signal=exit.signal,
        message=exit.message,
        stderr_tail=exit.stderr_tail,
    )


def claims_of(state: State, group: Group, sight: Sight = EVERYTHING) -> Iterator[ClaimView]:
    """A group's claims: those that are made for it, and the standalone ones that it uses, by the names that it gives them."""
    caller = sight.caller
    for claim in state.claims.values():
        if claim.group == group.id and of_claim(caller, claim, state) is not Stand.NOBODY:
            yield claim_view(state, claim, sight=sight)
    whole, his = sight.whole(group), sight.members(group)
    for plan in group.plan.claims:
        used = state.claims.get(plan.uses) if plan.uses else None
        if used is not None and (whole or plan.scope in his):
            yield claim_view(state, used, sight=sight, use=plan)


def claim_view(
    state: State, claim: Claim, seq: int = 0, *, sight: Sight = EVERYTHING, use: ClaimPlan | None = None
) -> ClaimView:
    """A claim; `use` is how a group uses it."""
    group = state.groups.get(claim.group)
    users = () if claim.group else users_of(state, claim.id)
    return ClaimView(
        seq=seq,
        id=claim.id,
        group=claim.group,
        name=claim.plan.name if use is None else use.name,
        standalone=not claim.group,
        owner=claim.owner if group is None else group.plan.owner,
        access=use.access if use is not None else "",
        holders=tuple(user.id for user in users if holds(user) and sight.sees(user)),
        provider=claim.plan.provider,
        state=claim.state,
        path=claim.path,
        host=claim.host,
        member=claim.member,
        index=claim.index,
        retain=claim.plan.retain,
        attempt=claim.attempt - claim.former,
        losses=claim.losses,
        since_ms=claim.since_ms,
        until_ms=claim.until_ms,
        message=claim.message,
    )


def queue_items(groups: Iterable[Group], sight: Sight = EVERYTHING) -> tuple[QueueItem, ...]:
    """Groups that wait for a place, in the order in which a session tries them; places count those that are not shown, too."""
    waiting = sorted((group for group in groups if group.state is GroupState.PENDING), key=turn)
    return tuple(
        QueueItem(
            position=position,
            id=group.id,
            name=group.plan.name,
            owner=group.plan.owner,
            priority=group.plan.priority,
            submitted_ms=group.submitted_ms,
            reason=reason_view(sight.reason(group.reason)),
        )
        for position, group in enumerate(waiting, start=1)
        if sight.sees(group)
    )


def turn(group: Group) -> tuple[int, int, int, str]:
    """The key of the queue's order: priority, then submission, then id (`g9` before `g10`)."""
    return (-group.plan.priority, group.submitted_ms, len(group.id), group.id)


def _document(text: str) -> dict[str, Any]:
    document = json.loads(text) if text else {}
    return document if isinstance(document, dict) else {}
