"""GRPO: from sampled answers and their rewards to the next policy.

A step takes a *group* of samples for each prompt. A sample's advantage is its reward against its group's mean, in the group's
standard deviations: no critic. The surrogate is clipped asymmetrically (0.8 … 1.28) against the probabilities that the engine
sampled with, and the policy is held near its frozen first self by the k3 estimate of their KL divergence. The weight of that
term is decisive: at 0.02–0.05 the policy stalls at 0.7–0.9, at 0.2 it learns.

`Learner` owns everything that must survive a restart, and `save`/`load` keep all of it: a resumed run continues exactly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gangflow.recipes.grpo import task
from gangflow.recipes.grpo.policy import Floats, Parameters, Policy, chances, write_arrays
from gangflow.recipes.grpo.task import Digits

LAYOUT: Final = 1
"""Version of the checkpoint file."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """What a step does; see the module for what the terms mean."""

    prompts: int = 64
    samples: int = 16
    """Per prompt."""
    epochs: int = 2
    """Gradient steps on one batch of samples."""
    clip_low: float = 0.8
    clip_high: float = 1.28
    learning_rate: float = 1e-2
    beta1: float = 0.9
    beta2: float = 0.99
    kl_weight: float = 0.2
    max_drift: float = 1e-3
    """Largest |trainer − engine| log-probability that still counts as rounding."""


class EngineDrift(Exception):
    """The engine's log-probabilities are not the trainer's: the samples are of another policy, and nothing was learned."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's samples, prompt by prompt: n = prompts × samples rows."""

    prompts: Digits
    """(n, 4): each prompt repeated for its samples."""
    answers: Digits
    """(n, 3)."""
    logprobs: Floats
    """(n, 3): the engine's, at the time of sampling."""
    rewards: Floats
    """(n,)."""
    reference: Floats
    """(n, 3): log-probabilities under the frozen first policy."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What a training step saw."""

    reward: float
    """Mean over the batch, from 0 to 2."""
    exact: float
    """Fraction of exact answers."""
    kl: float
    """Mean k3 estimate per digit, before the step."""
    clipped: float
    """Fraction of digits whose last gradient was cut off by the clip."""
    drift: float
    """Largest |trainer − engine| log-probability, before the step: of the same weights, it is rounding only."""
    drifts: Floats = field(compare=False, repr=False)
    """The same for each sample (n,)."""


def advantages(rewards: Floats, samples: int) -> Floats:
    """Rewards (n,) normalised within each prompt's group of `samples`; a group of equal rewards teaches nothing: zeros."""
    groups = rewards.reshape(-1, samples)
    centred = groups - groups.mean(axis=1, keepdims=True)
    spread = groups.std(axis=1, keepdims=True)
    return np.asarray(centred / (spread + 1e-4), np.float32).reshape(-1)


