"""The programs as real processes on `XCE_*` variables alone; XCE, the coordinator and the SDK's dispatch are played."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from gangflow.channel import Head, WeightsId
from gangflow.integrations.embedded.adapter import EmbeddedEngine
from gangflow.member.digest import digest
from gangflow.member.endpoints import Endpoint
from gangflow.member.samples import Counters, PromptSamples, Sample, SampleId
from gangflow.member.wire import Asked, HttpWire, RequestFailed
from gangflow.recipes.grpo.actor import Trainer
from gangflow.recipes.grpo.build import CLAIM, build
from gangflow.recipes.grpo.config import Config
from gangflow.recipes.grpo.plot import read_metrics

CONFIG = Config(steps=12, prompts=16, samples=4, checkpoint_every=6, evaluate_every=6)
PROGRAMS = (("rollout", 0), ("rollout", 1), ("reward", 0), ("ref", 0))


class Process:
    """One slot: a program on its port."""

    def __init__(self, member: str, slot: int, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        addresses = ",".join(f"127.0.0.1:{port}" for _ in range(slot + 1))
        self.url = f"http://127.0.0.1:{port}"
        self.log = folder / f"{member}-{slot}.log"
        environment = {
            **os.environ,
            **build(CONFIG).environment,
            "XCE_URL": "http://127.0.0.1:9",
            "XCE_GROUP": "g1",
            "XCE_MEMBER": member,
            "XCE_SLOT": str(slot),
            "XCE_PORT_HTTP": str(port),
            f"XCE_ADDRS_{member.upper()}_HTTP": addresses,
        }
        command = [sys.executable, "-m", f"gangflow.recipes.grpo.{member}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                if httpx.get(f"{self.url}/health", timeout=1.0).status_code == 200:
                    return
            except httpx.TransportError:
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.02)

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def _processes(folder: Path) -> Iterator[dict[tuple[str, int], Process]]:
    running = {key: Process(*key, folder) for key in PROGRAMS}
    try:
        for process in running.values():
            process.wait_ready()
        yield running
    finally:
        for process in running.values():
            process.end(signal.SIGKILL)


class PlayedContext:
    """Plays `gangflow.context()` of the actor over the real processes; kills rollout 0 while it is asked at `kill_at`."""

    def __init__(self, folder: Path, running: dict[tuple[str, int], Process], kill_at: int = -1) -> None:
        self.claims = {CLAIM: str(folder)}
        self.incarnation, self.group = 1, "g1"
        self.client = SimpleNamespace(kv_put=lambda *_: None)
        self.weights = SimpleNamespace(publish=self._publish)
        self.rollouts = SimpleNamespace(generate=self._generate, counters=Counters())
        self._running, self._kill_at = running, kill_at
        self._alive = [0, 1]
        self._loop = asyncio.Runner()
        self._wire = HttpWire()

    def span(self, _name: str, **_attributes: object) -> AbstractContextManager[None]:
        return nullcontext()

    def endpoints(self, member: str) -> list[SimpleNamespace]:
        return [SimpleNamespace(url=self._running[member, 0].url)]

    def heartbeat(self, **fields: Any) -> None:
        pass

    def resume(self) -> None:
        return None

    def checkpoint(self, step: int, path: Path) -> None:
        pass

    def close(self) -> None:
        self._loop.run(self._wire.close())
        self._loop.close()

    def _publish(self, version: int, path: Path) -> None:
        head = Head(WeightsId(1, version, digest(path)), str(path))

        async def load(slot: int) -> None:
            engine = EmbeddedEngine(self._running["rollout", slot].url, 1, 1)
            await engine.pause("wait", 5)
            assert await engine.load(head, 5, 1) == head.weights
            await engine.resume(5)
            await engine.close()

        async def everywhere() -> None:
            await asyncio.gather(*(load(slot) for slot in self._alive))

        self._loop.run(everywhere())

    def _generate(self, prompts: Sequence[Any], samples: int, *, step: int, chunk: int) -> list[PromptSamples]:
        return self._loop.run(self._dispatch(prompts, samples, step))

    async def _dispatch(self, prompts: Sequence[Any], samples: int, step: int) -> list[PromptSamples]:
        half = len(prompts) // 2
        parts = [tuple(range(half)), tuple(range(half, len(prompts)))]
        if step == self._kill_at:
            self._running["rollout", 0].process.kill()
        made = await asyncio.gather(
            *(self._ask(self._alive[at % len(self._alive)], part, prompts, samples, step) for at, part in enumerate(parts))
        )
        return sorted((group for groups in made for group in groups), key=lambda group: group.number)

    async def _ask(
        self, slot: int, part: tuple[int, ...], prompts: Sequence[Any], samples: int, step: int
    ) -> list[PromptSamples]:
        ids = {n: [SampleId("r", f"{step}/{n}", k) for k in range(samples)] for n in part}
        asked = Asked(part, [prompts[n] for n in part], [[*map(str, ids[n])] for n in part], {}, 1)
        target = Endpoint("rollout", slot, 1, url=self._running["rollout", slot].url)
        try:
            answers = await self._wire.generate(target, asked, 10)
        except RequestFailed:
            self._alive = [1]
            return await self._ask(1, part, prompts, samples, step)
        found = []
        for n in part:
            assert answers[n].failure is None, answers[n].message
            outputs = zip(ids[n], answers[n].outputs, answers[n].weights, strict=True)
            found.append(PromptSamples(n, prompts[n], tuple(Sample(i, o, w, slot, 1, 1) for i, o, w in outputs)))
        return found


def _train(folder: Path, running: dict[tuple[str, int], Process], kill_at: int = -1) -> dict[str, Any]:
    context = PlayedContext(folder, running, kill_at)
    trainer = Trainer(CONFIG, context)  # type: ignore[arg-type]
    try:
        return trainer.run()
    finally:
        trainer.judges.close()
        context.close()


def test_a_run_that_loses_a_rollout_ends_with_the_policy_of_one_that_does_not(tmp_path: Path) -> None:
    """Its prompts are dispatched again, and the samples are the same, to the bit."""
    for name in ("whole", "broken"):
        (tmp_path / name).mkdir()
    with _processes(tmp_path) as running:
        expected = _train(tmp_path / "whole", running)
        found = _train(tmp_path / "broken", running, kill_at=5)
        assert running["rollout", 0].end() == -signal.SIGKILL
        for key in PROGRAMS[1:]:
            assert running[key].end() in (0, -signal.SIGTERM), running[key].log.read_text()
    assert found["policy"] == expected["policy"]
    whole, broken = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("whole", "broken"))
    assert [entry["reward"] for entry in whole] == [entry["reward"] for entry in broken]
    assert [sorted(entry["rollouts"]) for entry in broken] == [["0/1", "1/1"]] * 5 + [["1/1"]] * 7
    assert max(entry["drift"] for entry in broken) == 0.0


@pytest.mark.parametrize("member", ["rollout", "reward", "ref", "actor"])
def test_a_program_outside_of_a_group_says_so(member: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("XCE_")}
    outcome = subprocess.run(
        [sys.executable, "-m", f"gangflow.recipes.grpo.{member}"],
        env={**environment, **build(CONFIG).environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert outcome.returncode != 0
    assert "not a member of a group" in outcome.stderr
