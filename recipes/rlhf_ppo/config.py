"""What can be set about RLHF with PPO. The defaults are those of the preset `tiny`: this machine, without a GPU.

Imports neither torch nor vLLM: `render` and submission need only this.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from gangflow.recipes.lm.settings import Count, Natural, Positive, Settings, Weight, common_faults
from gangflow.recipes.rlhf_ppo.adaptive_kl import LARGEST_ERROR
from gangflow.recipes.services.serving import LONGEST_BODY
from gangflow.specs.base import Name, Text, Whole, check
from gangflow.specs.faults import Fault
from gangflow.specs.quantity import Cpu, Duration, Memory

VARIABLE: Final = "RLHF_CONFIG"
"""The environment variable by which the programs get their configuration, as JSON."""
CLERK: Final = "clerk"
"""The model that is made on the spot: a third of a million parameters that talk like the clerks of `task`."""
COUNTER: Final = "counter"
"""The preferences that the recipe makes: orders at a counter."""

_OF_A_REQUEST: Final = 32
"""Bytes at most of what else a request says of each reply."""

Fraction = Annotated[float, Field(ge=0, le=1)]
Below1 = Annotated[float, Field(ge=0, lt=1)]


class Config(Settings):
    """RLHF with PPO: vLLM rollouts, a torch policy and critic, a reward model that is trained first."""

    variable: ClassVar[str] = VARIABLE

    # --- models and data ---------------------------------------------------------------------------------------------
    model: Annotated[Text, Field(min_length=1)] = CLERK
    """The first policy, which is the reference, too: `clerk`, or the absolute path of a model folder as the hosts see it."""
    critic_model: Text = ""
    """Whose trunk the critic begins with (a path, read in place); empty: the first policy's."""
    reward_base: Text = ""
    """Whose trunk the reward model begins with, likewise; empty: the first policy's."""
    reward_model: Text = ""
    """A reward model that is trained already (a sequence classifier with one label, read in place); empty: it is trained."""
    data: Annotated[Text, Field(min_length=1)] = COUNTER
    """`counter`, or the absolute path of a JSON-lines file of preference pairs: `prompt`, `chosen`, `rejected`."""
    split_seed: Natural = 0
    """Which prompts are held out, with all of their pairs."""
    seed: Natural = 0
    """Of prompts drawn, samples, and all that is random in training."""

    # --- the reward model --------------------------------------------------------------------------------------------
    pairs: Count = 4_000
    """Of `counter`: how many are trained on; a file's are all that it has."""
    held_out_pairs: Count = 400
    """At most so many are measured before and after."""
    reward_epochs: Count = 2
    """Passes over the pairs."""
    reward_batch: Count = 16
    """Pairs of one optimizer step."""
    reward_learning_rate: Positive = 1e-3
    """At the start; it falls to 0 in a line."""

    # --- a step ------------------------------------------------------------------------------------------------------
    steps: Count = 40
    """Of the run: each samples, scores, trains policy and critic, and publishes once."""
    prompts: Count = 64
    """Per step."""
    samples: Count = 2
    """Replies to each prompt."""
    max_tokens: Annotated[Whole, Field(ge=2)] = 28
    """Of a reply."""
    max_prompt_tokens: Count = 64
    """A prompt with more is refused at the start."""
    discount: Fraction = 1.0
    """γ of generalised advantage estimation."""
    trace: Fraction = 0.95
    """λ of it."""
    unfinished_score: Annotated[float, Field(allow_inf_nan=False)] | None = -3.0
    """The score of a reply that did not come to its end within `max_tokens`; null: what the reward model says of it."""
    score_clip: Positive = 10.0
    """Scores, which have mean 0 and variance 1 over the pairs' replies, are cut off there."""
    kl_weight: Weight = 0.1
    """β at the start: of a nat of KL to the reference, in units of score."""
    kl_target: Weight = 4.0
    """Nats per reply that β is steered towards; 0: it stays as it is."""
    kl_horizon: Positive = 2_000.0
    """Samples over which an error of 1 would move β by a factor e."""

    # --- the policy --------------------------------------------------------------------------------------------------
    epochs: Count = 2
    """Passes over a step's samples."""
    minibatches: Count = 2
    """Optimizer steps in a pass: a step's samples are split into so many."""
    micro_batch: Count = 128
    """Samples of one forward and backward, of policy, critic, reward model and reference."""
    clip: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """The ratio of new to old probability is clipped to 1 ± this."""
    importance_cap: Annotated[float, Field(ge=1)] = 2.0
    """Largest factor by which a token is corrected for the engine's probability not being quite the trainer's."""
    learning_rate: Positive = 2e-4
    """Of the policy's AdamW, after the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """From `learning_rate` after the warm-up: it stays, or falls to `min_learning_rate` at the last step. The critic's, too."""
    min_learning_rate: Weight = 0.0
    """At the last step, unless `schedule` is constant; the critic's falls by the same factor."""
    warmup: Natural = 0
    """Steps over which the learning rates rise from 0."""
    beta1: Below1 = 0.9
    """Of AdamW, of policy and critic: how much of the mean of gradients is kept in an optimizer step."""
    beta2: Below1 = 0.99
    """Of AdamW, of policy and critic: how much of the mean of squared gradients is kept in an optimizer step."""
    weight_decay: Weight = 0.0
    """Of AdamW, of policy and critic: per optimizer step, times the learning rate, of every weight."""
    grad_clip: Positive = 1.0
    """Largest norm of a gradient; a larger one is scaled down to it. Of all models."""

    # --- the critic --------------------------------------------------------------------------------------------------
    critic_epochs: Count = 2
    """Passes over a step's samples."""
    critic_minibatches: Count = 2
    """Optimizer steps in a pass."""
    critic_learning_rate: Positive = 1e-3
    """Of the critic's AdamW, after the warm-up."""
    value_clip: Positive = 0.2
    """How far a value may move in one step, in units of score."""

    # --- precision and memory ----------------------------------------------------------------------------------------
    checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, a third more time."""
    sharding: Literal["replicate", "full"] = "replicate"
    """Over a member's ranks: each has all weights, or (`full`, FSDP2) weights, gradients and optimizer are split over them."""

    # --- measuring and saving ----------------------------------------------------------------------------------------
    checkpoint_every: Count = 5
    """Steps: what a killed actor repeats at most, and a killed critic catches up with."""
    evaluate_every: Count = 10
    """Steps between measurements on held-out prompts."""
    evaluate_prompts: Count = 200
    """Held-out prompts at most that are measured."""
    evaluate_samples: Count = 4
    """Replies to each of them, drawn with the same seeds each time."""
    request_timeout: Duration = 60_000
    """For one request, to a rollout (its share of a step) or to one of them; longer than an update of the critic. A rollout
    that answers its health checks and no request within it, three times in a row, counts as hung."""
    reward_timeout: Duration = 600_000
    """For training the reward model."""

    # --- the group ---------------------------------------------------------------------------------------------------
    name: Name = "rlhf-ppo"
    """Of the group."""
    critic_procs: Count = 1
    """Ranks of the critic, all in one task."""
    reward_procs: Count = 1
    """Ranks of a reward model, all in one task."""
    reward_replicas: Count = 1
    """The first one trains the model, the others wait for it."""
    critic_cpu: Cpu = 1_000
    """Per task."""
    critic_mem: Memory = 2_048
    """Per task."""
    reward_cpu: Cpu = 500
    """Per task."""
    reward_mem: Memory = 2_048
    """Per task."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check(list(_faults(self)))
        return self

    @property
    def batch(self) -> int:
        """Replies of a step."""
        return self.prompts * self.samples

    @property
    def update_bytes(self) -> int:
        """Of the largest request for an update of the critic: its tokens, and two numbers for each of a reply, as base64."""
        return self.batch * (self.max_prompt_tokens + 3 * self.max_tokens) * 4 * 4 // 3 + _OF_A_REQUEST * self.batch


def _faults(config: Config) -> Iterator[Fault]:
    yield from common_faults(config)
    if config.max_prompt_tokens + config.max_tokens > config.max_model_len:
        expected = f"at least `max_prompt_tokens` + `max_tokens`, {config.max_prompt_tokens + config.max_tokens}"
        yield Fault(("max_model_len",), config.max_model_len, expected)
    if config.model == CLERK:
        if config.model_sha256:
            yield Fault(("model_sha256",), config.model_sha256, f"none for the model `{CLERK}`, which is made on the spot")
    elif not config.model.startswith("/"):
        expected = f"`{CLERK}`, or an absolute path: the hosts read it, not this process"
        yield Fault(("model",), config.model, expected, CLERK)
    for key in ("critic_model", "reward_base", "reward_model"):
        path = getattr(config, key)
        if path and not path.startswith("/"):
            yield Fault((key,), path, "an absolute path, or nothing")
    if config.reward_model and config.reward_base:
        yield Fault(("reward_base",), config.reward_base, "none beside `reward_model`, which is not trained any more")
    if config.data != COUNTER and not config.data.startswith("/"):
        yield Fault(("data",), config.data, f"`{COUNTER}`, or the absolute path of a file of preference pairs", COUNTER)
    if config.model == CLERK and config.data == COUNTER and config.split_seed:
        expected = f"0 with the model `{CLERK}`, which has learned to talk by the prompts that are trained on with 0"
        yield Fault(("split_seed",), config.split_seed, expected)
    if config.schedule != "constant" and config.min_learning_rate > config.learning_rate:
        yield Fault(("min_learning_rate",), config.min_learning_rate, f"at most `learning_rate`, {config.learning_rate}")
    if config.kl_target:
        yield from _faults_of_steering(config)
    if config.update_bytes > LONGEST_BODY:
        expected = f"less in a step: the critic's update may have {config.update_bytes} bytes, and takes {LONGEST_BODY}"
        yield Fault(("prompts",), config.prompts, expected)
    if config.batch % config.ranks:
        yield Fault(("prompts",), config.prompts, f"`prompts` × `samples` divisible by the {config.ranks} ranks of the actor")
    if config.batch < 2:
        yield Fault(("prompts",), config.prompts, "two replies a step at least: advantages are relative to each other")


def _faults_of_steering(config: Config) -> Iterator[Fault]:
    if not config.kl_weight:
        yield Fault(("kl_weight",), config.kl_weight, "more than 0 with a `kl_target`: 0 stays 0, by whatever it is multiplied")
    least = LARGEST_ERROR * config.batch
    if config.kl_horizon <= least:
        expected = f"more than {LARGEST_ERROR:g} × `prompts` × `samples`, {least:g}: one step may not turn the penalty's sign"
        yield Fault(("kl_horizon",), config.kl_horizon, expected)
