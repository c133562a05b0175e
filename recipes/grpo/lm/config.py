"""What can be set about GRPO on a language model. The defaults are those of the preset `tiny`: this machine, without a GPU.

Imports neither torch nor vLLM: `render` and submission need only this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from gangflow.recipes.lm.inputs import unknown_problems
from gangflow.recipes.lm.settings import Count, Natural, Positive, Settings, Weight, common_faults
from gangflow.specs.base import Name, Text, Whole, check
from gangflow.specs.faults import Fault
from gangflow.specs.quantity import Cpu, Memory

VARIABLE: Final = "GRPO_CONFIG"
"""The environment variable by which the programs get their configuration, as JSON."""
TINY: Final = "tiny"
"""The model that is made on the spot: a third of a million parameters, characters as tokens."""


class LmConfig(Settings):
    """GRPO with vLLM rollouts and a torch or TRL trainer."""

    variable: ClassVar[str] = VARIABLE

    engine: Literal["vllm"] = "vllm"
    """Who generates."""
    trainer: Literal["torch", "trl"] = "torch"
    """Who trains: the recipe's own loop, or TRL's `GRPOTrainer` by `gangflow.integrations.trl`."""

    # --- what is learned, of what ------------------------------------------------------------------------------------
    model: Annotated[Text, Field(min_length=1)] = TINY
    """The first policy: `tiny`, which is made on the spot, or the absolute path of a model folder as the hosts see it."""
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
    evaluate_every: Count = 10
    """Steps between measurements of the held-out accuracy."""
    evaluate_prompts: Count = 200
    """Held-out problems at most that are measured."""

    # --- the group ---------------------------------------------------------------------------------------------------
    name: Name = "grpo"
    """Of the group."""
    reward_replicas: Count = 1
    """Reward servers; a request goes to any of them."""
    reward_cpu: Cpu = 250
    """Per task."""
    reward_mem: Memory = 256
    """Per task."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check(list(_faults(self)))
        return self


def _faults(config: LmConfig) -> Iterator[Fault]:
    yield from common_faults(config)
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
