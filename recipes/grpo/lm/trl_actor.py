"""The trainer, by TRL. Run as `python -m gangflow.recipes.grpo.lm.trl_actor`, or by torchrun for several ranks.

TRL's `GRPOTrainer` does what a trainer does; `gangflow.integrations.trl` makes it the actor of this group; what is here is the
recipe's: the problems, the verifier's rewards, and the accuracy on held-out problems. `actor` does all of it itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import gangflow
from gangflow.errors import Problem as SpecProblem
from gangflow.errors import SpecError
from gangflow.integrations.trl import Actor
from gangflow.integrations.trl.callback import DRIFT
from gangflow.member.context import Context
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.trl_settings import arguments, updates
from gangflow.recipes.lm import measuring, problems
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.claim import MODEL
from gangflow.recipes.lm.judging import Judges
from gangflow.recipes.lm.problems import Problem
from gangflow.recipes.services.ending import ended, leave
from gangflow.recipes.services.rules import CKPT, WRONG_POLICY
from gangflow.recipes.services.run_folder import RunFolder

RESULT: Final = "result"
"""The group's key-value that holds what the run ended with."""
LOGGED: Final = {"reward": "reward", "exact": "exact", "kl": "kl", "grad_norm": "norm", "learning_rate": "rate", DRIFT: "drift"}
"""TRL's names → those of the recipe's metrics."""


class Verifier:
    """TRL's reward function: the group's `reward` server."""

    __name__ = "verifier"

    def __init__(self, judges: Judges) -> None:
        self._judges = judges

    def __call__(
        self, completions: Sequence[Any], number: Sequence[int], skipped: Sequence[bool], log_metric: Any, **_: Any
    ) -> list[float | None]:
        """None for what was skipped: it is not scored."""
        asked = [place for place, out in enumerate(skipped) if not out]
        verdicts = self._judges.verdicts([number[place] for place in asked], [text_of(completions[place]) for place in asked])
        if asked:
            log_metric("exact", sum(verdicts.exact) / len(asked))
        rewards: list[float | None] = [None] * len(completions)
        for place, reward in zip(asked, verdicts.rewards, strict=True):
            rewards[place] = reward
        return rewards


def text_of(completion: Any) -> str:
    """A completion's text: TRL gives texts, or messages where prompts are messages."""
    return str(completion if isinstance(completion, str) else completion[0]["content"])


