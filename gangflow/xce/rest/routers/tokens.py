"""Tokens: the admin makes an owner's; an owner makes delegation tokens for himself."""

from __future__ import annotations

from fastapi import APIRouter, Response

from gangflow.errors import Problem
from gangflow.xce.rest.access import Caller, Serving, shown
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import TokenBody, TokenView
from gangflow.xce.rest.problems import Refusal
from gangflow.xce.rest.tokens import ADMIN, OWNER_NAME

router = APIRouter(tags=["tokens"], route_class=StrictRoute)


@router.post("/tokens", status_code=201, response_model=TokenView)
async def make(body: TokenBody, caller: Caller, service: Serving) -> Response:
    """A token that is good for `ttl` seconds; it is shown this once. None can be taken back: change the admin token for that.

    `owner`: its holder is that owner (the admin makes these). `delegation`: its holder may name that owner in a submission, in
    the header `XCE-Delegation`, and nothing else; an owner makes them for himself. Not journalled, and has no idempotency key.
    """
    owner = body.owner or caller.owner
    if caller != ADMIN and (body.kind != "delegation" or owner != caller.owner):
        wrong = Problem("owner" if owner != caller.owner else "kind", repr(owner if owner != caller.owner else body.kind),
                        f"a delegation token for {caller.owner} himself; the rest takes the admin's token")  # fmt: skip
        raise Refusal(403, "forbidden", str(wrong), problems=[wrong])
    if not OWNER_NAME.fullmatch(owner):
        expected = "an owner's name: letters, digits, _ . @ and -, at most 63 characters"
        if not owner:
            flag = " --delegation" if body.kind == "delegation" else ""
            expected = f"the owner whose token it is, for the admin's own is nobody's: `xcecli token OWNER{flag}`"
        value = repr(owner)[:80] if owner else ""
        raise Refusal(422, "invalid_request", "see problems", problems=[Problem("body.owner", value, expected)])
    expires_ms = service.controller.now_ms() + round(body.ttl * 1_000)
    make = service.tokens.owner_token if body.kind == "owner" else service.tokens.delegation_token
    view = TokenView(
        seq=service.controller.seq, token=make(owner, expires_ms), owner=owner, kind=body.kind, expires_ms=expires_ms
    )
    return shown(view, 201)
