"""The trainer of the policy. Run as `python -m gangflow.recipes.rlhf_ppo.actor`, or by torchrun for several ranks.

Each step: the rollouts reply to prompts; reward model, reference and critic judge the replies, all at the same time; policy
and critic take a step, at the same time; a checkpoint of both is saved when one is due; the new policy is published, with a
probe of what it says. Rank 0 alone speaks with others; the further ranks train with it. A killed actor goes on from its newest
checkpoint, and takes the critic there.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import gangflow
from gangflow.channel import Probe
from gangflow.member.context import Context
from gangflow.member.identity import Identity
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.batch import Sequences
from gangflow.recipes.lm.claim import MODEL
from gangflow.recipes.lm.drift import EngineDrift
from gangflow.recipes.lm.judging import WrongReference
from gangflow.recipes.lm.publishing import Publisher, probe_text
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.rlhf_ppo import data as datasets
from gangflow.recipes.rlhf_ppo.adaptive_kl import AdaptiveKl
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.critic_client import CriticClient
from gangflow.recipes.rlhf_ppo.judges import RlhfJudges, WrongReward
from gangflow.recipes.rlhf_ppo.policy import PolicyLearner, PolicyReport
from gangflow.recipes.rlhf_ppo.steps import Experience, Sampler
from gangflow.recipes.rlhf_ppo.texts import Texts
from gangflow.recipes.services.asking import Asking
from gangflow.recipes.services.disk import is_full
from gangflow.recipes.services.ending import ended, leave
from gangflow.recipes.services.rules import CKPT, WRONG_POLICY
from gangflow.recipes.services.run_folder import RunFolder

RESULT: Final = "result"
"""The group's key-value that holds what the run ended with."""
CRITIC: Final = "critic"
"""The critic's part of a checkpoint: a folder in it."""


class Both:
    """What a checkpoint is of: the policy, and the critic at the same step, in one folder with one digest."""

    def __init__(self, policy: PolicyLearner, critic: CriticClient) -> None:
        self._policy = policy
        self._critic = critic

    @property
    def step(self) -> int:
        return self._policy.step

    def probe(self, tokens: Sequence[int]) -> Probe:
        return self._policy.probe(tokens)

    def export(self, folder: Path, tokenizer: Any = None) -> None:
        self._policy.export(folder, tokenizer)

    def save(self, folder: Path) -> None:
        """OSError, with nothing left behind that would be taken for a checkpoint, when there is no room for one of them."""
        self._policy.save(folder)
        self._critic.save(self._policy.step, folder / CRITIC)


