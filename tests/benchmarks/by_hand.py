"""GRPO on a language model, wired by hand: what `gangflow run grpo engine=vllm` does, without gangflow.

    .venv-rl/bin/python tests/benchmarks/by_hand.py --config CONFIG.json --model FOLDER --out FOLDER

The other side of `rl_overhead.py`. One program starts two `vllm serve`, the verifier and the reference by `Popen`, with the
very commands and environments of the recipe's group, and trains: same learner, same batches, same judges, same save of the
weights, same requests to the engines. It pushes the weights itself, to both servers at the same time: pause, reload, reset the
prefix cache, set the version, resume. No controller, no coordinator, no ledger, no digests, no fsync; nothing restarts what
dies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import httpx
import msgspec

from gangflow.recipes.grpo.lm.build import build
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.learner import Learner
from gangflow.recipes.grpo.lm.steps import Sampler
from gangflow.recipes.lm import measuring, problems
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.judging import Judges
from gangflow.recipes.lm.ranks import Team

KEPT = 2
"""Versions of the weights, and checkpoints."""
START_S = 300.0
END_S = 30.0
GENERATE = "/inference/v1/generate"
RELOAD = "/collective_rpc"
JSON = {"Content-Type": "application/json"}


class Processes:
    """What this program started: by Popen, in process groups of their own, ended when the block is left.

    In one session, as an agent's tasks are: Linux shares processors between sessions first, and vLLM's waiting workers spin.
    """

    def __init__(self, config: LmConfig, model: Path, out: Path) -> None:
        self._group = build(config)
        self._model = model
        self._out = out
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, member: str) -> str:
        """Start one of the recipe's members, as its group would; its URL."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        spec = self._group.members[member]
        environment = {
            **os.environ,
            **self._group.environment,
            **spec.environment,
            "XCE_URL": "http://nobody",
            "XCE_GROUP": "by-hand",
            "XCE_MEMBER": member,
            "XCE_PORT_HTTP": str(port),
            f"XCE_ADDRS_{member.upper()}_HTTP": f"127.0.0.1:{port}",
            "XCE_CLAIM_MODEL": str(self._model),
        }
        with (self._out / f"{member}-{port}.log").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    list(spec.command),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    process_group=0,
                )
            )
        return f"http://127.0.0.1:{port}"

    def wait_healthy(self, urls: Sequence[str]) -> None:
        """TimeoutError, or RuntimeError when one of them ended."""
        deadline = time.monotonic() + START_S
        for url in urls:
            while not _answers(url):
                if any(process.poll() is not None for process in self._running):
                    said = "".join(log.read_text(errors="replace")[-1_000:] for log in self._out.glob("*.log"))
                    raise RuntimeError(f"one of them ended before it answered; what they said last:\n{said}")
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{url} does not answer")
                time.sleep(0.2)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                pass
            try:
                # Whatever is left of its process group.
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(END_S)


class Pushed(NamedTuple):
    """Seconds of one server's push: all of it, and of that the reload."""

    whole: float
    reload: float


