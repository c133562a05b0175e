"""Log-probabilities of tokens under a causal language model of `transformers`, and the probe that is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gangflow.channel import Probe


def token_logprobs(model: Any, tokens: Any, attention: Any, *, temperature: float = 1.0) -> Any:
    """(n, t − 1) float32: of each token after those before it. `tokens` int64 and `attention` bool are (n, t).

    At a temperature the policy is the scaled distribution: what is sampled from is what is trained. Where `attention` is False
    the values mean nothing.
    """
    logits = model(input_ids=tokens, attention_mask=attention.long(), use_cache=False).logits[:, :-1].float()
    if temperature != 1.0:
        logits = logits / temperature
    # Not the token's logit less the sum's logarithm: for likely tokens that is a small difference of large numbers.
    return logits.log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]


def probe_of(model: Any, tokens: Sequence[int], device: Any = None) -> Probe:
    """What the model says of a sequence (at least two tokens), for an engine to say the same. `device`: None for its own."""
    row = torch.tensor([list(tokens)], device=next(model.parameters()).device if device is None else device)
    with torch.no_grad():
        found = token_logprobs(model, row, torch.ones_like(row, dtype=torch.bool))
    return Probe(tuple(int(token) for token in tokens), tuple(found[0].tolist()))
