"""Tables as LSF prints them: `-o` chooses columns, `-json` prints records. Pure: views in, text out."""

from __future__ import annotations

import difflib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gangflow.errors import Problem, SpecError

T = TypeVar("T")
NONE = "-"
"""What LSF prints where there is nothing."""
CUT = "*"
"""What LSF puts before the end of a text that was cut."""
NARROWEST = 10
"""A column is not cut below this."""

Fields = Mapping[str, tuple[str, Callable[[T], str]]]
"""Name for `-o` → (header, text of a row)."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Which columns, how wide."""

    names: tuple[str, ...]
    widths: Mapping[str, int] = field(default_factory=dict)
    delimiter: str | None = None
    chosen: bool = False
    """By `-o`: nothing is cut that was not asked to be."""


@dataclass(frozen=True, slots=True)
class Table(Generic[T]):
    """What one command can print."""

    command: str
    counted: str
    """What `-json` calls the number of records."""
    fields: Fields[T]
    default: tuple[str, ...]

    def choose(self, wanted: str) -> Layout:
        """The layout that `-o` asks for: names (any case), each with an optional `:width`, and `delimiter='c'`.

        Raises:
            SpecError: an unknown name, with the nearest known one.
        """
        if not wanted.strip():
            return Layout(self.default)
        names, widths, delimiter = [], {}, None
        for word in shlex.split(wanted.replace(",", " ") if "delimiter" not in wanted else wanted):
            if word.startswith("delimiter="):
                delimiter = word.partition("=")[2]
                continue
            name, _, width = word.lower().partition(":")
            if name not in self.fields or (width and not width.isdigit()):
                nearest = difflib.get_close_matches(name, list(self.fields), 1)
                expected = "a width" if name in self.fields else "one of " + ", ".join(self.fields)
                raise SpecError([Problem("-o", repr(word), expected, "" if name in self.fields else next(iter(nearest), ""))])
            names.append(name)
            if width:
                widths[name] = int(width)
        return Layout(tuple(names) or self.default, widths, delimiter, chosen=True)

    def rows(self, views: Sequence[T], layout: Layout) -> list[list[str]]:
        """The texts of the chosen columns, without the header."""
        return [[self.fields[name][1](view) or NONE for name in layout.names] for view in views]

    def text(self, views: Sequence[T], layout: Layout, *, header: bool = True, width: int = 0) -> str:
        """Columns under their headers; with a delimiter, just joined. `width`: what a line may take; 0: as it comes. Texts that
        do not fit into it keep their ends, behind a `*`, as in LSF."""
        rows = self.rows(views, layout)
        if header:
            rows.insert(0, [self.fields[name][0] for name in layout.names])
        if layout.delimiter is not None:
            return "\n".join(layout.delimiter.join(row) for row in rows)
        rows = [
            [cell[: layout.widths.get(name, len(cell))] for name, cell in zip(layout.names, row, strict=True)] for row in rows
        ]
        widths = [
            layout.widths.get(name) or max((len(row[column]) for row in rows), default=0)
            for column, name in enumerate(layout.names)
        ]
        if width and not layout.chosen:
            widths = narrowed(widths, [len(self.fields[name][0]) for name in layout.names], width)
        return "\n".join("  ".join(map(_cell, row, widths)).rstrip() for row in rows)

    def document(self, views: Sequence[T], layout: Layout) -> str:
        """As `bjobs -json` prints it: the command, how many records, and the records under their headers."""
        headers = [self.fields[name][0] for name in layout.names]
        records = [dict(zip(headers, row, strict=True)) for row in self.rows(views, layout)]
        return json.dumps({"COMMAND": self.command, self.counted: len(records), "RECORDS": records}, indent=2)


def narrowed(widths: Sequence[int], least: Sequence[int], total: int) -> list[int]:
    """The widths, the widest made smaller until a line takes no more than `total`; none below its header, or `NARROWEST`."""
    found = list(widths)
    floor = [min(width, max(NARROWEST, small)) for width, small in zip(widths, least, strict=True)]
    surplus = sum(found) + 2 * (len(found) - 1) - total
    while surplus > 0:
        column = max(range(len(found)), key=lambda each: (found[each] > floor[each], found[each]))
        if found[column] <= floor[column]:
            break
        found[column] -= 1
        surplus -= 1
    return found


def _cell(text: str, width: int) -> str:
    if len(text) > width > 1:
        text = CUT + text[len(text) - width + 1 :]
    return text.ljust(width)
