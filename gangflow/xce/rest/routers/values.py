"""Group service: small durable key-values with compare-and-set, fenced by coordinator's term and writer's incarnation."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gangflow.xce.core.inputs import PutValue
from gangflow.xce.core.state import KeyValue
from gangflow.xce.rest.access import Asking, Caller, OfGroup, Serving, shown
from gangflow.xce.rest.json_text import StrictRoute, strict_json
from gangflow.xce.rest.messages import ValueBody, ValueList, ValueView, VersionView
from gangflow.xce.rest.pages import Cursor, Limit
from gangflow.xce.rest.problems import Refusal
from gangflow.xce.rest.schema import VALUE_BYTES

router = APIRouter(prefix="/groups/{group}/kv", tags=["group services"], route_class=StrictRoute)

NAME_CHARACTERS = 256
VALUES_LIMIT = 100
"""Of one page: a value may have 64 KiB."""


@router.get("", response_model=ValueList)
async def values(
    found: OfGroup, service: Serving, prefix: str = "", limit: Limit = VALUES_LIMIT, cursor: Cursor = ""
) -> Response:
    """A group's key-values, in the order of their keys."""
    seq = service.controller.seq
    entries = sorted(
        (
            (name, value)
            for (owner, name), value in service.state.values.items()
            if owner == found.id and name.startswith(prefix)
        ),
        key=lambda entry: entry[0],
    )
    # Not by `page`: keys have an order of their own, whatever was written or removed since.
    following = [entry for entry in entries if entry[0] > cursor]
    views = tuple(_view(seq, name, value) for name, value in following[:limit])
    return shown(ValueList(seq=seq, values=views, next=views[-1].key if len(following) > limit else None))


@router.get("/{name:path}", response_model=ValueView)
async def value(found: OfGroup, name: str, service: Serving) -> Response:
    """One key-value; version 0 if it was never written (which is a fact with a position, hence no 404)."""
    return shown(_view(service.controller.seq, name, service.state.values.get((found.id, name))))


@router.put("/{name:path}", response_model=VersionView)
async def put(found: OfGroup, name: str, body: ValueBody, caller: Caller, asked: Asking, service: Serving) -> Response:
    """Compare-and-set. 409: `conflict` (the version moved on), `fenced` (older term), `superseded` (older incarnation)."""
    if not 0 < len(name) <= NAME_CHARACTERS:
        raise Refusal(422, "invalid_request", f"path.name: a key has 1 to {NAME_CHARACTERS} characters")
    if len(body.value.encode()) > VALUE_BYTES:
        raise Refusal(413, "too_large", f"a value is at most {VALUE_BYTES} bytes; put data into a claim and its path here")
    try:
        strict_json(body.value)
    except ValueError as error:
        raise Refusal(422, "invalid_request", f"body.value: not a JSON text: {error}") from error
    reply = await service.command(PutValue(found.id, name, body.value, body.expect, caller.task, asked), caller)
    return shown(VersionView(seq=service.controller.seq, version=int(dict(reply.fields)["version"])))


def _view(seq: int, name: str, value: KeyValue | None) -> ValueView:
    if value is None:
        return ValueView(seq=seq, key=name)
    return ValueView(seq=seq, key=name, value=value.value, version=value.version)