class Engines:
    """The two servers, asked by hand: one request for each prompt, all at once, half of them to each server."""

    def __init__(self, urls: Sequence[str], pause: str = "wait") -> None:
        self.urls = list(urls)
        self._pause = pause
        self._loop = asyncio.new_event_loop()
        self._http = self._loop.run_until_complete(_session())

    def sample(self, prompts: Sequence[Mapping[str, Any]], samples: int, params: Mapping[str, Any]) -> list[list[Any]]:
        """Outputs of each prompt, as the recipe's `Sampler` reads them."""
        return self._loop.run_until_complete(self._sample(prompts, samples, params))

    def push(self, folder: Path, version: str) -> list[Pushed]:
        """Bring a folder's weights into all servers at the same time; how long each of them took."""
        return self._loop.run_until_complete(self._push(folder, version))

    def score(self, tokens: Sequence[int]) -> None:
        """Ask all servers at the same time for the log-probabilities of these tokens."""
        sampling = {"n": 1, "temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0}
        body = {"token_ids": list(tokens), "sampling_params": sampling}

        async def ask() -> None:
            await asyncio.gather(*(self._post(url + GENERATE, body) for url in self.urls))

        self._loop.run_until_complete(ask())

    def close(self) -> None:
        self._loop.run_until_complete(self._http.close())
        self._loop.close()

    async def _sample(self, prompts: Sequence[Mapping[str, Any]], samples: int, params: Mapping[str, Any]) -> list[list[Any]]:
        share = -(-len(prompts) // len(self.urls))
        made = [self._one(self.urls[place // share], prompt, samples, params) for place, prompt in enumerate(prompts)]
        return list(await asyncio.gather(*made))

    async def _one(self, url: str, prompt: Mapping[str, Any], samples: int, params: Mapping[str, Any]) -> list[Any]:
        sampling = {**params, "n": samples, "logprobs": 0, "detokenize": False}
        if "seed" in prompt:
            sampling["seed"] = prompt["seed"]
        answer = await self._post(url + GENERATE, {"token_ids": prompt["token_ids"], "sampling_params": sampling})
        choices = sorted(msgspec.json.decode(answer)["choices"], key=lambda choice: choice["index"])
        return [
            {
                "token_ids": choice["token_ids"],
                "logprobs": [each["logprob"] for each in choice["logprobs"]["content"]],
                "versions": [[int(span["version"]), span["start"], span["end"]] for span in choice["weight_versions"]],
            }
            for choice in choices
        ]

    async def _push(self, folder: Path, version: str) -> list[Pushed]:
        return list(await asyncio.gather(*(self._push_to(url, folder, version) for url in self.urls)))

    async def _push_to(self, url: str, folder: Path, version: str) -> Pushed:
        spent = []
        for path, body in (
            (f"/pause?mode={self._pause}", None),
            (RELOAD, {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}),
            ("/reset_prefix_cache", None),
            ("/update_weight_version", {"new_version": version}),
            ("/resume", None),
        ):
            began = time.monotonic()
            await self._post(url + path, body)
            spent.append(time.monotonic() - began)
        return Pushed(sum(spent), spent[1])

    async def _post(self, url: str, body: object) -> bytes:
        async with self._http.post(url, data=None if body is None else msgspec.json.encode(body), headers=JSON) as answer:
            answer.raise_for_status()
            return await answer.read()


class Sample(msgspec.Struct):
    """As the recipe's `Sampler` reads them; likewise below."""

    output: Any
    weights: None = None
    rollout: int = 0
    incarnation: int = 1


class Group(msgspec.Struct):
    samples: list[Sample]
    skipped: str = ""


class ByHand:
    """In the place of a `gangflow.Context`, as far as `Sampler` and `measuring` need one: only the engines behind it."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines
        self.rollouts = self.weights = self

    def generate(
        self,
        prompts: Sequence[Any],
        samples: int,
        params: Mapping[str, Any],
        step: int | None = None,
        *,
        timeout_s: float = 0.0,
        oldest: int | None = None,
    ) -> list[Group]:
        made = self._engines.sample(prompts, samples, params)
        return [Group([Sample(output) for output in outputs]) for outputs in made]

    def span(self, name: str, **_: object) -> AbstractContextManager[None]:
        return nullcontext()

    def wait_synced(self, version: int) -> None:
        """They are: the push returned."""


def train(config: LmConfig, model: Path, out: Path, engines: Engines, reward: str, reference: str) -> dict[str, Any]:
    """The loop; one line in `metrics.jsonl` for each step. Returns what is the result."""
    learner = Learner.start(str(model), config, Team.join("cpu"))
    tokenizer = models.tokenizer_of(model)
    trained, held_out = problems.split(problems.load(config.problems), config.split_seed)
    held_out = held_out[: config.evaluate_prompts]
    judges = Judges(
        lambda member: [reward if member == "reward" else reference],
        reference=models.fingerprint(model) if config.kl_weight else "",
        patience_s=30.0,
    )
    context: Any = ByHand(engines)
    sampler = Sampler(config, context, judges, tokenizer, models.stop_tokens(learner.model, tokenizer), trained)
    times: dict[str, float] = {}

    def publish() -> None:
        folder = out / "weights" / f"v{learner.step:06}"
        with clocked(times, "publish"):
            learner.export(folder, tokenizer)
        with clocked(times, "push"):
            engines.push(folder, str(learner.step))
        shutil.rmtree(out / "weights" / f"v{learner.step - KEPT:06}", ignore_errors=True)

    def measured() -> float:
        asked = [{"token_ids": sampler.tokens(problem)} for problem in held_out]
        made = measuring.answers(context, asked, sampler.params, learner.step, timeout_s=60.0, patience_s=60.0)
        return measuring.accuracy(lambda problem, output: problems.exact(problem.answer, sampler.text(output)), held_out, made)

    publish()
    began = time.monotonic()
    with (out / "metrics.jsonl").open("w") as metrics:
        while learner.step < config.steps:
            times.clear()
            judged = sampler.sample(learner.step)
            with clocked(times, "train"):
                report = learner.train(judged.batch)
            with clocked(times, "checkpoint"):
                if learner.step % config.checkpoint_every == 0:
                    learner.save(out / "checkpoints" / f"step-{learner.step:06}")
                    old = learner.step - KEPT * config.checkpoint_every
                    shutil.rmtree(out / "checkpoints" / f"step-{old:06}", ignore_errors=True)
            publish()
            if learner.step == config.steps:  # A group's last step has it, too.
                exact = measured()
            entry = {
                "step": learner.step,
                "at_ms": time.time_ns() / 1_000_000,
                "reward": judged.reward,
                "drift": report.drift,
                "samples": len(judged.makers),
                "tokens": report.tokens,
                "spent": {**judged.seconds, **times},
            }
            metrics.write(json.dumps(entry) + "\n")
            metrics.flush()
    seconds = time.monotonic() - began
    judges.close()
    return {"steps": learner.step, "seconds": seconds, "accuracy": exact, "held_out": len(held_out)}


@contextmanager
def clocked(times: dict[str, float], name: str) -> Iterator[None]:
    """Write down the seconds of the block."""
    began = time.monotonic()
    yield
    times[name] = time.monotonic() - began


async def _session() -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120.0))


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5.0, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="an LmConfig as JSON")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="for metrics, weights, checkpoints and logs")
    options = parser.parse_args()
    config = LmConfig.model_validate_json(options.config.read_text())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # What was started is ended then, too.
    options.out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = stack.enter_context(Processes(config, options.model, options.out))
        urls = [processes.start("rollout") for _ in range(config.rollouts)]
        reward = processes.start("reward")
        reference = processes.start("ref") if config.kl_weight else ""
        processes.wait_healthy([url for url in (*urls, reward, reference) if url])
        engines = Engines(urls, config.pause)
        stack.callback(engines.close)
        result = train(config, options.model, options.out, engines, reward, reference)
    (options.out / "result.json").write_text(json.dumps(result))
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
