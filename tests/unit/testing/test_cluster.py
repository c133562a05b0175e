"""`gangflow.testing.cluster`: what users' tests rest on behaves as the real thing, since it is the real thing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import gangflow as gf
from gangflow import clusters, events
from gangflow.errors import Conflict, Gone, NotFound, SpecError, Unauthorized, Unreachable
from gangflow.testing import FakeCluster, cluster
from gangflow.testing.fixtures import gangflow_cluster  # noqa: F401 - a fixture
from gangflow.xce.core.invariants import check
from tests.unit.testing.groups import job, rl


@pytest.fixture
def here() -> Iterator[FakeCluster]:
    with cluster(hosts=2, gpus=4) as made:
        yield made
        assert made.do(lambda: check(made.xce.state)) == [], "the production core's own invariants"


def test_a_group_starts_at_once_and_ends_when_its_job_does(here: FakeCluster) -> None:
    run = here.launch(rl())
    assert run.status().state == "RUNNING"
    here.assert_slot("actor", 0, "READY")
    here.assert_slot("rollout", 1, "READY", incarnation=1)
    here.finish("actor")
    assert run.wait(timeout=10).state == "SUCCEEDED"
    here.assert_event(events.GroupEnded, state="SUCCEEDED")
    assert [type(event) for event in run.events()][-1] is events.GroupEnded


def test_a_failure_is_judged_by_the_groups_rules_in_the_clocks_time(here: FakeCluster) -> None:
    run = here.launch(rl())
    here.fail("rollout", 1, cause="oom", stderr="Killed")
    here.assert_slot("rollout", 1, "BACKOFF")
    failed = here.assert_event(events.SlotFailed, member="rollout", slot=1, cause="oom", stderr_tail="Killed")
    here.assert_event(events.FailureJudged, after=failed.seq - 10, action="restart_member")
    here.advance(60)
    here.assert_slot("rollout", 1, "READY", incarnation=2)
    assert run.status().state == "RUNNING"


def test_a_jobs_failure_fails_the_group(here: FakeCluster) -> None:
    run = here.launch(rl())
    here.fail("actor", code=3)
    here.assert_group("FAILED", cause="app_exit")
    with pytest.raises(gf.GroupEnded, match="FAILED"):
        run.wait()


@pytest.mark.parametrize("cause", ["app_exit", "signal", "oom", "start_failed", "unhealthy", "hung", "agent_lost", "host_lost"])
def test_each_cause_comes_as_it_really_would(here: FakeCluster, cause: str) -> None:
    here.launch(rl())
    here.fail("rollout", 0, cause=cause)
    here.until(lambda view: view.slot("rollout", 0).incarnation > 1 and view.slot("rollout", 0).state == "READY")
    here.assert_event(events.SlotFailed, member="rollout", slot=0, cause=cause)


@pytest.mark.parametrize("cause", ["not_ready", "run_limit"])
def test_what_comes_by_time_is_not_made_by_hand(here: FakeCluster, cause: str) -> None:
    here.launch(rl())
    with pytest.raises(ValueError, match="advance"):
        here.fail("rollout", cause=cause)


def test_a_lost_host_is_fenced_and_comes_back(here: FakeCluster) -> None:
    here.launch(rl(replicas=3))
    host = here.group().slot("rollout", 2).hosts[0]
    here.lose_host(host, fence=10)
    here.assert_slot("rollout", 2, "LOST")
    here.advance(30)
    assert here.group().slot("rollout", 2).hosts != (host,) or here.group().slot("rollout", 2).state != "READY"
    here.return_host(host)
    here.until(lambda view: all(slot.state == "READY" for member in view.members for slot in member.slots))


def test_a_host_that_was_only_cut_off_still_has_what_it_ran(here: FakeCluster) -> None:
    """LOST was judged: what comes back with its host is stopped, not adopted."""
    here.launch(rl(replicas=3))
    host = here.group().slot("rollout", 2).hosts[0]
    here.lose_host(host, fence=1_000)
    here.return_host(host, rebooted=False)
    here.until(lambda view: view.slot("rollout", 2).state == "READY" and view.slot("rollout", 2).incarnation == 2)


def test_probes_succeed_when_the_test_says_so() -> None:
    with cluster(hosts=1, ready=False) as here:
        here.launch(rl())
        here.assert_group("STARTING")
        here.ready("rollout", 0)
        here.assert_slot("rollout", 0, "READY")
        here.assert_group("RUNNING")
        here.unready("rollout", 0, message="HTTP 500")
        here.assert_slot("rollout", 0, "RUNNING")
        here.assert_event(events.TaskMoved, message="HTTP 500")
        here.ready("rollout")
        here.assert_slot("rollout", 1, "READY")


def test_a_group_that_is_never_ready_fails_by_its_time_limit() -> None:
    with cluster(hosts=1, ready=False) as here:
        here.launch(rl())
        here.until("FAILED")


def test_two_groups_wait_for_each_other(here: FakeCluster) -> None:
    first, second = here.launch(job("first", gpus=4)), here.launch(job("second", gpus=4))
    third = here.launch(job("third", gpus=4))
    assert [run.status().state for run in (first, second, third)] == ["RUNNING", "RUNNING", "PENDING"]
    assert "gpus" in " ".join(third.why().lines)
    with pytest.raises(ValueError, match="name one of the groups"):
        here.finish("main")
    here.finish("main", group="first")
    assert third.status().state == "RUNNING"


def test_a_refusal_voids_the_try_and_the_next_one_succeeds(here: FakeCluster) -> None:
    here.refuse("rollout", "port 20000 is taken")
    here.launch(rl())
    here.assert_event(events.StartVoided, message="rollout[0] on h0: port 20000 is taken")
    here.until("RUNNING")


def test_what_does_not_end_when_it_is_told_is_waited_for(here: FakeCluster) -> None:
    run = here.launch(rl())
    here.hang("rollout")
    run.cancel()
    here.advance(100)
    here.assert_group("STOPPING")
    here.hang("rollout", hung=False)
    here.assert_group("CANCELLED")


def test_claims_are_folders_and_fail_when_told(here: FakeCluster) -> None:
    here.fail_claim("ckpt", "no space left")
    here.launch(rl(claims=[gf.Claim("ckpt")]))
    here.assert_event(events.ClaimFailed, name="ckpt", message="no space left")
    here.until("RUNNING")
    path = Path(here.environment("actor")["XCE_CLAIM_CKPT"])
    assert path.is_dir()
    assert path.is_relative_to(here.folder)


def test_a_tasks_environment_and_context(here: FakeCluster) -> None:
    here.launch(rl())
    environment = here.environment("rollout", 1)
    assert (environment["XCE_MEMBER"], environment["XCE_SLOT"], environment["XCE_SLOTS"]) == ("rollout", "1", "2")
    ctx = here.context("rollout", 1)
    try:
        assert [endpoint.index for endpoint in ctx.wait_endpoints("rollout", 2)] == [0, 1]
        assert ctx.port("http") == int(environment["XCE_PORT_HTTP"])
        ctx.client.kv_put(ctx.group, "mine", "1", expect=0)
        with pytest.raises(Unauthorized):
            ctx.client.cancel(ctx.group)
    finally:
        ctx.close()


def test_logs_are_what_was_written(here: FakeCluster) -> None:
    run = here.launch(rl())
    here.write("actor", 0, "hello\n")
    here.write("actor", 0, "wörld\n")
    assert "".join(run.logs("actor")) == "hello\nwörld\n"
    followed = run.logs("actor", follow=True)
    assert next(followed) == "hello\nwörld\n"
    here.finish("actor")
    assert list(followed) == []


def test_signals_end_what_they_would_end(here: FakeCluster) -> None:
    run = here.launch(rl())
    run.client.signal(run.id, "rollout", 0, 1, 10)
    here.assert_slot("rollout", 0, "READY")
    run.client.signal(run.id, "rollout", 0, 1, 9)
    here.assert_event(events.SlotFailed, member="rollout", cause="signal", signal=9)


def test_a_hand_that_reaches_for_what_is_not_there(here: FakeCluster) -> None:
    with pytest.raises(ValueError, match="nothing was submitted"):
        here.finish("actor")
    here.launch(rl())
    with pytest.raises(ValueError, match=r"no slot rollout\[7\] in rl; there are: actor\[0\], rollout\[0\], rollout\[1\]"):
        here.fail("rollout", 7)
    with pytest.raises(ValueError, match="no host 'moon'; there are: h0, h1"):
        here.lose_host("moon")
    with pytest.raises(ValueError, match="no member 'role'"):
        here.ready("role")
    with pytest.raises(NotFound):
        here.group("other")
    here.fail("rollout", 0, cause="oom")
    with pytest.raises(ValueError, match=r"rollout\[0\] does not run: it is BACKOFF"):
        here.fail("rollout", 0)


def test_a_command_that_is_refused_says_so(here: FakeCluster) -> None:
    here.launch(rl())
    here.close_host("h0")
    with pytest.raises(Conflict):
        here.close_host("h9")
    here.open_host("h0")


def test_a_wrong_spec_is_refused_as_ever(here: FakeCluster) -> None:
    with pytest.raises(SpecError, match="slots"):
        here.launch(gf.CoStartGroup("wrong", {"a": gf.Job(["x"], resources={"counters": {"slots": 1}})}))


# --- what the assertions say


def test_an_assertion_that_fails_tells_the_story(here: FakeCluster) -> None:
    here.launch(rl())
    with pytest.raises(AssertionError, match="state is 'RUNNING', not 'FAILED'") as told:
        here.assert_group("FAILED")
    assert "GroupRunning" in str(told.value)
    with pytest.raises(AssertionError, match=r"rollout\[0\]: incarnation is 1, not 2"):
        here.assert_slot("rollout", 0, "READY", incarnation=2)
    with pytest.raises(AssertionError, match="no SlotFailed\\(cause='oom'\\) has happened"):
        here.assert_event(events.SlotFailed, cause="oom")
    with pytest.raises(AssertionError, match="GroupRunning\\(\\) has happened"):
        here.assert_no_event(events.GroupRunning)
    with pytest.raises(AssertionError, match="nothing more happens by itself"):
        here.until("FAILED", within=10)
    with pytest.raises(AttributeError, match="colour"):
        here.assert_event(events.GroupRunning, colour="red")
    here.assert_no_event(events.SlotFailed)


# --- addresses, threads, loops


def test_its_address_is_one_while_it_is_open() -> None:
    with cluster(hosts=1) as here:
        gf.launch(rl(), address=here.address).close()
        assert gf.attach("rl", address=here.address).id == "g1"
    assert here.address not in clusters.IN_PROCESS
    assert not here.folder.exists()


def test_another_thread_moves_what_one_waits_for(here: FakeCluster) -> None:
    run = here.launch(rl())
    thread = threading.Thread(target=lambda: here.finish("actor"))
    thread.start()
    assert run.wait(timeout=20).state == "SUCCEEDED"
    thread.join()


async def test_it_serves_event_loops_too(here: FakeCluster) -> None:
    async with await gf.aio.launch(rl(), address=here.address) as run:
        waiting = asyncio.create_task(run.wait())
        here.finish("actor")
        assert (await waiting).state == "SUCCEEDED"


def test_what_is_forgotten_cannot_be_watched(here: FakeCluster) -> None:
    run = here.launch(rl())
    here.forget_events()
    with pytest.raises(Gone) as gone:
        next(run.events(after=1))
    assert gone.value.seq == run.status().seq
    assert list(run.events(follow=False)) == [], "from what is kept, without `after`"


def test_time_stands_still_unless_it_is_moved(here: FakeCluster) -> None:
    before = here.now_ms()
    here.launch(rl())
    assert here.now_ms() == before
    here.advance(1.5)
    assert here.now_ms() == before + 1_500


def test_it_is_not_imported_by_gangflow_and_imports_no_pytest() -> None:
    code = """
