# ruff: noqa: ASYNC240 — a test may look at the disk
"""An agent's models: made once for all who want it, as long as somebody asks, and never while the loop waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gangflow.xce.hosts import modelcache, models
from gangflow.xce.hosts.checksums import checksum
from gangflow.xce.hosts.models import ModelWork
from gangflow.xce.ports import ModelWanted


@pytest.fixture
async def work() -> AsyncIterator[ModelWork]:
    made = ModelWork()
    yield made
    await asyncio.to_thread(made.close)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies wait for it."""
    go_on = threading.Event()
    copy = modelcache._copy_file

    def waits(source: Path, content: Path, item: modelcache.Item, progress: modelcache.Progress) -> str:
        while not go_on.wait(0.005):
            progress.add(0)
        return copy(source, content, item, progress)

    monkeypatch.setattr(modelcache, "_copy_file", waits)
    return go_on


def wanted(tmp_path: Path, pin: str = "c/g1/m", **more: object) -> ModelWanted:
    source = tmp_path / "m.bin"
    if not source.exists():
        source.write_bytes(b"m" * 5_000)
    values: dict[str, object] = {"source": str(source), "sha256": checksum(source), "limit_mib": 10, **more}
    return ModelWanted(pin=pin, root=str(tmp_path / "cache"), **values)  # type: ignore[arg-type]


async def test_many_want_one_model_and_it_is_made_once(
    work: ModelWork, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    make = modelcache.ModelCache.make
    monkeypatch.setattr(
        modelcache.ModelCache, "make", lambda self, source, *rest: (made.append(source), make(self, source, *rest))
    )
    first = await work.want(wanted(tmp_path), answer_s=0)
    assert (first.path, first.error) == ("", "")
    asked = [asyncio.create_task(work.want(wanted(tmp_path, f"c/g1/rollout[{n}]/m"), 30)) for n in range(20)]
    gate.set()
    paths = {state.path for state in await asyncio.gather(*asked)}
    assert len(paths) == len(made) == 1
    assert Path(paths.pop()).read_bytes() == b"m" * 5_000
    assert all([await work.check(str(tmp_path / "cache"), f"c/g1/rollout[{n}]/m") == "" for n in range(20)])


async def test_what_nobody_asks_for_any_more_is_given_up(
    work: ModelWork, gate: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "INTEREST_S", 0.01)
    await work.want(wanted(tmp_path), answer_s=0)
    (making,) = work._making.values()
    async with asyncio.timeout(30):
        assert "nobody asked for it any more" in await asyncio.shield(making.work)
    assert not gate.is_set()
    monkeypatch.setattr(models, "INTEREST_S", 30)
    gate.set()
    assert (await work.want(wanted(tmp_path), answer_s=30)).path


async def test_a_failure_is_told_and_the_next_question_tries_again(work: ModelWork, tmp_path: Path) -> None:
    bad = wanted(tmp_path, sha256="0" * 64)
    state = await work.want(bad, answer_s=30)
    assert "has the checksum" in state.error
    assert "has the checksum" in (await work.want(bad, answer_s=30)).error
    assert "no such" in (await work.want(wanted(tmp_path, source="/no/such", sha256="1" * 64), answer_s=30)).error.lower()
    assert (await work.want(wanted(tmp_path), answer_s=30)).path


async def test_a_cache_that_cannot_be_written_is_an_error_and_no_end(work: ModelWork, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    assert "cache" in (await work.want(wanted(tmp_path), answer_s=30)).error


async def test_an_agent_that_ends_leaves_no_copy_running(gate: threading.Event, tmp_path: Path) -> None:
    work = ModelWork()
    await work.want(wanted(tmp_path), answer_s=0)
    await asyncio.to_thread(work.close)
    assert not (tmp_path / "cache" / "entries").exists()


async def test_a_checksum_with_another_source_is_refused_although_something_is_cached_under_it(
    work: ModelWork, gate: threading.Event, tmp_path: Path
) -> None:
    """The answer must not depend on what other groups had cached before, nor on what is being made for them."""
    first = asyncio.create_task(work.want(wanted(tmp_path), 30))
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "m.bin").write_bytes(b"m" * 5_000)
    meanwhile = asyncio.create_task(work.want(wanted(tmp_path, "c/g2/m", source=str(folder)), 30))
    while not work._making:
        await asyncio.sleep(0)
    gate.set()
    assert (await first).path
    for state in (await meanwhile, await work.want(wanted(tmp_path, "c/g3/m", source=str(folder)))):
        assert state.path == ""
        assert f"{folder} is a folder" in state.error
        assert "is the checksum of a file that is cached" in state.error
    (tmp_path / "m.bin").rename(tmp_path / "kept")
    sha256 = checksum(tmp_path / "kept")
    gone = await work.want(wanted(tmp_path, "c/g4/m", source=str(tmp_path / "nothing"), sha256=sha256))
    assert gone.path, "what is cached does not need its source any more"


async def test_a_source_whose_storage_hangs_holds_up_nothing_that_is_cached(
    work: ModelWork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await work.want(wanted(tmp_path), 30)).path
    storage = threading.Event()
    monkeypatch.setattr(modelcache, "items", lambda source: storage.wait())
    try:
        assert (await work.want(wanted(tmp_path, "c/g2/m"), answer_s=0.01)).path
        assert await work.check(str(tmp_path / "cache"), "c/g2/m") == ""
    finally:
        monkeypatch.undo()
        storage.set()
