"""Lists in pages: every list has a limit, and what was left off is said by `next`, never silently."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from gangflow.xce.rest.problems import Refusal

T = TypeVar("T")

LIST_LIMIT = 1_000
"""Entries of one page."""
Limit = Annotated[int, Query(ge=1, le=LIST_LIMIT, description="entries of one page")]
Cursor = Annotated[str, Query(description="`next` of the page before")]


def page(entries: Sequence[T], name: Callable[[T], str], cursor: str, limit: int) -> tuple[Sequence[T], str | None]:
    """The entries after the one that `cursor` names, and the next cursor; 422 if the entry is gone."""
    start = 0
    if cursor:
        start = next((position for position, entry in enumerate(entries, 1) if name(entry) == cursor), -1)
        if start < 0:
            raise Refusal(422, "invalid_request", f"query.cursor: {cursor!r} is not in the list any more; list again")
    found = entries[start : start + limit]
    return found, name(found[-1]) if start + limit < len(entries) else None
