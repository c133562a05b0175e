"""The same training in one process, without a group, a server or vLLM: what distributing it must not change.

`OMP_NUM_THREADS=1 python -m gangflow.recipes.rlhf_ppo.alone FOLDER steps=40 seed=1` makes the first policy and the reward
model in FOLDER, unless they are there, and prints a line of JSON for each step. Replies are drawn by the policy itself, by
another sampler than vLLM's: so they are other replies than a group's, of the same distribution.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from gangflow.errors import SpecError
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.drawing import drawn, sample_seed
from gangflow.recipes.lm.problems import Problem
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.rlhf_ppo import clerk, reward
from gangflow.recipes.rlhf_ppo import data as datasets
from gangflow.recipes.rlhf_ppo.adaptive_kl import AdaptiveKl
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.policy import PolicyLearner
from gangflow.recipes.rlhf_ppo.preferences import RewardModel
from gangflow.recipes.rlhf_ppo.scalar import Scalar
from gangflow.recipes.rlhf_ppo.steps import Replies, experience, final_scores
from gangflow.recipes.rlhf_ppo.texts import Texts
from gangflow.recipes.rlhf_ppo.values import ValueLearner
from gangflow.specs.overrides import apply

ALONE = Team()


def sample(
    model: Any, prompts: Sequence[Sequence[int]], *, longest: int, stop: int, seed: int
) -> tuple[list[list[int]], list[list[float]]]:
    """A reply to each prompt, at temperature 1, with the log-probability of each of its tokens."""
    chance = torch.Generator().manual_seed(seed)
    replies: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    left = list(range(len(prompts)))
    with torch.no_grad():
        for _ in range(longest):
            rows = [[*prompts[place], *replies[place]] for place in left]
            # `pack` wants an answer: the last token so far stands for one.
            batch = pack([row[:-1] for row in rows], [row[-1:] for row in rows])
            logits = model(input_ids=batch.tokens, attention_mask=batch.attention.long(), use_cache=False).logits
            ends = batch.attention.sum(1) - 1
            said = logits[torch.arange(len(rows)), ends].float().log_softmax(-1)
            chosen = torch.multinomial(said.exp(), 1, generator=chance).squeeze(1)
            for place, token, row in zip(left, chosen.tolist(), said, strict=True):
                replies[place].append(token)
                logprobs[place].append(float(row[token]))
            left = [place for place in left if replies[place][-1] != stop]
            if not left:
                break
    return replies, logprobs


class Alone:
    """All members in one."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config = config
        policy = folder / "model"
        if not policy.exists():
            clerk.make(policy)
        self.texts = Texts(models.tokenizer_of(policy))
        found = reward.ensured(folder / "reward", config, 0, ALONE, str(policy), self.texts)
        self.report = found.report
        self.judge = RewardModel(Scalar.load(found.folder), config, ALONE, found.scale)
        self.reference = PolicyLearner.start(policy, config, ALONE)
        self.policy = PolicyLearner.start(policy, config, ALONE)
        self.critic = ValueLearner.start(policy, config, ALONE)
        self.data = datasets.load(config)
        self.kl = AdaptiveKl(config.kl_weight, config.kl_target, config.kl_horizon)

    def replies(self, problems: Sequence[Problem], samples: int, seed: int) -> Replies:
        """So many to each."""
        asked = [problem for problem in problems for _ in range(samples)]
        prompts = [self.texts.prompt(problem) for problem in asked]
        replies, logprobs = sample(self.policy.model, prompts, longest=self.config.max_tokens, stop=self.texts.end, seed=seed)
        return Replies(
            prompts=prompts,
            texts=[problem.prompt for problem in asked],
            replies=replies,
            logprobs=logprobs,
            finished=[tokens[-1] == self.texts.end for tokens in replies],
            makers=("0/1",) * len(asked),
        )

    def step(self) -> dict[str, Any]:
        """One step of policy and critic."""
        config, step = self.config, self.policy.step
        problems = drawn(self.data.trained, step * config.prompts, config.prompts, config.seed)
        made = self.replies(problems, config.samples, sample_seed(config.seed, step))
        batch = pack(made.prompts, made.replies, made.logprobs)
        found = experience(
            made,
            old=self.policy.survey(batch),
            scores=self.judge.scores(batch).tolist(),
            reference=_of_replies(self.reference.survey(batch), batch, made),
            values=_of_replies(self.critic.values(batch), batch, made),
            qualities=self.qualities(made),
            kl_weight=self.kl.weight,
            config=config,
        )
        report = self.policy.train(found.sequences, found.old, found.gains)
        criticism = self.critic.train(found.sequences, found.values, found.returns)
        told = {
            "step": self.policy.step,
            "reward": found.reward,
            "quality": found.quality,
            "kl": found.kl,
            "kl_weight": self.kl.weight,
            "explained": found.explained,
            "clipped": report.clipped,
            "value_loss": criticism.loss,
            "drift": found.drift,
            "length": found.length,
            "unfinished": found.unfinished,
        }
        self.kl = self.kl.after(found.kl, len(batch))
        return told

    def measure(self) -> dict[str, Any]:
        """Score and quality of replies to held-out prompts, always drawn with the same seed."""
        made = self.replies(self.data.held_out[: self.config.evaluate_prompts], self.config.evaluate_samples, 0)
        raw = self.judge.scores(pack(made.prompts, made.replies)).tolist()
        scores, qualities = final_scores(raw, made.finished, self.config), self.qualities(made)
        return {
            "held_out_reward": sum(scores) / len(scores),
            "held_out_quality": sum(qualities) / len(qualities) if qualities else None,
        }

    def qualities(self, made: Replies) -> list[float] | None:
        """The truth, where it is known."""
        if self.data.truth is None:
            return None
        said = [self.texts.text(tokens) for tokens in made.replies]
        return [
            self.data.truth(prompt, text) if whole else 0.0
            for prompt, text, whole in zip(made.texts, said, made.finished, strict=True)
        ]


def _of_replies(found: Any, batch: Any, made: Replies) -> list[list[float]]:
    flat, at, parts = found[batch.answer].tolist(), 0, []
    for tokens in made.replies:
        parts.append(flat[at : at + len(tokens)])
        at += len(tokens)
    return parts


def train(config: Config, folder: Path) -> Iterator[dict[str, Any]]:
    """A line for the first policy, then one for each step; measured ones have what held-out prompts say."""
    run = Alone(config, folder)
    yield {"step": 0, **run.measure(), "reward_model": run.report}
    while run.policy.step < config.steps:
        told = run.step()
        measuring = run.policy.step % config.evaluate_every == 0 or run.policy.step == config.steps
        yield {**told, **(run.measure() if measuring else {})}


def main(arguments: Sequence[str]) -> int:
    """Train in a folder with the given `key=value` settings."""
    if not arguments or "=" in arguments[0]:
        print("usage: python -m gangflow.recipes.rlhf_ppo.alone FOLDER [key=value …]", file=sys.stderr)
        return 2
    try:
        config = apply(Config(), arguments[1:])
    except SpecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for line in train(config, Path(arguments[0])):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
