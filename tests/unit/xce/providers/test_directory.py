# ruff: noqa: ASYNC240 — a test may look at the disk
"""The directory provider: makes and removes its own folders and nothing else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.ports import Held
from gangflow.xce.providers import directory
from gangflow.xce.providers.directory import ClaimRefused, DirectoryProvider
from gangflow.xce.providers.registry import NAMES, standard_providers


def provision(claim: str = "g1/ckpt", name: str = "ckpt", **more: object) -> Provision:
    values: dict[str, object] = {"attempt": 1, "group": "g1", "provider": "directory", "parameters": (), **more}
    return Provision(claim=claim, name=name, **values)  # type: ignore[arg-type]


def release(path: str, claim: str = "g1/ckpt", name: str = "ckpt", retain: bool = False) -> Release:
    return Release(claim, "g1", name, "directory", path, retain)


async def test_makes_fills_and_removes(tmp_path: Path) -> None:
    provider = DirectoryProvider(tmp_path)
    first = await provider.provision(provision())
    assert Path(first.path) == tmp_path / "claims" / "g1" / "ckpt"
    assert (Path(first.path).stat().st_mode & 0o777) == 0o700
    (Path(first.path) / "deep").mkdir()
    (Path(first.path) / "deep" / "weights").write_text("w")
    again = await provider.provision(provision(attempt=2))
    assert again == first
    assert (Path(first.path) / "deep" / "weights").read_text() == "w"
    await provider.release(release(first.path))
    assert not Path(first.path).parent.exists()
    await provider.release(release(first.path))  # what is gone is gone


async def test_retained_claims_stay(tmp_path: Path) -> None:
    provider = DirectoryProvider(tmp_path)
    path = Path((await provider.provision(provision(retain=True))).path)
    await provider.release(release(str(path), retain=True))
    assert path.is_dir()
    await provider.release(release(str(path)))  # nothing is noted any more: left alone
    assert path.is_dir()


async def test_slots_have_their_own(tmp_path: Path) -> None:
    provider = DirectoryProvider(tmp_path)
    one = await provider.provision(provision("g1/actor[0]/tmp", "tmp", slot=("actor", 0)))
    two = await provider.provision(provision("g1/actor[1]/tmp", "tmp", slot=("actor", 1)))
    assert [Path(each.path).name for each in (one, two)] == ["tmp-actor-0", "tmp-actor-1"]
    await provider.release(release(one.path, "g1/actor[0]/tmp", "tmp"))
    assert not Path(one.path).exists()
    assert Path(two.path).is_dir()


async def test_groups_of_two_clusters_do_not_meet_in_a_shared_folder(tmp_path: Path) -> None:
    shared = (("path", str(tmp_path / "shared")),)
    paths = []
    for home in ("one", "two"):
        provider = DirectoryProvider(tmp_path / home)
        paths.append(Path((await provider.provision(provision(parameters=shared))).path))
        assert paths[-1].is_relative_to(tmp_path / "shared")
        # After a restart of the controller the same claim is the same folder.
        assert (await DirectoryProvider(tmp_path / home).provision(provision(parameters=shared))).path == str(paths[-1])
    assert paths[0] != paths[1]
    await DirectoryProvider(tmp_path / "one").release(release(str(paths[0])))
    assert not paths[0].exists()
    assert paths[1].is_dir()


@pytest.mark.parametrize(
    "more",
    [
        {"parameters": (("path", "relative"),)},
        {"parameters": (("size", "1"),)},
        {"name": ".."},
        {"name": "a/b"},
        {"group": "../x"},
        {"name": ".made"},
    ],
)
async def test_what_it_refuses(tmp_path: Path, more: dict[str, object]) -> None:
    with pytest.raises(ClaimRefused):
        await DirectoryProvider(tmp_path).provision(provision(**more))  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


async def test_links_are_not_followed_to_make(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "g1").symlink_to(elsewhere)
    with pytest.raises(OSError, match=r"claims|g1|Not a directory|symbolic"):
        await DirectoryProvider(tmp_path).provision(provision())
    assert not list(elsewhere.iterdir())


async def test_links_are_not_followed_to_remove(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "ckpt").mkdir(parents=True)
    (elsewhere / "ckpt" / "precious").write_text("")
    provider = DirectoryProvider(tmp_path)
    path = Path((await provider.provision(provision())).path)
    (path / "link").symlink_to(elsewhere / "ckpt")
    await provider.release(release(str(path)))
    assert (elsewhere / "ckpt" / "precious").exists()

    path = Path((await provider.provision(provision())).path)
    path.rmdir()
    path.symlink_to(elsewhere / "ckpt")  # the claim itself became a link
    await provider.release(release(str(path)))
    assert not path.is_symlink()
    assert (elsewhere / "ckpt" / "precious").exists()

    path = Path((await provider.provision(provision())).path)
    path.rmdir()
    path.parent.rmdir()
    path.parent.symlink_to(elsewhere)  # its group's folder became one
    with pytest.raises(OSError, match="left alone"):
        await provider.release(release(str(path)))
    assert (elsewhere / "ckpt" / "precious").exists()


async def test_a_release_never_trusts_the_path_that_it_is_given(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    await DirectoryProvider(tmp_path).release(release(str(precious)))
    assert precious.is_dir()


async def test_what_an_abandoned_provision_still_makes_is_released_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled caller does not stop the thread: the release must wait for it, or a folder stays that nobody removes."""
    entered, go_on, make = threading.Event(), threading.Event(), directory._make_below

    def slow_disk(root: Path, names: tuple[str, ...]) -> None:
        entered.set()
        assert go_on.wait(10)
        make(root, names)

    monkeypatch.setattr(directory, "_make_below", slow_disk)
    provider = DirectoryProvider(tmp_path)
    abandoned = asyncio.create_task(provider.provision(provision()))
    assert await asyncio.to_thread(entered.wait, 10)
    abandoned.cancel()
    released = asyncio.create_task(provider.release(release("")))
    await asyncio.gather(abandoned, return_exceptions=True)
    assert not released.done()
    go_on.set()
    await released
    assert not (tmp_path / "claims" / "g1").exists()


