"""Every refusal as problem+json (RFC 9457) with a stable code: exceptions, machine replies and malformed requests alike."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from gangflow.errors import (
    Conflict,
    Fenced,
    GangflowError,
    Gone,
    JournalError,
    JournalFull,
    JournalLocked,
    NotFound,
    Problem,
    SpecError,
    Superseded,
    Unauthorized,
    XceError,
)
from gangflow.xce.core.inputs import Reply
from gangflow.xce.rest.messages import ProblemView, SpecProblem
from gangflow.xce.rest.sight import Sight

MEDIA_TYPE = "application/problem+json"

TITLES = {
    "conflict": "It changed meanwhile, or the name is taken",
    "fenced": "A newer coordinator has taken over",
    "forbidden": "This token may not do that",
    "gone": "The journal does not reach back that far",
    "in_use": "Something uses it",
    "internal": "The controller failed to answer",
    "invalid": "The request can not be carried out",
    "invalid_request": "The request is malformed",
    "invalid_spec": "The spec is wrong; nothing was created",
    "journal": "The journal cannot be relied on",
    "journal_corrupt": "A record of the journal is damaged",
    "journal_full": "The journal's disk is full; nothing was done",
    "journal_locked": "Something else holds the journal's file; nothing was done",
    "journal_regressed": "An agent knows a later journal",
    "idempotency_mismatch": "This idempotency key belongs to another request",
    "misconfigured": "The cluster does not know that; nothing was created",
    "never_fits": "No host could ever hold it; nothing was created",
    "busy": "Too much is waiting; try again",
    "no_fit": "It does not fit what is free; nothing was changed",
    "not_enforced": "This version does not do that",
    "not_found": "There is no such thing",
    "not_ready": "The controller is not ready",
    "superseded": "Not the newest incarnation",
    "too_large": "The request is too large",
    "too_many_groups": "Too many groups of one owner",
    "too_many_streams": "Too many streams",
    "unauthorized": "A valid bearer token is needed",
    "unreachable_host": "The host's agent does not answer",
}
_STATUS: tuple[tuple[type[GangflowError], int], ...] = (
    (SpecError, 422),
    (NotFound, 404),
    (Superseded, 409),
    (Fenced, 409),
    (Conflict, 409),
    (Gone, 410),
    (Unauthorized, 401),
    (JournalFull, 503),
    (JournalLocked, 503),
    (JournalError, 500),
)
_HTTP_CODES = {
    400: "invalid_request",
    404: "not_found",
    405: "invalid_request",
    413: "too_large",
    422: "invalid_request",
    503: "not_ready",
}


class Refusal(Exception):
    """A request is refused: what its problem document says."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        problems: Sequence[Problem] = (),
        headers: Mapping[str, str] | None = None,
        fields: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__(detail)
        self.fields = dict(fields or {})
        self.status = status
        self.code = code
        self.detail = detail
        self.problems = tuple(problems)
        self.headers = dict(headers or {})


def not_found(detail: str) -> Refusal:
    """404."""
    return Refusal(404, "not_found", detail)


def superseded(detail: str) -> Refusal:
    """409: about, or by, an incarnation that is not the newest."""
    return Refusal(409, "superseded", detail)


def forbidden(detail: str) -> Refusal:
    """403."""
    return Refusal(403, "forbidden", detail)


def not_enforced(what: str) -> Refusal:
    """501: part of the contract, not of this version; it says so instead of pretending."""
    return Refusal(
        501, "not_enforced", f"{what} is part of the contract, but this version does not enforce it; nothing was done"
    )


def problem_document(
    status: int,
    code: str,
    detail: str,
    problems: Sequence[Problem] = (),
    seq: int | None = None,
    fields: Mapping[str, str | int] | None = None,
) -> ProblemView:
    """The document itself."""
    return ProblemView(
        type=f"urn:gangflow:problem:{code}",
        title=TITLES.get(code, HTTPStatus(status).phrase),
        status=status,
        code=code,
        detail=detail,
        seq=seq,
        fields=dict(fields or {}),
        problems=tuple(
            SpecProblem(path=p.path, value=p.value, expected=p.expected, nearest=p.nearest, line=p.line) for p in problems
        ),
    )


def refused(reply: Reply, sight: Sight) -> Refusal:
    """A machine's reply that is not ok, without what it says of groups that the caller does not see."""
    named = dict(reply.fields).get("id")
    if reply.code == "conflict" and isinstance(named, str) and not sight.sees_name(named):
        return Refusal(409, reply.code, "the name is taken")
    told = {name: sight.text(value) if isinstance(value, str) else value for name, value in reply.fields}
    path = told.get("path")
    problems = [Problem(str(path), "", reply.message)] if path and reply.status == 422 else []
    return Refusal(reply.status, reply.code, sight.text(reply.message), problems=problems, fields=told)


def problem_of(error: Exception) -> tuple[ProblemView, dict[str, str]]:
    """The document and extra headers for what a handler raised. Unknown exceptions say nothing of their inside."""
    headers: dict[str, str] = {}
    if isinstance(error, Refusal):
        document = problem_document(error.status, error.code, error.detail, error.problems, fields=error.fields)
        return document, error.headers
    if isinstance(error, RequestValidationError):
        return problem_document(422, "invalid_request", "see problems", _malformed(error.errors())), headers
    if isinstance(error, HTTPException):
        code = _HTTP_CODES.get(error.status_code, f"http_{error.status_code}")
        return problem_document(error.status_code, code, str(error.detail)), dict(error.headers or {})
    if isinstance(error, GangflowError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        if isinstance(error, XceError) and error.status >= 400:
            status = error.status
        if status == 503:
            headers["Retry-After"] = "1"
        code = error.problem if isinstance(error, XceError) else error.code
        problems = error.problems if isinstance(error, SpecError) else ()
        seq = error.seq if isinstance(error, Gone) else None
        return problem_document(status, code, error.message, problems, seq), headers
    return problem_document(500, "internal", "the controller's log says more"), headers


def _malformed(errors: Sequence[Any]) -> list[Problem]:
    return [
        Problem(
            path=".".join(str(part) for part in error["loc"]),
            value=repr(error.get("input"))[:100] if error["type"] != "missing" else "",
            expected=str(error["msg"]),
        )
        for error in errors
    ]


async def answer_problem(_request: Request, error: Exception) -> Response:
    """The handler of every exception."""
    document, headers = problem_of(error)
    if document.code == "internal":
        logging.getLogger(__name__).error("a handler failed", exc_info=error)
    content = document.model_dump_json(exclude_none=True)
    return Response(content, document.status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI) -> None:
    """Answer every exception of the app's handlers with a problem document."""
    for kind in (Refusal, GangflowError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer_problem)
