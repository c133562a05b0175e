"""A model to learn with on one core: a third of a million parameters, characters as tokens.

`python -m gangflow.recipes.lm.tiny FOLDER` makes it from random numbers and a short supervised warm start, so that
reinforcement learning has something to reinforce. The warm start sees only **training** problems, and of these only the short
ones: the model then solves two fifths of the held-out problems, and hardly any of the longest. The same settings make the same
weights on one machine.
"""

from __future__ import annotations

import argparse
import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from gangflow.recipes.lm import problems
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.model import save_for_engines, token_logprobs

PAD: Final = 0
END: Final = 1
SPECIAL: Final = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unknown>"}
"""Tokens 0, 1 and 2."""
CHARACTERS: Final = string.ascii_letters + string.digits + string.punctuation + " \n"
VOCABULARY: Final = 128
"""Rounded up from three special tokens and the characters."""


@dataclass(frozen=True, slots=True)
class Tiny:
    """What the model is, and how it is warmed up."""

    problems: str = "spell_backward"
    seed: int = 0
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    longest: int = 256
    """Tokens of a sequence at most."""
    warm_steps: int = 150
    """0: it says nothing of any use."""
    warm_longest: int = 5
    """Characters of the answers that it is warmed up with; longer ones are for reinforcement learning to find."""
    warm_batch: int = 64
    warm_rate: float = 2e-3
    """Learning rate, reached after 50 steps."""


def tokenizer() -> Any:
    """One token for each printable character of ASCII; 0 pads, 1 ends, 2 stands for any other character."""
    letters = [*SPECIAL.values(), *CHARACTERS]
    vocabulary = {letter: token for token, letter in enumerate(letters)}
    made = Tokenizer(WordLevel(vocabulary, unk_token=SPECIAL["unk_token"]))
    made.pre_tokenizer = Split(Regex(r"[\s\S]"), behavior="isolated")
    made.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False, **SPECIAL)


def fresh(tiny: Tiny) -> Any:
    """The model before its warm start: a random Qwen3."""
    torch.manual_seed(tiny.seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=tiny.hidden,
        intermediate_size=2 * tiny.hidden,
        num_hidden_layers=tiny.layers,
        num_attention_heads=tiny.heads,
        num_key_value_heads=tiny.kv_heads,
        head_dim=32,
        max_position_embeddings=tiny.longest,
        # Tied, vLLM on CPU would go on with the old output layer after new weights: it keeps a packed copy of it.
        tie_word_embeddings=False,
        pad_token_id=PAD,
        eos_token_id=END,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = END
    model.generation_config.pad_token_id = PAD
    return model.eval()


def warm(model: Any, pairs: Sequence[tuple[Sequence[int], Sequence[int]]], tiny: Tiny) -> float:
    """Supervised steps on (prompt, answer) tokens, in place; returns the last loss, per token of an answer."""
    order = random.Random(tiny.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=tiny.warm_rate, betas=(0.9, 0.95), weight_decay=0.0)
    last = float("nan")
    for step in range(tiny.warm_steps):
        for group in optimizer.param_groups:
            group["lr"] = tiny.warm_rate * min(1.0, (step + 1) / 50)
        chosen = [pairs[order.randrange(len(pairs))] for _ in range(tiny.warm_batch)]
        batch = pack([prompt for prompt, _ in chosen], [answer for _, answer in chosen])
        loss = -token_logprobs(model, batch.tokens, batch.attention)[batch.answer].mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        last = float(loss.detach())
    return last


def make(folder: Path, tiny: Tiny) -> None:
    """Write the warmed-up model with its tokenizer as a model folder: new files beside, or instead of, what is in it."""
    text = tokenizer()
    model = fresh(tiny)
    trained, _ = problems.split(problems.load(tiny.problems))
    short = [problem for problem in trained if len(problem.answer) <= tiny.warm_longest]
    pairs = [(text.encode(problem.prompt), [*text.encode(problem.answer), END]) for problem in short]
    loss = warm(model, pairs, tiny)
    made = folder / ".tiny"
    save_for_engines(model, made, tokenizer=text)
    for file in made.iterdir():
        file.replace(folder / file.name)
    made.rmdir()
    print(
        f"{sum(value.numel() for value in model.parameters()):,} parameters; loss after the warm start {loss:.3f}", flush=True
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=Tiny().seed)
    parser.add_argument("--warm-steps", type=int, default=Tiny().warm_steps)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # Sums are rounded the same whatever the machine.
    make(arguments.folder, Tiny(seed=arguments.seed, warm_steps=arguments.warm_steps))


if __name__ == "__main__":
    main()