def test_the_registry_names_what_there_is(tmp_path: Path) -> None:
    assert tuple(standard_providers(tmp_path)) == NAMES


async def test_a_standalone_claim_has_a_folder_of_no_group(tmp_path: Path) -> None:
    provider = DirectoryProvider(tmp_path)
    alone = Path((await provider.provision(provision("data", "data", group=""))).path)
    assert alone == tmp_path / "claims" / "standalone" / "data"
    shared = Path((await provider.provision(provision("more", "more", group="", parameters=(("path", str(tmp_path)),)))).path)
    assert shared.parent.name.endswith("-standalone")
    for claim, path in (("data", alone), ("more", shared)):
        await provider.release(Release(claim, "", claim, "directory", str(path), False))
        assert not path.exists()


async def test_what_was_retained_and_then_deleted_is_removed(tmp_path: Path) -> None:
    """A retained claim is made as `g1/ckpt`, lives on as `g1-ckpt`, and is known by its first id to the end."""
    provider = DirectoryProvider(tmp_path)
    path = Path((await provider.provision(provision(retain=True))).path)
    (path / "weights").write_text("w")
    assert (await provider.provision(provision(attempt=2))).path == str(path)  # lost and made again
    assert (path / "weights").exists()
    await provider.release(release(str(path)))
    assert not path.exists()


async def test_a_folder_that_is_gone_is_found_missing(tmp_path: Path) -> None:
    provider = DirectoryProvider(tmp_path)
    path = Path((await provider.provision(provision())).path)
    held = Held("g1/ckpt", "g1", "ckpt", "directory", str(path))
    assert await provider.check(held) == ""
    path.rmdir()
    assert await provider.check(held) == f"{path} is not there any more"
    path.write_text("")
    assert await provider.check(held) == f"{path} is no folder any more"
    with pytest.raises(OSError, match="Not a directory"):
        await provider.check(Held("g1/ckpt", "g1", "ckpt", "directory", f"{path}/x/y"))
