"""Runs of the language-model recipe for benchmarks: in a real co-start group, and wired by hand; what both leave to be read."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpu_meter import Meter

from gangflow.channel import ELIGIBLE, HEAD, Eligible, Head
from gangflow.integrations.vllm.launch import find_vllm
from gangflow.recipes.grpo.lm.build import CKPT, build, cluster
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.runs import launch

BY_HAND = Path(__file__).with_name("by_hand.py")
RUN_S = 1_800.0
PHASES = ("generate", "judge", "train", "checkpoint", "publish", "push")


def needs_engines() -> None:
    """SystemExit unless this interpreter has torch and there is a vLLM: `make engines` makes both."""
    if importlib.util.find_spec("torch") is None:
        sys.exit(f"{sys.executable} has no torch: run it with .venv-rl/bin/python (`make engines` makes that)")
    if shutil.which(find_vllm()) is None:
        sys.exit("there is no vllm command: `make engines` makes one")


@dataclass(frozen=True, slots=True)
class Ran:
    """One run: what it wrote for each step, and its result."""

    entries: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any]
    pushes: Sequence[float] = field(default=())
    """Seconds from a published head until all rollouts are eligible with it, as the journal has it (whole milliseconds)."""
    meter: Meter | None = None

    def steps_ms(self, skip: int) -> list[float]:
        """Milliseconds from the end of one step to the end of the next, without the first `skip`."""
        ends = [float(entry["at_ms"]) for entry in self.entries if entry["step"] > 0][skip:]
        return [after - before for before, after in itertools.pairwise(ends)]

    def minutes(self, skip: int) -> float:
        """From the end of the first step that counts to the end of the last."""
        return sum(self.steps_ms(skip)) / 60_000

    def cpu_ms(self, skip: int) -> dict[str, float]:
        """CPU milliseconds per step, by kind of process, over the same steps."""
        if self.meter is None:
            return {}
        ends = [float(entry["at_ms"]) for entry in self.entries if entry["step"] > 0][skip:]
        spent = self.meter.between(ends[0], ends[-1])
        return {kind: seconds * 1_000 / (len(ends) - 1) for kind, seconds in spent.items()}

    def phase_ms(self, name: str, skip: int) -> float:
        """Median milliseconds per step of a phase. `push` of a group is what lies behind the announcement."""
        if name == "push" and self.pushes:
            return statistics.median(self.pushes[skip:]) * 1_000
        spent = [float(entry["spent"].get(name, 0.0)) for entry in self.entries if entry["step"] > 0][skip + 1 :]
        return statistics.mean(spent) * 1_000 if name == "checkpoint" else statistics.median(spent) * 1_000


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for everything that a benchmark makes; homes of clusters too (their sockets want a short path).

    From here on SIGTERM ends this program as Ctrl-C does: what it started is ended first.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="gf-", dir="/tmp"))
    os.environ["GANGFLOW_ROOT"] = str(folder / "homes")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def tiny_model(folder: Path) -> Path:
    """The recipes' tiny model in that folder."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-m", "gangflow.recipes.lm.tiny", str(folder)], env=environment, check=True)
    return folder


def in_group(config: LmConfig, folder: Path) -> Ran:
    """The recipe as it is launched: controller, agent, coordinator, actor, engines and services, all its own processes.

    `folder`: that of `scratch`, by which its processes are found.
    """
    with launch(build(config), cluster=cluster(config), runtime="local") as run, Meter(folder) as meter:
        view = run.wait(timeout=RUN_S)
        kept = Path(next(claim.path for claim in view.claims if claim.name == CKPT))
        entries = [json.loads(line) for line in (kept / "metrics.jsonl").read_text().splitlines()]
        result = json.loads((kept / "result.json").read_text())
        records = run.client.events(run.client.healthz().horizon, run.id, view.seq)
        values = [(event.at_ms, event.data) for event in records if event.type == "ValueWritten"]
    shutil.rmtree(kept, ignore_errors=True)
    return Ran(entries, result, list(pushes(values, config.rollouts)), meter)


def pushes(values: Sequence[tuple[int, Mapping[str, Any]]], rollouts: int) -> Iterator[float]:
    """Of each head that all rollouts came to serve before the next one: the seconds from its record to that of the last."""
    head, at = None, 0
    for at_ms, data in values:
        if data["name"] == HEAD:
            head, at = Head.parse(data["value"]).weights, at_ms
        elif data["name"] == ELIGIBLE and head is not None:
            serving = [each for each in Eligible.parse(data["value"]).rollouts if each.weights == head]
            if len(serving) == rollouts:
                yield (at_ms - at) / 1_000
                head = None


def by_hand(config: LmConfig, out: Path) -> Ran:
    """The same, wired by hand: one program that starts everything by Popen."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, str(BY_HAND), "--config", str(out / "config.json"), "--model", config.model, "--out", str(out)]
    environment = {**os.environ, **build(config).environment}
    with Meter(out) as meter, subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as running:
        try:
            code = running.wait(RUN_S)
        finally:
            running.terminate()  # It ends what it started; if it has ended, nothing happens.
    if code:
        raise RuntimeError(f"the run by hand ended with {code}; its logs are in {out}")
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return Ran(entries, json.loads((out / "result.json").read_text()), meter=meter)
