"""Tables as LSF prints them: `-o` chooses columns, `-json` prints records. Pure: views in, text out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gangflow.errors import Problem, UsageError
from gangflow.specs.faults import nearest

T = TypeVar("T")
NONE = "-"
"""What LSF prints where there is nothing."""
CUT = "*"
"""What LSF puts before the end of a name that was cut; sentences keep their beginnings."""
SENTENCES = frozenset({"reason", "pend_reason", "exit_reason", "message"})
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
    texts: tuple[str, ...] = ()
    """Columns that may be cut where a terminal is narrow."""
    spare: tuple[str, ...] = ()
    """Columns that may go where a terminal is too narrow even so, the most dispensable first."""

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
                known = name in self.fields
                expected = "a width" if known else "one of " + ", ".join(self.fields)
                raise UsageError([Problem("-o", repr(word), expected, "" if known else nearest(name, self.fields))])
            names.append(name)
            if width:
                widths[name] = int(width)
        return Layout(tuple(names) or self.default, widths, delimiter, chosen=True)

    def rows(self, views: Sequence[T], layout: Layout) -> list[list[str]]:
        """The texts of the chosen columns, without the header."""
        return [[self.fields[name][1](view) or NONE for name in layout.names] for view in views]

    def text(self, views: Sequence[T], layout: Layout, *, header: bool = True, width: int = 0) -> str:
        """Columns under their headers; with a delimiter, just joined. `width`: what a line may take; 0: as it comes. Where that
        is too little, columns that say nothing go first, then texts keep their ends only, behind a `*` (as LSF cuts them)."""
        if width and not layout.chosen:
            layout = self._fitted(views, layout, width)
        rows = self.rows(views, layout)
        if header:
            rows.insert(0, [self.fields[name][0] for name in layout.names])
        if layout.delimiter is not None:
            return "\n".join(layout.delimiter.join(row) for row in rows)
        if layout.chosen:
            # As asked for: cut at the end.
            rows = [
                [cell[: layout.widths.get(name, len(cell))] for name, cell in zip(layout.names, row, strict=True)]
                for row in rows
            ]
        widths = [layout.widths.get(name) or _widest(rows, column) for column, name in enumerate(layout.names)]
        return "\n".join("  ".join(map(_cell, row, widths, layout.names)).rstrip() for row in rows)

    def _fitted(self, views: Sequence[T], layout: Layout, width: int) -> Layout:
        """The layout with as few columns less, and as little cut, as a line of `width` takes."""
        cells = dict(zip(layout.names, zip(*self.rows(views, layout), strict=True), strict=True))
        widths = {name: max(len(self.fields[name][0]), *map(len, cells[name])) for name in layout.names}
        silent = [name for name in reversed(layout.names) if all(cell in (NONE, "0") for cell in cells[name])]
        for name in silent:
            if _line(widths.values()) > width:
                del widths[name]
        _cut(widths, self.texts, width)
        for name in self.spare:
            if _line(widths.values()) > width:
                widths.pop(name, None)
                _cut(widths, self.texts, width)
        return Layout(tuple(widths), widths)

    def document(self, views: Sequence[T], layout: Layout) -> str:
        """As `bjobs -json` prints it: the command, how many records, and the records under their headers."""
        headers = [self.fields[name][0] for name in layout.names]
        records = [dict(zip(headers, row, strict=True)) for row in self.rows(views, layout)]
        return json.dumps({"COMMAND": self.command, self.counted: len(records), "RECORDS": records}, indent=2)


def _line(widths: Iterable[int]) -> int:
    """What a line of such columns takes."""
    found = list(widths)
    return sum(found) + 2 * (len(found) - 1)


def _cut(widths: dict[str, int], texts: Collection[str], total: int) -> None:
    """Make the widest of the `texts` narrower until a line takes no more than `total`, none below `NARROWEST`."""
    while _line(widths.values()) > total:
        widest = max((name for name in widths if name in texts), key=lambda name: widths[name], default=None)
        if widest is None or widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1


def _widest(rows: Sequence[Sequence[str]], column: int) -> int:
    return max((len(row[column]) for row in rows), default=0)


def _cell(text: str, width: int, name: str) -> str:
    if len(text) > width > 1:
        text = text[: width - 1] + CUT if name in SENTENCES else CUT + text[len(text) - width + 1 :]
    return text.ljust(width)
