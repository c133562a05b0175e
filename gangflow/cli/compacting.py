"""`gangflow compact`: a journal that no controller uses, made small."""

from __future__ import annotations

import time
from pathlib import Path

from gangflow.cli.replaying import journal_file
from gangflow.errors import JournalLocked, Problem, UsageError
from gangflow.specs.document import load_cluster
from gangflow.specs.journal import JournalSpec
from gangflow.specs.quantity import DURATION_RULE, MEMORY_RULE, duration_ms, memory_mib
from gangflow.xce.journal.compaction import compact


def run_compact(place: Path, keep: str, keep_size: str, images: int) -> None:
    """Compact the journal and say what that did.

    Raises:
        JournalLocked: a controller uses it (it forgets old records by itself).
        JournalCorrupt, JournalFull: nothing was thrown away.
    """
    file = journal_file(place)
    spec = _spec(file.parent / "cluster.yaml")
    kept_ms = _read(duration_ms, keep, "--keep", DURATION_RULE) if keep else spec.keep
    kept_mib = _read(memory_mib, keep_size, "--keep-size", MEMORY_RULE) if keep_size else spec.keep_size
    try:
        done = compact(file, int(time.time() * 1000) - kept_ms, kept_mib * 2**20, images)
    except JournalLocked as error:
        remedy = (
            "`gangflow down` first; while it runs it forgets by itself what `journal.keep` of its cluster.yaml does not keep"
        )
        raise JournalLocked(error.message, remedy=remedy) from error
    print(f"{file}: {done.records_before:,} → {done.records:,} records, {_mib(done.bytes_before)} → {_mib(done.bytes)}")
    print(
        f"the state at seq {done.seq} is the same before and after; images at seq {', '.join(map(str, done.images)) or 'none'}"
    )
    if done.horizon:
        begin = done.images[-1]
        print(f"events up to seq {done.horizon} are not kept any more (410 to whoever asks); a replay begins after seq {begin}")


def _spec(file: Path) -> JournalSpec:
    return load_cluster(file).journal if file.is_file() else JournalSpec()


def _read(reader: object, text: str, option: str, rule: str) -> int:
    try:
        return int(reader(text))  # type: ignore[operator]
    except Exception as error:
        raise UsageError([Problem(option, repr(text), rule)]) from error


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
