"""From events to spans, purely: the same events give the same spans, ids included, so a restarted controller repeats nothing.

A group is one trace. Below its root: `queued`, `barrier` and `starting` for each try, `claim …`, `running`, `degraded` and
`suspended`, `change c1` for each change of targets, and one span for each incarnation of each slot, linked to the incarnation
that it replaces. Members add their own (a step and what is inside it), whose parent is their incarnation's span, since that is
what their `TRACEPARENT` names.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from hashlib import sha256

from gangflow.xce.core.events import (
    BarrierReleased,
    ChangeMoved,
    ClaimChanged,
    Event,
    GroupChanged,
    GroupPlaced,
    GroupSubmitted,
    ReasonNoted,
    SlotChanged,
    SlotExited,
    SlotPlaced,
    TermStarted,
    TryVoided,
)
from gangflow.xce.core.state import ChangeState, ClaimState, GroupState, SlotState, TaskKey


@dataclass(frozen=True, slots=True)
class Span:
    """One span. Times are milliseconds since the Unix epoch; `end_ms` 0 means that it is still open."""

    trace_id: str
    """32 hex digits, the group's."""
    span_id: str
    """16 hex digits."""
    parent_id: str
    """Empty for the root."""
    name: str
    start_ms: int
    end_ms: int = 0
    group: str = ""
    failed: bool = False
    message: str = ""
    attributes: tuple[tuple[str, str | int], ...] = ()
    links: tuple[str, ...] = ()
    """Span ids in the same trace."""


def trace_id(cluster_id: str, group: str) -> str:
    """The trace of a group: it needs no record of its own."""
    return sha256(f"{cluster_id}/{group}".encode()).hexdigest()[:32]


def span_id(cluster_id: str, group: str, what: str) -> str:
    """The id of one span of a group's trace, by what it is."""
    return sha256(f"{cluster_id}/{group}/{what}".encode()).hexdigest()[:16]


def traceparent(cluster_id: str, task: TaskKey) -> str:
    """The W3C trace context that a task's process is given: its incarnation's span is the parent of whatever it records."""
    return f"00-{trace_id(cluster_id, task.group)}-{_incarnation_id(cluster_id, task)}-01"


def _incarnation_id(cluster_id: str, task: TaskKey) -> str:
    return span_id(cluster_id, task.group, f"{task.member}[{task.index}]#{task.incarnation}")


_PHASES = {
    GroupState.RUNNING: "running",
    GroupState.DEGRADED: "degraded",
    GroupState.RESTARTING: "restarting",
    GroupState.SUSPENDING: "suspending",
    GroupState.SUSPENDED: "suspended",
}
_BEGUN = frozenset({SlotState.STARTING})


