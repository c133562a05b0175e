"""Bodies of commands and what they answer, the group services (key-values, heartbeats), logs, events, and problems."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gangflow.xce.rest.schema import Body, View

# --- commands and their answers -------------------------------------------------------------------------------------


class FailBody(Body):
    """Fail a group, for a cause."""

    cause: str = Field("user", max_length=100)
    message: str = Field("", max_length=4_000)


class ReportBody(Body):
    """A coordinator's verdict: `cause` is unhealthy, hung, stale or diverged."""

    cause: str
    incarnation: int = Field(ge=1)
    message: str = Field("", max_length=4_000)


class RestartBody(Body):
    """An operator's restart of the incarnation that it names."""

    incarnation: int = Field(ge=0)


class SignalBody(Body):
    """Fault injection: send a signal to the main process of a task."""

    incarnation: int = Field(ge=1)
    signal: int = Field(9, ge=1, le=64)
    task: int = Field(0, ge=0)


class ValueBody(Body):
    """A compare-and-set of one key-value."""

    value: str
    """A JSON text."""
    expect: int = Field(-1, ge=-1)
    """The version that it replaces (0: must not exist; -1: any)."""


class Done(View):
    """A command that answers with nothing but the position at which it is durable."""

    seq: int


class Submitted(View):
    """The id that a group got."""

    seq: int
    id: str


class TermView(View):
    """A coordinator's term."""

    seq: int
    term: int


class VersionView(View):
    """The version that a key-value has now."""

    seq: int
    version: int


class ValueView(View):
    """`version` 0 and no value: never written."""

    seq: int
    key: str
    value: str | None = None
    version: int = 0


class ValueList(View):
    """A page of a group's key-values, in the order of their keys."""

    seq: int
    values: tuple[ValueView, ...]
    next: str | None = None


class BeatView(View):
    """The latest heartbeat of a slot."""

    member: str
    index: int
    incarnation: int
    at_ms: int
    body: dict[str, Any]


class BeatList(View):
    """The latest heartbeat of each slot that sent one to this controller (they are kept in memory only)."""

    seq: int
    now_ms: int
    unknown_until_ms: int
    """Before this nobody's silence means anything: the controller has just started."""
    heartbeats: tuple[BeatView, ...]


class LogView(View):
    """A piece of an incarnation's log."""

    seq: int
    incarnation: int
    text: str
    offset: int
    next_offset: int
    ended: bool
    """The incarnation is over and this is the end of its log."""


class EventView(View):
    """One durable record of the journal, without secrets."""

    seq: int
    at_ms: int
    type: str
    group: str = ""
    data: dict[str, Any]


class HealthView(View):
    """The controller answers."""

    seq: int
    horizon: int = 0
    """The smallest `after` of the event stream."""
    status: str
    cluster_id: str
    term: int
    version: str


# --- problems (RFC 9457) --------------------------------------------------------------------------------------------


class SpecProblem(View):
    """One thing that is wrong with a spec or a body."""

    path: str
    value: str = ""
    expected: str
    nearest: str = ""
    line: int = 0


class ProblemView(View):
    """application/problem+json. `code` is stable; `type` is the same as a URN."""

    type: str
    title: str
    status: int
    code: str
    detail: str = ""
    seq: int | None = None
    """With `gone`: where to list again."""
    problems: tuple[SpecProblem, ...] = ()
