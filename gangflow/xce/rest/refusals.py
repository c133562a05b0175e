"""A problem document → the exception that a caller can tell apart, and which failures are worth another try."""

from __future__ import annotations

import json
from typing import Any

import httpx

from gangflow.errors import (
    Conflict,
    Fenced,
    GangflowError,
    Gone,
    JournalCorrupt,
    JournalError,
    JournalFull,
    JournalLocked,
    JournalRegressed,
    NotFound,
    NotYetError,
    Problem,
    SpecError,
    Superseded,
    Unauthorized,
    Unreachable,
    XceError,
)

_REFUSALS: dict[str, type[XceError]] = {
    kind.code: kind for kind in (NotFound, Superseded, Fenced, Conflict, Unauthorized, Unreachable)
}
_REFUSALS["forbidden"] = Unauthorized
_REFUSALS["gone"] = Gone

_JOURNAL: dict[str, type[JournalError]] = {
    kind.code: kind for kind in (JournalFull, JournalLocked, JournalCorrupt, JournalRegressed, JournalError)
}

_REMEDIES = {
    "forbidden": "use the token of whoever may (GANGFLOW_TOKEN, or `--token`): the message says whose that is",
    "no_fit": "ask for less, or let something else give back what is short first (`xcecli hosts -l` shows what is in use)",
    "in_use": "end what uses it first (`xcecli claims -l` names its holders)",
    "never_fits": "ask for what some host has (`xcecli hosts -l` shows what there is)",
    "too_many_groups": "end some of the groups first (`xcecli groups`)",
}
"""What helps, by the code of the problem, where its kind of error does not say it already."""
_TARGETS_REMEDY = "ask for what the group's spec allows: its bounds, ratios and budget (`xcecli members -l` shows the bounds)"
_OWNER_REMEDY = (
    "name an owner of your own, or pass the other one's delegation token (GANGFLOW_DELEGATION, or `--delegation`):"
    " `xcecli token --delegation` makes it, as that owner"
)


class Busy(Exception):
    """503, or 429 `busy`: not now; worth another try with the same idempotency key."""

    def __init__(self, refusal: GangflowError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


def transient(error: BaseException) -> bool:
    """Nobody answered, or whoever did has no time now."""
    return isinstance(error, Busy | httpx.TimeoutException | httpx.NetworkError | httpx.RemoteProtocolError)


def accepted(status: int, content: bytes) -> Any:
    """The decoded answer; the exception of its problem document if it is one; Busy where another try is worth it."""
    if status < 400:
        return json.loads(content)
    refusal = refusal_of(status, content)
    if status == 503 or (status == 429 and isinstance(refusal, XceError) and refusal.problem == "busy"):
        raise Busy(refusal)
    raise refusal


def refusal_of(status: int, content: bytes) -> GangflowError:
    """The exception that says what a problem document says. Anything else that answered is quoted."""
    try:
        document = json.loads(content)
        code, detail = str(document["code"]), str(document.get("detail") or document.get("title", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        quoted = content[:200].decode(errors="replace")
        return XceError(f"HTTP {status} without a problem document: {quoted!r}", status=status, problem=f"http_{status}")
    problems = [_problem(item) for item in document.get("problems", ())]
    if problems and code == NotYetError.code:
        return NotYetError(problems)
    if problems and code in {SpecError.code, "never_fits", "misconfigured"}:
        return SpecError(problems, remedy=_REMEDIES.get(code, ""))
    if code in _JOURNAL:
        return _JOURNAL[code](detail)
    if code == Gone.code:
        return Gone(detail, seq=int(document.get("seq") or 0), status=status)
    # A problem that says the same in the same words is not told twice.
    told = "" if problems and detail == "see problems" else detail
    lines = [told, *(str(problem) for problem in problems if problem.expected != detail and str(problem) not in detail)]
    # Whatever a state does not allow now is a Conflict, whichever code says in what way (`no_fit`, `in_use`, …).
    kind = _REFUSALS.get(code, Conflict if status == 409 else XceError)
    remedy = _REMEDIES.get(code, "")
    if code == "forbidden" and any("may name" in problem.expected for problem in problems):
        remedy = _OWNER_REMEDY
    elif any(problem.path.partition(".")[0] == "targets" for problem in problems):
        remedy = _TARGETS_REMEDY
    error = kind("\n".join(line for line in lines if line), status=status, problem=code, remedy=remedy)
    error.fields = dict(document.get("fields") or {})
    return error


def unanswered(url: str, error: BaseException) -> GangflowError:
    """What a caller gets after the last try."""
    if isinstance(error, Busy):
        return error.refusal
    return Unreachable(f"nobody answers at {url}: {error or type(error).__name__}")


def _problem(item: dict[str, Any]) -> Problem:
    return Problem(
        path=str(item.get("path", "")),
        value=str(item.get("value", "")),
        expected=str(item.get("expected", "")),
        nearest=str(item.get("nearest", "")),
        line=int(item.get("line", 0)),
    )
