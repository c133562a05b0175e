"""Tables on terminals of any width: what says nothing goes first, then texts are cut; what was asked for with -o stays."""

from __future__ import annotations

import pytest

from gangflow.cli.lsf_table import Table

Row = dict[str, str]
FIELDS = {name: (name.upper(), lambda row, name=name: row.get(name, "")) for name in ("id", "queue", "hosts", "n", "reason")}
TABLE: Table[Row] = Table("xcecli things", "THINGS", FIELDS, tuple(FIELDS), ("hosts", "reason"), ("n",))
ROWS: list[Row] = [
    {"id": "g1", "hosts": "h0:h1:h2:h3:h4:h5:h6", "n": "0", "reason": "waits for a place that is large enough"},
    {"id": "g2", "n": "0"},
]


def text(width: int, wanted: str = "") -> list[str]:
    return TABLE.text(ROWS, TABLE.choose(wanted), width=width).splitlines()


def test_nothing_is_cut_where_there_is_room_or_no_terminal() -> None:
    assert text(0) == text(200)
    assert "waits for a place that is large enough" in text(0)[1]
    assert text(0)[0].split() == ["ID", "QUEUE", "HOSTS", "N", "REASON"]


def test_columns_that_say_nothing_go_first() -> None:
    full = max(map(len, text(0)))
    assert text(full - 1)[0].split() == ["ID", "QUEUE", "HOSTS", "REASON"]
    assert text(full - 5)[0].split() == ["ID", "HOSTS", "REASON"]
    assert "waits for a place that is large enough" in text(full - 5)[1]


def test_then_names_keep_their_ends_and_sentences_their_beginnings() -> None:
    lines = text(46)
    assert all(len(line) <= 46 for line in lines)
    cells = lines[1].split("  ")
    assert cells[1] == "h0:h1:h2:h3:h4:h5:h6"
    assert cells[2].startswith("waits for")
    assert cells[2].endswith("*")
    narrow = text(32)
    assert narrow[1].split("  ")[1].startswith("*")
    assert narrow[1].split("  ")[1].endswith("h5:h6")


def test_what_cannot_be_cut_further_is_printed_as_it_is() -> None:
    assert text(5) == text(26)


@pytest.mark.parametrize("width", range(5, 90, 7))
def test_every_line_fits_as_soon_as_it_can(width: int) -> None:
    assert max(map(len, text(width))) <= max(width, 26)


def test_chosen_columns_are_not_cut() -> None:
    assert text(20, "id reason")[1] == "g1  waits for a place that is large enough"
    assert text(20, "id reason:5")[1] == "g1  waits"
    assert text(20, "id n delimiter=;") == ["ID;N", "g1;0", "g2;0"]