class Trainer:
    """One incarnation of the actor, from its resume to its result: the leader's part of it."""

    def __init__(self, config: Config, context: Context, team: Team, policy: PolicyLearner, tokenizer: Any) -> None:
        self.config = config
        self.context = context
        self.team = team
        self.policy = policy
        self.folder = RunFolder(Path(context.claims[CKPT]), context.incarnation, kept_checkpoints=config.keep_checkpoints)
        learned = datasets.load(config)
        self.held_out = learned.held_out[: config.evaluate_prompts]
        self.kl = AdaptiveKl(config.kl_weight, config.kl_target, config.kl_horizon)
        self.judges = RlhfJudges(
            self._urls,
            reference=models.fingerprint(context.claims[MODEL]),
            patience_s=config.patience / 1_000,
            request_timeout_s=config.request_timeout / 1_000,
            waiting=self._waiting,
        )
        self.asking = Asking(
            self._urls,
            patience_s=config.patience / 1_000,
            request_timeout_s=config.request_timeout / 1_000,
            waiting=self._waiting,
        )
        self.critic = CriticClient(self.asking, context.incarnation)
        texts = Texts(tokenizer)
        stops = sorted({*models.stop_tokens(policy.model, tokenizer), texts.end})
        self.sampler = Sampler(config, context, self.judges, self.critic, texts, stops, learned.trained, learned.truth)
        for problem in (*learned.trained, *self.held_out):
            self.sampler.tokens(problem)  # Too long a prompt is said now, not in the middle of the run.
        self.publisher = Publisher(
            context,
            self.folder,
            team,
            Both(policy, self.critic),
            tokenizer=tokenizer,
            # An order with a reply: what the policy finds likely is rounded least.
            probed=probe_text(([*pair.prompt, *pair.chosen] for pair in texts.pairs(learned.pairs[:1])), config.max_model_len),
            patience_s=config.patience / 1_000,
        )
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="critic")
        self.report: dict[str, Any] = {}
        """What was measured of the reward model."""
        self.measured: dict[str, Any] = {}
        """On held-out prompts, as last measured."""
        self.first: dict[str, Any] = {}
        """The same before the first step, whichever life of the actor measured it."""
        self._resume()
        self.resumed_at = policy.step

    def run(self) -> dict[str, Any]:
        """Train to the end; returns the result, which is also in the folder and in the group's key-value `result`."""
        began = time.monotonic()
        self._meet_reward()
        if not self.policy.step:
            self._checkpoint()
        self._publish()
        self._measure()
        self.first = self.first or self.measured
        if not self.policy.step:
            self._record({"step": 0, **self.measured, "reward_model": self.report})
        while self.policy.step < self.config.steps:
            self._step()
        kept = {key: value for key, value in self.measured.items() if key != "examples"}
        result = {
            "steps": self.policy.step,
            **kept,
            **{f"first_{key}": value for key, value in self.first.items() if key != "examples"},
            "reward_model": {key: value for key, value in self.report.items() if key != "losses"},
            "kl_weight": self.kl.weight,
            "held_out": len(self.held_out),
            "seconds": round(time.monotonic() - began, 3),
            "resumed_at": self.resumed_at,
            "incarnation": self.context.incarnation,
            "samples": self.context.rollouts.counters.document(),
            "repeated_judgements": self.judges.repeated,
            "critic_brought": self.critic.brought,
            "critic_differing": self.critic.differing,
        }
        self.folder.finish(result)
        self.context.client.kv_put(self.context.group, RESULT, json.dumps(result))
        self.context.heartbeat(step=self.policy.step, **kept)
        return result

    def close(self) -> None:
        """End connections, and so what still waits for an answer by one."""
        self.threads.shutdown(wait=False, cancel_futures=True)
        self.sampler.close()
        self.judges.close()
        self.asking.close()

    # --- the parts of it

    def _resume(self) -> None:
        saved = self.context.resume()
        if saved is None:
            self.critic.begin(0, None)
            return
        path = Path(saved.path)
        kept = json.loads(self.team.all(self.policy, "load", path))
        if self.policy.step != saved.step + 1:
            raise ValueError(f"{path} has done {self.policy.step} steps; its head says that step {saved.step} was the last")
        self.kl = replace(self.kl, weight=float(kept["kl_weight"]))
        self.judges.reward_model = str(kept["reward_model"])
        self.first = kept["first"]
        self.critic.begin(self.policy.step, path / CRITIC)
        self.publisher.resumed(path)
        print(f"resumed after step {self.policy.step} from {path}", flush=True)

    def _meet_reward(self) -> None:
        """Wait until the reward model is trained: it is served from then on."""
        deadline = time.monotonic() + self.config.reward_timeout / 1_000
        while not self._urls("reward") and time.monotonic() < deadline:
            self._waiting("reward is training its model")
            time.sleep(0.5)
        try:
            self.report = self.judges.about()
        except WrongReward as wrong:
            self.context.diverged(wrong.message)
        if self.report.get("trained"):
            print(
                f"reward model: agrees with {self.report['accuracy']:.3f} of {self.report['held_out_pairs']} held-out pairs "
                f"({self.report['accuracy_before']:.3f} before it was trained)",
                flush=True,
            )

    def _step(self) -> None:
        step = self.policy.step
        weight = self.kl.weight
        with self.context.span(f"step {step}", step=step):
            try:
                made = self.sampler.sample(step, weight, self._survey)
            except (EngineDrift, WrongReference, WrongReward) as wrong:
                self.context.diverged(f"step {step}: {getattr(wrong, 'message', wrong)}")
            times = {"train": -time.monotonic()}
            with self.context.span("train"):
                report, criticism = self._train(step, made)
            times["train"] += time.monotonic()
            self.kl = self.kl.after(made.kl, len(made.sequences))
            if self.policy.step == self.config.steps or self.policy.step % self.config.checkpoint_every == 0:
                with self.context.span("checkpoint"):
                    self._checkpoint()
            times["publish"] = -time.monotonic()
            with self.context.span("sync"):
                self._publish()
            times["publish"] += time.monotonic()
            measuring = self.policy.step == self.config.steps or self.policy.step % self.config.evaluate_every == 0
            if measuring:
                self._measure()
        self._tell(made, report, criticism, weight, times, self.measured if measuring else {})

    def _survey(self, batch: Sequences) -> Any:
        return self.team.all(self.policy, "survey", batch)

    def _train(self, step: int, made: Experience) -> tuple[PolicyReport, dict[str, float]]:
        """A step of both, at the same time: the critic is a member of its own."""
        answer = made.sequences.answer
        prompts, replies = _rows(made.sequences)
        criticism = self.threads.submit(
            self.critic.train, step, prompts, replies, made.values[answer].tolist(), made.returns[answer].tolist()
        )
        report: PolicyReport = self.team.all(self.policy, "train", made.sequences, made.old, made.gains)
        return report, criticism.result()

    def _checkpoint(self) -> None:
        kept = {"kl_weight": self.kl.weight, "reward_model": self.judges.reward_model, "first": self.first}
        self.team.all(self.policy, "keep", json.dumps(kept))
        self.publisher.checkpoint()
        self.critic.saved(self.policy.step, self.folder.checkpoint(self.policy.step) / CRITIC)

    def _publish(self) -> None:
        self.publisher.publish()

    def _measure(self) -> None:
        with self.context.span("evaluate"):
            self.context.weights.wait_synced(self.policy.step)
            self.measured = self.sampler.measure(self.held_out)

    def _tell(
        self,
        made: Experience,
        report: PolicyReport,
        criticism: dict[str, float],
        weight: float,
        times: dict[str, float],
        measured: dict[str, Any],
    ) -> None:
        step = self.policy.step
        seconds = {**made.seconds, **times}
        seen = {
            "reward": round(made.reward, 5),
            "quality": round(made.quality, 5) if made.quality is not None else None,
            "kl": round(made.kl, 5),
            "kl_weight": round(weight, 6),
            "drift": made.drift,
        }
        rate = round(len(made.sequences) / sum(seconds.values()), 1)
        self._record(
            {
                "step": step,
                **seen,
                "explained": round(made.explained, 4),
                "clipped": round(report.clipped, 5),
                "moved": round(report.moved, 6),
                "norm": round(report.norm, 4),
                "rate": report.rate,
                "value_loss": round(criticism["loss"], 5),
                "value_clipped": round(criticism["clipped"], 5),
                "value_norm": round(criticism["norm"], 4),
                "length": round(made.length, 2),
                "unfinished": round(made.unfinished, 4),
                "samples_per_s": rate,
                "spent": {name: round(value, 4) for name, value in seconds.items()},
                "rollouts": _by_rollout(made),
                "critic_brought": self.critic.brought,
                **measured,
            }
        )
        self.context.heartbeat(step=step, steps=self.config.steps, **seen, samples_per_s=rate, waiting=None)

    def _record(self, entry: dict[str, Any]) -> None:
        stamped = {**entry, "at_ms": time.time_ns() // 1_000_000, "incarnation": self.context.incarnation}
        try:
            self.folder.record(stamped)
        except OSError as error:
            if not is_full(error):
                raise
            print(f"no room for the metrics of step {entry['step']}: {json.dumps(stamped)}", file=sys.stderr, flush=True)

    def _urls(self, member: str) -> list[str]:
        return [endpoint.url for endpoint in self.context.endpoints(member)]

    def _waiting(self, reason: str) -> None:
        self.context.heartbeat(waiting=reason[:200])


def _rows(batch: Sequences) -> tuple[list[list[int]], list[list[int]]]:
    """(prompts, replies) of a batch, as they were packed."""
    prompts, replies = [], []
    for tokens, attention, answer in zip(batch.tokens, batch.attention, batch.answer, strict=True):
        length, start = int(attention.sum()), int(answer.int().argmax()) + 1
        row = tokens.tolist()
        prompts.append(row[:start])
        replies.append(row[start:length])
    return prompts, replies


def _by_rollout(made: Experience) -> dict[str, dict[str, Any]]:
    """`slot/incarnation` → how many of the step's replies it made, and the largest drift of them."""
    found: dict[str, dict[str, Any]] = {}
    for maker, drift in zip(made.makers, made.drifts, strict=True):
        entry = found.setdefault(maker, {"samples": 0, "drift": 0.0})
        entry["samples"] += 1
        entry["drift"] = max(entry["drift"], drift)
    return dict(sorted(found.items()))


def lead(config: Config, context: Context, team: Team, policy: PolicyLearner, tokenizer: Any) -> dict[str, Any]:
    """The leader's part: train to the end, and let the other ranks end."""
    trainer = Trainer(config, context, team, policy, tokenizer)
    try:
        result = trainer.run()
    finally:
        trainer.close()
    team.end()
    return result


def main() -> int:
    """Train; the exit code says whether a restart can help."""
    return ended(_rank, for_good=WRONG_POLICY)


def _rank() -> None:
    config = Config.from_environment()
    folder = Identity.read(os.environ).claim(MODEL)
    team = Team.join(config.device)
    policy = PolicyLearner.start(folder, config, team)
    if not team.leads:
        team.follow(policy)
        team.leave()
        return
    result = lead(config, gangflow.context(), team, policy, models.tokenizer_of(folder))
    team.leave()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    leave(main())
