"""The model cache on disk: whole or not there, verified, pinned, evicted by size."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from gangflow.xce.hosts import modelcache
from gangflow.xce.hosts.checksums import checksum
from gangflow.xce.hosts.modelcache import PIN_S, Abandoned, CacheError, ModelCache, Progress

KIB = 1 << 10
ROOM = 100 * KIB


class Shelf:
    """A cache, sources, and a clock that is moved by hand."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 1_000_000.0
        self.cache = ModelCache(root / "cache", lambda: self.now)

    def source(self, name: str, size: int = 10 * KIB) -> Path:
        path = self.root / "sources" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(name.encode() * (size // len(name)))
        return path

    def make(self, source: Path, pin: str = "c/g1/m", limit: int = ROOM, most: int = 0, sha256: str = "") -> Path:
        """Want it, have it made, want it again: its path."""
        sha256 = sha256 or checksum(source)
        self.now += 1
        if not (path := self.cache.pin(sha256, pin, source.name)):
            self.cache.make(source, sha256, limit, most, Progress())
            path = self.cache.pin(sha256, pin, source.name)
        return Path(path)

    @property
    def left(self) -> list[str]:
        """What lies about beside whole entries and locks."""
        making = self.root / "cache" / "making"
        return [each.name for each in making.iterdir() if each.suffix != ".lock"] if making.exists() else []


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


def test_a_file_is_there_whole_by_its_own_name_and_not_writable(shelf: Shelf) -> None:
    source = shelf.source("m.safetensors")
    path = shelf.make(source)
    assert path.name == "m.safetensors"
    assert path.read_bytes() == source.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o444
    assert shelf.left == []
    again = shelf.make(source, pin="c/g2/m")
    assert again == path
    other = source.with_name("other-name")
    source.rename(other)
    assert shelf.make(other).resolve() == path.resolve(), "the same content is there once, by whatever name"


def test_a_folder_is_there_with_all_that_is_in_it(shelf: Shelf) -> None:
    folder = shelf.root / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a").write_text("a")
    (shelf.root / "blob").write_text("b")
    (folder / "b").symlink_to(shelf.root / "blob")
    path = shelf.make(folder)
    assert (path.name, (path / "sub" / "a").read_text(), (path / "b").read_text()) == ("model", "a", "b")
    assert not (path / "b").is_symlink()
    assert (path / "sub").stat().st_mode & 0o777 == 0o555
    empty = shelf.root / "empty"
    empty.mkdir()
    assert list(shelf.make(empty).iterdir()) == []


def test_a_source_that_is_not_what_its_checksum_says_never_appears(shelf: Shelf) -> None:
    source = shelf.source("m")
    wrong = "0" * 64
    with pytest.raises(CacheError, match=f"has the checksum {checksum(source)}, not 0000"):
        shelf.make(source, sha256=wrong)
    assert shelf.cache.sizes() == {}
    assert shelf.left == []


def test_what_is_cached_is_compared_with_its_source_by_kind_names_and_sizes(shelf: Shelf) -> None:
    file, folder = shelf.source("m"), shelf.root / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "a").write_text("a")
    ours, theirs = checksum(file), checksum(folder)
    shelf.make(file)
    shelf.make(folder)
    assert (shelf.cache.unlike(ours, file), shelf.cache.unlike(theirs, folder)) == ("", "")
    assert shelf.cache.unlike(ours, file.rename(file.with_name("renamed"))) == "", "its own name is not its content's"
    assert shelf.cache.unlike(ours, file) == "", "it is not there any more"
    assert "is a folder, and" in shelf.cache.unlike(ours, folder)
    assert f"{theirs} is the checksum of a folder that is cached" in shelf.cache.unlike(theirs, file.with_name("renamed"))
    assert "neither a file nor a folder" in shelf.cache.unlike(ours, Path("/dev/null"))
    (folder / "sub" / "a").write_text("longer")
    assert "model/sub/a: 6 bytes, in what is cached" in shelf.cache.unlike(theirs, folder)
    (folder / "sub" / "a").rename(folder / "b")
    assert "model/b: 6 bytes, in what is cached" in shelf.cache.unlike(theirs, folder)
    (folder / "b").unlink()
    assert "model/sub/a: not there, in what is cached" in shelf.cache.unlike(theirs, folder)


@pytest.mark.parametrize(("source", "why"), [("/no/such/model", "No such file"), ("/dev/null", "neither a file nor a folder")])
def test_a_source_that_cannot_be_read_is_named(shelf: Shelf, source: str, why: str) -> None:
    with pytest.raises(CacheError, match=f"{source}.*{why}"):
        shelf.make(Path(source), sha256="0" * 64)


def test_a_copy_that_ends_halfway_leaves_nothing(shelf: Shelf) -> None:
    """Whoever looks meanwhile sees nothing of it."""
    source = shelf.source("huge", 4 << 20)

    class Watched(Progress):
        def add(self, count: int) -> None:
            assert shelf.cache.sizes() == {}
            assert shelf.cache.pin(checksum(source), "c/x", "huge") == ""
            self.ended = self.done > 0
            super().add(count)

    progress = Watched()
    with pytest.raises(Abandoned):
        shelf.cache.make(source, checksum(source), 8 << 20, 0, progress)
    assert (progress.total, 0 < progress.done < progress.total) == (4 << 20, True)
    assert shelf.cache.sizes() == {}
    assert shelf.left == []


def test_what_a_killed_agent_left_is_removed_and_made_again(shelf: Shelf) -> None:
    source = shelf.source("m")
    making = shelf.root / "cache" / "making"
    for name in (checksum(source), "1" * 64, "trash-1234"):
        (making / name).mkdir(parents=True)
        (making / name / "content").write_text("half")
    (making / f"{'1' * 64}.size").write_text(str(ROOM))
    assert shelf.make(source).read_bytes() == source.read_bytes()
    assert shelf.left == [f"{'1' * 64}.size"], "which counts for nothing: nobody has its lock"


def test_what_nobody_pins_is_evicted_least_recently_used_first(shelf: Shelf) -> None:
    sources = [shelf.source(name, 30 * KIB) for name in ("aa", "bb", "cc")]
    paths = [shelf.make(source, pin=f"c/{source.name}") for source in sources]
    for source in sources:
        shelf.cache.drop(f"c/{source.name}")
    shelf.make(sources[0], pin="c/again")
    shelf.cache.drop("c/again")
    shelf.make(shelf.source("dd", 30 * KIB), pin="c/dd")
    assert [path.exists() for path in paths] == [True, False, True]
    shelf.make(shelf.source("ee", 60 * KIB), pin="c/ee")
    assert [path.exists() for path in paths] == [False, False, False]
    assert sum(shelf.cache.sizes().values()) <= ROOM


def test_what_is_pinned_stays_and_a_model_too_many_says_so(shelf: Shelf) -> None:
    one, two = shelf.source("aa", 60 * KIB), shelf.source("bb", 60 * KIB)
    path = shelf.make(one, pin="c/one")
    with pytest.raises(CacheError, match=r"no room for 1 MiB: the cache holds 1 MiB at most, of which 1 MiB are in use"):
        shelf.make(two, pin="c/two")
    with pytest.raises(CacheError, match="and the cache holds"):
        shelf.make(shelf.source("cc", 200 * KIB))
    assert path.exists()
    shelf.make(one, pin="c/another")
    shelf.cache.drop("c/one")
    with pytest.raises(CacheError, match="no room"):
        shelf.make(two, pin="c/two")
    shelf.cache.drop("c/another")
    shelf.make(two, pin="c/two")
    assert not path.exists()


def test_a_pin_that_nobody_renews_is_none_after_a_day(shelf: Shelf) -> None:
    one, two = shelf.source("aa", 60 * KIB), shelf.source("bb", 60 * KIB)
    path = shelf.make(one, pin="c/one")
    shelf.now += PIN_S - 10
    assert shelf.cache.check("c/one") == ""
    shelf.now += PIN_S - 10
    with pytest.raises(CacheError, match="no room"):
        shelf.make(two, pin="c/two")
    shelf.now += 20
    shelf.make(two, pin="c/two")
    assert not path.exists()
    assert shelf.cache.check("c/one") == "nothing is pinned for it"


def test_a_source_above_its_own_size_is_refused(shelf: Shelf) -> None:
    with pytest.raises(CacheError, match="more than its `size`"):
        shelf.make(shelf.source("aa", 60 * KIB), most=10 * KIB)


def test_damage_is_found_and_made_good(shelf: Shelf) -> None:
    source = shelf.source("m")
    path = shelf.make(source)
    assert shelf.cache.check("c/g1/m") == ""
    content = path.resolve()
    content.chmod(0o644)
    content.write_text("changed")
    assert "was changed" in shelf.cache.check("c/g1/m")
    assert shelf.make(source).read_bytes() == source.read_bytes()
    assert shelf.cache.check("c/g1/m") == ""
    path.resolve().unlink()
    assert "is missing" in shelf.cache.check("c/g1/m")
    assert shelf.make(source).exists()


def test_two_agents_that_want_one_model_make_it_once(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    source = shelf.source("m", 2 << 20)
    sha256 = checksum(source)
    copied: list[str] = []
    begun, go_on = threading.Event(), threading.Event()
    copy = modelcache._copy_file

    def slowly(*arguments: object) -> str:
        copied.append(threading.current_thread().name)
        begun.set()
        assert go_on.wait(30)
        return copy(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(modelcache, "_copy_file", slowly)
    monkeypatch.setattr(modelcache, "BUSY_S", 0.01)

    def make(progress: Progress) -> None:
        ModelCache(shelf.root / "cache").make(source, sha256, 8 << 20, 0, progress)

    shelf.cache.pin(sha256, "c/x", "m")
    agents = [threading.Thread(target=make, args=(Progress(),)) for _ in range(3)]
    agents[0].start()
    assert begun.wait(30)
    for agent in agents[1:]:
        agent.start()
    ended = Progress(ended=True)
    with pytest.raises(Abandoned):
        make(ended)
    go_on.set()
    for agent in agents:
        agent.join(30)
    assert len(copied) == 1
    assert Path(shelf.cache.pin(sha256, "c/x", "m")).exists()


def test_room_that_another_agent_is_filling_is_not_given_twice(shelf: Shelf) -> None:
    making = shelf.root / "cache" / "making"
    making.mkdir(parents=True)
    (making / f"{'1' * 64}.size").write_text(str(60 * KIB))
    fd = os.open(making / f"{'1' * 64}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(CacheError, match="no room"):
        shelf.make(shelf.source("aa", 60 * KIB))
    os.close(fd)
    shelf.make(shelf.source("aa", 60 * KIB))
