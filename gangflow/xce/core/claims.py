"""Template claims: made after placement, kept through tries and epochs, released as an obligation (design 3.4)."""

from __future__ import annotations

from dataclasses import replace

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.claim_ids import claim_id, claims_for, claims_of
from gangflow.xce.core.counts import ACTIVE, RUNS
from gangflow.xce.core.events import ClaimChanged
from gangflow.xce.core.plan import Cause, ClaimPlan
from gangflow.xce.core.policy import grow
from gangflow.xce.core.state import Claim, ClaimState, Exit, Group, HostState, Slot, SlotState
from gangflow.xce.core.turn import Turn

C = ClaimState
HELD = frozenset({C.PROVISIONING, C.READY, C.FAILED, C.LOST})
"""A provider has, or may have, something of it."""


def _move(turn: Turn, claim: Claim, state: ClaimState, **fields: object) -> None:
    changed = replace(claim, state=state, since_ms=turn.now_ms, **{"until_ms": 0, "message": "", **fields})  # type: ignore[arg-type]
    turn.emit(ClaimChanged(changed))


def announce(turn: Turn, group: Group) -> None:
    """A submitted group's own claims exist from now on, although nothing is made yet."""
    for plan in group.plan.claims:
        if not plan.scope:
            turn.emit(ClaimChanged(Claim(claim_id(group.id, plan), group.id, plan, since_ms=turn.now_ms)))


def want(turn: Turn, group: Group, slot: Slot) -> None:
    """The slot was placed: what its tasks will see is made, unless it is there already."""
    hosts = {task.host: None for task in slot.tasks}
    for plan, claim in claims_for(turn.draft.claims, group, slot):
        if claim is None:
            own = bool(plan.scope)
            _provision(turn, _new(group, plan, slot) if own else Claim(claim_id(group.id, plan), group.id, plan))
        elif claim.state in (C.NEW, C.FAILED, C.LOST, C.GONE):
            _provision(turn, claim)
        elif claim.state is C.READY and claim.host and not _stands(turn, claim, hosts):
            _move(turn, claim, C.LOST, message=f"bound to {claim.host}")
            _provision(turn, turn.draft.claims[claim.id])


def _new(group: Group, plan: ClaimPlan, slot: Slot) -> Claim:
    return Claim(claim_id(group.id, plan, slot.index), group.id, plan, member=slot.member, index=slot.index)


def _stands(turn: Turn, claim: Claim, hosts: dict[str, None]) -> bool:
    """Whether a host-bound claim is of use to a slot on these hosts."""
    host = turn.host(claim.host)
    return host is not None and host.state is HostState.UP and (not claim.member or claim.host in hosts)


def _provision(turn: Turn, claim: Claim) -> None:
    attempt = claim.attempt + 1
    _move(turn, claim, C.PROVISIONING, attempt=attempt, host="", path="", until_ms=turn.now_ms + claim.plan.timeout_ms)


def ready(turn: Turn, report: inp.ClaimReady) -> None:
    """A provider made a claim, if that attempt still counts."""
    claim = turn.draft.claims.get(report.claim)
    if claim is None or claim.state is not C.PROVISIONING or claim.attempt != report.attempt:
        return
    _move(turn, claim, C.READY, path=report.path, host=report.host)


def failed(turn: Turn, report: inp.ClaimFailed) -> None:
    """A provider could not make a claim, if that attempt still counts."""
    claim = turn.draft.claims.get(report.claim)
    if claim is None or claim.state is not C.PROVISIONING or claim.attempt != report.attempt:
        return
    _fail(turn, claim, report.message)


def _fail(turn: Turn, claim: Claim, message: str) -> None:
    group = turn.group(claim.group)
    wait = grow(group.plan.barrier.backoff, claim.attempt - 1) if group is not None else 0
    _move(turn, claim, C.FAILED, message=message, until_ms=turn.now_ms + wait)


def released(turn: Turn, report: inp.ClaimReleased) -> None:
    """A provider confirmed that nothing of a claim is left."""
    claim = turn.draft.claims.get(report.claim)
    if claim is not None and claim.state is C.RELEASING:
        _move(turn, claim, C.GONE, path=claim.path, host="")
        group = turn.group(claim.group)
        if group is not None and not group.state.terminal and wanted(group, claim):
            # Its user was placed again while the old one was still being released.
            _provision(turn, turn.draft.claims[claim.id])


def tend(turn: Turn, group: Group) -> None:
    """Deadlines of the group's claims: a provider that took too long failed; what failed is tried again while it is wanted."""
    for claim in list(claims_of(turn.draft.claims, group)):
        if not claim.until_ms or claim.until_ms > turn.now_ms:
            continue
        if claim.state is C.PROVISIONING:
            _fail(turn, claim, f"not ready after {claim.plan.timeout_ms} ms")
        elif claim.state is C.FAILED:
            if wanted(group, claim):
                _provision(turn, claim)
            else:
                # Kept as it is for the next try.
                _move(turn, claim, C.FAILED, message=claim.message)


def wanted(group: Group, claim: Claim) -> bool:
    """Whether a placed slot of the group waits for it."""
    waiting = (SlotState.PLACED, SlotState.PREPARED)
    if claim.member:
        return group.slots[claim.member, claim.index].state in waiting
    return any(slot.state in waiting for slot in group.slots.values())


def unready_claim(turn: Turn, group: Group, slot: Slot) -> Claim | None:
    """The first claim that the slot still waits for."""
    if not group.plan.claims:
        return None
    for plan, claim in claims_for(turn.draft.claims, group, slot):
        if claim is None:
            return Claim(claim_id(group.id, plan), group.id, plan)
        if claim.state is not C.READY:
            return claim
    return None


def release(turn: Turn, claim: Claim) -> None:
    """Not wanted any more: its release is an obligation from now on."""
    if claim.state is C.NEW:
        _move(turn, claim, C.GONE)
    elif claim.state in HELD:
        _move(turn, claim, C.RELEASING, path=claim.path, host=claim.host)


def release_all(turn: Turn, group: Group) -> None:
    """The group ended: all its claims go."""
    for claim in list(claims_of(turn.draft.claims, group)):
        release(turn, claim)


def release_of_slot(turn: Turn, group: Group, slot: Slot) -> None:
    """The slot is not wanted any more: its own claims go."""
    for claim in list(claims_of(turn.draft.claims, group)):
        if claim.member == slot.member and claim.index == slot.index:
            release(turn, claim)


def release_bound(turn: Turn, group: Group) -> None:
    """A try was voided: only what is bound to a host of it is undone."""
    for claim in list(claims_of(turn.draft.claims, group)):
        if claim.host and claim.state is C.READY:
            release(turn, claim)


def host_lost(turn: Turn, host: str) -> None:
    """Claims that were bound to a lost host are lost, and so is what runs with them elsewhere."""
    for claim in [c for c in turn.draft.claims.values() if c.host == host and c.state is C.READY]:
        _move(turn, claim, C.LOST, message=f"{host} is lost")
        group = turn.group(claim.group)
        if group is None or group.state not in ACTIVE:
            continue
        for slot in list(group.slots.values()):
            users = not claim.member or slot.key == (claim.member, claim.index)
            if users and slot.state in RUNS:
                message = f"claim {claim.plan.name} was on {host}, which is lost"
                turn.fail(group, slot, Exit(Cause.CLAIM_LOST, slot.incarnation, turn.now_ms, message=message), host)
