"""What every benchmark prints and writes: each side's median and spread, CPU seconds beside wall seconds, and JSON."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

OUT = Path("out/benchmarks")


@dataclass
class Side:
    """One of the compared sides: its samples, in milliseconds."""

    name: str
    wall_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    """Empty where the CPU time of the side cannot be told from others'."""

    def add(self, wall_ms: float, cpu_ms: float | None = None) -> None:
        self.wall_ms.append(wall_ms)
        if cpu_ms is not None:
            self.cpu_ms.append(cpu_ms)

    @property
    def median(self) -> float:
        return statistics.median(self.wall_ms)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def spread(values: Sequence[float]) -> str:
    """Median (min–max)."""
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})" if values else "–"


def publish(name: str, title: str, sides: Sequence[Side], lines: Sequence[str], facts: Mapping[str, object]) -> None:
    """Print the table and write `out/benchmarks/<name>.json`."""
    print(f"{title}; ms, median (min–max); load average {os.getloadavg()[0]:.1f}")
    width = max(len(side.name) for side in sides)
    print(f"{'':{width}}  {'n':>4}  {'wall':>26}  {'p99':>9}  {'CPU':>26}")
    for side in sides:
        print(
            f"{side.name:{width}}  {len(side.wall_ms):>4}  {spread(side.wall_ms):>26}  "
            f"{quantile(side.wall_ms, 0.99):>9.1f}  {spread(side.cpu_ms):>26}"
        )
    for line in lines:
        print(line)
    OUT.mkdir(parents=True, exist_ok=True)
    document = {
        "benchmark": name,
        "load": os.getloadavg(),
        "sides": {side.name: {"wall_ms": side.wall_ms, "cpu_ms": side.cpu_ms} for side in sides},
        **facts,
    }
    (OUT / f"{name}.json").write_text(json.dumps(document, indent=1))
    print(f"written: {OUT / name}.json\n")


@contextmanager
def timed(side: Side) -> Iterator[None]:
    """One sample of wall time and of this process's CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    yield
    side.add((time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000)