class Learner:
    """The trainer's state: policy, optimizer, random state, step."""

    def __init__(self, policy: Policy, settings: Hyperparameters, *, seed: int) -> None:
        self.policy = policy
        self.settings = settings
        self.step = 0
        """Steps done."""
        self._first: Parameters = {name: np.zeros_like(value) for name, value in policy.parameters.items()}
        self._second: Parameters = {name: np.zeros_like(value) for name, value in policy.parameters.items()}
        self._updates = 0
        self._rng = np.random.Generator(np.random.PCG64([seed, 1]))

    def draw(self, problems: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """The next step's problems (prompts,) and the seed of each (prompts,)."""
        chosen = self._rng.choice(problems, self.settings.prompts, replace=False)
        return chosen, self._rng.integers(0, 2**63, self.settings.prompts, dtype=np.uint64)

    def train(self, batch: Batch) -> StepReport:
        """One GRPO step on a batch; the policy's arrays are updated in place. EngineDrift, before anything is changed."""
        now = self.policy.logprobs(batch.prompts, batch.answers)
        drifts: Floats = np.abs(now - batch.logprobs).max(axis=1)
        if not drifts.max() <= self.settings.max_drift:  # also true of a NaN
            raise EngineDrift(f"log-probabilities differ by {drifts.max():g}; rounding is below {self.settings.max_drift:g}")
        gains = advantages(batch.rewards, self.settings.samples)[:, None]
        weights, clipped, kl = self._surrogate(now, batch, gains)
        self._ascend(self.policy.gradients(batch.prompts, batch.answers, weights))
        for _ in range(1, self.settings.epochs):
            now = self.policy.logprobs(batch.prompts, batch.answers)
            weights, clipped, _ = self._surrogate(now, batch, gains)
            self._ascend(self.policy.gradients(batch.prompts, batch.answers, weights))
        self.step += 1
        exact = (batch.answers == task.solutions(batch.prompts)).all(axis=1).mean()
        reward = float(batch.rewards.mean())
        return StepReport(reward, float(exact), float(kl), float(clipped), float(drifts.max()), drifts)

    def _surrogate(self, now: Floats, batch: Batch, gains: Floats) -> tuple[Floats, np.floating, np.floating]:
        """(d objective / d logprob (n, 3), fraction clipped, mean k3); the objective is a mean over all digits."""
        ratio = np.exp(now - batch.logprobs)
        cut = ((gains > 0) & (ratio > self.settings.clip_high)) | ((gains < 0) & (ratio < self.settings.clip_low))
        apart = batch.reference - now
        odds = np.exp(apart)
        # d/dlogp of k3 = exp(apart) − apart − 1 is 1 − exp(apart).
        slope = np.where(cut, 0.0, ratio * gains) - self.settings.kl_weight * (1.0 - odds)
        return (slope / now.size).astype(np.float32), cut.mean(), (odds - apart - 1.0).mean()

    def _ascend(self, gradients: Parameters) -> None:
        """Adam, uphill."""
        s = self.settings
        self._updates += 1
        scale = s.learning_rate * (1 - s.beta2**self._updates) ** 0.5 / (1 - s.beta1**self._updates)
        for name, gradient in gradients.items():
            first, second = self._first[name], self._second[name]
            first += (1 - s.beta1) * (gradient - first)
            second += (1 - s.beta2) * (gradient * gradient - second)
            self.policy.parameters[name] += (scale * first / (np.sqrt(second) + 1e-8)).astype(np.float32)

    def save(self, path: Path) -> str:
        """Write everything into one file, atomically; returns its sha256."""
        progress = {
            "layout": LAYOUT,
            "step": self.step,
            "updates": self._updates,
            "rng": self._rng.bit_generator.state,
        }
        arrays: dict[str, NDArray[np.generic]] = {"progress": np.array(json.dumps(progress))}
        for kind, values in (("policy", self.policy.parameters), ("first", self._first), ("second", self._second)):
            arrays.update({f"{kind}.{name}": value for name, value in values.items()})
        return write_arrays(path, arrays)

    @classmethod
    def load(cls, path: Path, settings: Hyperparameters) -> Learner:
        """Continue from a file that `save` wrote. ValueError for a file of another layout."""
        with np.load(path, allow_pickle=False) as stored:
            progress = json.loads(str(stored["progress"]))
            if progress["layout"] != LAYOUT:
                raise ValueError(f"{path}: checkpoint layout {progress['layout']}, expected {LAYOUT}")
            kinds: dict[str, Parameters] = {"policy": {}, "first": {}, "second": {}}
            for key in stored.files:
                kind, _, name = key.partition(".")
                if kind in kinds:
                    kinds[kind][name] = np.asarray(stored[key], np.float32)
        learner = cls(Policy(kinds["policy"]), settings, seed=0)
        learner._first, learner._second = kinds["first"], kinds["second"]
        learner.step, learner._updates = progress["step"], progress["updates"]
        learner._rng.bit_generator.state = progress["rng"]
        return learner


def accuracy(policy: Policy, problems: NDArray[np.int64]) -> float:
    """Fraction of the problems that the policy's most probable answer solves."""
    prompts = task.prompts_of(problems)
    return float((policy.greedy(prompts) == task.solutions(prompts)).all(axis=1).mean())


def repeated(problems: NDArray[np.int64], samples: int) -> Digits:
    """The prompts of the problems, each `samples` times in a row: (problems × samples, 4)."""
    return np.repeat(task.prompts_of(problems), samples, axis=0)


def sample_batch(
    engine: Policy, reference: Policy, problems: NDArray[np.int64], seeds: NDArray[np.uint64], samples: int
) -> Batch:
    """A step's samples made and judged in this process: what the programs do together over HTTP."""
    prompts = repeated(problems, samples)
    indices = np.tile(np.arange(samples), len(problems))
    answers, logprobs = engine.sample(prompts, chances(np.repeat(seeds, samples), indices))
    return Batch(prompts, answers, logprobs, task.rewards(prompts, answers), reference.logprobs(prompts, answers))
