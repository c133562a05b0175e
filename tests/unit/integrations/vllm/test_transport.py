"""How weights reach an engine: by a checked path, or by a collective of one membership."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from gangflow.channel import Head, WeightsId
from gangflow.coordinators.engine import EngineRefused
from gangflow.errors import SetupError
from gangflow.integrations.vllm import transport
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.calls import Calls
from gangflow.integrations.vllm.capabilities import FOUR_PHASES, RELOAD, Capabilities
from gangflow.integrations.vllm.transport import Memberships, PathTransport, by_path, fault_of, files_fault
from gangflow.member.digest import digest, seal
from tests.inprocess import InProcess
from tests.unit.integrations.vllm.fake_vllm import FakeVllm
from tests.unit.integrations.vllm.within import Within

Publish = Callable[..., Head]
ABLE = Capabilities("0.32.0", frozenset({RELOAD}))
T = 5.0


# --- by path


async def test_a_head_is_checked_once_for_all_engines(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Head] = []
    monkeypatch.setattr(transport, "fault_of", lambda head, check: looked.append(head) or fault_of(head, check))
    paths, first, second = PathTransport(), publish(1), publish(2)
    await asyncio.gather(*(paths.prepare(head, ABLE) for head in (first, first, second, first)))
    await paths.prepare(first, ABLE)
    assert looked == [first, second]


async def test_what_was_changed_since_it_was_checked_is_no_longer_what_was_checked(publish: Publish) -> None:
    """A rollout that comes back later must not be given what another one was given in time."""
    paths, head = PathTransport(), publish(1)
    file = Path(head.path, "model.safetensors")
    await paths.prepare(head, ABLE)
    change(file, b"x" * 100)
    with pytest.raises(EngineRefused, match="was published"):
        await paths.prepare(head, ABLE)


async def test_a_failure_is_looked_at_again(publish: Publish) -> None:
    paths, head = PathTransport(), publish(1)
    file = Path(head.path, "model.safetensors")
    whole = content(file)
    damage(file, b"other")
    with pytest.raises(EngineRefused, match="was published"):
        await paths.prepare(head, ABLE)
    damage(file, whole)
    await paths.prepare(head, ABLE)


def test_what_bears_its_seal_is_not_read_again(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    head = publish(1)
    file = Path(head.path, "model.safetensors")
    sealed = replace(head, seal=seal(head.path))
    read: list[str] = []
    monkeypatch.setattr(transport, "digest", lambda path: read.append(path) or digest(path))
    assert fault_of(sealed, "digest") == ""
    assert not read
    assert fault_of(sealed, "bytes") == ""
    assert fault_of(replace(sealed, seal="of others"), "digest") == ""
    assert read == [head.path, head.path]
    whole, times = content(file), file.stat()
    change(file, b"x" * len(whole))
    # Of the same size, and with its old time: when it was changed cannot be set.
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "was published" in fault_of(sealed, "digest")


async def test_one_that_stops_waiting_takes_the_check_from_nobody(publish: Publish, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    def slow(head: Head, check: transport.Check) -> str:
        begun.set()
        assert go.wait(T)
        return fault_of(head, check)

    monkeypatch.setattr(transport, "fault_of", slow)
    paths, head = PathTransport(), publish(1)
    leaving = asyncio.create_task(paths.prepare(head, ABLE))
    staying = asyncio.create_task(paths.prepare(head, ABLE))
    assert await asyncio.to_thread(begun.wait, T)
    leaving.cancel()
    go.set()
    await staying
    assert leaving.cancelled()


async def test_only_so_many_heads_are_remembered(publish: Publish) -> None:
    paths = PathTransport()
    for version in range(transport.REMEMBERED + 3):
        await paths.prepare(publish(version), ABLE)
    assert len(paths._passed) == transport.REMEMBERED


async def test_a_server_without_reload_is_refused_first() -> None:
    away = Head(WeightsId(1, 1, "a" * 64), "/nowhere")
    with pytest.raises(EngineRefused, match="has no /collective_rpc"):
        await PathTransport().prepare(away, Capabilities("0.32.0"))
    with pytest.raises(EngineRefused, match="/nowhere cannot be read here"):
        await PathTransport().prepare(away, ABLE)
    await PathTransport("none").prepare(away, ABLE)


async def test_every_byte_may_be_looked_at_beside_the_loading(publish: Publish) -> None:
    """An engine that cannot parse a file is ruined; one that could is loaded again: only the first has to be known before."""
    server, paths = FakeVllm(), PathTransport("beside")
    engine = VllmEngine("http://rollout", 1, 1, paths, Within(InProcess(server.app)))
    head = publish(1)
    file = Path(head.path, "model.safetensors")
    with pytest.raises(EngineRefused, match="or only its beginning: the engine was not touched"):
        await engine.load(head, T, 1)
    assert server.label == "default"
    shard(file, {"a": 3})
    with pytest.raises(EngineRefused, match="was published") as refused:
        await engine.load(head, T, 1)
    assert refused.value.weights is None
    assert server.label.startswith("loading ")
    whole = Head(WeightsId(1, 2, digest(head.path)), head.path)
    assert await engine.load(whole, T, 1) == whole.weights


async def test_beside_the_loading_every_byte_is_looked_at_whatever_the_seal_says(
    publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, paths = FakeVllm(), PathTransport("beside")
    engine = VllmEngine("http://rollout", 1, 1, paths, Within(InProcess(server.app)))
    head = publish(1)
    shard(Path(head.path, "model.safetensors"), {"a": 3})
    sealed = Head(WeightsId(1, 1, digest(head.path)), head.path, seal=seal(head.path))
    read: list[str] = []
    monkeypatch.setattr(transport, "digest", lambda path: read.append(path) or digest(path))
    assert await engine.load(sealed, T, 1) == sealed.weights
    assert read == [head.path]


def test_the_coordinators_environment_chooses_the_check() -> None:
    assert by_path({})._check == "digest"
    assert by_path({transport.VARIABLE: "files"})._check == "files"
    with pytest.raises(SetupError, match="GANGFLOW_VLLM_CHECK='sha': one of digest, bytes, beside, files, none"):
        by_path({transport.VARIABLE: "sha"})


# --- the files' own headers


def shard(file: Path, sizes: dict[str, int]) -> Path:
    """A safetensors file with float32 vectors of these sizes."""
    header, at = {}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "F32", "shape": [size], "data_offsets": [at, at + 4 * size]}
        at += 4 * size
    text = msgspec.json.encode({"__metadata__": {"format": "pt"}, **header})
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(at))
    return file


def damage(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def change(file: Path, content: bytes) -> None:
    """Later than it was last changed: the file system's clock ticks."""
    before = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == before:
        damage(file, content)


