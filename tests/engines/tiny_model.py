"""Writes a random Qwen3 of 328k parameters with a tokenizer of single characters to a folder: `python tiny_model.py FOLDER`."""

from __future__ import annotations

import string
import sys

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM


def write(folder: str, seed: int = 0) -> None:
    """The same bytes for the same seed."""
    torch.manual_seed(seed)
    letters = {letter: number for number, letter in enumerate(["<pad>", "<eos>", *string.printable[:97]])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=128, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=512, eos_token_id=1, pad_token_id=0,
        bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    Qwen3ForCausalLM(config).float().save_pretrained(folder)


if __name__ == "__main__":
    write(sys.argv[1])
