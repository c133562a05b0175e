"""Bodies of commands and what they answer, the group services (key-values, heartbeats), logs, events, and problems."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gangflow.xce.rest.schema import Body, ChangeView, View

MAX_INT = 2**53 - 1
"""Of any number in a request: what every JSON reader holds exactly, and the journal too."""
MAX_SECONDS = 366 * 86_400.0

# --- commands and their answers -------------------------------------------------------------------------------------


class FailBody(Body):
    """Fail a group, for a cause."""

    cause: str = Field("user", max_length=100)
    message: str = Field("", max_length=4_000)


class ReportBody(Body):
    """A coordinator's verdict: `cause` is unhealthy, hung, stale or diverged."""

    cause: str
    incarnation: int = Field(ge=1, le=MAX_INT)
    message: str = Field("", max_length=4_000)


class RestartBody(Body):
    """An operator's restart of the incarnation that it names."""

    incarnation: int = Field(ge=0, le=MAX_INT)


class MessageBody(Body):
    """Why, for the record and for whoever looks at it later."""

    message: str = Field("", max_length=4_000)


class ScaleBody(Body):
    """Other targets: of the replica sets that it names; the others keep theirs."""

    targets: dict[str, int] = Field(min_length=1, max_length=1_000)
    timeout: float = Field(0.0, ge=0.0, le=MAX_SECONDS)
    """Seconds until the change has failed; 0: the group's own."""


class DrainBody(Body):
    """Drain and stop the incarnation that it names."""

    incarnation: int = Field(ge=1, le=MAX_INT)


class TokenBody(Body):
    """A token for an owner, or one by which others may name him."""

    owner: str = Field("", max_length=64)
    """Empty: the caller's own name."""
    kind: Literal["owner", "delegation"] = "owner"
    ttl: float = Field(86_400.0, gt=0.0, le=MAX_SECONDS)
    """Seconds that it is good for."""


class SignalBody(Body):
    """Fault injection: send a signal to the main process of a task."""

    incarnation: int = Field(ge=1, le=MAX_INT)
    signal: int = Field(9, ge=1, le=64)
    task: int = Field(0, ge=0, le=MAX_INT)


class ValueBody(Body):
    """A compare-and-set of one key-value."""

    value: str
    """A JSON text."""
    expect: int = Field(-1, ge=-1, le=MAX_INT)
    """The version that it replaces (0: must not exist; -1: any)."""


class Done(View):
    """A command that answers with nothing but the position at which it is durable."""

    seq: int


class Submitted(View):
    """The id that a group got."""

    seq: int
    id: str


class GroupMoved(View):
    """What a command made of a group."""

    seq: int
    id: str
    state: str


class HostMoved(View):
    """What a command made of a host."""

    seq: int
    host: str
    state: str


class ScaleView(View):
    """The change that was accepted; None if the targets were these already."""

    seq: int
    id: str
    """The group's."""
    change: ChangeView | None = None


class TokenView(View):
    """A new token. It is shown this once and kept nowhere."""

    seq: int
    token: str
    owner: str
    kind: str
    expires_ms: int


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
    fields: dict[str, str | int] = Field(default_factory=dict)
    """What else there is to say, for programs: the newest `incarnation`, the `state` in the way, what is short (`no_fit`)."""
