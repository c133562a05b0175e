"""Whatever is killed in Ray comes back by itself, on the same journal; no member notices, but for its own agent's death."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import pytest

from gangflow.xce.rest.client import Client
from tests.integration.ray.world import Kept, group, incarnations, kill, records, running, state, until

pytestmark = pytest.mark.ray


def test_a_group_runs_to_its_end(kept: Kept, client: Client, place: Path) -> None:
    """Two members on two hosts; `python` is the one that started the cluster, and nothing of Ray's reaches them."""
    program = (
        "import os, sys, json; print(json.dumps([sys.executable, sorted(k for k in os.environ if 'RAY' in k)]), flush=True)"
    )
    document = group("whole", place / "done")
    document["members"]["c"] = {"job": {"command": ["python", "-c", program], "resources": {"cpu": "100m"}}}
    with running(client, document) as view:
        # `c` may have ended already, and then has no host.
        stay = [slot for member in view.members if member.name != "c" for slot in member.slots]
        assert {slot.hosts for slot in stay} <= {("h-0",), ("h-1",)}
        assert view.seq > 0
        (place / "done").touch()
        ended = state(client, view.id, "SUCCEEDED")
        log = client.log(view.id, "c", 0).text
    assert {slot.incarnation for member in ended.members for slot in member.slots} == {1}
    executable, rays = json.loads(log)
    assert Path(executable).parent == Path(sys.executable).parent
    assert rays == []


def test_controller_killed(kept: Kept, client: Client, place: Path) -> None:
    """Scenario 77, 84: Ray starts it again; it recovers the journal, takes a new term, and no member is touched."""
    with running(client, group("controlled", place / "done")) as view:
        before, url, killed = incarnations(view), kept.home.url, kept.controller
        kill(killed)
        until(lambda: kept.controller != killed and kept.home.alive, "another controller")
        assert kept.home.url == url, "members know this address"
        after = client.group(view.id)
        assert (after.state, incarnations(after)) == ("RUNNING", before)
        terms = [event.data["term"] for event in records(client) if event.type == "TermStarted"]
        assert terms == list(range(1, len(terms) + 1))
        assert len(terms) >= 2
        (place / "done").touch()
        state(client, view.id, "SUCCEEDED")


def test_agents_actor_killed(kept: Kept, client: Client, place: Path) -> None:
    """Scenario 84: the actor is only the way to the agent: tasks run on, and the next one finds the agent."""
    with running(client, group("wrapped", place / "done")) as view:
        before, agent, killed = incarnations(view), kept.agent, kept.actor("HostAgentActor")
        assert psutil.Process(agent).parent().pid != killed, "Ray ends a worker's children with it"
        kill(killed)
        # What is asked for through the next actor is done: it serves the same agent.
        client.restart(view.id, "b", 0, 1)
        until(lambda: client.group(view.id).slot("b", 0).incarnation == 2, "b's second incarnation")
        after = incarnations(state(client, view.id, "RUNNING"))
        assert (after["a[0]"], kept.agent) == (before["a[0]"], agent)
        assert kept.actor("HostAgentActor") != killed
        (place / "done").touch()
        state(client, view.id, "SUCCEEDED")


def test_agent_killed(kept: Kept, client: Client, place: Path) -> None:
    """Scenario 82, 83: its watchdog ends its tasks, the next agent says so, and the rules start them again."""
    with running(client, group("orphaned", place / "done")) as view:
        before = incarnations(view)
        kill(kept.agent)
        for _, (_, pids) in before.items():
            until(lambda pids=pids: not any(psutil.pid_exists(pid) for pid in pids), "the end of its tasks")
        until(lambda: all(number == 2 for number, _ in incarnations(client.group(view.id)).values()), "second incarnations")
        state(client, view.id, "RUNNING")
        judged = [event.data for event in records(client, view) if event.type == "FailureJudged"]
        assert {(each["cause"], each["action"]) for each in judged} == {("agent_lost", "restart_member")}
        (place / "done").touch()
        state(client, view.id, "SUCCEEDED")


def test_coordinator_killed(kept: Kept, client: Client, place: Path) -> None:
    """Scenario 80: Ray starts it again, it takes a newer term, and no member is touched."""
    from gangflow.clusters import join_cluster

    document = group("coordinated", place / "done", "actor")
    rollout = {"command": ["sleep", "1000"], "replicas": 1, "ports": ["http"], "resources": {"cpu": "100m"}}
    document["members"]["rollout"] = {"replica_set": {**rollout, "termination_grace": "1s"}}
    document["coordinator"] = {
        "kind": "rl", "actor": "actor", "rollout": "rollout", "port": "http",
        "quorum_timeout": "1h", "hang_timeout": "1h", "unhealthy_timeout": "1h", "sync_timeout": "1h",
        "no_progress_timeout": "2h",
    }  # fmt: skip
    with running(client, document) as view:
        before = incarnations(view)
        cluster = join_cluster(str(kept.path))
        cluster.coordinate(view.id)
        cluster.stop()
        first = until(lambda: client.group(view.id).coordinator_term, "a coordinator")
        killed = kept.actor("CoordinatorActor")
        kill(killed)
        until(lambda: client.group(view.id).coordinator_term > first, "a newer coordinator")
        assert incarnations(client.group(view.id)) == before
        assert kept.actor("CoordinatorActor") != killed
    # It ends with its group, and Ray does not start it again.
    from tests.integration.ray.world import processes

    until(lambda: not processes("GANGFLOW_RAY", kept.folder, "ray::CoordinatorActor"), "the coordinator's end")
    assert os.path.exists(kept.path / f"coordinator-{view.id}.log")
