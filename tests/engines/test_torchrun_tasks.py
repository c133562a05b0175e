"""The actor's command with several tasks: torchrun on each, which meet by the names and ports that XCE injects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gangflow.recipes.grpo.lm.build import CKPT, Config, build
from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.group import CoStartGroup
from tests.integration.live.cluster import Live, OwnRoot

PROGRAM = Path(__file__).with_name("meeting_rank.py")


@pytest.mark.parametrize(("tasks", "procs"), [(1, 2), (2, 2)])
def test_ranks_of_all_tasks_meet_and_a_dead_one_restarts_the_job_whole(tasks: int, procs: int, tmp_path: Path) -> None:
    """Rank 0 is the first of task 0, which alone speaks to the group; all start again when one dies."""
    actor = build(Config(actor_tasks=tasks, actor_procs=procs)).members["actor"]
    words = list(actor.command)
    assert words[-2:] == ["-m", "gangflow.recipes.grpo.lm.actor"]
    resources = {"cpu": 1, "mem": 256}
    job = actor.model_copy(update={"command": (*words[:-2], str(PROGRAM)), "environment": {"DIES": "1"}, "claims": ()})
    group = CoStartGroup("meet", {"actor": job.model_copy(update={"resources": type(actor.resources)(**resources)})},
                         claims=[Claim(CKPT, retain=True, parameters={"path": str(tmp_path)})])  # fmt: skip
    root = OwnRoot()
    live = Live(ClusterSpec(hosts=[HostSpec("h[0-1]", cpu=2, mem="1GiB", gpus=0)]), name="meet")
    try:
        run = live.run(group)
        view = run.wait(150, check=False)
        assert view.state == "SUCCEEDED", (view.message, "".join(run.logs("actor", stream="stderr"))[-2_000:])
        assert view.slot("actor", 0).incarnation == 2
    finally:
        live.clear()
        live.stop()
        root.close()
    world = tasks * procs
    for incarnation in (1, 2):
        ranks = [json.loads(next(tmp_path.rglob(f"rank-{rank}-{incarnation}.json")).read_text()) for rank in range(world)]
        assert [told["task"] for told in ranks] == [rank // procs for rank in range(world)]
        assert {told["world"] for told in ranks} == {world}
        assert {told["sum"] for told in ranks} == {sum(range(1, world + 1))}
