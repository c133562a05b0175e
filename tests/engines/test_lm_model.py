"""The tiny model, batches, and what is written for engines."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.batch import outputs, pack
from gangflow.recipes.lm.problems import Problem
from gangflow.recipes.lm.tiny import Tiny, make

WORDS = [("sun>", "nus"), ("moon>", "noom"), ("a>", "a")]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return models.tokenizer_of(tiny_model)


def _batch(tokenizer: Any) -> Any:
    prompts = [tokenizer.encode(prompt) for prompt, _ in WORDS]
    answers = [[*tokenizer.encode(answer), 1] for _, answer in WORDS]
    return pack(prompts, answers, [[-float(n) for n in range(1, len(answer) + 1)] for answer in answers])


def test_the_same_settings_make_the_same_model(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        (tmp_path / name).mkdir()
        make(tmp_path / name, Tiny(seed=seed, warm_steps=2))
    prints = {name: models.fingerprint(tmp_path / name) for name in "abc"}
    assert prints["a"] == prints["b"] != prints["c"]


def test_a_text_is_its_characters(tokenizer: Any) -> None:
    tokens = tokenizer.encode("Sun >\n7~")
    assert len(tokens) == 8
    assert tokenizer.decode(tokens) == "Sun >\n7~"
    assert tokenizer.decode([*tokens, 1], skip_special_tokens=True) == "Sun >\n7~"
    assert tokenizer.encode("é") == [2]


def test_a_model_that_chats_is_asked_in_words(tokenizer: Any) -> None:
    problem = Problem(0, "sun>", "nus", "Spell sun backward.")
    assert models.prompt_tokens(tokenizer, problem) == tokenizer.encode("sun>")
    tokenizer.chat_template = "{{ messages[0]['content'] }}:"
    try:
        said = tokenizer.decode(models.prompt_tokens(tokenizer, problem))
    finally:
        tokenizer.chat_template = None
    assert said == f"Spell sun backward.\n{models.ANSWER_SO}:"


def test_a_batch_knows_which_columns_are_of_the_answer(tokenizer: Any) -> None:
    batch = _batch(tokenizer)
    assert batch.tokens.shape == (3, 10)
    assert batch.answer.sum(1).tolist() == [4, 5, 2]
    for row, (prompt, answer) in enumerate(WORDS):
        assert tokenizer.decode(batch.tokens[row, 1:][batch.answer[row]].tolist(), skip_special_tokens=True) == answer
        assert tokenizer.decode(batch.tokens[row][batch.attention[row]].tolist(), skip_special_tokens=True) == prompt + answer
    assert batch.sampled[0][batch.answer[0]].tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert not batch.sampled[~batch.answer].any()


def test_some_rows_lose_what_is_only_padding_now(tokenizer: Any) -> None:
    batch = _batch(tokenizer)
    some = batch.rows(torch.tensor([2, 0]))
    assert some.tokens.shape == (2, 8)
    assert some.answer.shape == some.sampled.shape == (2, 7)
    assert some.tokens[1].tolist() == batch.tokens[0, :8].tolist()


@pytest.mark.parametrize(
    ("prompts", "answers", "logprobs", "said"),
    [
        ([], [], None, "at least one"),
        ([[1]], [[]], None, "row 0: 1 tokens of prompt and 0 of answer"),
        ([[], [1]], [[1], [1]], None, "row 0: 0 tokens of prompt"),
        ([[1]], [[1, 2]], [[-1.0]], "row 0: 2 tokens, but 1 log-probabilities"),
    ],
)
def test_what_is_no_batch_is_refused(prompts: Any, answers: Any, logprobs: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        pack(prompts, answers, logprobs)


def test_outputs_of_the_wire_are_read_and_others_refused() -> None:
    assert outputs([{"token_ids": [3, 1], "logprobs": [-0.5, -1]}]) == ([[3, 1]], [[-0.5, -1.0]])
    with pytest.raises(ValueError, match="output 1 is none of a language model"):
        outputs([{"token_ids": [3], "logprobs": [-0.5]}, {"text": "sun"}])


def test_padding_changes_no_logprob(tiny_model: Path, tokenizer: Any) -> None:
    model = models.load(tiny_model)
    batch = _batch(tokenizer)
    with torch.no_grad():
        together = models.token_logprobs(model, batch.tokens, batch.attention)
        for row in range(3):
            alone = batch.rows(torch.tensor([row]))
            single = models.token_logprobs(model, alone.tokens, alone.attention)[0]
            assert torch.allclose(together[row, : len(single)], single, atol=2e-6)


def test_logprobs_are_those_of_the_scaled_distribution(tiny_model: Path, tokenizer: Any) -> None:
    model = models.load(tiny_model)
    batch = _batch(tokenizer)
    with torch.no_grad():
        logits = model(input_ids=batch.tokens, attention_mask=batch.attention.long()).logits[:, :-1]
        expected = (logits / 0.5).log_softmax(-1).gather(2, batch.tokens[:, 1:, None])[..., 0]
        found = models.token_logprobs(model, batch.tokens, batch.attention, temperature=0.5)
    assert torch.allclose(found[batch.answer], expected[batch.answer], atol=1e-5)


def test_a_saved_model_says_the_same_and_is_whole(tiny_model: Path, tokenizer: Any, tmp_path: Path) -> None:
    model = models.load(tiny_model)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    folder = tmp_path / "weights" / "i1-v000001"
    models.save_for_engines(model, folder, tokenizer=tokenizer)
    assert models.probe_of(models.load(folder), [5, 6, 7]) == models.probe_of(model, [5, 6, 7])
    assert models.fingerprint(folder) != models.fingerprint(tiny_model)
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= {
        f.name for f in folder.iterdir()
    }
    assert all(file.stat().st_mode & 0o444 == 0o444 for file in folder.iterdir())
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_engines_may_have_half_the_bytes(tiny_model: Path, tmp_path: Path) -> None:
    model = models.load(tiny_model)
    models.save_for_engines(model, tmp_path / "half", dtype="bfloat16")
    assert (tmp_path / "half/model.safetensors").stat().st_size < 0.6 * (tiny_model / "model.safetensors").stat().st_size
    assert json.loads((tmp_path / "half/config.json").read_text())["dtype"] == "bfloat16"
    assert next(model.parameters()).dtype == torch.float32
    assert models.load(tmp_path / "half", dtype="bfloat16").config.dtype == torch.bfloat16


def test_a_tied_output_layer_is_written_once(tmp_path: Path) -> None:
    """As the trainer hands weights over, one copy each: a second one of the same would be taken for another."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, num_key_value_heads=1, head_dim=16, tie_word_embeddings=True, **shape))
    models.save_for_engines(model.eval(), tmp_path / "tied", dtype="bfloat16")
    size = sum(value.numel() for value in model.parameters()) * 2
    assert size < (tmp_path / "tied/model.safetensors").stat().st_size < size + 4_096


def test_a_full_disk_leaves_nothing_behind(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.load(tiny_model)

    def full(*_: Any, **__: Any) -> None:
        (next((tmp_path / "weights").glob(".*")) / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(OSError, match="28"):
        models.save_for_engines(model, tmp_path / "weights" / "i1-v000001")
    assert not list((tmp_path / "weights").iterdir())


def test_a_folder_without_weights_has_no_fingerprint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no weights"):
        models.fingerprint(tmp_path)


def test_the_files_of_a_fingerprint_are_read_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large model has many of them; what they are is said in the order of their names, whoever is read first."""
    for name in "ba":
        (tmp_path / f"{name}.safetensors").write_bytes(name.encode())
    both, real = threading.Barrier(2), models.digest

    def digest(file: Path) -> str:
        both.wait(60)
        return real(file)

    monkeypatch.setattr(models, "digest", digest)
    said = "".join(f"{name}.safetensors\0{hashlib.sha256(name.encode()).hexdigest()}\n" for name in "ab")
    assert models.fingerprint(tmp_path) == hashlib.sha256(said.encode()).hexdigest()
