"""`apply(state, event, now_ms)`: the only way in which a state changes. Total over the events; edges are checked.

It decides nothing: an event says what happened, and this says what is true then. Recovery is nothing but this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gangflow.xce.core import events as ev
from gangflow.xce.core import evolve_group as group
from gangflow.xce.core import evolve_slot as slot
from gangflow.xce.core.draft import Draft
from gangflow.xce.core.lifecycle import check_edge
from gangflow.xce.core.state import ClaimState, Host, HostState, State
from gangflow.xce.renew import replace


def term_started(draft: Draft, event: ev.TermStarted) -> None:
    """See the event."""
    draft.set(cluster_id=event.cluster_id, term=event.term, grace_until_ms=event.grace_until_ms)
    if event.levels:
        draft.set(levels=event.levels)


def host_registered(draft: Draft, event: ev.HostRegistered) -> None:
    """See the event."""
    hosts = draft.own("hosts")
    old = hosts.get(event.facts.name)
    if old is None:
        hosts[event.facts.name] = Host(facts=event.facts, boot=event.boot, since_ms=draft.now_ms)
        return
    state = HostState.CLOSED if old.closed else HostState.UP
    check_edge("host", event.facts.name, old.state, state)
    since = old.since_ms if old.state is state else draft.now_ms
    hosts[event.facts.name] = replace(old, facts=event.facts, boot=event.boot, state=state, since_ms=since, until_ms=0)


def host_changed(draft: Draft, event: ev.HostChanged) -> None:
    """See the event."""
    hosts = draft.own("hosts")
    old = hosts[event.host]
    check_edge("host", event.host, old.state, event.state)
    hosts[event.host] = replace(old, state=event.state, since_ms=draft.now_ms, until_ms=event.until_ms)


def host_operated(draft: Draft, event: ev.HostOperated) -> None:
    """See the event."""
    hosts = draft.own("hosts")
    old = hosts[event.host]
    since = old.since_ms
    if old.state is not event.state:
        check_edge("host", event.host, old.state, event.state)
        since = draft.now_ms
    hosts[event.host] = replace(old, state=event.state, since_ms=since, closed=event.closed, draining=event.draining)


def task_superseded(draft: Draft, event: ev.TaskSuperseded) -> None:
    """See the event."""
    hosts = draft.own("hosts")
    old = hosts[event.host]
    if event.task not in old.superseded:
        hosts[event.host] = replace(old, superseded=(*old.superseded, event.task))


def superseded_gone(draft: Draft, event: ev.SupersededGone) -> None:
    """See the event."""
    hosts = draft.own("hosts")
    old = hosts[event.host]
    hosts[event.host] = replace(old, superseded=tuple(task for task in old.superseded if task != event.task))


def strays_seen(draft: Draft, event: ev.StraysSeen) -> None:
    """See the event."""
    hosts = draft.own("hosts")
    hosts[event.host] = replace(hosts[event.host], strays=event.strays)


def offer_left(draft: Draft, event: ev.OfferLeft) -> None:
    """See the event."""
    draft.set(offer_ms=event.since_ms)


def command_answered(draft: Draft, event: ev.CommandAnswered) -> None:
    """See the event."""
    draft.own("answers")[event.key] = event.answer


def answers_forgotten(draft: Draft, event: ev.AnswersForgotten) -> None:
    """See the event."""
    answers = draft.own("answers")
    for key in event.keys:
        answers.pop(key, None)


def claim_changed(draft: Draft, event: ev.ClaimChanged) -> None:
    """See the event."""
    claims = draft.own("claims")
    claim = event.claim
    old = claims.get(claim.id)
    if old is not None and old.state is not claim.state:
        check_edge("claim", claim.id, old.state, claim.state)
    elif old is None and claim.state is not ClaimState.NEW:
        check_edge("claim", claim.id, ClaimState.NEW, claim.state)
    claims[claim.id] = claim


def claim_forgotten(draft: Draft, event: ev.ClaimForgotten) -> None:
    """See the event."""
    claim = draft.own("claims").pop(event.claim)
    if claim.attempt > draft.claim_attempts:
        draft.set(claim_attempts=claim.attempt)


APPLY: dict[type, Callable[[Draft, Any], None]] = {
    ev.TermStarted: term_started,
    ev.HostRegistered: host_registered,
    ev.HostChanged: host_changed,
    ev.TaskSuperseded: task_superseded,
    ev.SupersededGone: superseded_gone,
    ev.StraysSeen: strays_seen,
    ev.CommandAnswered: command_answered,
    ev.AnswersForgotten: answers_forgotten,
    ev.GroupSubmitted: group.submitted,
    ev.GroupPlaced: group.placed,
    ev.BarrierReleased: group.released,
    ev.TryVoided: group.voided,
    ev.GroupChanged: group.changed,
    ev.ReasonNoted: group.reason_noted,
    ev.BudgetSpent: group.budget_spent,
    ev.FloorCrossed: group.floor_crossed,
    ev.HostExcluded: group.host_excluded,
    ev.FailureJudged: group.failure_judged,
    ev.CoordinatorStarted: group.coordinator_started,
    ev.ValueWritten: group.value_written,
    ev.GroupForgotten: group.forgotten,
    ev.SlotPlaced: slot.placed,
    ev.SlotChanged: slot.changed,
    ev.SlotExited: slot.exited,
    ev.TaskMoved: slot.task_moved,
    ev.ClaimChanged: claim_changed,
    ev.HostOperated: host_operated,
    ev.HostReadmitted: group.host_readmitted,
    ev.HostBlamed: group.host_blamed,
    ev.TargetsSet: group.targets_set,
    ev.ChangeMoved: group.change_moved,
    ev.MemberStopped: group.member_stopped,
    ev.SlotHeld: slot.held,
    ev.SlotWarned: slot.warned,
    ev.ClaimForgotten: claim_forgotten,
    ev.OfferLeft: offer_left,
}


def absorb(draft: Draft, event: ev.Event) -> None:
    """Apply one event to a draft."""
    draft.touch()
    APPLY[type(event)](draft, event)


def apply(state: State, event: ev.Event, now_ms: int) -> State:
    """The state after `event`, which happened in a batch at `now_ms`. Raises InvalidTransition."""
    return apply_all(state, (event,), now_ms)


def apply_all(state: State, events: Iterable[ev.Event], now_ms: int) -> State:
    """The state after all events of one batch."""
    draft = Draft(state, now_ms)
    for event in events:
        absorb(draft, event)
    return draft.freeze()
