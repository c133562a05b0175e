"""Texts as tokens and back, by the policy's tokenizer: what critic and reward model read is what the policy writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.problems import Problem
from gangflow.recipes.rlhf_ppo.preferences import TokenPair
from gangflow.recipes.rlhf_ppo.task import Pair
from gangflow.recipes.services.ending import BadInput


class BadTokenizer(BadInput):
    """A tokenizer by which the models of a run cannot talk about the same replies."""

    code = "bad_tokenizer"


class Texts:
    """A tokenizer, and the token that ends a reply."""

    def __init__(self, tokenizer: Any) -> None:
        """BadTokenizer when it has no end token."""
        if tokenizer.eos_token_id is None:
            raise BadTokenizer("the tokenizer has no end token: nobody can say where a reply ends")
        self._tokenizer = tokenizer
        self.end = int(tokenizer.eos_token_id)

    def prompt(self, problem: Problem) -> list[int]:
        """As the policy is given it."""
        return models.prompt_tokens(self._tokenizer, problem)

    def reply(self, text: str) -> list[int]:
        """A whole reply, with its end."""
        return [*self._tokenizer.encode(text, add_special_tokens=False), self.end]

    def text(self, tokens: Sequence[int]) -> str:
        """What a reply says, without special tokens."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=True))

    def pairs(self, pairs: Sequence[Pair]) -> list[TokenPair]:
        """Preference pairs; each prompt is asked as the policy is asked it."""
        return [
            TokenPair(self.prompt(Problem(0, pair.prompt, "", pair.prompt)), self.reply(pair.chosen), self.reply(pair.rejected))
            for pair in pairs
        ]

    def check_same(self, folder: str) -> None:
        """BadTokenizer when the model in that folder reads other tokens."""
        if models.tokenizer_of(folder).get_vocab() != self._tokenizer.get_vocab():
            raise BadTokenizer(f"{folder} has another tokenizer than the policy: it would read other texts than are written")
