"""The learner on two ranks (gloo, by torchrun) does what it does on one; the death of a rank ends the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.ranks import OnAllRanks, Team
from tests.engines import servers

RANKS = Path(__file__).with_name("lm_ranks.py")
DEADLINE_S = 240.0


def _run(ranks: int, model: Path, out: Path, **mode: Any) -> subprocess.CompletedProcess[str]:
    """The program on so many ranks; it has ended when this returns, and nothing of it is left."""
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(servers.ROOT)}
    process = subprocess.Popen(
        [*start, str(RANKS), str(model), str(out), json.dumps(mode)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    said, _ = process.communicate(timeout=DEADLINE_S)
    servers.until(lambda: not servers.in_session(process.pid), DEADLINE_S, lambda: f"left: {servers.in_session(process.pid)}")
    return subprocess.CompletedProcess([], process.returncode, said, "")


def _told(out: Path, ranks: int) -> dict[str, Any]:
    return dict(json.loads((out / f"told-{ranks}.json").read_text()))


@pytest.mark.parametrize("mode", [{"sharding": "replicate", "micro_batch": 4}, {"sharding": "full", "minibatches": 2}])
def test_two_ranks_do_what_one_does(tiny_model: Path, tmp_path: Path, mode: dict[str, Any]) -> None:
    """The same losses and weights but for the order of sums; and each reads the other's checkpoint."""
    one, two = tmp_path / "one", tmp_path / "two"
    for ranks, out in ((1, one), (2, two)):
        out.mkdir()
        done = _run(ranks, tiny_model, out, **mode)
        assert done.returncode == 0, done.stdout
    alone, together = _told(one, 1), _told(two, 2)
    for key in ("kl", "norm", "importance", "probe"):
        assert together[key] == pytest.approx(alone[key], rel=2e-3, abs=2e-5), key
    assert together["tokens"] == alone["tokens"]
    _same_weights(one / "weights-1-2", two / "weights-2-2")
    (one / "saved").rename(tmp_path / "of-one")
    (two / "saved").rename(one / "saved")
    (tmp_path / "of-one").rename(two / "saved")
    for ranks, out in ((1, one), (2, two)):
        done = _run(ranks, tiny_model, out, **mode)
        assert done.returncode == 0, done.stdout
        assert _told(out, ranks)["steps"] == 4
    _same_weights(one / "weights-1-4", two / "weights-2-4")


@pytest.mark.parametrize("rank", [0, 1])
def test_no_room_for_one_rank_is_no_room_for_all(tiny_model: Path, tmp_path: Path, rank: int) -> None:
    """The leader may try again; the other ranks are still with it, and nothing half-written is left."""
    done = _run(2, tiny_model, tmp_path, full=rank)
    assert done.returncode == 0, done.stdout
    told = _told(tmp_path, 2)
    assert (told["refused"], told["steps"]) == (1, 2)
    assert (tmp_path / "saved/.metadata").exists()


def test_a_dead_rank_ends_the_job(tiny_model: Path, tmp_path: Path) -> None:
    """Nobody waits for it for ever; nothing was saved that the dead one had no part in."""
    done = _run(2, tiny_model, tmp_path, sharding="replicate", die=1)
    assert done.returncode != 0
    assert not list(tmp_path.iterdir())


def _same_weights(one: Path, other: Path) -> None:
    """Adam divides by the size of a gradient: where that is rounding only, so is the sign of an update."""
    first, second = models.load(one), models.load(other)
    for (name, value), (_, against) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        apart = (value - against).detach().abs()
        assert float(apart.mean()) < 2e-5, name
        assert float(apart.max()) < 1e-2, name


@pytest.mark.parametrize(
    ("error", "goes_on"), [(OnAllRanks("drift"), True), (OSError(28, "full"), True), (ValueError("mine"), False)]
)
def test_a_rank_leaves_what_all_found_to_the_leader(error: Exception, goes_on: bool) -> None:
    """Otherwise torchrun would end the leader before the group has heard the reason."""

    class Told(Team):
        def _hear(self) -> tuple[str, tuple[Any, ...]]:
            return calls.pop(0)

    class Work:
        def train(self) -> None:
            raise error

    calls: list[tuple[str, tuple[Any, ...]]] = [("train", ()), ("end", ())]
    if goes_on:
        Told(rank=1, size=2).follow(Work())
        assert calls == []
    else:
        with pytest.raises(ValueError, match="mine"):
            Told(rank=1, size=2).follow(Work())
