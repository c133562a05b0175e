"""A language model's trunk with a linear head of one output: the value of each token (critic), or of a reply (reward model).

It is a transformers sequence classifier with one label, so a folder of it is what other tools make and take; a folder of a
causal model gives the trunk, and the head starts anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from gangflow.recipes.lm.model import save_for_engines


class Scalar(nn.Module):
    """Right-padded `tokens` (n, t) → one number for each place. Its parameters are float32; it has no dropout."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._trunk = model.base_model_prefix

    @classmethod
    def load(cls, folder: str | Path, *, fresh_head: int | None = None, checkpointing: bool = False) -> Scalar:
        """From a model folder. `fresh_head`: of a causal model, and its head is drawn from that seed; None: as it was saved.

        A fresh head is drawn small (σ = 1/√(d + 1), as Stiennon et al., 2020, did), by a generator of its own; it has no bias.
        """
        told = transformers_logging.get_verbosity()
        if fresh_head is not None:  # That the head is missing is meant.
            transformers_logging.set_verbosity_error()
        try:
            model = AutoModelForSequenceClassification.from_pretrained(
                str(folder), num_labels=1, dtype=torch.float32, local_files_only=True
            )
        finally:
            transformers_logging.set_verbosity(told)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if hasattr(model.config, "attention_dropout"):
            model.config.attention_dropout = 0.0
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train(checkpointing)
        found = cls(model)
        if fresh_head is not None:
            found._draw_head(fresh_head)
        return found

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        head = self.model.score
        if not isinstance(head, nn.Linear):
            raise TypeError(f"{type(self.model).__name__}: its score layer is a {type(head).__name__}, not linear")
        return head

    @property
    def trunk(self) -> Any:
        """All below the head."""
        return getattr(self.model, self._trunk)

    @property
    def vocabulary(self) -> int:
        return int(self.model.config.vocab_size)

    def forward(self, tokens: Any, attention: Any) -> Any:
        """(n, t) float32: the output at each place, having seen this token and those before. `attention` is bool (n, t)."""
        hidden = self.trunk(input_ids=tokens, attention_mask=attention.long(), use_cache=False).last_hidden_state
        return self.head(hidden).squeeze(-1).float()

    def last(self, tokens: Any, attention: Any) -> Any:
        """(n,): the output at the last token that is there."""
        ends = attention.sum(dim=1) - 1
        return self(tokens, attention).gather(1, ends.unsqueeze(1)).squeeze(1)

    def save(self, folder: Path, state: Mapping[str, Any] | None = None) -> None:
        """Write a model folder that was not there before. `state`: of this module, when it was gathered from several ranks."""
        own = self.state_dict() if state is None else state
        prefix = "model."
        # save_for_engines writes whatever can be saved as a transformers model.
        weights = {name.removeprefix(prefix): value for name, value in own.items()}
        save_for_engines(self.model, folder, state=weights)

    def forget_head(self) -> None:
        """From now on every output is 0: until a critic has learned something, it foresees nothing."""
        with torch.no_grad():
            for parameter in self.head.parameters():
                parameter.zero_()

    def _draw_head(self, seed: int) -> None:
        chance = torch.Generator().manual_seed(seed)
        weight = self.head.weight
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=chance) / (weight.shape[1] + 1) ** 0.5)
            if self.head.bias is not None:
                self.head.bias.zero_()
