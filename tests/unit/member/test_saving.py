"""Weights, checkpoints and heartbeats: durable, atomic, one writer, and superseded writers stopped."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gangflow.channel import CHECKPOINT, ELIGIBLE, FAILURE, HEAD, ROLE_KEY, Eligible, Head, Serving, WeightsId
from gangflow.errors import Conflict, NoQuorum, Superseded, Unreachable
from gangflow.member import digest as module
from gangflow.member import follow
from gangflow.member.checkpoint import Checkpoint, Checkpoints
from gangflow.member.context import Context
from gangflow.member.digest import digest, seal, settle, write_atomically
from gangflow.member.failures import CheckpointDamaged, PolicyMismatch
from gangflow.member.follow import Follower
from gangflow.member.heartbeat import Heartbeat
from gangflow.member.identity import Identity
from gangflow.member.ledger import Ledger
from gangflow.member.samples import Published
from gangflow.member.weights import Cell, Weights
from gangflow.xce.rest.messages import VersionView
from tests.unit.member.fake_xce import FakeXce

DEADLINE_S = 10.0


def weights_of(xce: FakeXce, incarnation: int = 1) -> Weights:
    return Weights(xce, "g1", incarnation, Published(incarnation), Follower(xce, "g1"))


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "folder" / "w"
    write_atomically(target, b"one")
    assert target.read_bytes() == b"one"
    target.unlink()
    target.mkdir()
    with pytest.raises(OSError, match=r".+"):
        write_atomically(target, b"two")
    assert [path.name for path in target.parent.iterdir()] == ["w"], "no half of it is left beside"


def test_a_folders_digest_knows_names_and_contents(tmp_path: Path) -> None:
    for name, parts in (("a", {"x": b"12", "y": b"3"}), ("b", {"x": b"1", "y": b"23"}), ("c", {"x": b"12", "z": b"3"})):
        for part, data in parts.items():
            write_atomically(tmp_path / name / part, data)
    assert len({digest(tmp_path / name) for name in "abc"}) == 3
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "y").write_bytes(b"3")
    (tmp_path / "d" / "x").write_bytes(b"12")
    assert digest(tmp_path / "d") == digest(tmp_path / "a"), "the order of writing does not matter"


def test_a_folders_digest_is_that_of_its_manifest(tmp_path: Path) -> None:
    """As docs/claims.md has it, so that anybody can check it without gangflow."""
    (tmp_path / "a b").mkdir()
    for number, name in enumerate(("model-2.safetensors", "model-10.safetensors", "a b/c", "a-d", "Z", "ü")):
        (tmp_path / name).write_bytes(b"x" * (number << 16))
    command = "find -L . -type f -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"
    said = subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert digest(tmp_path) == settle(tmp_path).sha256 == said.split()[0]
    with pytest.raises(FileNotFoundError):
        settle(tmp_path / "nothing")


def test_large_files_are_sealed_when_they_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees the seal knows that they have not changed since, in whatever way."""
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_bytes(b"12")
    assert settle(tmp_path / "w").seal == "", "small ones are read"
    monkeypatch.setattr(module, "SEALED_BYTES", 2)
    first = settle(tmp_path / "w").seal
    assert first == seal(tmp_path / "w") != ""
    (tmp_path / "w" / "a").write_bytes(b"13")
    second = seal(tmp_path / "w")
    (tmp_path / "w" / "b").touch()
    assert len({first, second, seal(tmp_path / "w")}) == 3
    weights_of(xce := FakeXce({"actor": 1})).publish(1, tmp_path / "w")
    assert Head.parse(xce.values[HEAD].value or "").seal == seal(tmp_path / "w")


