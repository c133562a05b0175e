"""Write the golden histories of this version: `python -m tests.golden.make [NAME…]`.

When a version is released its histories are committed as `tests/golden/v<major>.<minor>/` and never touched again, by nobody:
they are what its users have on their disks. The version after it makes its own beside them (from the worlds in `worlds.py`
as they are then), must go on reading the old ones (`record.UPGRADES`, `image.UPGRADES`), and either decides as the old one
did, which `replay.DECIDES_AS` declares and `test_golden.py` proves, or does not say so. While a version is not released,
whoever changes what it decides, or how that is written, makes its histories anew.
"""

from __future__ import annotations

import sys
from pathlib import Path

from gangflow import __version__
from gangflow.xce.journal.replay import replay
from tests.golden.stored import Stored, save
from tests.golden.worlds import WORLDS
from tests.property.kept import batches_of

HERE = Path(__file__).resolve().parent


def folder() -> Path:
    """Of this version's histories."""
    return HERE / ("v" + ".".join(__version__.split(".")[:2]))


def main() -> int:
    for name in sys.argv[1:] or WORLDS:
        path = folder() / f"{name}.jsonl.gz"
        save(path, batches_of(WORLDS[name]()))
        stored = Stored(path)
        found = replay(stored)
        assert found.divergence is None, found.divergence
        print(
            f"{path.relative_to(HERE)}: {len(stored.kept)} records, {stored.seq} events, {path.stat().st_size / 1024:.0f} KiB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
