"""`FakeContext`: what `gangflow.context()` is in a trainer, for tests of a trainer's loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gangflow.channel import CHECKPOINT, HEAD, Head, WeightsId
from gangflow.events import ValueWritten
from gangflow.member.checkpoint import Checkpoint
from gangflow.member.context import Context, installed
from gangflow.member.dispatch import Answer
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import FailureClass
from gangflow.member.wire import Asked, RequestFailed
from gangflow.specs.claims import Claim
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.failure import FailureRule
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, ReplicaSet
from gangflow.specs.probes import HttpProbe
from gangflow.testing.cluster import FakeCluster, cluster


@dataclass(frozen=True, slots=True)
class Ask:
    """One sample that a rollout is asked for."""

    prompt: Any
    sample_id: str
    params: Mapping[str, Any]
    rollout: int
    """The slot that is asked."""
    incarnation: int
    weights: WeightsId | None
    """What it serves."""
    attempt: int
    """1 when it is asked for the first time."""


class RolloutFailed(Exception):
    """Raise it in the function that answers: the request fails in this class, as a rollout's would.

    "infra": the rollout, or the way to it: it is asked for elsewhere. "data": the prompt is skipped. "policy": the run ends.
    """

    def __init__(self, failure: str, message: str = "") -> None:
        super().__init__(message)
        self.failure = FailureClass(failure)
        self.message = message


Answering = Callable[[Ask], Any]
"""Makes the output of one sample (JSON), or a coroutine that does; what it raises is a failure of the data."""


class FakeContext(Context):
    """A trainer's context in a cluster for tests: endpoints, staleness, ledger, checkpoints and versions are the real ones.

    The rollouts are your function `answer`. In its `with` block `gangflow.context()` (and `gangflow.aio.context()`) give it:

        with FakeContext(answer=lambda ask: len(ask.prompt), rollouts=2) as ctx:
            train(steps=3)
            assert [publish.version for publish in ctx.published] == [0, 1, 2]

    `ctx.cluster` is the cluster around it, whose rollouts can fail; `ctx.restarted()` is the trainer's next life.
    """

    def __init__(
        self,
        answer: Answering = lambda ask: ask.prompt,
        *,
        rollouts: int = 2,
        min_rollouts: int = 1,
        max_staleness: int = 0,
        claims: Sequence[str] = ("ckpt",),
        environment: Mapping[str, str] | None = None,
        cluster: FakeCluster | None = None,
    ) -> None:
        """`claims`: folders of the group, as `ctx.claims["ckpt"]`. `cluster`: one that has such a group already."""
        self._answer = answer
        self._kept = ExitStack()
        self.cluster = cluster or self._start(rollouts, min_rollouts, max_staleness, claims, environment or {})
        """The cluster that this trainer lives in."""
        self.asked: list[Ask] = []
        """Every sample that a rollout was asked for, attempts that failed included."""
        self.heartbeats: list[dict[str, Any]] = []
        """The fields of every `heartbeat` call of this life."""
        real = self.cluster.context("actor")
        super().__init__(real.identity, real.client, aclient=real.shared.connect, wire=_Answers(self))
        self._heartbeat.fields.on_beat = self._note

    # --- what it did, as it is durable

    @property
    def published(self) -> list[Head]:
        """What was published, oldest first, over all lives of the trainer: `.weights.version`, `.path`."""
        return [Head.parse(event.value) for event in self._written(HEAD)]

    @property
    def saved(self) -> list[Checkpoint]:
        """Checkpoints that were made, oldest first, over all lives of the trainer."""
        return [Checkpoint.parse(event.value) for event in self._written(CHECKPOINT)]

    def restarted(self) -> FakeContext:
        """The trainer dies (SIGKILL) and runs again: its next life's context, which `resume()`s. This one is superseded.

        Both share the cluster, which ends with the first one.
        """
        self.cluster.fail("actor", cause="signal")
        self.cluster.until(lambda view: view.slot("actor", 0).state == "READY" and view.state == "RUNNING")
        return FakeContext(self._answer, cluster=self.cluster)

    # --- its life

    def close(self) -> None:
        """End its threads, and the cluster that was made for it."""
        super().close()
        self._kept.close()

    def __enter__(self) -> FakeContext:
        self._kept.enter_context(installed(self))
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _start(
        self, rollouts: int, min_rollouts: int, max_staleness: int, claims: Sequence[str], environment: Mapping[str, str]
    ) -> FakeCluster:
        here = self._kept.enter_context(cluster(hosts=1, cpu=64, gpus=0, ports=64))
        try:
            here.launch(
                CoStartGroup(
                    "fake",
                    {
                        "actor": Job(
                            ["trainer"],
                            environment=dict(environment),
                            on_failure=[FailureRule("restart_member")],
                        ),
                        "rollout": ReplicaSet(
                            ["engine"],
                            replicas=rollouts,
                            min_replicas=min(rollouts, min_rollouts),
                            ports=["http"],
                            ready=HttpProbe("http", "/health"),
                        ),
                    },
                    claims=[Claim(name) for name in claims],
                    coordinator=RLCoordinator(min_rollouts=min_rollouts, max_staleness=max_staleness),
                )
            ).client.close()
        except BaseException:
            self._kept.close()
            raise
        return here

    def _written(self, name: str) -> list[ValueWritten]:
        return [event for event in self.cluster.events(ValueWritten) if event.name == name]

    def _note(self, fields: Mapping[str, Any]) -> None:
        if fields:  # The SDK's own beats, while it waits, have none.
            self.heartbeats.append(dict(fields))


class _Answers:
    """The wire to the rollouts, answered by the test's function."""

    def __init__(self, context: FakeContext) -> None:
        self._context = context

    async def generate(self, target: Endpoint, asked: Asked, timeout_s: float) -> dict[int, Answer]:
        answers: dict[int, Answer] = {}
        for number, prompt, ids in zip(asked.numbers, asked.prompts, asked.sample_ids, strict=True):
            outputs = []
            try:
                for sample_id in ids:
                    ask = Ask(prompt, sample_id, asked.params, target.index, target.incarnation, target.weights, asked.attempt)
                    self._context.asked.append(ask)
                    made = self._context._answer(ask)
                    outputs.append(await made if inspect.isawaitable(made) else made)
            except RolloutFailed as failed:
                if failed.failure is FailureClass.INFRA:
                    raise RequestFailed(failed.failure, failed.message) from failed
                answers[number] = Answer(failure=failed.failure, message=failed.message)
            except Exception as error:
                answers[number] = Answer(failure=FailureClass.DATA, message=f"{type(error).__name__}: {error}")
            else:
                answers[number] = Answer(tuple(outputs), (target.weights,) * len(outputs))
        return answers

    async def close(self) -> None:
        """Nothing is open."""
