"""What can be set about every recipe that trains a language model with vLLM rollouts; `grpo.lm` and `rlhf_ppo` add their own.

Imports neither torch nor vLLM: `render` and submission need only this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from gangflow.recipes.lm.interpreter import trainers_python
from gangflow.specs.base import Name, Spec, Text, Whole, Word
from gangflow.specs.faults import Fault
from gangflow.specs.quantity import Cpu, Duration, Memory

Count = Annotated[Whole, Field(ge=1)]
Natural = Annotated[Whole, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

OF_THE_GROUP = (
    *("name", "priority", "python", "vllm", "vllm_args", "max_restarts", "max_rollouts", "start_timeout", "level"),
    *("pack_actor", "ref_replicas", "reward_replicas"),
    *(f"{member}_{kind}" for member in ("actor", "critic", "rollout", "ref", "reward") for kind in ("cpu", "mem")),
)
"""Settings that only shape the group: no program is told them."""


class Settings(Spec):
    """The common part."""

    variable: ClassVar[str]
    """The environment variable by which the programs get their configuration, as JSON."""

    device: Literal["cpu", "gpu"] = "cpu"
    """What everything that computes runs on; `gpu` asks for devices."""
    model: Text
    """The first policy: one that is made on the spot, or the absolute path of a model folder as the hosts see it."""
    model_sha256: Text = ""
    """With a path: its checksum, to copy it into the cache of each host and verify it; without, it is read in place."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that engines and reference compute with."""

    # --- measuring and saving ----------------------------------------------------------------------------------------
    checkpoint_every: Count = 5
    """Steps: what a killed actor repeats at most."""
    keep_checkpoints: Count = 2
    """Newest ones that stay; older ones are removed."""
    max_drift: Positive = 1e-3
    """Largest |trainer − engine| log-probability of a token of the newest version that is rounding; more fails the run."""
    max_mean_drift: Positive | None = None
    """The same for the mean over a step's tokens; null: not looked at. In bfloat16 it says more than the largest."""
    probe_tolerance: Positive = 1e-4
    """Largest difference of the engine's log-probabilities from the trainer's after a push; more keeps the engine out."""
    probe_mean_tolerance: Positive | None = None
    """The same for the mean over the probe's tokens; null: not looked at."""
    patience: Duration = 360_000
    """How long the actor asks a server of another member that does not answer: longer than a restart takes."""
    request_timeout: Duration = 60_000
    """For one request, to a rollout (its share of a step) or to one of them. A rollout that answers its health checks and no
    request within it, three times in a row, counts as hung."""

    # --- the group ---------------------------------------------------------------------------------------------------
    name: Name
    """Of the group."""
    priority: Natural = 50
    """Of the group, 0 to 1000: a higher one is placed first."""
    python: Annotated[Text, Field(min_length=1)] = Field(default_factory=trainers_python)
    """The interpreter of all but the rollouts; gangflow, torch and transformers must be installed in it."""
    vllm: Text = ""
    """The `vllm` command of the rollouts; empty: the one that is found beside this interpreter."""
    vllm_args: tuple[Text, ...] = ()
    """Further options of `vllm serve`."""
    max_model_len: Count = 128
    """Tokens of prompt and answer that an engine takes."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Of a rollout's GPUs."""
    rollouts: Count = 2
    """Engines that the group starts with."""
    min_rollouts: Count = 1
    """With fewer eligible ones the actor waits, at most `quorum_timeout`."""
    max_rollouts: Count | None = None
    """As far as the group may be scaled; `rollouts` when left out."""
    tensor_parallel: Count = 1
    """GPUs of one rollout; more than `gpus_per_host` make it one engine over several hosts."""
    gpus_per_host: Count = 8
    """What the hosts have: no task asks for more."""
    level: Word | None = None
    """The cluster's topology level that a rollout must not straddle: `nvlink`."""
    pack_actor: Word | None = None
    """The level that the actor's hosts should share, if there is room: `switch`."""
    actor_tasks: Count = 1
    """Processes' hosts of the trainer; each runs `actor_procs` ranks."""
    actor_procs: Count = 1
    """Ranks per task, each with a GPU of its own on `device=gpu`."""
    ref_replicas: Count = 1
    """Reference servers; a request goes to any of them."""
    ref_gpus: Count = 1
    """Of one reference server, on `device=gpu`."""
    actor_cpu: Cpu = 1_000
    """Per task."""
    actor_mem: Memory = 2_048
    """Per task."""
    rollout_cpu: Cpu = 1_000
    """Per task."""
    rollout_mem: Memory = 2_560
    """Per task."""
    ref_cpu: Cpu = 500
    """Per task."""
    ref_mem: Memory = 1_024
    """Per task."""
    max_restarts: Natural = 5
    """Of each slot, per hour."""
    quorum_timeout: Duration = 240_000
    """How long the actor waits with fewer than `min_rollouts` eligible ones before the group fails."""
    hang_timeout: Duration = 120_000
    """Silence of the actor after which it counts as hung."""
    no_progress_timeout: Duration = 600_000
    """How long neither the step nor samples nor weights may move, though the actor beats, before the group fails: longer than a
    step, and than what the actor waits for (`quorum_timeout`, `patience`)."""
    sync_timeout: Duration = 60_000
    """For loading one version of the weights into one rollout."""
    unhealthy_timeout: Duration = 15_000
    """How long a rollout may fail its health checks."""
    start_timeout: Duration = 300_000
    """From the start of a server to its first good answer: an engine loads the model and warms up."""

    @property
    def ranks(self) -> int:
        """Of the trainer, over all tasks."""
        return self.actor_tasks * self.actor_procs

    def for_programs(self) -> str:
        """As JSON, without what only shapes the group."""
        return self.model_dump_json(exclude=set(OF_THE_GROUP))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """What `build` passed to this program. KeyError outside of a group."""
        return cls.model_validate_json(environment[cls.variable])