@dataclass(slots=True)
class SpanBook:
    """Folds events, in order, into spans. Keeps only the open ones."""

    cluster_id: str = ""
    open: dict[tuple[str, str], Span] = field(default_factory=dict)
    """(group, what) → span."""
    _phase: dict[str, str] = field(default_factory=dict)
    _tries: dict[str, int] = field(default_factory=dict)
    _hosts: dict[tuple[str, str, int], tuple[str, ...]] = field(default_factory=dict)
    _last: dict[tuple[str, str, int], int] = field(default_factory=dict)

    def feed(self, event: Event, now_ms: int) -> list[Span]:
        """The spans that this event ends."""
        match event:
            case TermStarted():
                self.cluster_id = event.cluster_id
            case GroupSubmitted():
                self._begin(event.group, "group", f"group {event.plan.name}", now_ms)
                return self._enter(event.group, "queued", now_ms)
            case GroupPlaced():
                return self._enter(event.group, "barrier", now_ms)
            case BarrierReleased():
                return self._enter(event.group, "starting", now_ms, epoch=event.epoch)
            case TryVoided():
                return self._enter(event.group, "queued", now_ms, failed=True, message=event.message, attempt=event.attempt)
            case GroupChanged():
                return self._group(event, now_ms)
            case SlotPlaced():
                key = (event.group, event.member, event.index)
                self._hosts[key] = tuple(dict.fromkeys(task.host for task in event.tasks))
            case SlotChanged() if event.state in _BEGUN:
                self._incarnation(event, now_ms)
            case SlotExited():
                return self._exited(event, now_ms)
            case ClaimChanged() if event.claim.group:
                return self._claim(event, now_ms)
            case ChangeMoved():
                return self._change(event, now_ms)
            case ReasonNoted() if event.reason is not None and not event.member:
                self._note(event.group, "queued", "gangflow.reason", f"{event.reason.code}: {event.reason.text}")
            case _:
                pass
        return []

    def of(self, group: str) -> list[Span]:
        """The spans of a group that are open now."""
        return [span for (owner, _), span in self.open.items() if owner == group]

    def _begin(self, group: str, what: str, name: str, now_ms: int, **attributes: str | int) -> Span:
        root = span_id(self.cluster_id, group, "group")
        span = Span(
            trace_id=trace_id(self.cluster_id, group),
            span_id=span_id(self.cluster_id, group, what),
            parent_id="" if what == "group" else root,
            name=name,
            start_ms=now_ms,
            group=group,
            attributes=tuple(attributes.items()),
        )
        self.open[(group, what)] = span
        return span

    def _end(self, group: str, what: str, now_ms: int, *, failed: bool = False, message: str = "") -> list[Span]:
        span = self.open.pop((group, what), None)
        return [] if span is None else [replace(span, end_ms=now_ms, failed=failed, message=message)]

    def _note(self, group: str, phase: str, key: str, value: str) -> None:
        what = self._phase.get(group, "")
        span = self.open.get((group, what))
        if span is not None and span.name == phase:
            kept = tuple(pair for pair in span.attributes if pair[0] != key)
            self.open[(group, what)] = replace(span, attributes=(*kept, (key, value)))

    def _enter(
        self, group: str, phase: str, now_ms: int, *, failed: bool = False, message: str = "", **attributes: str | int
    ) -> list[Span]:
        """Phases of a group follow each other: the new one ends the one before."""
        ended = self._end(group, self._phase.get(group, ""), now_ms, failed=failed, message=message)
        turn = self._tries[group] = self._tries.get(group, 0) + 1
        what = f"{phase}/{turn}"
        self._phase[group] = what
        self._begin(group, what, phase, now_ms, **attributes)
        return ended

    def _group(self, event: GroupChanged, now_ms: int) -> list[Span]:
        if event.state in _PHASES:
            return self._enter(event.group, _PHASES[event.state], now_ms)
        if event.state is GroupState.PENDING:
            return self._enter(event.group, "queued", now_ms, message=event.message)
        if event.state is GroupState.STOPPING:
            return self._enter(event.group, "stopping", now_ms)
        if not event.state.terminal:
            return []
        failed = event.state is GroupState.FAILED
        left = [what for owner, what in self.open if owner == event.group and what != "group"]
        ended = [span for what in left for span in self._end(event.group, what, now_ms)]
        root = self.open.get((event.group, "group"))
        if root is not None:
            self.open[(event.group, "group")] = replace(
                root, attributes=(*root.attributes, ("gangflow.state", str(event.state)))
            )
        ended += self._end(event.group, "group", now_ms, failed=failed, message=event.message or event.cause)
        self._forget(event.group)
        return ended

    def _forget(self, group: str) -> None:
        self._phase.pop(group, None)
        self._tries.pop(group, None)
        for kept in (self._hosts, self._last):
            for key in [key for key in kept if key[0] == group]:
                del kept[key]

    def _incarnation(self, event: SlotChanged, now_ms: int) -> None:
        key = (event.group, event.member, event.index)
        slot = f"{event.member}[{event.index}]"
        attributes: dict[str, str | int] = {
            "gangflow.member": event.member,
            "gangflow.slot": event.index,
            "gangflow.incarnation": event.incarnation,
            "gangflow.hosts": ",".join(self._hosts.get(key, ())),
        }
        span = self._begin(event.group, f"{slot}#{event.incarnation}", f"{slot} #{event.incarnation}", now_ms, **attributes)
        replaced = self._last.get(key)
        if replaced is not None:
            link = span_id(self.cluster_id, event.group, f"{slot}#{replaced}")
            self.open[(event.group, f"{slot}#{event.incarnation}")] = replace(span, links=(link,))
        self._last[key] = event.incarnation

    def _exited(self, event: SlotExited, now_ms: int) -> list[Span]:
        exit_ = event.exit
        what = f"{event.member}[{event.index}]#{event.incarnation}"
        failed = exit_.cause is not None
        return self._end(event.group, what, now_ms, failed=failed, message=f"{exit_.cause or ''} {exit_.message}".strip())

    def _claim(self, event: ClaimChanged, now_ms: int) -> list[Span]:
        claim = event.claim
        what = f"claim {claim.plan.name} {claim.member}{claim.index}/{claim.attempt}"
        if claim.state is ClaimState.PROVISIONING:
            if (claim.group, what) not in self.open:
                self._begin(claim.group, what, f"claim {claim.plan.name}", now_ms, **{"gangflow.provider": claim.plan.provider})
            return []
        if claim.state in {ClaimState.READY, ClaimState.FAILED, ClaimState.GONE}:
            return self._end(claim.group, what, now_ms, failed=claim.state is ClaimState.FAILED, message=claim.message)
        return []

    def _change(self, event: ChangeMoved, now_ms: int) -> list[Span]:
        change = event.change
        what = f"change {change.id}"
        if (event.group, what) not in self.open and not change.state.over:
            targets = ", ".join(f"{member}={count}" for member, count in change.targets)
            self._begin(event.group, what, what, now_ms, **{"gangflow.targets": targets})
        if not change.state.over:
            return []
        return self._end(event.group, what, now_ms, failed=change.state is ChangeState.FAILED, message=change.message)


def fold(events: Iterable[tuple[Event, int]]) -> tuple[list[Span], SpanBook]:
    """All finished spans of a history of (event, at_ms), and the book with the open ones."""
    book = SpanBook()
    finished = [span for event, at_ms in events for span in book.feed(event, at_ms)]
    return finished, book