def test_where_times_are_whole_seconds_nothing_is_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was written again within the second would bear the same seal."""
    monkeypatch.setattr(module, "SEALED_BYTES", 2)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a").write_bytes(b"abc")
    assert settle(tmp_path / "w").seal
    real = Path.stat

    def coarse(self: Path, **given: bool) -> Any:
        found = real(self, **given)
        times = {"st_mtime_ns": int(found.st_mtime) * 10**9, "st_ctime_ns": int(found.st_ctime) * 10**9}
        return SimpleNamespace(st_mode=found.st_mode, st_size=found.st_size, st_ino=found.st_ino, **times)

    monkeypatch.setattr(Path, "stat", coarse)
    assert settle(tmp_path / "w") == (digest(tmp_path / "w"), "")


def test_files_that_change_while_they_are_hashed_are_not_sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEALED_BYTES", 0)
    (tmp_path / "a").write_bytes(b"12")

    def late(path: Path) -> str:
        (tmp_path / "a").write_bytes(b"123")
        return "of what was there before"

    monkeypatch.setattr(module, "digest", late)
    assert settle(tmp_path / "a") == ("of what was there before", "")


def test_everything_in_a_saved_folder_is_on_the_disk_before_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of several files whose power fails must not be the newest with half of them lost."""
    xce, order = FakeXce({"actor": 1}), []
    real, put = os.fsync, xce.kv_put

    def fsync(descriptor: int) -> None:
        order.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real(descriptor)

    def kv_put(*arguments: Any) -> VersionView:
        order.append("named")
        return put(*arguments)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(xce, "kv_put", kv_put)
    folder = tmp_path / "step7"
    (folder / "shards").mkdir(parents=True)
    for part in ("config", "shards/0", "shards/1"):
        (folder / part).write_bytes(part.encode())
    written = {str(folder), str(tmp_path), *(str(folder / part) for part in ("config", "shards", "shards/0", "shards/1"))}
    weights_of(xce).publish(7, folder)
    assert written <= set(order[: order.index("named")])
    del order[:]
    Checkpoints(xce, "g1", 1).save(7, folder, Ledger("g1"), None, {})
    assert written <= set(order[: order.index("named")])


def test_publish_writes_the_head_with_its_digest(tmp_path: Path) -> None:
    xce = FakeXce({"actor": 1})
    weights = weights_of(xce)
    made = weights.publish(3, tmp_path / "w3", b"policy")
    head = Head.parse(xce.values[HEAD].value or "")
    assert head.weights == made == WeightsId(1, 3, digest(tmp_path / "w3"))
    assert head.path == str(tmp_path / "w3")
    assert weights.version == 3


def test_versions_grow_within_an_incarnation_and_begin_anew_in_the_next(tmp_path: Path) -> None:
    xce = FakeXce({"actor": 1})
    weights = weights_of(xce)
    weights.publish(3, tmp_path / "w", b"x")
    with pytest.raises(ValueError, match="3 does not follow 3"):
        weights.publish(3, tmp_path / "w", b"x")
    again = weights_of(xce, 2).publish(1, tmp_path / "w1", b"x")
    assert Head.parse(xce.values[HEAD].value or "").weights == again


def test_nothing_is_published_that_cannot_be_read(tmp_path: Path) -> None:
    xce = FakeXce({"actor": 1})
    with pytest.raises(FileNotFoundError):
        weights_of(xce).publish(0, tmp_path / "missing")
    assert HEAD not in xce.values


def test_an_older_actor_cannot_publish_over_a_newer_one(tmp_path: Path) -> None:
    """Scenario 80: a writer that lives on somewhere learns that it is over from its first lost compare."""
    xce = FakeXce({"actor": 1})
    old = weights_of(xce, 1)
    old.publish(0, tmp_path / "a", b"a")
    newest = weights_of(xce, 2).publish(0, tmp_path / "b", b"b")
    with pytest.raises(Superseded, match="newer incarnation"):
        old.publish(1, tmp_path / "c", b"c")
    assert Head.parse(xce.values[HEAD].value or "").weights == newest


def test_a_write_whose_answer_was_lost_is_written_once() -> None:
    xce = FakeXce({})
    cell = Cell(xce, "g1", "k", newer=lambda text: False)
    cell.write("1")
    xce.write("k", "1")  # As if the same write had been applied twice behind our back.
    cell.write("2")
    assert xce.values["k"].value == "2"


def test_two_live_writers_are_a_conflict() -> None:
    class Rival(FakeXce):
        def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView:
            self.write(name, "rival")
            return super().kv_put(group, name, value, expect)

    with pytest.raises(Conflict):
        Cell(Rival({}), "g1", "k", newer=lambda text: False).write("mine")


