"""The trainer. Run as `python -m gangflow.recipes.grpo.lm.actor`, or by torchrun for several ranks.

Each step: the rollouts sample, `reward` verifies, `ref` weighs, the learner takes a step, a checkpoint is saved when one is
due, and the new policy is published, with a probe of what it says. With `max_staleness` the samples of later steps are made
meanwhile. Rank 0 alone does all of that; the others train with it. A killed actor goes on from its newest checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import gangflow
from gangflow.member.context import Context
from gangflow.member.identity import Identity
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.learner import Learner, Report
from gangflow.recipes.grpo.lm.steps import Judged, Sampler
from gangflow.recipes.lm import measuring, problems
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.ahead import Ahead
from gangflow.recipes.lm.claim import MODEL
from gangflow.recipes.lm.drift import EngineDrift
from gangflow.recipes.lm.judging import Judges, WrongReference
from gangflow.recipes.lm.publishing import Publisher, probe_text
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.services.disk import is_full
from gangflow.recipes.services.ending import ended, leave
from gangflow.recipes.services.rules import CKPT, WRONG_POLICY
from gangflow.recipes.services.run_folder import RunFolder

RESULT: Final = "result"
"""The group's key-value that holds what the run ended with."""
END_S: Final = 2.0
"""How long an actor that fails waits for samples under way."""