import sys, gangflow
assert "gangflow.testing" not in sys.modules
import gangflow.testing
assert not {"pytest", "ray", "tests"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_fixture(gangflow_cluster: FakeCluster) -> None:  # noqa: F811 - by its name
    assert [host.name for host in gangflow_cluster.spec.hosts] == ["h0", "h1", "h2", "h3"]


def test_a_runtime_limit_passes_in_the_clocks_time(here: FakeCluster) -> None:
    limited = gf.Job(
        ["x"], runtime_limit="10m", warning={"before": "1m", "signal": "USR1"}, on_failure=[gf.FailureRule("fail_group")]
    )
    here.launch(gf.CoStartGroup("limited", {"main": limited}))
    here.advance(8 * 60)
    here.assert_no_event(events.SlotWarned)
    here.advance(2 * 60 - 1)
    here.assert_event(events.SlotWarned, member="main")
    here.until("FAILED", within=60)
    here.assert_event(events.SlotFailed, cause="run_limit")


def test_standalone_claims_are_made_used_and_lost(here: FakeCluster) -> None:
    client = here.client()
    client.create_claim({"name": "data", "provider": "directory"})
    here.assert_event(events.ClaimReady, claim="data", group="")
    run = here.launch(rl(claims=[gf.Claim("set", uses="data")]))
    assert run.status().state == "RUNNING"
    assert Path(here.environment("actor")["XCE_CLAIM_SET"]) == here.folder / "claims" / "data"
    with pytest.raises(Conflict):
        client.delete_claim("data")
    here.lose_claim("data", "the disk is empty")
    here.assert_event(events.ClaimLost, claim="data", message="the disk is empty")
    run.cancel()
    client.close()


def test_owners_and_delegations(here: FakeCluster) -> None:
    with here.client() as admin:
        alice, bob = (admin.make_token(owner=name).token for name in ("alice", "bob"))
    with here.client_of(alice) as hers, here.client_of(bob) as his:
        hers.submit({"name": "mine", "job": {"command": ["x"]}})
        assert [view.name for view in hers.groups().groups] == ["mine"]
        assert his.groups().groups == ()
        with pytest.raises(NotFound):
            his.group("mine")


def test_methods_inside_do_would_wait_for_themselves(here: FakeCluster) -> None:
    with pytest.raises(RuntimeError, match="inside `do`"):
        here.do(lambda: here.advance(1))


def test_what_is_closed_says_so_and_ends_who_waits() -> None:
    with cluster(hosts=1) as here:
        run = here.launch(rl())
        ended: list[BaseException] = []
        began = threading.Event()

        def watch() -> None:
            try:
                for _ in run.events():
                    began.set()
            except BaseException as error:
                ended.append(error)

        thread = threading.Thread(target=watch)
        thread.start()
        assert began.wait(20)
    thread.join(20)
    assert isinstance(ended[0], Unreachable)
    with pytest.raises(RuntimeError, match="was closed"):
        here.advance(1)
    here.close()


async def test_what_is_closed_ends_tasks_with_an_error_not_with_a_cancellation() -> None:
    with cluster(hosts=1) as here:
        run = await gf.aio.launch(rl(), address=here.address)
        waiting = asyncio.create_task(run.wait())
        while not here.do(lambda: here.xce.watched):
            await asyncio.sleep(0)
    with pytest.raises(Unreachable):
        await waiting
    await run.close()


def test_names_that_are_none_are_refused_with_those_that_are(here: FakeCluster) -> None:
    here.launch(rl())
    with pytest.raises(
        ValueError, match=r"no cause that a test can make 'zzz' \(there are: app_exit, signal, oom, .*claim_lost"
    ):
        here.fail("rollout", 1, cause="zzz")
    with pytest.raises(ValueError, match="'user'"):
        here.fail("rollout", 1, cause="user")
    with pytest.raises(ValueError, match="'host_los'; did you mean 'host_lost'"):
        here.fail("rollout", 1, cause="host_los")
    before = here.now_ms()
    with pytest.raises(ValueError, match=r"no state of groups 'RUNING'; did you mean 'RUNNING'\? \(there are: PENDING, "):
        here.until("RUNING")
    assert here.now_ms() == before, "no time was let pass for it"
    with pytest.raises(ValueError, match="no state of groups 'NOPE'"):
        here.assert_group("NOPE")
    with pytest.raises(ValueError, match="no state of slots 'RAEDY'; did you mean 'READY'"):
        here.assert_slot("rollout", 1, "RAEDY")
