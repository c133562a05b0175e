"""What can be set about GRPO on a language model. The defaults are those of the preset `tiny`: this machine, without a GPU.

Imports neither torch nor vLLM: `render` and submission need only this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from gangflow.recipes.lm.inputs import unknown_problems
from gangflow.recipes.lm.interpreter import trainers_python
from gangflow.specs.base import Name, Spec, Text, Whole, Word, check
from gangflow.specs.faults import Fault
from gangflow.specs.quantity import Cpu, Duration, Memory

VARIABLE: Final = "GRPO_CONFIG"
"""The environment variable by which the programs get their configuration, as JSON."""
TINY: Final = "tiny"
"""The model that is made on the spot: a third of a million parameters, characters as tokens."""

_OF_THE_GROUP = (
    *("name", "priority", "python", "vllm", "max_restarts", "reward_replicas", "ref_replicas"),
    *("actor_cpu", "actor_mem", "rollout_cpu", "rollout_mem", "reward_cpu", "reward_mem", "ref_cpu", "ref_mem"),
    *("max_rollouts", "start_timeout", "level", "pack_actor", "vllm_args"),
)

Count = Annotated[Whole, Field(ge=1)]
Natural = Annotated[Whole, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class LmConfig(Spec):
    """GRPO with vLLM rollouts and a torch or TRL trainer."""

    engine: Literal["vllm"] = "vllm"
    """Who generates."""
    trainer: Literal["torch", "trl"] = "torch"
    """Who trains: the recipe's own loop, or TRL's `GRPOTrainer` by `gangflow.integrations.trl`."""
    device: Literal["cpu", "gpu"] = "cpu"
    """What actor, ref and rollouts compute on; `gpu` asks for `actor_procs`, `ref_gpus` and `tensor_parallel` devices."""

    # --- what is learned, of what ------------------------------------------------------------------------------------
    model: Annotated[Text, Field(min_length=1)] = TINY
    """The first policy: `tiny`, which is made on the spot, or the absolute path of a model folder as the hosts see it."""
    model_sha256: Text = ""
    """With a path: its checksum, to copy it into the cache of each host and verify it; without, it is read in place."""
    ref_model: Text = ""
    """The frozen policy of the KL term; empty: the first policy. A path like `model`, always read in place."""
    problems: Annotated[Text, Field(min_length=1)] = "spell_backward"
    """A problem set that the recipe ships, or the absolute path of a JSON-lines file with `prompt` and `answer`."""
    split_seed: Natural = 0
    """Which problems are held out."""
    seed: Natural = 0
    """Of problems drawn, samples, and all that is random in training."""

    # --- a step ------------------------------------------------------------------------------------------------------
    steps: Count = 80
    """Of the run: each samples, judges, trains and publishes once."""
    prompts: Count = 64
    """Per step."""
    samples: Annotated[Whole, Field(ge=2)] = 8
    """Per prompt: the group whose mean reward an answer is measured against."""
    max_tokens: Count = 12
    """Of an answer."""
    max_prompt_tokens: Count = 64
    """A problem with more is refused at the start."""
    temperature: Positive = 1.0
    """At which answers are sampled and their probabilities compared; the held-out accuracy is measured at 0."""
    epochs: Count = 2
    """Passes over a step's samples."""
    minibatches: Count = 1
    """Optimizer steps in a pass: a step's samples are split into so many."""
    micro_batch: Count = 128
    """Samples of one forward and backward; the gradient of a minibatch is accumulated over as many as it takes."""
    learning_rate: Positive = 3e-4
    """Of AdamW, after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    """From `learning_rate` after the warm-up: it stays, or falls to `min_learning_rate` at the last step."""
    min_learning_rate: Weight = 5e-5
    """At the last step, unless `schedule` is constant."""
    warmup: Natural = 5
    """Steps over which the learning rate rises from 0."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of AdamW: how much of the mean of gradients is kept in an optimizer step."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of AdamW: how much of the mean of squared gradients is kept in an optimizer step."""
    weight_decay: Weight = 0.0
    """Of AdamW: per optimizer step, times the learning rate, of every weight."""
    grad_clip: Positive = 1.0
    """Largest norm of a gradient; a larger one is scaled down to it."""
    clip_low: Annotated[float, Field(gt=0, lt=1)] = 0.8
    """Ratio of a token's new to its old probability below which it is not made less likely by a step."""
    clip_high: Annotated[float, Field(gt=1)] = 1.28
    """The same above which it is not made more likely."""
    kl_weight: Weight = 0.01
    """Of the k3 estimate of the KL divergence to `ref`; 0 asks no reference."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest factor by which a token is corrected for the policy that sampled it being an older one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that engines and reference compute with."""
    checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    sharding: Literal["replicate", "full"] = "replicate"
    """Over the actor's ranks: each has all weights, or (`full`, FSDP2) weights, gradients and optimizer are split over them."""

    # --- asynchrony --------------------------------------------------------------------------------------------------
    max_staleness: Natural = 0
    """Versions that a sample may lag behind; 0: rollouts wait while the actor trains."""
    pause: Literal["wait", "keep", "abort"] = "wait"
    """What a push does to requests in flight; `keep`: they go on with the new weights (needs `max_staleness` of 1 at least)."""

    # --- measuring and saving ----------------------------------------------------------------------------------------
    checkpoint_every: Count = 5
    """Steps: what a killed actor repeats at most."""
    keep_checkpoints: Count = 2
    """Newest ones that stay; older ones are removed."""
    evaluate_every: Count = 10
    """Steps between measurements of the held-out accuracy."""
    evaluate_prompts: Count = 200
    """Held-out problems at most that are measured."""
    max_drift: Positive = 1e-3
    """Largest |trainer − engine| log-probability of a token of the newest version that is rounding; more fails the run."""
    max_mean_drift: Positive | None = None
    """The same for the mean over a step's tokens; null: not looked at. In bfloat16 it says more than the largest."""
    probe_tolerance: Positive = 1e-4
    """Largest difference of the engine's log-probabilities from the trainer's after a push; more keeps the engine out."""
    probe_mean_tolerance: Positive | None = None
    """The same for the mean over the probe's tokens; null: not looked at."""
    patience: Duration = 360_000
    """How long the actor asks a reward or reference server that does not answer: longer than a restart takes."""
    request_timeout: Duration = 60_000
    """For one request, to a rollout (its share of a step) or to one of them. A rollout that answers its health checks and no
    request within it, three times in a row, counts as hung."""

    # --- the group ---------------------------------------------------------------------------------------------------
    name: Name = "grpo"
    """Of the group."""
    priority: Natural = 50
    """Of the group, 0 to 1000: a higher one is placed first."""
    python: Annotated[Text, Field(min_length=1)] = Field(default_factory=trainers_python)
    """The interpreter of actor, reward and ref; gangflow, torch and transformers must be installed in it."""
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
    reward_replicas: Count = 1
    """Reward servers; a request goes to any of them."""
    actor_cpu: Cpu = 1_000
    """Per task."""
    actor_mem: Memory = 2_048
    """Per task."""
    rollout_cpu: Cpu = 1_000
    """Per task."""
    rollout_mem: Memory = 2_560
    """Per task."""
    reward_cpu: Cpu = 250
    """Per task."""
    reward_mem: Memory = 256
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

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check(list(_faults(self)))
        return self

    @property
    def ranks(self) -> int:
        """Of the trainer, over all tasks."""
        return self.actor_tasks * self.actor_procs

    def for_programs(self) -> str:
        """As JSON, without what only shapes the group."""
        return self.model_dump_json(exclude=set(_OF_THE_GROUP))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """What `build` passed to this program. KeyError outside of a group."""
        return cls.model_validate_json(environment[VARIABLE])