def test_wait_synced_waits_for_the_rollouts(tmp_path: Path) -> None:
    xce = FakeXce({"actor": 1, "rollout": 1}, coordinator={"quorum_timeout": "50ms"})
    xce.ready("rollout", 0, "h:1")
    weights = weights_of(xce)
    head = weights.publish(0, tmp_path / "w", b"x")
    with pytest.raises(NoQuorum):
        weights.wait_synced()
    value = Eligible(1, 1, head, (Serving(0, 1, "http://h:1", head),), ((0, 1),), ((0, 1),))
    xce.write(ELIGIBLE, value.render())
    assert weights.wait_synced(0, timeout_s=DEADLINE_S) >= 0
    with pytest.raises(NoQuorum, match="fewer than 2"):
        weights.wait_synced(0, rollouts=2)


def test_who_waits_to_be_synced_beats_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts that take longer to come up than an actor may be silent are no reason to call it hung."""
    monkeypatch.setattr(follow, "BEAT_S", 0.01)
    xce = FakeXce({"actor": 1, "rollout": 1}, coordinator={})
    xce.ready("rollout", 0, "h:1")
    beats: list[int] = []
    weights = Weights(xce, "g1", 1, Published(1), Follower(xce, "g1"), lambda: beats.append(len(beats)))
    head = weights.publish(0, tmp_path / "w", b"x")
    value = Eligible(1, 1, head, (Serving(0, 1, "http://h:1", head),), ((0, 1),), ((0, 1),))
    waiting = threading.Thread(target=weights.wait_synced, args=(0, 1, DEADLINE_S))
    waiting.start()
    while len(beats) < 3:
        waiting.join(0.01)
        assert waiting.is_alive()
    xce.write(ELIGIBLE, value.render())
    waiting.join(DEADLINE_S)
    assert not waiting.is_alive()


def test_a_checkpoint_comes_back_with_its_ledger(tmp_path: Path) -> None:
    xce = FakeXce({"actor": 1})
    ledger = Ledger("g1")
    ledger.commit(7, 0)
    write_atomically(tmp_path / "c7", b"policy")
    head = WeightsId(1, 7, "a" * 64)
    saved = Checkpoints(xce, "g1", 1).save(7, tmp_path / "c7", ledger.through(7), head, {"accuracy": 0.5})
    found, again = Checkpoints(xce, "g1", 2).newest() or pytest.fail("none")
    assert found == saved
    assert (found.step, found.path, found.weights, found.extra) == (7, str(tmp_path / "c7"), head, {"accuracy": 0.5})
    assert again.finished(7)


def test_there_is_none_before_its_compare_and_set(tmp_path: Path) -> None:
    """Save before push: whatever files lie there, a checkpoint exists once its key-value does."""
    xce = FakeXce({"actor": 1})
    write_atomically(tmp_path / "c", b"policy")
    xce.away = True
    with pytest.raises(Unreachable):
        Checkpoints(xce, "g1", 1).save(1, tmp_path / "c", Ledger("g1"), None, {})
    xce.away = False
    assert Checkpoints(xce, "g1", 2).newest() is None


@pytest.mark.parametrize("victim", ["c", "c.ledger.json"])
def test_a_damaged_checkpoint_is_not_resumed_from(tmp_path: Path, victim: str) -> None:
    xce = FakeXce({"actor": 1})
    write_atomically(tmp_path / "c", b"policy")
    Checkpoints(xce, "g1", 1).save(1, tmp_path / "c", Ledger("g1"), None, {})
    (tmp_path / victim).write_bytes(b"other")
    with pytest.raises(CheckpointDamaged, match=victim):
        Checkpoints(xce, "g1", 2).newest()
    (tmp_path / victim).unlink()
    with pytest.raises(CheckpointDamaged, match="cannot be read"):
        Checkpoints(xce, "g1", 2).newest()


def test_an_older_actor_cannot_move_the_checkpoint_back(tmp_path: Path) -> None:
    xce = FakeXce({"actor": 1})
    write_atomically(tmp_path / "c", b"policy")
    old, new = Checkpoints(xce, "g1", 1), Checkpoints(xce, "g1", 2)
    old.save(1, tmp_path / "c", Ledger("g1"), None, {})
    new.save(2, tmp_path / "c", Ledger("g1"), None, {})
    with pytest.raises(Superseded):
        old.save(3, tmp_path / "c", Ledger("g1"), None, {})
    assert Checkpoint.parse(xce.values[CHECKPOINT].value or "").step == 2


class Sent:
    """Where heartbeats go."""

    def __init__(self) -> None:
        self.bodies: list[Mapping[str, Any]] = []
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()

    def __call__(self, body: Mapping[str, Any]) -> None:
        self.gate.wait(DEADLINE_S)
        if self.error is not None:
            raise self.error
        self.bodies.append(body)


def test_beats_that_come_faster_than_the_limit_are_merged() -> None:
    sent = Sent()
    sent.gate.clear()
    heart = Heartbeat(sent, lambda: {"samples": 1}, interval_s=0.0)
    for step in range(50):
        heart.beat({"step": step, f"f{step % 2}": step})
    sent.gate.set()
    assert heart.flush(DEADLINE_S)
    assert len(sent.bodies) <= 2
    assert sent.bodies[-1] == {"step": 49, "f0": 48, "f1": 49, ROLE_KEY: {"samples": 1}}


def test_nothing_beats_by_itself() -> None:
    """A hung program must look hung: the thread sends what it was given, once."""
    sent = Sent()
    heart = Heartbeat(sent, interval_s=0.0)
    heart.beat({"step": 1})
    assert heart.flush(DEADLINE_S)
    with heart._wake:
        assert not heart._wake.wait_for(lambda: heart._due or heart._sending, 0.2)
    assert len(sent.bodies) == 1


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"x": "y" * 4_000}, ValueError),
        ({"x": {1, 2}}, TypeError),
        ({"x": float("nan")}, ValueError),
        ({ROLE_KEY: 1}, ValueError),
    ],
)
def test_what_cannot_be_a_beat(fields: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        Heartbeat(Sent()).beat(fields)


def test_a_beat_that_nobody_takes_is_dropped_and_a_superseded_one_stops_the_program() -> None:
    sent = Sent()
    heart = Heartbeat(sent, interval_s=0.0)
    sent.error = Unreachable("away")
    heart.beat({"step": 1})
    assert heart.flush(DEADLINE_S)
    sent.error = Superseded("a newer incarnation runs")
    heart.beat({"step": 2})
    assert heart.flush(DEADLINE_S)
    with pytest.raises(Superseded):
        heart.beat({"step": 3})


def test_a_checkpoint_takes_the_ledger_while_nobody_can_commit(tmp_path: Path) -> None:
    """Threads that sample ahead commit meanwhile, which must not change it under the checkpoint's eyes."""
    context = Context(Identity("http://x", "t", "g1", "actor"), FakeXce({"actor": 1}, coordinator={}))  # type: ignore[arg-type]
    books = context.rollouts.books
    alone: list[bool] = []

    class Watched(Ledger):
        def through(self, step: int) -> Ledger:
            alone.append(books._lock.locked())
            return super().through(step)

    books.ledger = Watched("g1")
    write_atomically(tmp_path / "c0", b"c")
    context.checkpoint(0, tmp_path / "c0")
    assert alone == [True]
    context.close()


