"""`Run` and `AsyncRun`, method by method and alike, over the real core in process."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import gangflow as gf
from gangflow import events, outcomes
from gangflow.aio.runs import AsyncRun
from gangflow.errors import ChangeFailed, Conflict, Gone, NotFound, SpecError, XceError
from gangflow.testing import FakeCluster, cluster
from tests.unit.testing.groups import rl

DEADLINE_S = 30.0


@pytest.fixture
def here() -> Iterator[FakeCluster]:
    with cluster(hosts=2, gpus=4) as made:
        yield made


class Both:
    """A run in either form: every method as a coroutine."""

    def __init__(self, run: gf.Run | AsyncRun) -> None:
        self.run = run

    async def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = getattr(self.run, name)
        if isinstance(self.run, AsyncRun):
            made = method(*args, **kwargs)
            return [each async for each in made] if hasattr(made, "__aiter__") else await made
        made = await asyncio.to_thread(method, *args, **kwargs)
        return await asyncio.to_thread(list, made) if inspect.isgenerator(made) else made


@pytest.fixture(params=["blocking", "asyncio"])
async def launched(here: FakeCluster, request: pytest.FixtureRequest) -> AsyncIterator[Both]:
    if request.param == "blocking":
        run = here.launch(rl())
        yield Both(run)
        run.close()
    else:
        arun = await gf.aio.launch(rl(), address=here.address)
        yield Both(arun)
        await arun.close()


def test_both_forms_have_the_same_methods() -> None:
    """The asyncio form is the blocking one, awaited: names, arguments, defaults."""

    def surface(kind: type) -> dict[str, list[tuple[str, Any, Any]]]:
        return {
            name: [(p.name, p.kind, p.default) for p in inspect.signature(method).parameters.values()]
            for name, method in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    assert surface(gf.Run) == surface(AsyncRun)
    for function in ("launch", "attach"):
        blocking, awaited = (inspect.signature(getattr(home, function)) for home in (gf, gf.aio))
        assert list(blocking.parameters.values()) == list(awaited.parameters.values())


async def test_status_why_and_wait(here: FakeCluster, launched: Both) -> None:
    assert (await launched("status")).state == "RUNNING"
    assert (await launched("why")).lines is not None
    with pytest.raises(TimeoutError, match=r"group 'rl' has not ended after 0.01 s: it is RUNNING"):
        await launched("wait", 0.01)
    here.finish("actor")
    assert (await launched("wait", 30)).state == "SUCCEEDED"
    assert (await launched("wait")).state == "SUCCEEDED"


async def test_wait_without_a_limit_sees_the_end(here: FakeCluster, launched: Both) -> None:
    waiting = asyncio.create_task(launched("wait", check=False))
    await asyncio.sleep(0)
    here.fail("actor", code=7)
    assert (await asyncio.wait_for(waiting, DEADLINE_S)).cause == "app_exit"
    with pytest.raises(gf.GroupEnded) as ended:
        await launched("wait")
    assert ended.value.state == "FAILED"


async def test_events_from_the_submission_to_the_end(here: FakeCluster, launched: Both) -> None:
    now = await launched("events", follow=False)
    assert isinstance(now[0], events.GroupSubmitted)
    here.fail("rollout", 1, cause="oom")
    here.advance(10)
    here.finish("actor")
    seen = await launched("events")
    kinds = [type(event) for event in seen]
    assert kinds[-1] is events.GroupEnded
    assert {events.GroupPlaced, events.GroupStarted, events.GroupRunning, events.SlotFailed, events.FailureJudged} <= set(kinds)
    assert [event.seq for event in seen] == sorted({event.seq for event in seen})
    assert now == seen[: len(now)]
    assert await launched("events", seen[5].seq) == seen[6:], "it goes on behind a seq"


async def test_list_then_watch_has_no_gap(here: FakeCluster, launched: Both) -> None:
    seq = (await launched("status")).seq
    here.fail("rollout", 1, cause="oom")
    here.finish("actor")
    seen = await launched("events", seq)
    assert isinstance(next(event for event in seen if isinstance(event, events.SlotEvent)), events.SlotEvent)
    assert [event for event in here.events(group="rl", after=seq) if event.seq <= seen[-1].seq] == seen


async def test_what_is_not_kept_any_more_is_gone(here: FakeCluster, launched: Both) -> None:
    here.forget_events()
    with pytest.raises(Gone) as gone:
        await launched("events", 1, follow=False)
    assert gone.value.seq == (await launched("status")).seq
    here.finish("actor")
    assert isinstance((await launched("events", gone.value.seq))[-1], events.GroupEnded)


async def test_a_suspended_group_gives_everything_back(here: FakeCluster, launched: Both) -> None:
    """Scenario 11."""
    await launched("suspend", "for the night")
    here.assert_group("SUSPENDED")
    here.assert_event(events.GroupSuspended)
    with pytest.raises(Conflict):
        await launched("restart")
    await launched("resume")
    here.until("RUNNING")
    with pytest.raises(Conflict):
        await launched("resume")


async def test_scale_up_and_down(here: FakeCluster, launched: Both) -> None:
    change = await launched("scale", rollout=4, wait=True)
    assert (change.state, change.targets["rollout"]) == ("DONE", 4)
    here.until(lambda view: view.member("rollout").ready == 4)
    assert await launched("scale", {"rollout": 4}) is None, "the same targets"
    change = await launched("scale", {"rollout": 1}, wait=True, timeout=60)
    assert change.over
    assert (await launched("change", change.id)).state == "DONE"
    assert here.assert_event(events.ChangeDone, change=change.id).targets["rollout"] == 1
    here.assert_group("RUNNING")


async def test_a_scale_that_does_not_fit_changes_nothing(here: FakeCluster, launched: Both) -> None:
    here.launch(gf.CoStartGroup("big", {"a": gf.Job(["x"], resources={"gpus": 4})}))
    with pytest.raises(Conflict) as refused:
        await launched("scale", rollout=5)
    assert refused.value.problem == "no_fit"
    with pytest.raises(XceError) as invalid:
        await launched("scale", rollout=7)
    assert invalid.value.problem == "invalid"
    assert here.group("rl").member("rollout").target == 2


async def test_a_scale_that_names_nothing_or_something_twice(launched: Both) -> None:
    with pytest.raises(SpecError, match="at least one"):
        await launched("scale")
    with pytest.raises(SpecError, match="each member once"):
        await launched("scale", {"rollout": 2}, rollout=3)


def test_a_change_that_failed_says_why(here: FakeCluster) -> None:
    run = here.launch(rl())
    change = run.scale(rollout=3, wait=True)
    assert change is not None
    failed = change.model_copy(update={"state": "FAILED", "message": "superseded by c2"})
    with pytest.raises(ChangeFailed, match="change c1 of g1 failed: superseded by c2"):
        outcomes.settled(failed)


async def test_a_slot_and_a_group_are_restarted(here: FakeCluster, launched: Both) -> None:
    await launched("restart", "rollout", 1)
    here.until(lambda view: view.slot("rollout", 1).incarnation == 2 and view.slot("rollout", 1).state == "READY")
    here.assert_slot("rollout", 0, "READY", incarnation=1)
    await launched("restart", message="fresh weights")
    here.until(lambda view: view.state == "RUNNING" and view.epoch == 2)
    with pytest.raises(NotFound, match=r"no slot rollout\[9\]"):
        await launched("restart", "rollout", 9)


async def test_one_member_is_stopped_and_the_rest_goes_on(here: FakeCluster, launched: Both) -> None:
    await launched("stop_member", "rollout")
    here.assert_event(events.MemberStopped, member="rollout")
    here.assert_slot("rollout", 0, "RETIRED")
    here.assert_slot("actor", 0, "READY")
    await launched("restart", "rollout", 0)
    here.assert_event(events.MemberReturned, member="rollout")
    here.until(lambda view: view.slot("rollout", 0).state == "READY")


async def test_a_slot_is_drained(here: FakeCluster, launched: Both) -> None:
    await launched("drain", "rollout", 1)
    here.until(lambda view: view.slot("rollout", 1).incarnation == 2)
    here.assert_event(events.SlotFailed, member="rollout", slot=1, cause="drained")


@pytest.mark.parametrize(
    ("method", "arguments", "state", "cause"),
    [("cancel", (), "CANCELLED", "user"), ("fail", ("bad_loss",), "FAILED", "bad_loss")],
)
async def test_ends(here: FakeCluster, launched: Both, method: str, arguments: tuple[str, ...], state: str, cause: str) -> None:
    await launched(method, *arguments)
    here.assert_group(state, cause=cause)


async def test_logs_whole_and_as_they_grow(here: FakeCluster, launched: Both) -> None:
    here.write("actor", 0, "one\n")
    assert "".join(await launched("logs", "actor")) == "one\n"
    here.write("actor", 0, "two\n")
    here.finish("actor")
    assert "".join(await launched("logs", "actor", follow=True)) == "one\ntwo\n"
    assert await launched("logs", "actor", stream="stderr") == []


# --- life


async def test_the_async_block_leaves_nothing(here: FakeCluster) -> None:
    async with await gf.aio.launch(rl(), address=here.address):
        pass
    here.assert_group("CANCELLED")


async def test_attach_finds_it_at_an_address(here: FakeCluster) -> None:
    here.launch(rl())
    run = await gf.aio.attach("rl", address=here.address)
    assert (run.id, run.name) == ("g1", "rl")
    assert repr(run) == f"<AsyncRun 'rl' (g1) in {here.address}>"
    await run.close()
    here.assert_group("RUNNING")
    with pytest.raises(NotFound):
        await gf.aio.attach("other", address=here.address)


async def test_a_cancelled_wait_leaves_the_group_alone(here: FakeCluster) -> None:
    run = await gf.aio.launch(rl(), address=here.address)
    waiting = asyncio.create_task(run.wait())
    watching = asyncio.create_task(anext(run.events((await run.status()).seq)))
    await asyncio.sleep(0)
    for task in (waiting, watching):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    here.assert_group("RUNNING")
    assert (await run.status()).state == "RUNNING", "its client is as good as before"
    await run.close()


class _Slow:
    """A cluster that takes its time to start, and says when it is stopped."""

    name = "slow"

    def __init__(self) -> None:
        self.starting, self.go_on = threading.Event(), threading.Event()
        self.stopped = 0

    def start(self) -> _Slow:
        self.starting.set()
        assert self.go_on.wait(DEADLINE_S)
        return self

    def stop(self) -> None:
        self.stopped += 1


async def test_a_launch_that_is_cancelled_while_it_starts_a_cluster_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = _Slow()
    monkeypatch.setattr("gangflow.clusters.own_cluster", lambda *_, **__: slow.start())
    launching = asyncio.create_task(gf.aio.launch(rl()))
    await asyncio.to_thread(slow.starting.wait, DEADLINE_S)
    launching.cancel()
    await asyncio.sleep(0)
    assert not launching.done(), "it waits for the start, to undo it"
    launching.cancel()
    slow.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert slow.stopped == 1


def test_a_wait_that_is_interrupted_leaves_the_group_alone(here: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C, or a notebook's interrupt."""
    from gangflow.xce.rest.client import Client

    def interrupted(*_: Any, **__: Any) -> Iterator[None]:
        raise KeyboardInterrupt
        yield

    run = here.launch(rl())
    monkeypatch.setattr(Client, "events", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    here.assert_group("RUNNING")


@pytest.mark.parametrize("name", ["aio", "events", "testing"])
def test_rooms_are_attributes(name: str) -> None:
    assert getattr(gf, name).__name__ == f"gangflow.{name}"
    assert name in dir(gf)


def test_a_name_that_is_none() -> None:
    for home, name in ((gf, "lunch"), (gf.aio, "lunch")):
        with pytest.raises(AttributeError, match="lunch"):
            getattr(home, name)
    assert "launch" in dir(gf.aio)
