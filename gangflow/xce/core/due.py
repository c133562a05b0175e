"""`effects_due(state)`: every effect that is still owed. There is no queue of effects beside the state that could be lost.

An effect is first named (`Owed`, cheap to compare) and only made when it is new: a task's environment is a long document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from gangflow.xce.core.claim_ids import bound_to, claim_id, claims_for, claims_of, made_for
from gangflow.xce.core.counts import RUNS
from gangflow.xce.core.effects import Effect, Prepare, Provision, Release, Start, Stop, Unprepare, Warn
from gangflow.xce.core.launch import Picture, launch, picture
from gangflow.xce.core.limits import STOP_GRACE_MS
from gangflow.xce.core.state import (
    Claim,
    ClaimState,
    Group,
    Host,
    HostState,
    Slot,
    SlotState,
    State,
    Task,
    TaskKey,
    TaskPhase,
)

S, P = SlotState, TaskPhase
REACHABLE = frozenset({HostState.UP, HostState.UNKNOWN, HostState.CLOSED})


class Kind(IntEnum):
    """Of effects, in the order in which they are named."""

    PREPARE = 0
    UNPREPARE = 1
    START = 2
    STOP = 3
    PROVISION = 4
    RELEASE = 5
    STOP_SUPERSEDED = 6
    WARN = 7


@dataclass(frozen=True, slots=True, order=True)
class Owed:
    """The name of one effect; equal names are the same effect."""

    kind: Kind
    group: str
    member: str = ""
    index: int = -1
    incarnation: int = 0
    task: int = 0
    epoch: int = 0
    host: str = ""
    detail: str = ""
    """A preparation's token, or a claim's id."""
    attempt: int = 0

    @property
    def key(self) -> TaskKey:
        return TaskKey(self.group, self.epoch, self.member, self.index, self.incarnation, self.task)


KIND_OF: Mapping[SlotState, Kind] = {
    S.PLACED: Kind.PREPARE,
    S.STARTING: Kind.START,
    S.RELEASING: Kind.UNPREPARE,
    S.STOPPING: Kind.STOP,
    S.LOST: Kind.STOP,
}
PHASES: Mapping[Kind, tuple[TaskPhase, ...]] = {
    Kind.PREPARE: (P.PLACED,),
    Kind.START: (P.PREPARED,),
    Kind.UNPREPARE: (P.PLACED, P.PREPARED),
    Kind.STOP: (P.PLACED, P.PREPARED, P.RUNNING, P.READY),
}


def owed_by_group(state: State, group: Group) -> Iterator[Owed]:
    """What is owed to the group's tasks and claims."""
    for slot in group.slots.values():
        yield from _owed_by_slot(state, group, slot)
    for claim in claims_of(state.claims, group) if group.plan.claims else ():
        yield from owed_to_claim(claim)


def _owed_by_slot(state: State, group: Group, slot: Slot) -> Iterator[Owed]:
    kind = KIND_OF.get(slot.state)
    if kind is not None and slot.tasks:
        yield from _owed_to_slot(state, group, slot, kind)
    if slot.to_warn and slot.state in RUNS:
        yield from _warnings(state, group, slot)


def _owed_by_others(state: State, other: State, groups: Iterable[str]) -> dict[Owed, None]:
    """What is owed to slots of these groups that are not the same in the other state: all that differs, if hosts and claims
    are the same."""
    owed: dict[Owed, None] = {}
    for group_id in groups:
        group = state.groups.get(group_id)
        was = other.groups.get(group_id)
        if group is None or group is was:
            continue
        known = was.slots if was is not None else {}
        for key, slot in group.slots.items():
            if known.get(key) is not slot:
                for one in _owed_by_slot(state, group, slot):
                    owed[one] = None
    return owed


def _owed_to_slot(state: State, group: Group, slot: Slot, kind: Kind) -> Iterator[Owed]:
    if kind is Kind.PREPARE and not _claims_ready(state, group, slot):
        # A task's environment names its claims: it is complete when they are READY.
        return
    phases = PHASES[kind]
    for task in slot.tasks:
        if task.phase not in phases:
            continue
        host = state.hosts.get(task.host)
        if host is None or host.state not in REACHABLE or (kind is Kind.PREPARE and host.superseded):
            # A host that still has to stop something superseded gets nothing new: what that holds is not free yet.
            continue
        yield Owed(
            kind,
            group.id,
            slot.member,
            slot.index,
            slot.incarnation,
            task.index,
            slot.epoch,
            task.host,
            detail=task.token if kind is Kind.START else host.boot if kind is Kind.PREPARE else "",
        )


def _warnings(state: State, group: Group, slot: Slot) -> Iterator[Owed]:
    """To tasks whose process runs and which were not told yet that their runtime limit is near."""
    for index in slot.to_warn:
        task = slot.tasks[index]
        host = state.hosts.get(task.host)
        if task.phase in (P.RUNNING, P.READY) and host is not None and host.state in REACHABLE:
            yield Owed(Kind.WARN, group.id, slot.member, slot.index, slot.incarnation, index, slot.epoch, task.host)


def _claims_ready(state: State, group: Group, slot: Slot) -> bool:
    return not group.plan.claims or all(
        claim is not None and claim.state is ClaimState.READY for _, claim in claims_for(state.claims, group, slot)
    )


def owed_to_claim(claim: Claim) -> Iterator[Owed]:
    """What is owed to one claim."""
    if claim.state is ClaimState.PROVISIONING:
        yield Owed(Kind.PROVISION, claim.group, detail=claim.id, attempt=claim.attempt)
    elif claim.state is ClaimState.RELEASING:
        yield Owed(Kind.RELEASE, claim.group, detail=claim.id, attempt=claim.attempt)


