"""Every benchmark, one after the other. `make bench`; pass names (`p1 p10 rl_overhead`) to choose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BENCHMARKS = (
    "p1_placement",
    "p3_start",
    "p8_release",
    "claim_shared",
    "p9_restart",
    "p10_import",
    "p11_idle",
    "scale_placed",
    "core_speed",
)
WITH_ENGINES = ("weight_push", "rl_overhead", "rl_async")
"""Those that need a torch trainer and real vLLM servers."""
TRAINERS = HERE.parents[1] / ".venv-rl" / "bin" / "python"


def chosen(name: str) -> bool:
    return not sys.argv[1:] or name in sys.argv[1:] or name.split("_")[0] in sys.argv[1:]


def run(python: str | Path, name: str) -> int:
    return subprocess.run([str(python), str(HERE / f"{name}.py")], check=False).returncode


def main() -> int:
    codes = [run(sys.executable, name) for name in BENCHMARKS if chosen(name)]
    engines = [name for name in WITH_ENGINES if chosen(name)]
    if engines and not TRAINERS.is_file():
        print(f"left out: {', '.join(engines)}: there is no {TRAINERS}; `make engines` makes it, and a vLLM")
    else:
        codes += [run(TRAINERS, name) for name in engines]
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
