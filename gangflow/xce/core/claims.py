"""A group's own claims: made after placement, kept through tries and epochs, released as an obligation (design 3.4).

What happens to every claim alike is here, too: a provider's answers, its deadlines, the pause before it is asked again.
"""

from __future__ import annotations

from gangflow.durations import lasting
from gangflow.xce.core import inputs as inp
from gangflow.xce.core.claim_ids import bound_to, claim_id, claims_for, claims_of, names, retained_id
from gangflow.xce.core.events import ClaimChanged, ClaimForgotten
from gangflow.xce.core.limits import REASONS_MAX
from gangflow.xce.core.plan import BackoffPlan, ClaimPlan
from gangflow.xce.core.policy import grow
from gangflow.xce.core.reach import reachable
from gangflow.xce.core.state import Claim, ClaimState, Group, GroupState, Slot, SlotState
from gangflow.xce.core.turn import Turn
from gangflow.xce.renew import replace

C, G = ClaimState, GroupState
HELD = frozenset({C.PROVISIONING, C.READY, C.FAILED, C.LOST})
"""A provider has, or may have, something of it."""
TO_MAKE = frozenset({C.NEW, C.FAILED, C.LOST, C.GONE})
"""There is nothing of it that could be used."""


def move(turn: Turn, claim: Claim, state: ClaimState, **fields: object) -> None:
    """One edge of a claim. Deadline and message are those of the new state."""
    changed = replace(claim, state=state, since_ms=turn.now_ms, **{"until_ms": 0, "message": "", **fields})
    turn.emit(ClaimChanged(changed))


def announce(turn: Turn, group: Group) -> None:
    """A submitted group's own claims exist from now on, although nothing is made yet."""
    for plan in group.plan.claims:
        if not plan.scope and not plan.uses:
            turn.emit(ClaimChanged(Claim(claim_id(group.id, plan), group.id, plan, since_ms=turn.now_ms)))


# --- making ---------------------------------------------------------------------------------------------------------------


def want(turn: Turn, group: Group, slot: Slot) -> None:
    """The slot was placed: what its tasks will see is made, unless it is there already, or has to wait for its turn."""
    hosts = {task.host: None for task in slot.tasks}
    for plan, claim in claims_for(turn.draft.claims, group, slot):
        if plan.uses:
            continue
        if claim is None:
            own = (slot.member, slot.index) if plan.scope else ("", -1)
            new = Claim(claim_id(group.id, plan, slot.index), group.id, plan, member=own[0], index=own[1])
            if not _make(turn, group, new):
                turn.emit(ClaimChanged(replace(new, since_ms=turn.now_ms)))
        elif claim.state is C.FAILED or (claim.state in TO_MAKE and claim.until_ms <= turn.now_ms):
            _make(turn, group, claim)
        elif claim.state is C.READY and bound_to(claim) and not _stands(turn, claim, hosts):
            _leave_behind(turn, group, claim)


def _make(turn: Turn, group: Group, claim: Claim) -> bool:
    """Have it made now, if everything that it comes after is READY."""
    for name in claim.plan.after:
        before = _named(turn, group, claim, name)
        if before is None or before.state is not C.READY:
            return False
    provision(turn, claim)
    return True


def _named(turn: Turn, group: Group, claim: Claim, name: str) -> Claim | None:
    """The claim of that name that the claim's user sees, too."""
    for plan in group.plan.claims:
        if plan.name == name and plan.scope in ("", claim.member):
            return turn.draft.claims.get(claim_id(group.id, plan, claim.index))
    return None


def provision(turn: Turn, claim: Claim) -> None:
    """Its provider is asked, once more."""
    until = turn.now_ms + claim.plan.timeout_ms
    move(turn, claim, C.PROVISIONING, attempt=claim.attempt + 1, host="", hosts=(), path="", until_ms=until)


def _stands(turn: Turn, claim: Claim, hosts: dict[str, None]) -> bool:
    """Whether a host-bound claim is of use to a slot on these hosts."""
    places = bound_to(claim)
    if not all(reachable(turn, name) for name in places):
        return False
    if not claim.member:
        return True
    return all(name in places for name in hosts) if claim.hosts else claim.host in hosts


def _leave_behind(turn: Turn, group: Group, claim: Claim) -> None:
    """Its user went elsewhere: where its hosts can still be told, it is released there before it is made again."""
    places = bound_to(claim)
    if all(reachable(turn, name) for name in places):
        release(turn, claim)
        return
    move(turn, claim, C.LOST, message=f"bound to {', '.join(places)}")
    _make(turn, group, turn.draft.claims[claim.id])


def tend(turn: Turn, group: Group) -> None:
    """Deadlines of the group's claims: a provider that took too long failed; what is wanted is made in its turn."""
    for claim in list(claims_of(turn.draft.claims, group)):
        if claim.until_ms > turn.now_ms:
            continue
        if claim.state is C.PROVISIONING:
            late(turn, claim)
        elif claim.state in TO_MAKE:
            made = wanted(group, claim) and _make(turn, group, claim)
            if not made and claim.until_ms:
                # Its pause is over: kept as it is for the next try, or until what it comes after is there.
                move(turn, claim, claim.state, message=claim.message)


def late(turn: Turn, claim: Claim) -> None:
    """Its provider's time is over."""
    _fail(turn, claim, f"not ready after {lasting(claim.plan.timeout_ms)}")


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
            return Claim(claim_id(group.id, plan, slot.index), group.id, plan)
        if claim.state is not C.READY:
            return claim
    return None


# --- providers' answers ---------------------------------------------------------------------------------------------------