class Recorder(TrainerCallback):
    """Metrics and held-out accuracy, in the recipe's folder and in heartbeats."""

    def __init__(
        self, config: LmConfig, context: Context, actor: Actor, held_out: Sequence[Problem], folder: RunFolder | None
    ) -> None:
        """`folder`: None on all ranks but the first."""
        self._config = config
        self._context = context
        self._actor = actor
        self._held_out = held_out
        self._folder = folder
        self.trainer: Any = None
        """Set once it is made."""
        self.measured: dict[int, float | None] = {}
        """Step → accuracy."""

    def first(self) -> float | None:
        """The accuracy before the first step, whichever life of the actor measured it."""
        if 0 in self.measured or self._folder is None:
            return self.measured.get(0)
        return (self._folder.recorded(0) or {}).get("accuracy")

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Behind the last step's checkpoint: what is measured here is published, too."""
        step, between = divmod(state.global_step, updates(self._config))
        if not between and step % self._config.evaluate_every == 0:
            self._measure(step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The final policy."""
        self._measure(state.global_step // updates(self._config))

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """A line for a step."""
        found = {ours: (logs or {})[theirs] for theirs, ours in LOGGED.items() if theirs in (logs or {})}
        if "reward" in found:
            self._record({"step": state.global_step // updates(self._config), **found})

    def _measure(self, step: int) -> None:
        if step in self.measured:
            return
        tokenizer = self.trainer.processing_class
        prompts = [{"token_ids": models.prompt_tokens(tokenizer, problem)} for problem in self._held_out]
        self._actor.publisher.ensure(self.trainer, prompts[0]["token_ids"])
        self.measured[step] = None
        if self._folder is None:
            return
        made = measuring.answers(
            self._context,
            prompts,
            {"max_tokens": self._config.max_tokens, "stop_token_ids": list(self.trainer.eos_token_ids)},
            int(self.trainer.state.global_step),
            timeout_s=self._config.request_timeout / 1_000,
            patience_s=self._config.quorum_timeout / 1_000,
        )
        self.measured[step] = measuring.accuracy(
            lambda problem, output: problems.exact(
                problem.answer, str(tokenizer.decode(output["token_ids"], skip_special_tokens=True))
            ),
            self._held_out,
            made,
        )
        self._context.heartbeat(accuracy=self.measured[step])
        self._record({"step": step, "accuracy": self.measured[step]})

    def _record(self, entry: dict[str, Any]) -> None:
        if self._folder is not None:
            stamped = {**entry, "at_ms": time.time_ns() // 1_000_000, "incarnation": self._context.incarnation}
            self._folder.record(stamped)


def dataset_of(trained: Sequence[Problem], tokenizer: Any) -> Any:
    """The problems as TRL takes them: prompts as messages where the model chats, and each one's number."""
    return Dataset.from_list([{"prompt": prompt_of(problem, tokenizer), "number": problem.number} for problem in trained])


def prompt_of(problem: Problem, tokenizer: Any) -> Any:
    """What TRL makes the same tokens of as `models.prompt_tokens`."""
    if problem.question and getattr(tokenizer, "chat_template", None):
        return [{"role": "user", "content": f"{problem.question}\n{models.ANSWER_SO}"}]
    return problem.prompt


def check_problems(config: LmConfig, trained: Sequence[Problem], held_out: Sequence[Problem], tokenizer: Any) -> None:
    """What would fail or never begin in the middle of the run is said now: SpecError, BadPrompt."""
    if config.prompts > len(trained):
        # TRL draws a step's prompts from one pass over the problems, and drops what does not fill a step: all of them.
        expected = f"at most {len(trained)} with TRL, the problems of {config.problems} that are trained on"
        raise SpecError([SpecProblem("prompts", str(config.prompts), expected)])
    for problem in (*trained, *held_out):
        tokens = models.prompt_tokens(tokenizer, problem)
        problems.check_length(f"problem {problem.number}", len(tokens), config.max_prompt_tokens)


def train(config: LmConfig, context: Context) -> dict[str, Any]:
    """Train to the end; returns the result, which is also in the folder and in the group's key-value `result`."""
    began = time.monotonic()
    claim = Path(context.claims[CKPT])
    trained, held_out = problems.split(problems.load(config.problems), config.split_seed)
    tokenizer = models.tokenizer_of(context.claims[MODEL])
    check_problems(config, trained, held_out[: config.evaluate_prompts], tokenizer)
    args = GRPOConfig(**arguments(config, str(claim / "trainer")))
    leads = args.process_index == 0
    folder = RunFolder(claim, context.incarnation) if leads else None
    actor = Actor(
        context,
        claim=CKPT,
        dtype=torch.bfloat16 if config.dtype == "bfloat16" else None,
        max_drift=config.max_drift,
        max_mean_drift=config.max_mean_drift,
        skipped="mask",
        timeout_s=config.request_timeout / 1_000,
    )
    asked = Judges(
        lambda member: [endpoint.url for endpoint in context.endpoints(member)],
        reference="",
        patience_s=config.patience / 1_000,
        request_timeout_s=config.request_timeout / 1_000,
        waiting=lambda reason: context.heartbeat(waiting=reason[:200]),
    )
    with closing(asked) as judges:
        recorder = Recorder(config, context, actor, held_out[: config.evaluate_prompts], folder)
        recorder.trainer = trainer = GRPOTrainer(
            model=context.claims[MODEL],
            reward_funcs=Verifier(judges),
            args=args,
            train_dataset=dataset_of(trained, tokenizer),
            processing_class=tokenizer,
            rollout_func=actor.rollout_func,
            callbacks=[actor.callback, recorder],
        )
        actor.correct_importance(trainer)
        resumed = actor.resume()
        trainer.train(resume_from_checkpoint=resumed)
    result = {
        "steps": trainer.state.global_step // updates(config),
        "accuracy": list(recorder.measured.values())[-1],
        "first_accuracy": recorder.first(),
        "held_out": len(held_out[: config.evaluate_prompts]),
        "seconds": round(time.monotonic() - began, 3),
        "resumed_at": int(resumed.rpartition("-")[2]) // updates(config) if resumed else 0,
        "incarnation": context.incarnation,
        "samples": context.rollouts.counters.document(),
    }
    if folder is not None:
        folder.finish(result)
        context.client.kv_put(context.group, RESULT, json.dumps(result))
        context.heartbeat(step=result["steps"], accuracy=result["accuracy"])
    return result


def main() -> int:
    """Train; the exit code says whether a restart can help."""
    return ended(
        lambda: print(json.dumps(train(LmConfig.from_environment(), gangflow.context())), flush=True), for_good=WRONG_POLICY
    )


if __name__ == "__main__":
    leave(main())