def common_faults(config: Settings) -> Iterator[Fault]:
    """What of the common part does not go together."""
    if config.request_timeout >= config.hang_timeout:
        expected = f"less than `hang_timeout`, {config.hang_timeout / 1_000:g} s: an actor that waits is silent"
        yield Fault(("request_timeout",), config.request_timeout, expected)
    if config.device == "gpu" and config.patience < config.start_timeout:
        expected = f"at least `start_timeout`, {config.start_timeout / 1_000:g} s: a server that failed is away that long"
        yield Fault(("patience",), config.patience, expected)
    waits, name = max((getattr(config, name), name) for name in ("quorum_timeout", "hang_timeout", "patience"))
    if config.no_progress_timeout <= waits:
        expected = f"more than `{name}`, {waits / 1_000:g} s: the actor may wait that long"
        yield Fault(("no_progress_timeout",), config.no_progress_timeout, expected)
    if config.min_rollouts > config.rollouts:
        yield Fault(("min_rollouts",), config.min_rollouts, f"at most `rollouts`, {config.rollouts}")
    if config.max_rollouts is not None and config.max_rollouts < config.rollouts:
        yield Fault(("max_rollouts",), config.max_rollouts, f"at least `rollouts`, {config.rollouts}")
    if config.device == "cpu" and config.tensor_parallel > 1:
        yield Fault(("tensor_parallel",), config.tensor_parallel, "1 with `device` cpu")
    if config.tensor_parallel > config.gpus_per_host and config.tensor_parallel % config.gpus_per_host:
        expected = f"at most `gpus_per_host`, {config.gpus_per_host}, or a multiple: whole hosts"
        yield Fault(("tensor_parallel",), config.tensor_parallel, expected)
    for key in ("ref_gpus", *(name for name in type(config).model_fields if name.endswith("_procs"))):
        if config.device == "gpu" and getattr(config, key) > config.gpus_per_host:
            yield Fault((key,), getattr(config, key), f"at most `gpus_per_host`, {config.gpus_per_host}")