def _faults(config: LmConfig) -> Iterator[Fault]:
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
    if config.pause == "keep" and not config.max_staleness:
        yield Fault(("pause",), "keep", "wait or abort with `max_staleness` 0: what goes on over a push mixes two versions")
    yield from _trl_faults(config) if config.trainer == "trl" else ()
    if config.max_prompt_tokens + config.max_tokens > config.max_model_len:
        expected = f"at least `max_prompt_tokens` + `max_tokens`, {config.max_prompt_tokens + config.max_tokens}"
        yield Fault(("max_model_len",), config.max_model_len, expected)
    if config.schedule != "constant" and config.min_learning_rate > config.learning_rate:
        yield Fault(("min_learning_rate",), config.min_learning_rate, f"at most `learning_rate`, {config.learning_rate}")
    yield from unknown_problems("problems", config.problems)
    if config.model == TINY:
        if config.model_sha256:
            yield Fault(("model_sha256",), config.model_sha256, "none for the model `tiny`, which is made on the spot")
    elif not config.model.startswith("/"):
        yield Fault(("model",), config.model, "`tiny`, or an absolute path: the hosts read it, not this process", TINY)
    if config.ref_model and not config.ref_model.startswith("/"):
        yield Fault(("ref_model",), config.ref_model, "an absolute path, or nothing for the first policy")
    if config.prompts * config.samples % config.ranks:
        expected = f"`prompts` × `samples` divisible by the {config.ranks} ranks of the actor"
        yield Fault(("prompts",), config.prompts, expected)
    if config.device == "cpu" and config.tensor_parallel > 1:
        yield Fault(("tensor_parallel",), config.tensor_parallel, "1 with `device` cpu")
    if config.tensor_parallel > config.gpus_per_host and config.tensor_parallel % config.gpus_per_host:
        expected = f"at most `gpus_per_host`, {config.gpus_per_host}, or a multiple: whole hosts"
        yield Fault(("tensor_parallel",), config.tensor_parallel, expected)
    for key in ("actor_procs", "ref_gpus"):
        if config.device == "gpu" and getattr(config, key) > config.gpus_per_host:
            yield Fault((key,), getattr(config, key), f"at most `gpus_per_host`, {config.gpus_per_host}")


def _trl_faults(config: LmConfig) -> Iterator[Fault]:
    """What TRL's trainer has no setting for."""
    if config.max_staleness:
        yield Fault(("max_staleness",), config.max_staleness, "0 with TRL, which samples and trains in turn")
    if config.ref_model:
        yield Fault(("ref_model",), config.ref_model, "none with TRL, whose reference is the first policy")
    if config.keep_checkpoints < 2:
        yield Fault(("keep_checkpoints",), config.keep_checkpoints, "2 at least with TRL, which removes before it saved")
    if config.sharding != "replicate":
        expected = "replicate with TRL in this recipe; a script of your own may set TRL's `fsdp`"
        yield Fault(("sharding",), config.sharding, expected)
    if config.prompts * config.samples % (config.ranks * config.minibatches):
        expected = f"with TRL, `prompts` × `samples` divisible by {config.ranks} × {config.minibatches}"
        yield Fault(("minibatches",), config.minibatches, expected)