def owed_by_host(host: Host) -> Iterator[Owed]:
    """Superseded incarnations that must be stopped there, once it answers."""
    if host.state in REACHABLE:
        for key in host.superseded:
            yield Owed(
                Kind.STOP_SUPERSEDED, key.group, key.member, key.index, key.incarnation, key.task, key.epoch, host.facts.name
            )


def make_all(state: State, owed: Iterable[Owed]) -> tuple[Effect, ...]:
    """The whole effects of these names; what tasks of one group share is made once."""
    pictures: dict[str, Picture] = {}
    return tuple(make(state, one, pictures) for one in owed)


def make(state: State, owed: Owed, pictures: dict[str, Picture]) -> Effect:
    """The whole effect of that name."""
    if owed.kind is Kind.PROVISION or owed.kind is Kind.RELEASE:
        return _claim_effect(state, state.claims[owed.detail], owed.kind)
    group = state.groups.get(owed.group)
    if owed.kind is Kind.STOP_SUPERSEDED or group is None:
        known = group is not None and any(member.name == owed.member for member in group.plan.members)
        grace = group.plan.member(owed.member).grace_ms if group is not None and known else STOP_GRACE_MS
        return Stop(owed.key, owed.host, grace)
    if owed.kind is Kind.STOP:
        return Stop(owed.key, owed.host, group.plan.member(owed.member).grace_ms)
    if owed.kind is Kind.WARN:
        return Warn(owed.key, owed.host, group.plan.member(owed.member).warn_signal)
    if owed.kind is Kind.START:
        return Start(owed.key, owed.host, owed.detail)
    if owed.kind is Kind.UNPREPARE:
        return Unprepare(owed.key, owed.host)
    slot = group.slots[owed.member, owed.index]
    seen = pictures.get(group.id)
    if seen is None:
        seen = pictures[group.id] = picture(state, group)
    return Prepare(owed.key, owed.host, launch(state, group, slot, slot.tasks[owed.task], seen))


def _claim_effect(state: State, claim: Claim, kind: Kind) -> Effect:
    plan = claim.plan
    of_group, slot, name = made_for(claim)
    if kind is Kind.RELEASE:
        return Release(
            claim=claim.id,
            group=of_group,
            name=name,
            provider=plan.provider,
            path=claim.path,
            retain=plan.retain,
            parameters=plan.parameters,
            slot=slot,
            hosts=bound_to(claim),
            made_as=claim.made_as,
            attempt=claim.attempt,
        )
    group = state.groups[claim.group] if claim.group else None
    return Provision(
        claim=claim.id,
        attempt=claim.attempt,
        group=of_group,
        name=name,
        provider=plan.provider,
        parameters=plan.parameters,
        slot=slot,
        hosts=tuple(dict.fromkeys(task.host for task in _users(group, claim))) if group is not None else (),
        retain=plan.retain,
        after=tuple(_after(state, group, claim)) if group is not None else (),
        made_as=claim.made_as,
    )


def _after(state: State, group: Group, claim: Claim) -> Iterator[tuple[str, str]]:
    for plan in group.plan.claims:
        if plan.name in claim.plan.after and plan.scope in ("", claim.member):
            before = state.claims.get(claim_id(group.id, plan, claim.index))
            if before is not None:
                yield plan.name, before.path


def _users(group: Group, claim: Claim) -> Iterator[Task]:
    for slot in group.slots.values():
        if not claim.member or slot.key == (claim.member, claim.index):
            yield from slot.tasks


def owed_in(state: State, groups: Iterable[str], hosts: Iterable[str], claims: Iterable[str] = ()) -> dict[Owed, None]:
    """What is owed to these groups, hosts and standalone claims, in order."""
    owed: dict[Owed, None] = {}
    for group_id in groups:
        group = state.groups.get(group_id)
        if group is not None:
            owed.update(dict.fromkeys(owed_by_group(state, group)))
    for name in hosts:
        host = state.hosts.get(name)
        if host is not None:
            owed.update(dict.fromkeys(owed_by_host(host)))
    for name in claims:
        claim = state.claims.get(name)
        if claim is not None and not claim.group:
            owed.update(dict.fromkeys(owed_to_claim(claim)))
    return owed


def newly_due(
    before: State, after: State, groups: Iterable[str], hosts: Iterable[str], claims: Iterable[str] = ()
) -> tuple[Effect, ...]:
    """Effects that are owed after a step and were not before, for what the step touched."""
    groups, hosts, claims = list(groups), list(hosts), list(claims)
    if hosts or claims:
        new, old = owed_in(after, groups, hosts, claims), owed_in(before, groups, hosts, claims)
    else:
        new = _owed_by_others(after, before, groups)
        old = _owed_by_others(before, after, groups) if new else {}
    return make_all(after, [owed for owed in new if owed not in old])


def effects_due(state: State) -> tuple[Effect, ...]:
    """Every effect that is owed now: what a restarted controller, or one that got no answer, (re)issues."""
    return make_all(state, owed_in(state, state.groups, state.hosts, state.claims))


def effects_due_on(state: State, node: str) -> tuple[Effect, ...]:
    """Every effect that is owed on the hosts of one node: what its agent is told when it registers."""
    hosts = [name for name, host in state.hosts.items() if host.facts.node == node]
    owed = owed_in(state, state.groups, hosts)
    return make_all(state, [one for one in owed if one.host in hosts])
