"""A history as a gzipped file: a line that says what it is, then one record of the journal a line, as it was written."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gangflow import __version__
from gangflow.errors import JournalCorrupt
from gangflow.xce.core.evolve import apply_all
from gangflow.xce.core.state import State
from gangflow.xce.journal import image, record
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.store import Record, Stamped

CLUSTER = "golden"


class Stored:
    """`store.Records` of a file that `save` wrote, every record checked against the chain."""

    horizon = 0

    def __init__(self, path: Path) -> None:
        head, *lines = gzip.decompress(path.read_bytes()).split(b"\n")[:-1]
        about = json.loads(head)
        self.cluster_id = str(about["cluster_id"])
        self.version = str(about["version"])
        """Of the gangflow that decided."""
        self.images: Mapping[int, bytes] = {int(seq): base64.b64decode(raw) for seq, raw in about["images"].items()}
        self.kept: list[Record] = []
        digest, seq = root(self.cluster_id), 0
        for raw in lines:
            digest = record.chain(digest, raw)
            batch = json.loads(raw)
            last = seq + len(batch["events"])
            self.kept.append(Record(seq + 1, last, digest, raw))
            seq = last
        self.seq = seq
        if digest.hex() != about["digest"]:
            raise JournalCorrupt(f"{path}: the chain of digests ends elsewhere than its first line says", seq=seq)

    def records(self, after: int = 0) -> Iterator[Record]:
        return (each for each in self.kept if each.last_seq > after)

    def batches(self, after: int = 0, *, inputs: bool = True) -> Iterator[Batch]:
        return (record.decode(each.raw, each.digest, inputs=inputs) for each in self.records(after))

    def events(self, after: int, limit: int) -> list[Stamped]:
        raise NotImplementedError("nobody watches a stored history")

    def digest_at(self, seq: int) -> bytes:
        if seq == 0:
            return root(self.cluster_id)
        return next((each.digest for each in self.kept if each.last_seq == seq), b"")

    def image_seqs(self) -> list[int]:
        return sorted(self.images, reverse=True)

    def image(self, seq: int) -> bytes:
        return self.images.get(seq, b"")

    def close(self) -> None: ...


def root(cluster_id: str) -> bytes:
    """Where a journal's chain begins."""
    return hashlib.sha256(cluster_id.encode()).digest()


def save(path: Path, batches: Sequence[Batch]) -> None:
    """Write a history, with an image in its middle and one at its end. The same history gives the same bytes."""
    digest, state = root(CLUSTER), State()
    lines, images = [], {}
    for number, batch in enumerate(batches):
        lines.append(record.encode(batch))
        digest = record.chain(digest, lines[-1])
        state = apply_all(state, batch.events, batch.now_ms)
        if number in (len(batches) // 2, len(batches) - 1):
            raw = image.encode(Image(state, batch.last_seq, digest))
            images[str(batch.last_seq)] = base64.b64encode(raw).decode()
    head = {"version": __version__, "cluster_id": CLUSTER, "digest": digest.hex(), "images": images}
    text = b"".join(line + b"\n" for line in (json.dumps(head).encode(), *lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text, mtime=0))
