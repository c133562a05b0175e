# ruff: noqa: ASYNC240 — a test may look at the disk
"""docs/claims.md: its documents are accepted, its script makes claims, its way to compute a checksum gives the checksum."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gangflow.specs.document import load
from gangflow.specs.group import CoStartGroup
from gangflow.xce.admission import admit
from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.core.state import ClaimState
from gangflow.xce.hosts.checksums import checksum
from gangflow.xce.ports import Held, Provider
from gangflow.xce.providers.command import CommandProvider

PAGE = (Path(__file__).resolve().parents[2] / "docs/claims.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)]


def block(kind: str, part: str) -> str:
    """The block of this kind that has this in it."""
    (found,) = [text for each, text in BLOCKS if each == kind and part in text]
    return found


async def life(provider: Provider, parameters: tuple[tuple[str, str], ...] = ()) -> None:
    """Made, found made, whole, lost, released, and released again."""
    asked = Provision("g1/rollout[0]/scratch", 1, "g1", "scratch", "x", parameters, ("rollout", 0), ("h0",))
    path = (await provider.provision(asked)).path
    assert (await provider.provision(replace(asked, attempt=2))).path == path
    assert Path(path).is_dir()
    held = Held(asked.claim, "g1", "scratch", "x", path, parameters, ("rollout", 0), ("h0",))
    assert await provider.check(held) == ""  # type: ignore[attr-defined]
    Path(path).rmdir()
    assert await provider.check(held) == f"{path} is gone"  # type: ignore[attr-defined]
    assert (await provider.provision(replace(asked, attempt=3))).path == path
    given = Release(asked.claim, "g1", "scratch", "x", path, False, parameters, ("rollout", 0), ("h0",))
    await provider.release(given)
    assert not Path(path).exists()
    await provider.release(given)


@pytest.mark.parametrize("text", [text for kind, text in BLOCKS if kind == "yaml"])
def test_every_document_is_one(text: str) -> None:
    admit(load(text, CoStartGroup))


async def test_the_script_works(tmp_path: Path) -> None:
    script = tmp_path / "scratch.sh"
    script.write_text(block("sh", "provision)"))
    script.chmod(0o755)
    await life(CommandProvider(), (("script", str(script)), ("pool", str(tmp_path / "pool"))))


async def test_the_provider_of_ones_own_works(tmp_path: Path) -> None:
    names: dict[str, object] = {}
    exec(block("python", "class Volumes"), names)
    await life(names["Volumes"](tmp_path / "volumes"))  # type: ignore[operator]


def test_the_checksum_without_gangflow_is_the_checksum(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    (folder / "b").mkdir(parents=True)
    for name in ("b/z", "b.c", "a b", "Z"):
        (folder / name).write_text(name)
    (folder / "linked").symlink_to(tmp_path / "blob")
    (tmp_path / "blob").write_text("blob")
    command = block("sh", "find -L").replace("FOLDER", str(folder))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.split()[0] == checksum(folder)


def test_every_state_is_one() -> None:
    life_of = PAGE.split("## Life\n", 1)[1].split("\n## ", 1)[0]
    assert {*re.findall(r"^\| ([A-Z]+) \|", life_of, re.M)} == {*ClaimState} - {ClaimState.GONE}
