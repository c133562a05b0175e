"""Every benchmark, one after the other. `make bench`; pass names (`p1 p10`) to choose."""

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


def main() -> int:
    chosen = [name for name in BENCHMARKS if not sys.argv[1:] or name.split("_")[0] in sys.argv[1:]]
    codes = [subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=False).returncode for name in chosen]
    return max(codes, default=0)


if __name__ == "__main__":
    sys.exit(main())
