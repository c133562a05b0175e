# ruff: noqa: ASYNC240 — a test may look at the disk
"""The command provider: a user's script makes a claim, without a shell, and is ended with all that it started when it hangs."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.ports import Held
from gangflow.xce.providers import command
from gangflow.xce.providers.command import CommandFailed, CommandProvider

Write = Callable[[str], str]
DEADLINE_S = 30.0


@pytest.fixture
def script(tmp_path: Path) -> Write:
    """A script of these lines of shell; its path."""

    def write(text: str) -> str:
        path = tmp_path / "a script; $(touch injected)"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o700)
        return str(path)

    return write


def provision(script: str, **parameters: str) -> Provision:
    values = (("script", script), *parameters.items())
    return Provision("g1/actor[2]/data", 3, "g1", "data", "command", values, ("actor", 2), ("h0", "h1"), after=(("a", "/a"),))


def release(script: str) -> Release:
    return Release("g1/data", "g1", "data", "command", "/made/here", False, (("script", script),))


def held(script: str) -> Held:
    return Held("g1/data", "g1", "data", "command", "/made/here", (("script", script),))


async def gone(process: int) -> bool:
    """Whether it ends, soon."""
    async with asyncio.timeout(DEADLINE_S):
        while Path(f"/proc/{process}").exists() and "Z" not in Path(f"/proc/{process}/stat").read_text().split(")")[1][:3]:
            await asyncio.sleep(0.01)
    return True


async def test_the_last_line_that_it_prints_is_the_path(script: Write, tmp_path: Path) -> None:
    path = script('echo "making…"; echo "  /made/$1  "; echo')
    assert (await CommandProvider().provision(provision(path))).path == "/made/provision"
    assert not (tmp_path / "injected").exists()


async def test_it_is_told_everything_as_json_and_in_the_environment(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "x")
    path = script(f"cat > {tmp_path}/asked; env > {tmp_path}/env; pwd > {tmp_path}/pwd; echo /x")
    await CommandProvider().provision(provision(path, pool_name="fast; rm -rf /", size="1"))
    asked = json.loads((tmp_path / "asked").read_text())
    assert asked == {
        "claim": "g1/actor[2]/data",
        "attempt": 3,
        "group": "g1",
        "name": "data",
        "member": "actor",
        "index": 2,
        "hosts": ["h0", "h1"],
        "parameters": {"pool_name": "fast; rm -rf /", "size": "1"},
        "after": {"a": "/a"},
    }
    environment = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    assert environment["XCE_CLAIM_ID"] == "g1/actor[2]/data"
    assert environment["XCE_CLAIM_HOSTS"] == "h0,h1"
    assert environment["XCE_CLAIM_PARAMETER_POOL_NAME"] == "fast; rm -rf /"
    assert "SOME_SECRET" not in environment
    assert (tmp_path / "pwd").read_text() == "/\n"


async def test_a_failure_says_what_it_said(script: Write) -> None:
    path = script("echo out; echo 'no such pool' >&2; echo 'ask an admin' >&2; exit 7")
    with pytest.raises(CommandFailed, match=r"provision: exit code 7: no such pool \| ask an admin$"):
        await CommandProvider().provision(provision(path))
    with pytest.raises(CommandFailed, match="release: exit code 7"):
        await CommandProvider().release(release(path))
    with pytest.raises(CommandFailed, match="signal 9"):
        await CommandProvider().provision(provision(script("kill -9 $$")))


@pytest.mark.parametrize("says", ["", "echo relative/path", "echo"])
async def test_a_path_that_is_none_is_a_failure(script: Write, says: str) -> None:
    with pytest.raises(CommandFailed, match="must be an absolute path"):
        await CommandProvider().provision(provision(script(f"{says}\ntrue")))


async def test_what_cannot_be_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="cannot be run: No such file"):
        await CommandProvider().provision(provision(str(tmp_path / "none")))
    plain = tmp_path / "plain"
    plain.write_text("x")
    with pytest.raises(CommandFailed, match="cannot be run: Permission denied"):
        await CommandProvider().provision(provision(str(plain)))
    with pytest.raises(CommandFailed, match="must be an absolute path, not 'x'"):
        await CommandProvider().provision(provision("x"))


async def test_a_script_that_hangs_is_ended_with_all_that_it_started(script: Write, tmp_path: Path) -> None:
    """Scenario 76: also what ignores SIGTERM, and its children."""
    own = f"echo $$ > {tmp_path}/pids; sleep 600 & echo $! > {tmp_path}/child; wait"
    path = script(f"trap '' TERM; {own}")
    work = asyncio.create_task(CommandProvider().provision(provision(path)))
    async with asyncio.timeout(DEADLINE_S):
        while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
            await asyncio.sleep(0.01)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert await gone(int((tmp_path / "child").read_text()))
    assert await gone(int((tmp_path / "pids").read_text()))


async def test_a_child_that_holds_its_stdout_open_holds_nobody_up(script: Write, tmp_path: Path) -> None:
    """A daemon that a script leaves behind (a mount's, say) is its own business."""
    path = script(f"sleep 600 & echo $! > {tmp_path}/pid; echo /mounted")
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert (await CommandProvider().provision(provision(path))).path == "/mounted"
    finally:
        os.kill(int((tmp_path / "pid").read_text()), 9)


async def test_a_flood_of_output_is_not_kept(script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "TRIM_BYTES", 1 << 20)
    monkeypatch.setattr(command, "TRIM_S", 0.01)
    flood = "head -c 5000000 /dev/zero | tr '\\0' 'x'"
    path = script(f"{flood}; while [ $(stat -L -c %s /proc/$$/fd/1) -gt 1000000 ]; do sleep 0.01; done >&2; echo; echo /made")
    assert (await CommandProvider().provision(provision(path))).path == "/made"


async def test_a_script_that_does_not_read_its_stdin_is_fine(script: Write) -> None:
    path = script("exec 0<&-; echo /made")
    assert (await CommandProvider().provision(provision(path, much="x" * 100_000))).path == "/made"


async def test_a_release_is_told_where_it_is(script: Write, tmp_path: Path) -> None:
    path = script(f"echo $1 $XCE_CLAIM_PATH > {tmp_path}/told; cat > {tmp_path}/asked")
    await CommandProvider().release(release(path))
    assert (tmp_path / "told").read_text() == "release /made/here\n"
    assert json.loads((tmp_path / "asked").read_text())["retain"] is False


async def test_a_check_finds_it_lost_or_whole_or_says_nothing(script: Write, tmp_path: Path) -> None:
    provider = CommandProvider()
    assert await provider.check(held(script("exit 0"))) == ""
    assert await provider.check(held(script("echo 'export is gone' >&2; exit 3"))) == "export is gone"
    assert "check does not find it" in await provider.check(held(script("exit 3")))
    with pytest.raises(CommandFailed, match="exit code 1"):
        await provider.check(held(script("exit 1")))
    path = script(f"echo x >> {tmp_path}/asked; exit 64")
    for _ in range(3):
        assert await provider.check(held(path)) == ""
    assert (tmp_path / "asked").read_text() == "x\n", "one that does not check is asked once"
