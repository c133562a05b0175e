"""Lists of the contract come in pages; a command shows them whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def every(page_after: Callable[[str], Any], name: str) -> list[Any]:
    """The entries of every page of a list."""
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = page_after(cursor)
        found += getattr(page, name)
        cursor = page.next
    return found
