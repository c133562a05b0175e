"""The launcher of ranks ends with their exit code, by which rules know what happened; a signal to it ends all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gangflow.recipes.lm import torchrun
from gangflow.recipes.services.rules import ranked
from tests.engines import servers

RANK = Path(__file__).with_name("ending_rank.py")
DEADLINE_S = 120.0


def _start(folder: Path, ends: Mapping[str, Any]) -> subprocess.Popen[str]:
    words = [*ranked(sys.executable, "none", 2)[:-2], str(RANK), str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(servers.ROOT), "ENDS": json.dumps(ends)}
    return subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def _nothing_left(process: subprocess.Popen[str]) -> None:
    servers.until(lambda: not servers.in_session(process.pid), DEADLINE_S, lambda: f"left: {servers.in_session(process.pid)}")


@pytest.mark.parametrize(("ends", "code"), [({"1": 66}, 66), ({"0": 65}, 65), ({"0": "killed"}, 1)])
def test_it_ends_with_the_code_of_the_rank_that_ended_by_itself(ends: dict[str, Any], code: int, tmp_path: Path) -> None:
    """The other one loses the connection, or is ended by torchrun: that says nothing."""
    process = _start(tmp_path, ends)
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, said
    assert "Root Cause" in said
    _nothing_left(process)


def test_a_signal_to_it_ends_all_ranks(tmp_path: Path) -> None:
    process = _start(tmp_path, {})
    servers.until(lambda: len(list(tmp_path.iterdir())) == 2, DEADLINE_S, lambda: f"exit code {process.poll()}")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode != 0
    _nothing_left(process)


@pytest.mark.parametrize(
    ("codes", "code"), [([1, 66], 66), ([66, -15], 66), ([-15, 1], 1), ([-9], 1), ([1, -15], 1), ([65, 66], 65)]
)
def test_the_first_code_that_says_something_is_the_launchers(codes: list[int], code: int) -> None:
    assert torchrun.exit_code({rank: SimpleNamespace(exitcode=ended) for rank, ended in enumerate(codes)}) == code


@pytest.mark.parametrize(("node", "code", "waits"), [("0", 1, 0), ("1", 1, 1), ("1", 65, 0)])
def test_another_host_with_nothing_to_say_lets_the_first_one_speak(
    node: str, code: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """XCE goes by the task that ends first, and rank 0 is the first one's."""

    def failed(_: Any) -> None:
        failure = torchrun.ProcessFailure(local_rank=0, pid=7, exitcode=code, error_file="")
        raise torchrun.ChildFailedError("actor", {0: failure})

    waited: list[float] = []
    monkeypatch.setenv("PET_NODE_RANK", node)
    monkeypatch.setattr(torchrun.run, "main", failed)
    monkeypatch.setattr(torchrun.time, "sleep", waited.append)
    monkeypatch.setattr(torchrun.signal, "signal", lambda *_: None)
    assert torchrun.main() == code
    assert waited == [torchrun.LATER_S] * waits
