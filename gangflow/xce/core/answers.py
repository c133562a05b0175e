"""Idempotency keys: a command that was answered is answered the same again, for 24 h (design 4.1), if there is room."""

from __future__ import annotations

import json
from itertools import islice

from gangflow.xce.core.events import AnswersForgotten, CommandAnswered
from gangflow.xce.core.inputs import Reply, Request
from gangflow.xce.core.layers import first
from gangflow.xce.core.limits import ANSWERS_FORGOTTEN_AT_ONCE, ANSWERS_KEPT_MAX, ANSWERS_KEPT_MS
from gangflow.xce.core.state import Answer
from gangflow.xce.core.turn import Turn

_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


def remembered(turn: Turn, request: Request) -> Reply | None:
    """The reply to an earlier command with this key; 422 if that had another body; None: it is a new one."""
    answer = turn.draft.answers.get(request.key) if request.key else None
    if answer is None:
        return None
    if answer.digest != request.digest:
        return Reply(422, "idempotency_mismatch", f"key {request.key!r} was used with another body")
    document = json.loads(answer.body)
    fields = tuple((str(name), value) for name, value in document["fields"])
    return Reply(answer.status, document["code"], document["message"], fields)


def remember(turn: Turn, request: Request, reply: Reply) -> None:
    """Keep the outcome under its key, in the same batch as what it did."""
    if request.key:
        body = _ENCODE({"code": reply.code, "message": reply.message, "fields": reply.fields})
        turn.emit(CommandAnswered(request.key, Answer(request.digest, turn.now_ms, reply.status, body)))
        if len(turn.draft.answers) > ANSWERS_KEPT_MAX:
            turn.emit(AnswersForgotten(tuple(islice(turn.draft.answers, ANSWERS_FORGOTTEN_AT_ONCE))))


def forget(turn: Turn) -> None:
    """Answers that are older than they are kept."""
    oldest = first(turn.draft.answers)
    if oldest is None or oldest[1].at_ms + ANSWERS_KEPT_MS > turn.now_ms:
        return
    old = []
    for key, answer in turn.draft.answers.items():
        if answer.at_ms + ANSWERS_KEPT_MS > turn.now_ms:
            break
        old.append(key)
    if old:
        turn.emit(AnswersForgotten(tuple(old)))
