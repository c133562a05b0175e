"""Claims that were READY and are lost: with their host, or because their provider finds them missing or damaged.

Who runs with one fails with cause `claim_lost`, and the rules decide. What is about to start with it does not: it was told a
path that may not be true any more.
"""

from __future__ import annotations

from collections.abc import Iterator

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.claim_ids import bound_to, names
from gangflow.xce.core.claims import C, move, pauses, unready_claim
from gangflow.xce.core.counts import ACTIVE, BEFORE_START, RUNS
from gangflow.xce.core.limits import STEADY_MS
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.policy import grow
from gangflow.xce.core.state import Claim, Exit, Group, GroupState, Slot
from gangflow.xce.core.turn import Turn


def lost(turn: Turn, report: inp.ClaimLost) -> None:
    """A provider found that what it made is gone. One that flaps is made again after growing pauses."""
    claim = turn.draft.claims.get(report.claim)
    if claim is None or claim.state is not C.READY or claim.attempt != report.attempt:
        return
    message = report.message or f"{claim.plan.provider} does not find it any more"
    # One that was there for long has not been flapping.
    losses = 1 if turn.now_ms - claim.since_ms >= STEADY_MS else claim.losses + 1
    wait = max(1, grow(pauses(turn, claim), losses - 1))
    _lose(turn, claim, message, f"claim {_called(claim)} is lost: {message}", losses=losses, until_ms=turn.now_ms + wait)


def host_lost(turn: Turn, host: str) -> None:
    """Claims that were bound to a lost host are lost, and so is what runs with them elsewhere."""
    for claim in [c for c in turn.draft.claims.values() if c.state is C.READY and host in bound_to(c)]:
        _lose(turn, claim, f"{host} is lost", f"claim {claim.plan.name} was on {host}, which is lost", host)


def _called(claim: Claim) -> str:
    return claim.plan.name if claim.group else claim.id


def _lose(turn: Turn, claim: Claim, message: str, told: str, host: str = "", **fields: int) -> None:
    # Before it is LOST: whoever had everything may have been told to prepare with it.
    users = [(group, slot, unready_claim(turn, group, slot) is None) for group, slot in _users(turn, claim)]
    move(turn, claim, C.LOST, message=message, **fields)
    for group, slot, complete in users:
        if group.state is GroupState.PREPARING:
            if complete and slot.state in BEFORE_START:
                turn.set_back(group, Cause.CLAIM_LOST.value, told)
        elif group.state in ACTIVE and (slot.state in RUNS or (complete and slot.state in BEFORE_START)):
            turn.fail(group, slot, Exit(Cause.CLAIM_LOST, slot.incarnation, turn.now_ms, message=told), host)
        turn.touch(group.id)


def _users(turn: Turn, claim: Claim) -> Iterator[tuple[Group, Slot]]:
    """Every slot that sees the claim, of groups that have not ended."""
    if claim.group:
        owner = turn.group(claim.group)
        groups = [owner] if owner is not None else []
    else:
        groups = [group for group in turn.draft.groups.values() if names(group.plan, claim.id)]
    for group in groups:
        if group.state.terminal:
            continue
        scopes = [plan.scope for plan in group.plan.claims if plan.uses == claim.id]
        for slot in list(group.slots.values()):
            if claim.group:
                sees = not claim.member or slot.key == (claim.member, claim.index)
            else:
                sees = "" in scopes or slot.member in scopes
            if sees:
                yield group, slot