def test_a_context_saves_resumes_and_tells(tmp_path: Path) -> None:
    """The actor's part of scenario 83: its successor goes on after the checkpoint's step, with the ledger of that step."""
    xce = FakeXce({"actor": 1}, coordinator={})
    xce.ready("actor", 0)
    me = Identity("http://x", "t", "g1", "actor")
    first = Context(me, xce)  # type: ignore[arg-type]
    assert first.resume() is None
    first.rollouts.ledger.commit(0, 0)
    first.weights.publish(0, tmp_path / "w0", b"w")
    write_atomically(tmp_path / "c0", b"c")
    first.checkpoint(0, tmp_path / "c0", accuracy=0.25)
    first.rollouts.ledger.commit(1, 0)
    second = Context(Identity("http://x", "t", "g1", "actor", incarnation=2), xce)  # type: ignore[arg-type]
    saved = second.resume() or pytest.fail("none")
    assert (saved.step, saved.extra) == (0, {"accuracy": 0.25})
    assert second.rollouts.ledger.finished(0)
    assert second.rollouts.ledger.commit(1, 0)
    second.heartbeat(step=1)
    assert second._heartbeat.flush(DEADLINE_S)
    assert xce.heartbeats["actor", 0].body["step"] == 1
    assert xce.heartbeats["actor", 0].body[ROLE_KEY]["samples"]["lost"] == 0
    with pytest.raises(PolicyMismatch, match="differs"):
        second.diverged("differs")
    assert json.loads(xce.values[FAILURE].value or "")["incarnation"] == 2
    for context in (first, second):
        context.close()
