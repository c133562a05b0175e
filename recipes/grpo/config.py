"""What can be set about the recipe, and its presets."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import Field, model_validator

from gangflow.recipes.grpo.learner import Hyperparameters
from gangflow.specs.base import Name, Spec, Whole, check
from gangflow.specs.problems import Fault
from gangflow.specs.quantity import Cpu, Duration, Gpu, Memory

VARIABLE: Final = "GRPO_CONFIG"
"""The environment variable by which the programs get their configuration, as JSON."""

_OF_THE_GROUP = (
    *("name", "min_rollouts", "max_restarts", "quorum_timeout", "hang_timeout"),
    *("cpu", "mem", "gpus", "priority", "python"),
)

Count = Annotated[Whole, Field(ge=1)]
Seed = Annotated[Whole, Field(ge=0)]


class Config(Spec):
    """GRPO on two-digit addition. The defaults are those of `make demo`."""

    name: Name = "grpo"
    """Of the group."""
    seed: Seed = 0
    """Of the first policy, of the problems drawn and of the samples: the same seed is the same run, to the bit."""
    split_seed: Seed = 0
    """Which fifth of the problems is held out."""

    # --- a step -------------------------------------------------------------------------------------------------------
    steps: Count = 250
    """Of the run: each samples, judges, trains and publishes once."""
    prompts: Annotated[Whole, Field(ge=1, le=8_000)] = 64
    """Per step."""
    samples: Annotated[Whole, Field(ge=2)] = 16
    """Per prompt: the group whose mean reward an answer is measured against."""
    epochs: Count = 2
    """Passes over a step's samples, each one update by Adam."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Ratio of a token's new to its old probability below which it is not made less likely by a step."""
    clip_high: Annotated[float, Field(gt=1)] = 1.28
    """The same above which it is not made more likely."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-2
    """Of Adam, the same in every step."""
    kl_weight: Annotated[float, Field(ge=0)] = 0.2
    """Of the KL divergence to `ref`. Decisive: at 0.02–0.05 the policy stalls at 0.7–0.9 of the held-out problems."""

    # --- measuring and saving -----------------------------------------------------------------------------------------
    checkpoint_every: Count = 10
    """Steps: what a killed actor repeats at most."""
    evaluate_every: Count = 25
    """Steps between measurements of the held-out accuracy."""
    max_drift: Annotated[float, Field(gt=0)] = 1e-3
    """Largest |trainer − engine| log-probability that still counts as rounding; more fails the run."""
    patience: Duration = 60_000
    """How long the actor asks a reward or reference server that does not answer."""

    # --- the group ----------------------------------------------------------------------------------------------------
    rollouts: Count = 2
    """Engines that the group starts with."""
    min_rollouts: Count = 1
    """With fewer eligible ones the actor waits, at most `quorum_timeout`."""
    max_restarts: Annotated[Whole, Field(ge=0)] = 5
    """Of each slot, per hour."""
    quorum_timeout: Duration = 60_000
    """How long the actor waits with fewer than `min_rollouts` eligible ones before the group fails."""
    hang_timeout: Duration = 60_000
    """Silence of the actor after which it counts as hung."""
    cpu: Cpu = 1_000
    """Per task."""
    mem: Memory = 512
    """Per task."""
    gpus: Gpu = 1_000
    """Per task of actor, rollout and ref. The programs compute on the CPU: a GPU is only the scarce thing to schedule."""
    priority: Whole = 50
    """Of the group, 0 to 1000: a higher one is placed first."""
    python: Annotated[str, Field(min_length=1)] = sys.executable or "python3"
    """The interpreter that runs the four programs; gangflow must be installed in it."""

    @model_validator(mode="after")
    def _minimum_is_reachable(self) -> Self:
        if self.min_rollouts > self.rollouts:
            check([Fault(("min_rollouts",), self.min_rollouts, f"at most rollouts, {self.rollouts}")])
        return self

    @property
    def hyperparameters(self) -> Hyperparameters:
        """What the learner needs of it."""
        return Hyperparameters(
            prompts=self.prompts,
            samples=self.samples,
            epochs=self.epochs,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            learning_rate=self.learning_rate,
            kl_weight=self.kl_weight,
            max_drift=self.max_drift,
        )

    def for_programs(self) -> str:
        """As JSON, without what only shapes the group."""
        return self.model_dump_json(exclude=set(_OF_THE_GROUP))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """What `build` passed to this program. KeyError outside of a group."""
        return cls.model_validate_json(environment[VARIABLE])


PRESETS: Final[dict[str, dict[str, Any]]] = {
    "demo": {},
    "smoke": {"steps": 30, "prompts": 16, "samples": 8, "checkpoint_every": 5, "evaluate_every": 10},
    "one-host": {"gpus": 0, "cpu": "100m", "mem": "128MiB"},
}
"""What each preset changes of the defaults: `demo` learns the task, `smoke` runs every part for a few steps, `one-host` needs
no GPU and fits on any machine."""
