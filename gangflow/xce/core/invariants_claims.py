"""Invariants of claims: an exclusive one has one holder, nothing starts without what it uses, no deadline passes unseen."""

from __future__ import annotations

from collections.abc import Iterator

from gangflow.xce.core.claim_ids import claims_for, holders, uses
from gangflow.xce.core.counts import BEFORE_START
from gangflow.xce.core.deadlines import CLAIM_TIMED
from gangflow.xce.core.plan import Access
from gangflow.xce.core.state import ClaimState, Group, Slot, State

C = ClaimState


def claims(state: State) -> Iterator[str]:
    """What is wrong with claims, over the whole state."""
    for name, held in holders(state.groups.values()).items():
        if len(held) > 1 and any(access is Access.EXCLUSIVE for _, access in held):
            yield f"I3 claim {name} is held by {', '.join(f'{group} ({access.value})' for group, access in held)}"
    for group in state.groups.values():
        for name, _ in uses(group.plan) if not group.state.terminal else ():
            claim = state.claims.get(name)
            if claim is None or claim.group or claim.state in (C.RELEASING, C.GONE):
                yield f"I15 claim {name} of {group.id} is {claim.state.value if claim is not None else 'not there'}"
    for claim in state.claims.values():
        if claim.group:
            if claim.group not in state.groups:
                yield f"I15 claim {claim.id} belongs to nobody"
            continue
        if claim.state in (C.NEW, C.GONE) or claim.member or claim.host:
            yield f"I15 the standalone claim {claim.id} is {claim.state.value}, of {claim.member or '-'} on {claim.host or '-'}"
        if claim.state in CLAIM_TIMED and not claim.until_ms:
            yield f"I6 the standalone claim {claim.id} is {claim.state.value} without a limit"
        if claim.state in CLAIM_TIMED and claim.until_ms <= state.now_ms:
            yield f"I6 the deadline {claim.until_ms} of claim {claim.id} passed at {state.now_ms}"


def without_claims(state: State, group: Group) -> Iterator[str]:
    """Slots of a group whose barrier is released although a claim that they see is not READY."""
    for slot in group.slots.values() if group.plan.claims else ():
        if slot.state in BEFORE_START:
            yield from (f"I1 released, and {slot.member}[{slot.index}] has {fault}" for fault in unready(state, group, slot))


def unready(state: State, group: Group, slot: Slot) -> Iterator[str]:
    """What the slot sees and is not READY: `claim ckpt FAILED`."""
    for plan, claim in claims_for(state.claims, group, slot):
        if claim is None or claim.state is not C.READY:
            yield f"claim {plan.name} {claim.state.value if claim is not None else 'that is not there'}"
