"""P10: what importing costs: `import gangflow`, `from gangflow import CoStartGroup`, against pydantic alone.

    python tests/benchmarks/p10_import.py [--repeats 15]

Whole processes, taken in turn; an empty interpreter's time is subtracted. Goals: ≤ 60 ms, and ≤ 1.5 × pydantic alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish

STATEMENTS = {
    "(empty interpreter)": "pass",
    "import gangflow": "import gangflow",
    "import pydantic, one model": "import pydantic\nclass M(pydantic.BaseModel):\n    x: int = 0",
    "from gangflow import CoStartGroup": "from gangflow import CoStartGroup",
}


def once(side: Side, statement: str) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    side.add((time.perf_counter() - wall) * 1000, cpu * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    sides = {name: Side(name) for name in STATEMENTS}
    for turn in range(options.repeats + 1):
        for name, statement in STATEMENTS.items():
            once(sides[name] if turn else Side("warm-up"), statement)
    empty, gangflow, pydantic, group = (side.median for side in sides.values())
    ratio = (group - empty) / (pydantic - empty)
    lines = [
        f"import gangflow: {gangflow - empty:.0f} ms above an empty interpreter (goal: ≤ 60 ms)",
        f"CoStartGroup: {ratio:.2f} × pydantic alone (goal: ≤ 1.5)",
    ]
    publish("p10", "P10: imports, whole processes", list(sides.values()), lines, {"ratio": ratio})


if __name__ == "__main__":
    main()
