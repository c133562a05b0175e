"""The contract's own document (OpenAPI 3.1): what FastAPI derives from the routes, and what only we know of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from gangflow.xce.rest.problems import MEDIA_TYPE
from gangflow.xce.rest.rights import ANYBODY, RIGHTS
from gangflow.xce.rest.schema import API

_PROBLEM = "#/components/schemas/ProblemView"
_BEARER = "bearer"


def install(app: FastAPI) -> None:
    """Let the app serve the whole document."""
    derived = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _completed(derived())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _completed(document: dict[str, Any]) -> dict[str, Any]:
    components = document.setdefault("components", {})
    components["securitySchemes"] = {
        _BEARER: {
            "type": "http",
            "scheme": "bearer",
            "description": "the admin's token, an owner's (`xcu1.…`), or a task's own (`xct1.…`)",
        }
    }
    for path, calls in document["paths"].items():
        for method, call in calls.items():
            who = RIGHTS[method.upper(), path.removeprefix(API)]
            call["security"] = [] if who == ANYBODY else [{_BEARER: []}]
            call["x-rights"] = sorted(stand.value for stand in who)
            for answer in call["responses"].values():
                _as_problem(answer)
    return document


def _as_problem(answer: dict[str, Any]) -> None:
    """A refusal is problem+json, which FastAPI does not know of a model."""
    content = answer.get("content", {})
    if content.get("application/json", {}).get("schema", {}).get("$ref") in (
        _PROBLEM,
        "#/components/schemas/HTTPValidationError",
    ):
        answer["content"] = {MEDIA_TYPE: {"schema": {"$ref": _PROBLEM}}}
