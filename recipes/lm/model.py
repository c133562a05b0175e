"""A causal language model for training: loaded, written for engines, and what it says of tokens.

Weights are float32 while they are trained, whatever the engines compute with. Shapes: n sequences of t tokens, padded on the
right; a log-probability belongs to the token that it predicts, so that there are t − 1 of them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.utils import logging as transformers_logging

from gangflow.integrations.torch import logprobs
from gangflow.member.digest import digest, together
from gangflow.recipes.lm.problems import Problem

transformers_logging.disable_progress_bar()

ANSWER_SO = "Give the final answer as <answer>...</answer>."
"""What a chat model is told about the form; `problems.final` reads it."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


token_logprobs = logprobs.token_logprobs
probe_of = logprobs.probe_of


def load(folder: str | Path, *, device: str = "cpu", dtype: str = "float32", checkpointing: bool = False) -> Any:
    """The model of a folder, without dropout. `checkpointing`: recompute activations in the backward pass."""
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=DTYPES[dtype], local_files_only=True).to(device)
    return _ready(model, checkpointing)


def empty(folder: str | Path, *, checkpointing: bool = False) -> Any:
    """The same without weights (they are on torch's `meta` device): for what is split over ranks before it is filled."""
    config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.tie_weights()
    if (Path(folder) / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(str(folder), local_files_only=True)
    return _ready(model, checkpointing)


def _ready(model: Any, checkpointing: bool) -> Any:
    for key in ("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop"):
        if hasattr(model.config, key):
            setattr(model.config, key, 0.0)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.config.use_cache = False
    model.train(checkpointing)
    return model


def tokenizer_of(folder: str | Path) -> Any:
    """The tokenizer of a model folder."""
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True)


def prompt_tokens(tokenizer: Any, problem: Problem) -> list[int]:
    """What an engine is given for a problem: its question as a chat, where the tokenizer knows chats, else its prompt."""
    if problem.question and getattr(tokenizer, "chat_template", None):
        chat = [{"role": "user", "content": f"{problem.question}\n{ANSWER_SO}"}]
        return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=False))
    return list(tokenizer.encode(problem.prompt))


def stop_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer, as engines know them: those of the generation config, else the tokenizer's."""
    generation = getattr(model, "generation_config", None)
    found = generation.eos_token_id if generation is not None else None
    if found is None:
        found = tokenizer.eos_token_id
    if found is None:
        return []
    return [int(token) for token in found] if isinstance(found, list | tuple) else [int(found)]


def save_for_engines(
    model: Any, folder: Path, *, tokenizer: Any = None, dtype: str = "float32", state: Mapping[str, Any] | None = None
) -> None:
    """Write a model folder (config, safetensors, tokenizer) that was not there before: whole, or not at all.

    `state`: the weights, when they are not the model's own (gathered from several ranks). OSError, with nothing left behind,
    when the disk is full.
    """
    target = DTYPES[dtype]
    twice = _tied(model)
    weights = {
        name: value.detach().to("cpu", target) if value.is_floating_point() else value.detach().cpu()
        for name, value in (model.state_dict() if state is None else state).items()
        if name not in twice
    }
    part = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(part, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        part.mkdir()
        _write(model, part, weights, dtype)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        for file in part.iterdir():
            file.chmod(0o644)  # Engines may run as somebody else; safetensors thinks of nobody.
        part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _tied(model: Any) -> set[str]:
    """Names of weights that are others' under a second name: copies of them would be weights of their own."""
    return set(model._tied_weights_keys or ()) if getattr(model.config, "tie_word_embeddings", False) else set()


def _write(model: Any, part: Path, weights: Mapping[str, Any], dtype: str) -> None:
    try:
        model.save_pretrained(part, state_dict=dict(weights))
        # It writes the type that is trained; what is in the files is this one.
        config = json.loads((part / "config.json").read_text())
        (part / "config.json").write_text(json.dumps({**config, "dtype": dtype}, indent=2) + "\n")
    except Exception as broken:
        # The writer of safetensors has an exception of its own for what the disk refuses.
        if "No space left" in str(broken) and not isinstance(broken, OSError):
            raise OSError(errno.ENOSPC, str(broken)) from broken
        raise


def fingerprint(folder: str | Path) -> str:
    """What the weights in a model folder are: the sha256 of its weight files. ValueError when it has none."""
    files = sorted(Path(folder).glob("*.safetensors")) or sorted(Path(folder).glob("*.bin"))
    if not files:
        raise ValueError(f"{folder} has no weights: no *.safetensors and no *.bin")
    if len(files) == 1:
        return digest(files[0])
    found = together(digest, files)
    return hashlib.sha256(
        "".join(f"{file.name}\0{each}\n" for file, each in zip(files, found, strict=True)).encode()
    ).hexdigest()
