"""A step's samples: what is asked of the rollouts, and what their answers are once verifier and reference have judged them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gangflow.member.context import Context
from gangflow.member.samples import PromptSamples
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.learner import Batch, advantages
from gangflow.recipes.lm.batch import outputs, pack
from gangflow.recipes.lm.drawing import drawn, sample_seed, sampled
from gangflow.recipes.lm.judging import Judges
from gangflow.recipes.lm.model import prompt_tokens
from gangflow.recipes.lm.problems import Problem, check_length


@dataclass(frozen=True, slots=True)
class Judged:
    """A step's samples, ready to be trained on, and what is told about them."""

    batch: Batch
    reward: float
    """Mean, 0 … 2."""
    exact: float
    """Fraction of right answers."""
    length: float
    """Mean tokens of an answer."""
    lag: float
    """Mean of how many versions older than the step's the oldest token of a sample is."""
    mixed: int
    """Samples that more than one version made: they went on over a push."""
    makers: tuple[str, ...]
    """`slot/incarnation` of each sample."""
    seconds: dict[str, float]
    """Spent on `generate` and `judge`."""


class Sampler:
    """Asks for the samples of any step; called from several threads where steps overlap."""

    def __init__(
        self,
        config: LmConfig,
        context: Context,
        judges: Judges,
        tokenizer: Any,
        stops: Sequence[int],
        trained: Sequence[Problem],
    ) -> None:
        self._config = config
        self._context = context
        self._judges = judges
        self._tokenizer = tokenizer
        self._trained = trained
        self._tokens: dict[int, list[int]] = {}
        self.params = {
            "temperature": config.temperature,
            "max_tokens": config.max_tokens,
            "stop_token_ids": list(stops),
        }

    def tokens(self, problem: Problem) -> list[int]:
        """A problem's prompt. BadPrompt when it is too long."""
        if problem.number not in self._tokens:
            made = prompt_tokens(self._tokenizer, problem)
            check_length(f"problem {problem.number}", len(made), self._config.max_prompt_tokens)
            self._tokens[problem.number] = made
        return self._tokens[problem.number]

    def answered(self, problem: Problem) -> list[int]:
        """Its prompt and its right answer: a text that a policy is not surprised by, unlike prompts alone."""
        return [*self.tokens(problem), *self._tokenizer(text=problem.answer, add_special_tokens=False)["input_ids"]]

    def text(self, output: Any) -> str:
        """What an output says."""
        return str(self._tokenizer.decode(output["token_ids"], skip_special_tokens=True))

    def ask(self, problems: Sequence[Problem], position: int) -> list[dict[str, Any]]:
        """Prompts for the rollouts; `position`: how many were drawn before, of which each one's seed is made."""
        seeds = [sample_seed(self._config.seed, position + number) for number in range(len(problems))]
        return [{"token_ids": self.tokens(problem), "seed": seed} for problem, seed in zip(problems, seeds, strict=True)]

    def sample(self, step: int) -> Judged:
        """The step's problems sampled by the rollouts and judged; a skipped prompt is left out, never scored."""
        config = self._config
        position = step * config.prompts
        problems = drawn(self._trained, position, config.prompts, config.seed)
        began = time.monotonic()
        with self._context.span(f"generate {step}", step=step):
            groups = self._context.rollouts.generate(
                self.ask(problems, position),
                config.samples,
                self.params,
                step=step,
                timeout_s=config.request_timeout / 1_000,
                oldest=max(0, step - config.max_staleness),
            )
        generated = time.monotonic()
        with self._context.span(f"judge {step}", step=step):
            judged = self.judge(step, groups, problems)
        judged.seconds.update(generate=generated - began, judge=time.monotonic() - generated)
        return judged

    def judge(self, step: int, groups: Sequence[PromptSamples], problems: Sequence[Problem]) -> Judged:
        """Rewards, advantages and the reference's log-probabilities of what was sampled."""
        kept = sampled(f"step {step}", groups, problems)
        samples = [sample for _, group in kept for sample in group.samples]
        made = [sample.output for sample in samples]
        answers, logprobs = outputs(made)
        prompts = [self.tokens(problem) for problem, group in kept for _ in group.samples]
        verdicts = self._judges.verdicts(
            [problem.number for problem, group in kept for _ in group.samples], [self.text(output) for output in made]
        )
        reference = None
        if self._config.kl_weight:
            weighed = self._judges.reference(prompts, answers, self._config.temperature)
            reference = pack(prompts, answers, weighed).sampled
        versions = [_versions(output) for output in made]
        return Judged(
            Batch(
                pack(prompts, answers, logprobs),
                advantages(verdicts.rewards, self._config.samples),
                reference,
                torch.tensor([found == {step} for found in versions]),
            ),
            reward=sum(verdicts.rewards) / len(made),
            exact=sum(verdicts.exact) / len(made),
            length=sum(map(len, answers)) / len(made),
            lag=sum(step - min(found) for found in versions) / len(made),
            mixed=sum(len(found) > 1 for found in versions),
            makers=tuple(f"{sample.rollout}/{sample.incarnation}" for sample in samples),
            seconds={},
        )


def _versions(output: Any) -> set[int]:
    """Of the weights that made an output's tokens; ValueError when it does not say."""
    try:
        found = {int(version) for version, start, end in output["versions"] if start < end}
    except (TypeError, KeyError, ValueError) as broken:
        raise ValueError(f"an output that does not say which weights made it: {str(output)[:200]}") from broken
    if not found:
        raise ValueError(f"an output of no weights: {str(output)[:200]}")
    return found