def _answered(turn: Turn, report: inp.ClaimReady | inp.ClaimFailed) -> Claim | None:
    """The claim that an answer is about, if that attempt still counts."""
    claim = turn.draft.claims.get(report.claim)
    return claim if claim is not None and claim.state is C.PROVISIONING and claim.attempt == report.attempt else None


def ready(turn: Turn, report: inp.ClaimReady) -> None:
    """A provider made a claim."""
    claim = _answered(turn, report)
    if claim is None:
        return
    hosts = report.hosts if len(report.hosts) > 1 else ()
    host = report.host or (report.hosts[0] if report.hosts else "")
    if not claim.group and host:
        # Whoever uses it may be placed anywhere.
        _fail(turn, claim, f"{claim.plan.provider} made it on {host} only: a standalone claim is used from every host")
        return
    away = [name for name in hosts or ((host,) if host else ()) if not reachable(turn, name)]
    if away:
        # It was lost while it was being made: whoever starts with it would not find it.
        _fail(turn, claim, f"{claim.plan.provider} made it on {away[0]}, which is not there any more")
        return
    move(turn, claim, C.READY, path=report.path, host=host, hosts=hosts)
    if not claim.group:
        for user in turn.draft.groups.values():
            if not user.state.terminal and names(user.plan, claim.id):
                turn.touch(user.id)
        return
    group = turn.group(claim.group)
    if group is not None and host and claim.member and wanted(group, claim):
        slot = group.slots[claim.member, claim.index]
        made = turn.draft.claims[claim.id]
        if not _stands(turn, made, {task.host: None for task in slot.tasks}):
            # It was made where the slot was to be when it was asked for.
            _leave_behind(turn, group, made)


def failed(turn: Turn, report: inp.ClaimFailed) -> None:
    """A provider could not make a claim."""
    claim = _answered(turn, report)
    if claim is not None:
        _fail(turn, claim, report.message)


def _fail(turn: Turn, claim: Claim, message: str) -> None:
    until = turn.now_ms + max(1, grow(pauses(turn, claim), claim.attempt - claim.former - 1))
    move(turn, claim, C.FAILED, message=message, until_ms=until)
    if not claim.group:
        # Those who wait say why. When many wait, a session's first ones do, as for any other reason.
        waiting = [group.id for group in turn.draft.groups.values() if group.state is G.PENDING and names(group.plan, claim.id)]
        for group_id in waiting[:REASONS_MAX]:
            turn.touch(group_id)


def pauses(turn: Turn, claim: Claim) -> BackoffPlan:
    """How its provider is asked again: a group's claim as the group's barrier says."""
    group = turn.group(claim.group)
    return group.plan.barrier.backoff if group is not None else BackoffPlan()


def released(turn: Turn, report: inp.ClaimReleased) -> None:
    """A provider confirmed that nothing of a claim is left."""
    claim = turn.draft.claims.get(report.claim)
    if claim is None or claim.state is not C.RELEASING or report.attempt not in (0, claim.attempt):
        return
    move(turn, claim, C.GONE, path=claim.path, host="", hosts=())
    if not claim.group:
        turn.emit(ClaimForgotten(claim.id))
        return
    group = turn.group(claim.group)
    if group is not None and not group.state.terminal and wanted(group, claim):
        # Its user was placed again while the old one was still being released.
        _make(turn, group, turn.draft.claims[claim.id])


# --- the end --------------------------------------------------------------------------------------------------------------


def release(turn: Turn, claim: Claim) -> None:
    """Not wanted any more: its release is an obligation from now on."""
    if claim.state is C.NEW:
        move(turn, claim, C.GONE)
    elif claim.state in HELD:
        move(turn, claim, C.RELEASING, path=claim.path)


def release_all(turn: Turn, group: Group) -> None:
    """The group ended: all its claims go; a retained one lives on as a standalone claim."""
    for claim in list(claims_of(turn.draft.claims, group)):
        if not hand_over(turn, group, claim):
            release(turn, claim)


def outlives(claim: Claim) -> bool:
    """Whether it goes on as a standalone claim once it is not wanted here any more: see `hand_over`."""
    return claim.plan.retain and claim.state is C.READY and not bound_to(claim)


def hand_over(turn: Turn, group: Group, claim: Claim) -> bool:
    """A retained claim that is READY becomes a standalone one, which its provider still knows by its former id.

    One that is bound to a host cannot: nobody could use it from elsewhere. Its provider lets go of it and leaves it there.
    """
    if not outlives(claim):
        return False
    name = new = retained_id(claim)
    number = 2
    while name in turn.draft.claims:
        name, number = f"{new}-{number}", number + 1
    plan = ClaimPlan(name, claim.plan.provider, timeout_ms=claim.plan.timeout_ms, parameters=claim.plan.parameters)
    alone = Claim(name, "", plan, C.NEW, path=claim.path, attempt=claim.attempt, owner=group.plan.owner, made_as=claim.id)
    move(turn, replace(alone, losses=claim.losses), C.READY)
    move(turn, claim, C.GONE, path=claim.path)
    return True


def release_of_slot(turn: Turn, group: Group, slot: Slot) -> None:
    """The slot is not wanted any more: its own claims go, but for those that outlive the group."""
    for claim in list(claims_of(turn.draft.claims, group)):
        if claim.member == slot.member and claim.index == slot.index and not outlives(claim):
            release(turn, claim)


def release_bound(turn: Turn, group: Group) -> None:
    """A try was voided: only what is bound to a host of it is undone."""
    for claim in list(claims_of(turn.draft.claims, group)):
        if bound_to(claim) and claim.state is C.READY:
            release(turn, claim)
