"""`FakeContext`: a trainer's loop, blocking and asyncio, over the real ledger, versions, checkpoints and REST service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gangflow as gf
from gangflow.errors import NoQuorum, Superseded
from gangflow.member import rollouts
from gangflow.member.failures import CheckpointDamaged, DataBudgetSpent, InfraExhausted, PolicyMismatch
from gangflow.testing import Ask, FakeContext, RolloutFailed

DEADLINE_S = 30.0


def train(ctx: gf.Context, steps: int) -> list[Any]:
    """A trainer as users write one."""
    saved = ctx.resume()
    outputs = []
    for step in range(saved.step + 1 if saved else 0, steps):
        folder = Path(ctx.claims["ckpt"])
        ctx.weights.publish(step, folder / f"weights-{ctx.incarnation}-{step}", f"policy {step}".encode())
        for group in ctx.rollouts.generate(["a", "bb"], 2, step=step):
            outputs += group.outputs
        ctx.heartbeat(step=step, reward=0.5)
        state = folder / f"state-{ctx.incarnation}-{step}"
        state.write_text(str(step))
        ctx.checkpoint(step, state)
    return outputs


async def atrain(steps: int) -> list[Any]:
    """The same, as its asyncio form; it finds its context itself."""
    ctx = gf.aio.context()
    saved = await ctx.resume()
    outputs = []
    for step in range(saved.step + 1 if saved else 0, steps):
        folder = Path(ctx.claims["ckpt"])
        await ctx.weights.publish(step, folder / f"weights-{ctx.incarnation}-{step}", f"policy {step}".encode())
        for group in await ctx.rollouts.generate(["a", "bb"], 2, step=step):
            outputs += group.outputs
        ctx.heartbeat(step=step, reward=0.5)
        state = folder / f"state-{ctx.incarnation}-{step}"
        state.write_text(str(step))
        await ctx.checkpoint(step, state)
    return outputs


def length(ask: Ask) -> int:
    return len(ask.prompt)


@pytest.fixture
def fake() -> Iterator[FakeContext]:
    with FakeContext(length) as ctx:
        yield ctx


def told(ctx: FakeContext) -> tuple[Any, ...]:
    """Everything that a life left behind."""
    return (
        [head.weights.version for head in ctx.published],
        [saved.step for saved in ctx.saved],
        ctx.heartbeats,
        [(ask.prompt, ask.sample_id, ask.attempt) for ask in sorted(ctx.asked, key=lambda ask: ask.sample_id)],
    )


def test_a_loop_is_run_and_seen(fake: FakeContext) -> None:
    assert gf.context() is fake
    assert train(fake, 3) == [1, 1, 2, 2] * 3
    versions, steps, beats, asked = told(fake)
    assert (versions, steps) == ([0, 1, 2], [0, 1, 2])
    assert beats == [{"step": n, "reward": 0.5} for n in range(3)]
    assert asked[0] == ("a", "g1/0/0/0", 1)
    assert {ask.weights.version for ask in fake.asked if ask.weights} == {0, 1, 2}
    assert fake.rollouts.counters.committed == 12


async def test_the_asyncio_form_does_the_same(fake: FakeContext) -> None:
    assert await atrain(3) == [1, 1, 2, 2] * 3
    await gf.aio.context().close()
    ours = told(fake)
    with FakeContext(length) as other:
        await asyncio.to_thread(train, other, 3)
        assert told(other) == ours


def test_the_next_life_goes_on_where_the_checkpoint_is(fake: FakeContext) -> None:
    train(fake, 2)
    again = fake.restarted()
    try:
        assert (again.incarnation, again.resume().step) == (2, 1)  # type: ignore[union-attr]
        train(again, 3)
        assert [saved.step for saved in again.saved] == [0, 1, 2]
        with pytest.raises(ValueError, match="step 1 is in the checkpoint already"):
            again.rollouts.generate(["a"], step=1)
        with pytest.raises(Superseded):
            fake.weights.publish(9, fake.cluster.folder / "late", b"x")
    finally:
        again.close()


async def test_the_next_life_goes_on_in_asyncio_too(fake: FakeContext) -> None:
    async with gf.aio.context() as ctx:
        await atrain(2)
        with fake.restarted() as again:
            async with gf.aio.context() as next_life:
                assert next_life.incarnation == 2
                assert await atrain(3) == [1, 1, 2, 2]
                assert [saved.step for saved in again.saved] == [0, 1, 2]
                with pytest.raises(Superseded):
                    await ctx.weights.publish(9, fake.cluster.folder / "late", b"x")


def test_a_rollout_that_fails_is_asked_no_more_and_the_other_answers() -> None:
    def flaky(ask: Ask) -> str:
        if ask.rollout == 0 and ask.attempt == 1:
            raise RolloutFailed("infra", "connection refused")
        return f"from {ask.rollout}"

    with FakeContext(flaky) as ctx:
        ctx.weights.publish(0, ctx.cluster.folder / "w", b"w")
        groups = ctx.rollouts.generate(["a", "b"], 1, step=0, chunk=1)
        assert {output for group in groups for output in group.outputs} == {"from 1"}
        assert ctx.rollouts.counters.redispatched >= 1


def test_a_prompt_that_fails_is_skipped_within_the_budget() -> None:
    def bad(ask: Ask) -> str:
        if "bad" in ask.prompt:
            raise ValueError("too long")
        return "ok"

    with FakeContext(bad) as ctx:
        ctx.weights.publish(0, ctx.cluster.folder / "w", b"w")
        good, skipped = ctx.rollouts.generate(["good", "bad"], 1, step=0)
        assert (good.outputs, skipped.skipped) == (["ok"], "ValueError: too long")
        with pytest.raises(DataBudgetSpent):
            ctx.rollouts.generate(["bad", "bad 2"], 1)


@pytest.mark.parametrize(("failure", "raised"), [("infra", InfraExhausted), ("policy", PolicyMismatch)])
async def test_failures_end_both_forms_alike(failure: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangflow.member.dispatch.BACKOFF_S", (0.0, 0.0))

    def never(ask: Ask) -> str:
        raise RolloutFailed(failure, "no")

    with FakeContext(never) as fake:
        fake.weights.publish(0, fake.cluster.folder / "w", b"w")
        with pytest.raises(raised):
            await asyncio.to_thread(fake.rollouts.generate, ["a"], 1, step=0)
        async with gf.aio.context() as ctx:
            with pytest.raises(raised):
                await ctx.rollouts.generate(["a"], 1, step=0)
            assert ctx.rollouts.counters.lost == 2
            if failure == "policy":
                assert (await ctx.client.kv_get(ctx.group, "trainer/failure")).version == 2


async def test_a_rollout_that_dies_is_replaced_under_way() -> None:
    """Its requests are given up at once, and asked for elsewhere."""
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def hanging(ask: Ask) -> str:
        if ask.rollout == 0:
            asked.set()
            await go_on.wait()
        return f"from {ask.rollout}"

    with FakeContext(hanging) as fake:
        async with gf.aio.context() as ctx:
            await ctx.weights.publish(0, fake.cluster.folder / "w", b"w")
            generating = asyncio.create_task(ctx.rollouts.generate(["a", "b"], 1, step=0, chunk=1))
            async with asyncio.timeout(DEADLINE_S):
                await asked.wait()
                fake.cluster.fail("rollout", 0, cause="oom")
                groups = await generating
            assert [group.outputs for group in groups] == [["from 1"], ["from 1"]]
            assert ctx.rollouts.counters.committed == 2


async def test_a_cancelled_generate_commits_nothing_and_can_be_repeated() -> None:
    asked, go_on, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hanging(ask: Ask) -> str:
        asked.set()
        try:
            await go_on.wait()
        finally:
            ended.set()
        return ask.sample_id

    with FakeContext(hanging) as fake:
        async with gf.aio.context() as ctx:
            await ctx.weights.publish(0, fake.cluster.folder / "w", b"w")
            generating = asyncio.create_task(ctx.rollouts.generate(["a", "b"], 2, step=0))
            async with asyncio.timeout(DEADLINE_S):
                await asked.wait()
            generating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await generating
            assert ended.is_set(), "its requests are given up before it returns"
            assert (ctx.rollouts.counters.committed, ctx.rollouts.counters.lost) == (0, 4)
            go_on.set()
            again = await ctx.rollouts.generate(["a", "b"], 2, step=0)
            assert again[0].outputs == ["g1/0/2/0", "g1/0/2/1"], "other samples than those that were lost"
            assert (ctx.rollouts.counters.committed, ctx.rollouts.counters.duplicates) == (4, 0)


@pytest.mark.parametrize("moment", range(1, 12))
async def test_a_publish_that_is_cancelled_anywhere_can_be_repeated(fake: FakeContext, moment: int) -> None:
    """Cancelled after so many turns of the loop: durable or not, to publish it again is safe and gives the same id."""
    async with gf.aio.context() as ctx:
        await ctx.weights.publish(0, fake.cluster.folder / "w0", b"0")
        publishing = asyncio.create_task(ctx.weights.publish(1, fake.cluster.folder / "w1", b"1"))
        for _ in range(moment * 3):
            await asyncio.sleep(0)
        publishing.cancel()
        await asyncio.wait({publishing})
        if publishing.cancelled():
            again = await ctx.weights.publish(1, fake.cluster.folder / "w1", b"1")
            assert fake.published[-1].weights == again
        assert fake.published[-1].weights.version == 1
        assert (fake.cluster.folder / "w1").read_bytes() == b"1"
        assert not list(fake.cluster.folder.glob(".w1.*")), "nothing goes on behind the cancellation"
        assert (await ctx.rollouts.generate(["abc"], step=1))[0].outputs == [3]


@pytest.mark.parametrize("moment", range(1, 12, 2))
async def test_a_checkpoint_that_is_cancelled_anywhere_can_be_repeated(fake: FakeContext, moment: int) -> None:
    state = fake.cluster.folder / "state"
    state.write_text("learned")
    async with gf.aio.context() as ctx:
        saving = asyncio.create_task(ctx.checkpoint(0, state, note="x"))
        for _ in range(moment * 3):
            await asyncio.sleep(0)
        saving.cancel()
        await asyncio.wait({saving})
        saved = await ctx.checkpoint(0, state, note="x")
        assert await ctx.resume() == saved
        state.write_text("changed")
        with pytest.raises(CheckpointDamaged):
            await ctx.resume()


async def test_both_forms_in_one_process_keep_one_ledger(fake: FakeContext) -> None:
    async with gf.aio.context() as ctx:
        await ctx.weights.publish(0, fake.cluster.folder / "w", b"w")
        await ctx.rollouts.generate(["a"], step=0)
        blocking = await asyncio.to_thread(fake.rollouts.generate, ["a"], step=0)
        assert str(blocking[0].samples[0].id) == "g1/0/1/0", "numbered behind the other form's"
        assert ctx.rollouts.counters is fake.rollouts.counters
        assert ctx.rollouts.counters.committed == 2
        assert (fake.weights.version, ctx.weights.version) == (0, 0)
        fake.weights.publish(1, fake.cluster.folder / "w1", b"w1")
        await ctx.weights.publish(2, fake.cluster.folder / "w2", b"w2")
        assert [head.weights.version for head in fake.published] == [0, 1, 2]


async def test_more_steps_than_staleness_allows_are_not_made_at_once() -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()
    seen: list[str] = []

    async def hanging(ask: Ask) -> str:
        seen.append(ask.prompt)
        asked.set()
        await go_on.wait()
        return ""

    with FakeContext(hanging) as fake:
        async with gf.aio.context() as ctx:
            await ctx.weights.publish(0, fake.cluster.folder / "w", b"w")
            first = asyncio.create_task(ctx.rollouts.generate(["first"], step=0))
            async with asyncio.timeout(DEADLINE_S):
                await asked.wait()
                second = asyncio.create_task(ctx.rollouts.generate(["second"], step=1))
                for _ in range(100):
                    await asyncio.sleep(0)
                assert seen == ["first"]
                go_on.set()
                await asyncio.gather(first, second)
        assert seen == ["first", "second"]


async def test_without_a_quorum_it_ends_with_that_reason(fake: FakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts, "QUORUM_GRACE_S", -59.9)
    async with gf.aio.context() as ctx:
        fake.cluster.hold_coordinator()
        await ctx.weights.publish(0, fake.cluster.folder / "w", b"w")
        with pytest.raises(NoQuorum, match="the coordinator has not said yet who is eligible"):
            await ctx.rollouts.generate(["a"], step=0)
        with pytest.raises(NoQuorum, match="fewer than 1 rollouts carry version 0"):
            await ctx.weights.wait_synced(timeout_s=0.01)
        fake.cluster.hold_coordinator(held=False)
        await ctx.weights.wait_synced(timeout_s=10)
        assert len(await ctx.wait_endpoints("rollout", 2)) == 2
        with pytest.raises(TimeoutError, match=r"2 of 3 endpoints of .rollout. after 0\.01 s"):
            await ctx.wait_endpoints("rollout", 3, 0.01)


async def test_heartbeats_reach_the_controller(fake: FakeContext) -> None:
    async with gf.aio.context() as ctx:
        ctx.heartbeat(step=1, loss=0.5)
        ctx.heartbeat(step=2)
        assert await ctx._heartbeat.flush()
        beats = await ctx.client.beats(ctx.group)
        assert {key: beats.heartbeats[0].body[key] for key in ("step", "loss")} == {"step": 2, "loss": 0.5}
        with pytest.raises(ValueError, match="a heartbeat of 50"):
            ctx.heartbeat(text="x" * 5_000)
        with pytest.raises(PolicyMismatch):
            await ctx.diverged("the reference differs")
    assert fake.heartbeats[:2] == [{"step": 1, "loss": 0.5}, {"step": 2}]


def test_wrong_arguments_are_refused_alike(fake: FakeContext) -> None:
    async def look() -> None:
        ctx = gf.aio.context()
        with pytest.raises(ValueError, match="at least 1"):
            await ctx.rollouts.generate(["a"], 0)
        with pytest.raises(ValueError, match="from 0"):
            await ctx.rollouts.generate(["a"], step=-1)
        assert await ctx.rollouts.generate([], step=0) == []
        assert [e.index for e in await ctx.rollouts.eligible()] == []
        await ctx.close()

    asyncio.run(look())


def test_each_loop_has_its_own_and_outside_of_one_there_is_none(fake: FakeContext) -> None:
    async def twice() -> gf.aio.AsyncContext:
        ctx = gf.aio.context()
        assert gf.aio.context() is ctx
        await ctx.close()
        assert gf.aio.context() is not ctx
        await gf.aio.context().close()
        return ctx

    assert asyncio.run(twice()) is not asyncio.run(twice())
    with pytest.raises(RuntimeError):
        gf.aio.context()


async def test_spans_and_names(fake: FakeContext) -> None:
    async with gf.aio.context() as ctx:
        with ctx.span("step", step=1):
            assert time.time() > 0
        assert (ctx.group, ctx.member, ctx.slot, ctx.task, ctx.epoch) == ("g1", "actor", 0, 0, 1)
        with pytest.raises(KeyError, match="no port named 'http'"):
            ctx.port("http")
        assert len(ctx.addresses("rollout", "http")) == 1, "the picture at its start: one rollout was required"


def test_versions_published_before_the_first_look_at_the_group_count_too() -> None:
    """With a staleness of 1 the version before the newest may be trained on, however early it was published."""
    with FakeContext(length, max_staleness=1) as ctx:
        for version in (0, 1):
            ctx.weights.publish(version, ctx.cluster.folder / f"w{version}", str(version).encode())
        made_with_0 = ctx.published[0].weights
        assert ctx.rollouts.books.published.judge(made_with_0) == "usable"


def test_after_the_block_there_is_no_context_any_more(fake: FakeContext) -> None:
    with FakeContext(length) as inner:
        assert gf.context() is inner
    assert gf.context() is fake
