"""Recovery times as they were measured: gathered in out/benchmarks/recovery.json, and shown as the table in docs/recovery.md.

`python tests/engines/recoveries.py` writes the table anew from what the tests of faults last measured.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "out/benchmarks/recovery.json"
PAGE = ROOT / "docs/recovery.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"


def note(fault: str, *, did: str, noticed_s: float | None, back_s: float, order: int) -> None:
    """Keep what one fault cost: seconds until nothing more was sent there, and until all was whole again."""
    known = _read()
    known[fault] = {"did": did, "noticed_s": noticed_s, "back_s": back_s, "order": order, "load": os.getloadavg()[0]}
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps({"benchmark": "recovery", "faults": known}, indent=1, sort_keys=True) + "\n")


def table(known: dict[str, Any]) -> str:
    """The Markdown table."""
    rows = ["| fault | what followed | out after | whole after |", "|---|---|---:|---:|"]
    for fault, entry in sorted(known.items(), key=lambda item: item[1]["order"]):
        rows.append(f"| {fault} | {entry['did']} | {_seconds(entry['noticed_s'])} | {_seconds(entry['back_s'])} |")
    return "\n".join(rows)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _read() -> dict[str, Any]:
    return dict(json.loads(FILE.read_text())["faults"]) if FILE.exists() else {}


def main() -> int:
    """Put the table into the page."""
    known = _read()
    if not known:
        print(f"nothing was measured: {FILE} does not exist", file=sys.stderr)
        return 1
    measured = f"{BEGIN}\n{table(known)}\n{END}"
    PAGE.write_text(re.sub(f"{BEGIN}.*?{END}", lambda _: measured, PAGE.read_text(), flags=re.DOTALL))
    return 0


if __name__ == "__main__":
    sys.exit(main())
