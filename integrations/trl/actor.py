"""`Actor`: what turns a script with a `GRPOTrainer` into the actor of a group."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

import torch
from accelerate.utils import broadcast_object_list, gather_object

from gangflow.integrations.trl.callback import GroupCallback
from gangflow.integrations.trl.publishing import Publisher
from gangflow.integrations.trl.rollouts import asked, columns, params_of, seed_of
from gangflow.member.context import Context
from gangflow.member.rollouts import REQUEST_TIMEOUT_S

NEEDED: Final = ("use_vllm", "vllm_importance_sampling_correction")


class Actor:
    """One per trainer. With several ranks (torchrun, accelerate) each makes its own, and the first one speaks to the group."""

    def __init__(
        self,
        context: Context,
        *,
        claim: str = "ckpt",
        dtype: torch.dtype | None = None,
        max_drift: float | None = None,
        max_mean_drift: float | None = None,
        skipped: Literal["fail", "mask"] = "fail",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """`claim`: the folder that the rollouts share, for weights. `dtype`: of those weights; None: as they are trained.

        `max_drift`, `max_mean_drift`: with `correct_importance`, the largest difference to the engines' log-probabilities that
        is rounding, of a token and in the mean over a step's; more fails the group.
        `skipped`: what a prompt does that the rollouts could not answer; "mask": nothing is learned from it. `timeout_s`: of
        a request to a rollout.
        """
        self.context = context
        self.callback = GroupCallback(context, max_drift, max_mean_drift)
        """For the trainer's `callbacks`."""
        self.publisher = Publisher(context, Path(context.claims[claim]) / "weights", dtype)
        self._skipped = skipped
        self._timeout_s = timeout_s

    def resume(self) -> str | None:
        """For `trainer.train(resume_from_checkpoint=…)`: the group's newest checkpoint, verified; None at the first start."""
        saved = self.context.resume()
        return saved.path if saved is not None else None

    def rollout_func(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """For the trainer's `rollout_func`: publishes the policy if it is a new one, then has the group's rollouts sample it.

        `prompts`: those of this rank, texts or messages, each as often as it wants completions. Returns TRL's columns for them.
        Evaluations are sampled, too, but not committed.
        """
        training = bool(trainer.model.training)
        tokens = gather_object(_tokens(trainer, prompts))
        counts = gather_object([len(prompts)])
        self.publisher.ensure(trainer, tokens[0])
        made: list[Any] = [None]
        if trainer.accelerator.is_main_process:
            made = [self._sampled(trainer, tokens, training)]
        whole: dict[str, list[Any]] = broadcast_object_list(made, from_process=0)[0]
        first = sum(counts[: trainer.accelerator.process_index])
        return {name: rows[first : first + len(prompts)] for name, rows in whole.items()}

    def correct_importance(self, trainer: Any) -> None:
        """Have TRL correct for what differs between trainer and engines (`vllm_importance_sampling_*`), as it does for its own
        vLLM, and log the difference. Call it once, before `train`; the trainer was made with `use_vllm=False`.

        ValueError when this TRL has no such correction.
        """
        missing = [name for name in NEEDED if not hasattr(trainer, name)]
        if missing or trainer.use_vllm:
            raise ValueError(
                f"correct_importance: a GRPOTrainer with use_vllm=False (missing: {', '.join(missing) or 'nothing'})"
            )
        trainer.use_vllm = True
        trainer.vllm_generation = _Engines()
        trainer._last_loaded_step = -1

    def _sampled(self, trainer: Any, tokens: list[list[int]], training: bool) -> dict[str, list[Any]]:
        arguments, step = trainer.args, int(trainer.state.global_step)
        copies = trainer.num_generations if training else trainer.num_generations_eval
        batch = asked(tokens, copies)
        if training and any(question.count != copies for question in batch):
            raise ValueError(f"a batch of {len(tokens)} prompts: expected each {copies} times in a row")
        params = params_of(arguments, trainer.eos_token_ids)
        groups: list[Any] = [None] * len(batch)
        for count in sorted({question.count for question in batch}):
            numbers = [number for number, question in enumerate(batch) if question.count == count]
            found = self.context.rollouts.generate(
                [
                    {"token_ids": list(batch[number].token_ids), "seed": seed_of(arguments.seed, step, number)}
                    for number in numbers
                ],
                count,
                params,
                step if training else None,
                timeout_s=self._timeout_s,
            )
            for number, group in zip(numbers, found, strict=True):
                groups[number] = group
        return columns(batch, groups, filler=int(trainer.eos_token_ids[0]), mask=self._skipped == "mask")


class _Engines:
    """In the place of TRL's own vLLM, which it would bring the weights to before it calls `rollout_func`."""

    def sync_weights(self) -> None:
        """`rollout_func` has done it by the time that somebody samples."""


def _tokens(trainer: Any, prompts: list[Any]) -> list[list[int]]:
    """The prompts as the trainer itself would tokenize them: messages by the chat template, with the system's part."""
    ids, images, _ = trainer._tokenize_prompts(prompts)
    if images is not None and any(images):
        raise ValueError("prompts with images: engines are asked by token ids, which carry none")
    return [[int(token) for token in row] for row in ids]
