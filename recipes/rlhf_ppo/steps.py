"""A step's replies: what is asked of the rollouts, and what is made of their answers once everybody has judged them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from gangflow.member.context import Context
from gangflow.member.samples import PromptSamples
from gangflow.recipes.lm.batch import Sequences, outputs, pack
from gangflow.recipes.lm.drawing import drawn, sample_seed, sampled
from gangflow.recipes.lm.drift import check_drift
from gangflow.recipes.lm.problems import Problem, check_length
from gangflow.recipes.rlhf_ppo.advantages import gae, sequence_kl, token_rewards, whiten
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.data import Truth
from gangflow.recipes.rlhf_ppo.texts import Texts

Rows = Sequence[Sequence[int]]


class Judging(Protocol):
    """Reward model and reference."""

    def scores(self, prompts: Rows, replies: Rows) -> list[float]: ...

    def reference(self, prompts: Rows, answers: Rows, temperature: float) -> list[list[float]]: ...


class Valuing(Protocol):
    """The critic."""

    def values(self, step: int, prompts: Rows, replies: Rows) -> list[list[float]]: ...


@dataclass(frozen=True, slots=True)
class Replies:
    """What was sampled in a step, reply by reply."""

    prompts: list[list[int]]
    texts: list[str]
    """Of the prompts, as people read them."""
    replies: list[list[int]]
    logprobs: list[list[float]]
    """The engine's."""
    finished: list[bool]
    """Whether it came to its end."""
    makers: tuple[str, ...]
    """`slot/incarnation` of each."""


@dataclass(frozen=True, slots=True)
class Experience:
    """A step's replies, ready to be trained on, and what is told about them."""

    sequences: Sequences
    old: Any
    """(n, t − 1): the policy's log-probabilities before the step."""
    gains: Any
    """(n, t − 1): whitened advantages."""
    values: Any
    """(n, t − 1): the critic's before the step."""
    returns: Any
    """(n, t − 1): what the critic is trained towards."""
    reward: float
    """Mean score of the reward model."""
    quality: float | None
    """Mean of the truth, which nobody is told; None where it is not known."""
    kl: float
    """Nats per reply."""
    explained: float
    """Of the returns' variance, how much the critic foresaw; below 0: nothing."""
    length: float
    """Mean tokens of a reply."""
    unfinished: float
    """Fraction that did not come to its end."""
    drift: float
    """Largest |trainer − engine| log-probability of a reply's token."""
    drifts: list[float]
    """The same for each reply."""
    makers: tuple[str, ...]
    seconds: dict[str, float]
    """Spent on `generate` and `judge`."""


def experience(
    made: Replies,
    *,
    old: Any,
    scores: Sequence[float],
    reference: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]],
    qualities: Sequence[float] | None,
    kl_weight: float,
    config: Config,
) -> Experience:
    """Put together what everybody said of a step's replies. EngineDrift when the engines sampled from another policy. Pure."""
    batch = pack(made.prompts, made.replies, made.logprobs)
    # A NaN is no rounding either.
    apart = torch.nan_to_num(torch.where(batch.answer, old - batch.sampled, 0.0).abs(), nan=torch.inf, posinf=torch.inf)
    check_drift(
        float(apart.max()), float(apart[batch.answer].mean()), at_most=config.max_drift, mean_at_most=config.max_mean_drift
    )
    given = torch.tensor(final_scores(scores, made.finished, config))
    before = pack(made.prompts, made.replies, reference).sampled
    valued = pack(made.prompts, made.replies, values).sampled
    rewards = token_rewards(given, old, before, batch.answer, kl_weight)
    gains, returns = gae(rewards, valued, batch.answer, config.discount, config.trace)
    spread = float(returns[batch.answer].var(correction=0))
    left = float((returns - valued)[batch.answer].var(correction=0))
    return Experience(
        sequences=batch,
        old=old,
        gains=whiten(gains, batch.answer),
        values=valued,
        returns=returns,
        reward=float(given.mean()),
        quality=sum(qualities) / len(qualities) if qualities else None,
        kl=float(sequence_kl(old, before, batch.answer).mean()),
        explained=1 - left / spread if spread else 0.0,
        length=sum(map(len, made.replies)) / len(made.replies),
        unfinished=1 - sum(made.finished) / len(made.finished),
        drift=float(apart.max()),
        drifts=apart.amax(1).tolist(),
        makers=made.makers,
        seconds={},
    )


def final_scores(scores: Sequence[float], finished: Sequence[bool], config: Config) -> list[float]:
    """The reward model's scores, cut off where they are out of all proportion; what is unfinished has a score of its own."""
    bound = config.score_clip
    kept = [max(-bound, min(bound, score)) for score in scores]
    if config.unfinished_score is None:
        return kept
    return [score if whole else config.unfinished_score for score, whole in zip(kept, finished, strict=True)]