class Trainer:
    """One incarnation of the actor, from its resume to its result: the leader's part of it."""

    def __init__(self, config: LmConfig, context: Context, team: Team, learner: Learner, tokenizer: Any) -> None:
        self.config = config
        self.context = context
        self.team = team
        self.learner = learner
        self.folder = RunFolder(
            Path(context.claims[CKPT]),
            context.incarnation,
            kept_weights=config.max_staleness + 2,
            kept_checkpoints=config.keep_checkpoints,
        )
        trained, held_out = problems.split(problems.load(config.problems), config.split_seed)
        self.held_out = held_out[: config.evaluate_prompts]
        self.judges = Judges(
            lambda member: [endpoint.url for endpoint in context.endpoints(member)],
            reference=models.fingerprint(config.ref_model or context.claims[MODEL]) if config.kl_weight else "",
            patience_s=config.patience / 1_000,
            request_timeout_s=config.request_timeout / 1_000,
            waiting=lambda reason: context.heartbeat(waiting=reason[:200]),
        )
        stops = models.stop_tokens(learner.model, tokenizer)
        self.sampler = Sampler(config, context, self.judges, tokenizer, stops, trained)
        for problem in (*trained, *self.held_out):
            self.sampler.tokens(problem)  # Too long a prompt is said now, not in the middle of the run.
        self.publisher = Publisher(
            context,
            self.folder,
            team,
            learner,
            tokenizer=tokenizer,
            probed=probe_text(map(self.sampler.answered, trained), config.max_model_len),
            patience_s=config.patience / 1_000,
        )
        self._resume()
        self.resumed_at = learner.step
        self.accuracy: float | None = None
        """As last measured."""
        self.first_accuracy: float | None = None
        """Before the first step, whichever life of the actor measured it; None when it is not in the metrics (a full disk)."""
        self.ahead = Ahead(self.sampler.sample, learner.step, config.steps, config.max_staleness)

    def _resume(self) -> None:
        saved = self.context.resume()
        if saved is None:
            return
        self.team.all(self.learner, "load", Path(saved.path))
        if self.learner.step != saved.step + 1:
            raise ValueError(
                f"{saved.path} has done {self.learner.step} steps; its head says that step {saved.step} was the last"
            )
        self.publisher.resumed(Path(saved.path))
        print(f"resumed after step {self.learner.step} from {saved.path}", flush=True)

    def run(self) -> dict[str, Any]:
        """Train to the end; returns the result, which is also in the folder and in the group's key-value `result`."""
        began = time.monotonic()
        if not self.learner.step:
            self.publisher.checkpoint()
        self._publish(measure=True)
        if self.learner.step:
            self.first_accuracy = (self.folder.recorded(0) or {}).get("accuracy")
        else:
            self.first_accuracy = self.accuracy
            self._record({"step": 0, "accuracy": self.accuracy})
        while self.learner.step < self.config.steps:
            self._step()
        result = {
            "steps": self.learner.step,
            "accuracy": self.accuracy,
            "first_accuracy": self.first_accuracy,
            "held_out": len(self.held_out),
            "seconds": round(time.monotonic() - began, 3),
            "resumed_at": self.resumed_at,
            "incarnation": self.context.incarnation,
            "samples": self.context.rollouts.counters.document(),
            "repeated_judgements": self.judges.repeated,
        }
        self.folder.finish(result)
        self.context.client.kv_put(self.context.group, RESULT, json.dumps(result))
        self.context.heartbeat(step=self.learner.step, accuracy=self.accuracy)
        return result

    def _step(self) -> None:
        step = self.learner.step
        with self.context.span(f"step {step}", step=step):
            times = {"wait": -time.monotonic()}
            try:
                judged = self.ahead.take(step)
            except WrongReference as wrong:
                self.context.diverged(wrong.message)
            times["wait"] += time.monotonic()
            times["train"] = -time.monotonic()
            with self.context.span("train"):
                try:
                    report = self.team.all(self.learner, "train", judged.batch)
                except EngineDrift as drift:
                    self.context.diverged(f"step {step}: {drift}")
            times["train"] += time.monotonic()
            last = self.learner.step == self.config.steps
            times["checkpoint"] = -time.monotonic()
            if last or self.learner.step % self.config.checkpoint_every == 0:
                with self.context.span("checkpoint"):
                    self.publisher.checkpoint()
            times["checkpoint"] += time.monotonic()
            times["publish"] = -time.monotonic()
            measured = self._publish(measure=last or self.learner.step % self.config.evaluate_every == 0)
            times["publish"] += time.monotonic()
        self._tell(judged, report, measured, times)

    def _publish(self, *, measure: bool) -> float | None:
        """Publish the policy, and begin with samples that it allows; the accuracy, if it is to be measured."""
        with self.context.span("sync"):
            self.publisher.publish()
        self.ahead.published(self.learner.step)
        if not measure:
            return None
        with self.context.span("evaluate"):
            made = measuring.answers(
                self.context,
                [{"token_ids": self.sampler.tokens(problem)} for problem in self.held_out],
                self.sampler.params,
                self.learner.step,
                timeout_s=self.config.request_timeout / 1_000,
                patience_s=self.config.quorum_timeout / 1_000,
            )
            self.accuracy = measuring.accuracy(
                lambda problem, output: problems.exact(problem.answer, self.sampler.text(output)), self.held_out, made
            )
        return self.accuracy

    def _tell(self, judged: Judged, report: Report, measured: float | None, times: dict[str, float]) -> None:
        step = self.learner.step
        seconds = {**judged.seconds, **times}
        rate = round(len(judged.makers) / (times["wait"] + times["train"] + times["publish"]), 1)
        seen = {"reward": round(judged.reward, 5), "exact": round(judged.exact, 5), "drift": report.drift}
        self._record(
            {
                "step": step,
                **seen,
                "drift_mean": report.drift_mean,
                "kl": round(report.kl, 5),
                "clipped": round(report.clipped, 5),
                "importance": round(report.importance, 6),
                "capped": round(report.capped, 5),
                "norm": round(report.norm, 4),
                "rate": report.rate,
                "length": round(judged.length, 2),
                "lag": round(judged.lag, 3),
                "mixed": judged.mixed,
                "accuracy": measured,
                "samples_per_s": rate,
                "spent": {name: round(value, 4) for name, value in seconds.items()},
                "rollouts": _by_rollout(judged, report),
            }
        )
        self.context.heartbeat(
            step=step, steps=self.config.steps, **seen, accuracy=self.accuracy, samples_per_s=rate, waiting=None
        )

    def _record(self, entry: dict[str, Any]) -> None:
        stamped = {**entry, "at_ms": time.time_ns() // 1_000_000, "incarnation": self.context.incarnation}
        try:
            self.folder.record(stamped)
        except OSError as error:
            if not is_full(error):
                raise
            print(f"no room for the metrics of step {entry['step']}: {json.dumps(stamped)}", file=sys.stderr, flush=True)


def _by_rollout(judged: Judged, report: Report) -> dict[str, dict[str, Any]]:
    """`slot/incarnation` → how many of the step's samples it made, and the largest drift of them."""
    found: dict[str, dict[str, Any]] = {}
    for maker, drift in zip(judged.makers, report.drifts.tolist(), strict=True):
        entry = found.setdefault(maker, {"samples": 0, "drift": 0.0})
        entry["samples"] += 1
        entry["drift"] = max(entry["drift"], drift)
    return dict(sorted(found.items()))


def lead(config: LmConfig, context: Context, team: Team, learner: Learner, tokenizer: Any) -> dict[str, Any]:
    """The leader's part: train to the end, and let the other ranks end."""
    trainer = Trainer(config, context, team, learner, tokenizer)
    try:
        result = trainer.run()
    finally:
        trainer.ahead.leave(END_S)
        trainer.judges.close()
    team.end()
    return result


def main() -> int:
    """Train; the exit code says whether a restart can help."""
    return ended(_rank, for_good=WRONG_POLICY)


def _rank() -> None:
    config = LmConfig.from_environment()
    folder = Identity.read(os.environ).claim(MODEL)
    team = Team.join(config.device)
    learner = Learner.start(folder, config, team)
    if not team.leads:
        team.follow(learner)
        team.leave()
        return
    result = lead(config, gangflow.context(), team, learner, models.tokenizer_of(folder))
    team.leave()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    leave(main())
