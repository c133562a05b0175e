"""The trainer. Run as `python -m gangflow.recipes.grpo.actor`.

Each step: publish the policy, have it sampled by the rollouts, the answers scored by `reward` and weighed by `ref`, learn.
A checkpoint holds everything, and is saved before the weights that follow from it are published. So a killed actor goes on
from its last checkpoint exactly as if nothing had happened, under a new incarnation: what was published before is void.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

import gangflow
from gangflow.member.context import Context
from gangflow.member.samples import PromptSamples
from gangflow.recipes.grpo import exchange, task
from gangflow.recipes.grpo.build import CLAIM, WRONG_POLICY
from gangflow.recipes.grpo.config import Config
from gangflow.recipes.grpo.judges import Judges, WrongReference
from gangflow.recipes.grpo.learner import Batch, EngineDrift, Learner, StepReport, accuracy
from gangflow.recipes.grpo.policy import Policy
from gangflow.recipes.services.ending import ended, leave
from gangflow.recipes.services.run_folder import RunFolder

RESULT: Final = "result"
"""The group's key-value that holds what the run ended with."""


class Trainer:
    """One incarnation of the actor, from its resume to its result."""

    def __init__(self, config: Config, context: Context) -> None:
        self.config = config
        self.context = context
        self.folder = RunFolder(Path(context.claims[CLAIM]), context.incarnation, suffix=".npz")
        self.trained, self.held_out = task.split(config.split_seed)
        first = Policy.fresh(config.seed)
        self.judges = Judges(
            lambda member: [endpoint.url for endpoint in context.endpoints(member)],
            reference=first.fingerprint(),
            patience_s=config.patience / 1_000,
            waiting=lambda reason: context.heartbeat(waiting=reason[:200]),
        )
        self.learner = self._resumed() or Learner(first, config.hyperparameters, seed=config.seed)
        self.resumed_at = self.learner.step
        self.accuracy: float | None = None
        """As last measured."""

    def _resumed(self) -> Learner | None:
        saved = self.context.resume()
        if saved is None:
            return None
        learner = Learner.load(Path(saved.path), self.config.hyperparameters)
        if learner.step != saved.step + 1:
            raise ValueError(f"{saved.path} has done {learner.step} steps; its head says that step {saved.step} was the last")
        print(f"resumed after step {learner.step} from {saved.path}", flush=True)
        return learner

    def run(self) -> dict[str, Any]:
        """Train to the end; returns the result, which is also in the folder and in the group's key-value `result`."""
        began = time.monotonic()
        steps = self.config.steps
        saved = self.learner.step if self.learner.step else -1
        while self.learner.step < steps:
            if self.learner.step != saved and self.learner.step % self.config.checkpoint_every == 0:
                self._checkpoint()
                saved = self.learner.step
            self._step()
        self._checkpoint()
        self.accuracy = accuracy(self.learner.policy, self.held_out)
        result = {
            "steps": self.learner.step,
            "accuracy": self.accuracy,
            "held_out": len(self.held_out),
            "seconds": round(time.monotonic() - began, 3),
            "resumed_at": self.resumed_at,
            "incarnation": self.context.incarnation,
            "samples": self.context.rollouts.counters.document(),
            "policy": self.learner.policy.fingerprint(),
        }
        self.folder.finish(result)
        self.context.client.kv_put(self.context.group, RESULT, json.dumps(result))
        self.context.heartbeat(step=self.learner.step, accuracy=self.accuracy)
        self.judges.close()
        return result

    def _checkpoint(self) -> None:
        step = self.learner.step
        path = self.folder.checkpoint(step)
        self.learner.save(path)
        self.context.checkpoint(step - 1, path)
        self.folder.forget_checkpoints(path)

    def _step(self) -> None:
        version = self.learner.step
        with self.context.span(f"step {version}", step=version):
            times = [time.monotonic()]
            with self.context.span("sync"):
                weights = self.folder.weights(version)
                self.learner.policy.save(weights)
                self.context.weights.publish(version, weights)
                self.folder.forget_weights(weights)
            times.append(time.monotonic())
            problems, seeds = self.learner.draw(self.trained)
            with self.context.span("generate"):
                groups = self.context.rollouts.generate(
                    exchange.ask(task.prompts_of(problems), seeds),
                    self.config.samples,
                    step=version,
                    chunk=-(-self.config.prompts // (2 * self.config.rollouts)),
                )
            times.append(time.monotonic())
            with self.context.span("reward"):
                batch = self._judged(groups)
            times.append(time.monotonic())
            with self.context.span("train"):
                try:
                    report = self.learner.train(batch)
                except EngineDrift as drift:
                    self.context.diverged(f"step {version}: {drift}")
            times.append(time.monotonic())
        self._tell(report, groups, [round(later - before, 5) for before, later in pairwise(times)])

    def _judged(self, groups: list[PromptSamples]) -> Batch:
        """A batch of the groups that were sampled; a skipped prompt is left out, never scored."""
        kept = [group for group in groups if not group.skipped]
        answers, logprobs = exchange.read([output for group in kept for output in group.outputs])
        prompts = np.repeat(exchange.prompts([group.prompt for group in kept]), self.config.samples, axis=0)
        rewards = self.judges.rewards(prompts, answers)
        try:
            reference = self.judges.reference(prompts, answers)
        except WrongReference as wrong:
            self.context.diverged(wrong.message)
        return Batch(prompts, answers, logprobs, rewards, reference)

    def _tell(self, report: StepReport, groups: list[PromptSamples], spent: list[float]) -> None:
        step = self.learner.step
        measured = None
        if step % self.config.evaluate_every == 0 or step == self.config.steps:
            measured = self.accuracy = accuracy(self.learner.policy, self.held_out)
        rate = round(len(report.drifts) / sum(spent), 1)
        seen = {"reward": round(report.reward, 5), "exact": round(report.exact, 5), "drift": report.drift}
        self.folder.record(
            {
                "step": step,
                **seen,
                "kl": round(report.kl, 5),
                "clipped": round(report.clipped, 5),
                "accuracy": measured,
                "samples_per_s": rate,
                "spent": dict(zip(("publish", "generate", "judge", "train"), spent, strict=True)),
                "at_ms": time.time_ns() // 1_000_000,
                "incarnation": self.context.incarnation,
                "rollouts": _by_rollout(groups, report),
            }
        )
        self.context.heartbeat(
            step=step, steps=self.config.steps, **seen, accuracy=self.accuracy, samples_per_s=rate, waiting=None
        )


def _by_rollout(groups: list[PromptSamples], report: StepReport) -> dict[str, dict[str, Any]]:
    """`slot/incarnation` → how many of the step's samples it made, and the largest drift of them."""
    makers = [f"{sample.rollout}/{sample.incarnation}" for group in groups for sample in group.samples]
    found: dict[str, dict[str, Any]] = {}
    for maker, drift in zip(makers, report.drifts.tolist(), strict=True):
        entry = found.setdefault(maker, {"samples": 0, "drift": 0.0})
        entry["samples"] += 1
        entry["drift"] = max(entry["drift"], drift)
    return dict(sorted(found.items()))


def main() -> int:
    """Train; the exit code says whether a restart can help."""
    return ended(
        lambda: print(json.dumps(Trainer(Config.from_environment(), gangflow.context()).run()), flush=True),
        for_good=WRONG_POLICY,
    )


if __name__ == "__main__":
    leave(main())
