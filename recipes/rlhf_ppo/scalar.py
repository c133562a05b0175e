"""A language model's trunk with a linear head of one output: a value of each token (critic), or of a whole reply (reward model).

It is a transformers sequence classifier with one label, so a folder of it is what other tools make and take; a folder of a
causal model gives the trunk, and the head starts anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification


class Scalar(nn.Module):
    """Right-padded `tokens` (n, t) → one number for each place. Its parameters are float32 and have no dropout."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._trunk = model.base_model_prefix

    @classmethod
    def load(cls, folder: str | Path, *, fresh_head: int | None = None) -> Scalar:
        """From a model folder. `fresh_head`: of a causal model, and its head is drawn from that seed; None: as it was saved.

        A fresh head is drawn small (σ = 1/√(d + 1)), after Stiennon et al., 2020, by a generator of its own.
        """
        model = AutoModelForSequenceClassification.from_pretrained(
            str(folder), num_labels=1, dtype=torch.float32, local_files_only=True
        ).eval()
        found = cls(model)
        if fresh_head is not None:
            chance = torch.Generator().manual_seed(fresh_head)
            weight = found.head.weight
            with torch.no_grad():
                weight.copy_(torch.randn(weight.shape, generator=chance) / (weight.shape[1] + 1) ** 0.5)
        return found

    @property
    def head(self) -> nn.Linear:
        """The last layer."""
        head = self.model.score
        if not isinstance(head, nn.Linear):
            raise TypeError(f"{type(self.model).__name__}: its score layer is a {type(head).__name__}, not linear")
        return head

    def forward(self, tokens: Any, attention: Any) -> Any:
        """(n, t) float32: the output at each place, having seen this token and those before. `attention` is bool, as in a batch."""
        trunk = getattr(self.model, self._trunk)
        hidden = trunk(input_ids=tokens, attention_mask=attention.long(), use_cache=False).last_hidden_state
        return self.head(hidden).squeeze(-1).float()

    def last(self, tokens: Any, attention: Any) -> Any:
        """(n,): the output at the last token that is there."""
        ends = attention.sum(dim=1) - 1
        return self(tokens, attention).gather(1, ends.unsqueeze(1)).squeeze(1)

    def save(self, folder: str | Path) -> None:
        """As a model folder that `load` reads."""
        self.model.save_pretrained(folder)