def content(file: Path) -> bytes:
    return file.read_bytes()


def test_whole_files_fit(tmp_path: Path) -> None:
    shard(tmp_path / "model-1.safetensors", {"a": 3, "b": 4})
    shard(tmp_path / "model-2.safetensors", {"c": 5})
    assert files_fault(tmp_path) == ""
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors", "c": "model-2.safetensors"}}')
    assert files_fault(tmp_path) == ""
    assert fault_of(Head(WeightsId(1, 1, "of something else"), str(tmp_path)), "files") == ""


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        (slice(0, -1), "its header says"),
        (slice(0, 40), "or only its beginning"),
        (slice(0, 3), "or only its beginning"),
        (slice(1, None), "no safetensors file"),
        (slice(0, 0), "no safetensors file"),
    ],
)
def test_a_part_of_a_file_is_found(tmp_path: Path, cut: slice, said: str) -> None:
    file = shard(tmp_path / "model.safetensors", {"a": 3, "b": 4})
    file.write_bytes(file.read_bytes()[cut])
    assert said in files_fault(tmp_path)


def test_headers_that_are_none_are_found(tmp_path: Path) -> None:
    for text in (b"[1, 2]", b'{"a": {"data_offsets": [0]}}', b'{"a": 3}', b"not json at all"):
        (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
        assert "no readable header" in files_fault(tmp_path)


def test_what_the_index_names_has_to_be_there(tmp_path: Path) -> None:
    shard(tmp_path / "model-1.safetensors", {"a": 3})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors", "z": "model-2.safetensors", "y": "model-2.safetensors"}}')
    assert files_fault(tmp_path).endswith("lacks 2 tensors of its index, the first of them y")
    index.write_text("{}")
    assert "is no index" in files_fault(tmp_path)


def test_a_folder_without_weights_is_found(tmp_path: Path) -> None:
    assert files_fault(tmp_path) == f"{tmp_path} has no .safetensors file"
    head = Head(WeightsId(1, 1, ""), str(tmp_path / "away"))
    assert "cannot be read here: No such file" in fault_of(head, "files")


# --- a collective


class FourPhases:
    """A transport as one for GPUs would be: it is built for one membership, and uses vLLM's own four phases."""

    def __init__(self, membership_version: int) -> None:
        self.membership_version = membership_version
        self.joined: set[str] = set()
        self.closed = False

    async def prepare(self, head: Head, able: Capabilities) -> None:
        if fault := able.lacks(*FOUR_PHASES):
            raise EngineRefused(fault)

    async def carry(self, calls: Calls, head: Head) -> None:
        if calls.url not in self.joined:
            await calls.post("/init_weight_transfer_engine", {"init_info": {"membership": self.membership_version}})
            self.joined.add(calls.url)
        await calls.post("/start_weight_update", {})
        await calls.post("/update_weights", {"update_info": {"weights": f"from {head.path}"}})
        await calls.post("/finish_weight_update", {})

    async def close(self) -> None:
        self.closed = True


async def test_a_collective_is_built_for_one_membership_and_never_used_for_another() -> None:
    """Scenario 48: a broadcast never blocks on an engine that is not a member any more."""
    built: list[FourPhases] = []

    def build(membership_version: int) -> FourPhases:
        built.append(FourPhases(membership_version))
        return built[-1]

    server, memberships = FakeVllm(), Memberships(build)
    engine = VllmEngine("http://rollout", 1, 1, memberships, Within(InProcess(server.app)))
    for version, membership in ((1, 3), (2, 3), (3, 4)):
        head = Head(WeightsId(1, version, f"{version:064d}"), f"trainer:{version}")
        await engine.pause("wait", T)
        assert await engine.load(head, T, membership) == head.weights
        await engine.resume(T)
        assert server.weights == f"from trainer:{version}"
    assert [(each.membership_version, each.closed) for each in built] == [(3, True), (4, False)]
    assert server.requests.count("POST /init_weight_transfer_engine") == 2
    server.requests.clear()
    with pytest.raises(EngineRefused, match="membership 3 is over: 4 holds"):
        await engine.load(Head(WeightsId(1, 4, "4" * 64), "trainer:4"), T, 3)
    assert server.requests == []
    assert await engine.version(T) == WeightsId(1, 3, f"{3:064d}")


async def test_a_server_without_the_four_phases_is_refused_before_it_is_touched() -> None:
    server = FakeVllm()
    server.lose("/update_weights")
    engine = VllmEngine("http://rollout", 1, 1, Memberships(FourPhases), Within(InProcess(server.app)))
    with pytest.raises(EngineRefused, match="has no /update_weights"):
        await engine.load(Head(WeightsId(1, 1, "1" * 64), "trainer:1"), T, 1)
    assert server.label == "default"