class Sampler:
    """Asks rollouts, reward model, reference and critic for what a step needs."""

    def __init__(
        self,
        config: Config,
        context: Context,
        judges: Judging,
        critic: Valuing,
        texts: Texts,
        stops: Sequence[int],
        trained: Sequence[Problem],
        truth: Truth | None,
    ) -> None:
        self._config = config
        self._context = context
        self._judges = judges
        self._critic = critic
        self._texts = texts
        self._stops = list(stops)
        self._trained = trained
        self._truth = truth
        self._tokens: dict[int, list[int]] = {}
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="asks")
        # Policy and reference are compared at the temperature at which PPO's ratio is: 1.
        self.params = {"temperature": 1.0, "max_tokens": config.max_tokens, "stop_token_ids": self._stops}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    def tokens(self, problem: Problem) -> list[int]:
        """A prompt's. BadPrompt when it is too long."""
        if problem.number not in self._tokens:
            made = self._texts.prompt(problem)
            check_length(f"prompt {problem.number}", len(made), self._config.max_prompt_tokens)
            self._tokens[problem.number] = made
        return self._tokens[problem.number]

    def sample(self, step: int, kl_weight: float, survey: Callable[[Sequences], Any]) -> Experience:
        """The step's prompts, replied to and judged; a skipped prompt is left out, never scored. `survey`: the policy's."""
        config = self._config
        position = step * config.prompts
        problems = drawn(self._trained, position, config.prompts, config.seed)
        began = time.monotonic()
        with self._context.span("generate"):
            made = self.replies(problems, config.samples, position, step)
        generated = time.monotonic()
        with self._context.span("judge"):
            # Each has a machine of its own: they are asked at the same time, while this one looks at its own policy.
            scores = self._threads.submit(self._judges.scores, made.prompts, made.replies)
            reference = self._threads.submit(self._judges.reference, made.prompts, made.replies, 1.0)
            values = self._threads.submit(self._critic.values, step, made.prompts, made.replies)
            found = experience(
                made,
                old=survey(pack(made.prompts, made.replies, made.logprobs)),
                scores=scores.result(),
                reference=reference.result(),
                values=values.result(),
                qualities=self.qualities(made),
                kl_weight=kl_weight,
                config=config,
            )
        found.seconds.update(generate=generated - began, judge=time.monotonic() - generated)
        return found

    def replies(self, problems: Sequence[Problem], samples: int, position: int, step: int | None) -> Replies:
        """So many replies to each; without a step they are only looked at. NothingSampled when all prompts were skipped."""
        asked = [
            {"token_ids": self.tokens(problem), "seed": sample_seed(self._config.seed, position + number)}
            for number, problem in enumerate(problems)
        ]
        groups = self._context.rollouts.generate(
            asked, samples, self.params, step=step, timeout_s=self._config.request_timeout / 1_000
        )
        return self._read(sampled("what is only looked at" if step is None else f"step {step}", groups, problems))

    def qualities(self, made: Replies) -> list[float] | None:
        """The truth about each reply, where it is known; an unfinished one has none."""
        if self._truth is None:
            return None
        said = [self._texts.text(tokens) for tokens in made.replies]
        return [
            self._truth(prompt, text) if whole else 0.0
            for prompt, text, whole in zip(made.texts, said, made.finished, strict=True)
        ]

    def measure(self, problems: Sequence[Problem]) -> dict[str, Any]:
        """Score and quality of sampled replies to these prompts, always drawn with the same seeds; the first few of them."""
        made = self.replies(problems, self._config.evaluate_samples, -len(problems), None)
        scores = final_scores(self._judges.scores(made.prompts, made.replies), made.finished, self._config)
        qualities = self.qualities(made)
        shown = range(0, len(made.texts), self._config.evaluate_samples)[:3]
        examples = [[made.texts[n], self._texts.text(made.replies[n])] for n in shown]
        return {
            "held_out_reward": round(sum(scores) / len(scores), 5),
            "held_out_quality": round(sum(qualities) / len(qualities), 5) if qualities else None,
            "examples": examples,
        }

    def _read(self, found: Sequence[tuple[Problem, PromptSamples]]) -> Replies:
        kept = [(problem, sample) for problem, group in found for sample in group.samples]
        replies, logprobs = outputs([sample.output for _, sample in kept])
        return Replies(
            prompts=[self.tokens(problem) for problem, _ in kept],
            texts=[problem.prompt for problem, _ in kept],
            replies=replies,
            logprobs=logprobs,
            finished=[tokens[-1] in self._stops for tokens in replies],
            makers=tuple(f"{sample.rollout}/{sample.incarnation}" for _, sample in kept),
        )
