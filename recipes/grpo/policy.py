"""The policy: a small network in numpy that writes an answer digit by digit, with its gradients by hand.

For answer digit k it sees five tokens: the problem's two digits in column k, the two in column k − 1, and its own previous
output. Each becomes 16 numbers by one shared embedding; then 80 → 256 (ReLU) → 10 logits, the same weights for every column.
Digits are tokens 0–9; 10 stands for "there is none" (before the first column). Everything is float32.

A *context* is such a row of five tokens (int8). `Policy` is immutable in shape but not in values: the learner updates its
arrays in place.
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gangflow.recipes.grpo.task import ANSWER_DIGITS, Digits

Floats = NDArray[np.float32]
Parameters = dict[str, Floats]

DIGITS: Final = 10
NOTHING: Final = 10
"""The token for a column or an output that does not exist."""
CONTEXT: Final = 5
EMBEDDING: Final = 16
HIDDEN: Final = 256


def contexts_of(prompts: Digits, answers: Digits) -> Digits:
    """What the policy sees before each digit of given answers: int8 (n, 3, 5) for prompts (n, 4) and answers (n, 3)."""
    count = len(prompts)
    contexts = np.full((count, ANSWER_DIGITS, CONTEXT), NOTHING, np.int8)
    for column in range(ANSWER_DIGITS):
        contexts[:, column, :4] = _columns(prompts, column)
        if column:
            contexts[:, column, 4] = answers[:, column - 1]
    return contexts


def _columns(prompts: Digits, column: int) -> Digits:
    """Tokens (n, 4): a_k, b_k, a_{k−1}, b_{k−1}. The hundreds of a two-digit number are 0; below the units is nothing."""
    found = np.full((len(prompts), 4), NOTHING, np.int8)
    for place, which in ((0, column), (2, column - 1)):
        if which == 2:
            found[:, place : place + 2] = 0
        elif which >= 0:
            found[:, place] = prompts[:, 1 - which]
            found[:, place + 1] = prompts[:, 3 - which]
    return found


def chances(seeds: NDArray[np.uint64], indices: NDArray[np.int64]) -> Floats:
    """The random numbers (n, 3) in [0, 1) of samples: `seeds` are their prompts', `indices` their places among its samples.

    SplitMix64, by these two alone. So a sample is the same whichever engine makes it, beside whatever others: one that is
    re-dispatched changes nothing.
    """
    with np.errstate(over="ignore"):
        places: NDArray[np.uint64] = np.arange(1, ANSWER_DIGITS + 1, dtype=np.uint64)
        steps: NDArray[np.uint64] = (indices.astype(np.uint64) * np.uint64(ANSWER_DIGITS))[:, None] + places
        mixed: NDArray[np.uint64] = seeds[:, None] + steps * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(31)
    return np.asarray((mixed >> np.uint64(40)) * 2.0**-24, np.float32)


class Policy:
    """The network. `parameters` names its arrays: embedding (11, 16), w1 (80, 256), b1, w2 (256, 10), b2."""

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters

    @classmethod
    def fresh(cls, seed: int) -> Policy:
        """A new policy: nearly uniform over the ten digits."""
        rng = np.random.Generator(np.random.PCG64(seed))

        def normal(scale: float, *shape: int) -> Floats:
            return (rng.standard_normal(shape) * scale).astype(np.float32)

        width = CONTEXT * EMBEDDING
        return cls(
            {
                "embedding": normal(1.0, NOTHING + 1, EMBEDDING),
                "w1": normal((2.0 / width) ** 0.5, width, HIDDEN),
                "b1": np.zeros(HIDDEN, np.float32),
                "w2": normal(0.1 / HIDDEN**0.5, HIDDEN, DIGITS),
                "b2": np.zeros(DIGITS, np.float32),
            }
        )

    def copy(self) -> Policy:
        """An independent policy of the same values."""
        return Policy({name: value.copy() for name, value in self.parameters.items()})

    # -- forward ------------------------------------------------------------------------------------------------------

    def log_distribution(self, contexts: Digits) -> Floats:
        """Log-probabilities (m, 10) of the next digit for contexts (m, 5)."""
        return _log_softmax(self._forward(contexts)[1])

    def logprobs(self, prompts: Digits, answers: Digits) -> Floats:
        """Log-probability (n, 3) of each digit of given answers."""
        rows, back = _distinct(contexts_of(prompts, answers).reshape(-1, CONTEXT))
        chosen = self.log_distribution(rows)[back, answers.reshape(-1)]
        return chosen.reshape(-1, ANSWER_DIGITS)

    def sample(self, prompts: Digits, drawn: Floats) -> tuple[Digits, Floats]:
        """An answer (n, 3) to each prompt, by the numbers (n, 3) that were drawn for it, and its digits' log-probabilities."""
        return self._write(prompts, drawn)

    def greedy(self, prompts: Digits) -> Digits:
        """The most probable digit, column by column: answers (n, 3)."""
        return self._write(prompts, None)[0]

    def _write(self, prompts: Digits, drawn: Floats | None) -> tuple[Digits, Floats]:
        count = len(prompts)
        answers = np.zeros((count, ANSWER_DIGITS), np.int8)
        logprobs = np.zeros((count, ANSWER_DIGITS), np.float32)
        contexts = np.full((count, CONTEXT), NOTHING, np.int8)
        every = np.arange(count)
        for column in range(ANSWER_DIGITS):
            contexts[:, :4] = _columns(prompts, column)
            if column:
                contexts[:, 4] = answers[:, column - 1]
            rows, back = _distinct(contexts)
            options = self.log_distribution(rows)[back]
            if drawn is None:
                chosen = options.argmax(axis=1)
            else:
                reached = np.exp(options).cumsum(axis=1)
                # Rounding may leave the last sum below 1: then the draw still has to be a digit.
                chosen = np.minimum((reached <= drawn[:, column, None] * reached[:, -1:]).sum(axis=1), DIGITS - 1)
            answers[:, column] = chosen
            logprobs[:, column] = options[every, chosen]
        return answers, logprobs

    def _forward(self, contexts: Digits) -> tuple[Floats, Floats]:
        """(hidden (m, 256), logits (m, 10)).

        Row by row: a matrix product of the whole batch may round a row differently by where in the batch it stands, and
        then a re-dispatched sample could differ. So the first layer is a sum of rows of a table (there are only 5 × 11
        different ones), and the second a product for each row.
        """
        p = self.parameters
        table = p["embedding"] @ p["w1"].reshape(CONTEXT, EMBEDDING, HIDDEN)
        summed = p["b1"] + table[0][contexts[:, 0]]
        for place in range(1, CONTEXT):
            summed += table[place][contexts[:, place]]
        hidden = np.maximum(summed, 0.0)
        return hidden, (hidden[:, None, :] @ p["w2"])[:, 0, :] + p["b2"]

    # -- backward -----------------------------------------------------------------------------------------------------

    def gradients(self, prompts: Digits, answers: Digits, weights: Floats) -> Parameters:
        """The gradient of `sum(weights · logprobs(prompts, answers))` by every parameter; weights are (n, 3).

        Samples of one prompt share most of their contexts, so each distinct context is computed once.
        """
        p = self.parameters
        rows, back = _distinct(contexts_of(prompts, answers).reshape(-1, CONTEXT))
        hidden, logits = self._forward(rows)
        # d logp(t) / d logits = onehot(t) − softmax, summed over the tokens of each context.
        cells = back * DIGITS + answers.reshape(-1)
        wanted = np.bincount(cells, weights.reshape(-1), minlength=len(rows) * DIGITS).reshape(-1, DIGITS)
        by_logits = wanted.astype(np.float32)
        by_logits -= by_logits.sum(axis=1, keepdims=True) * np.exp(_log_softmax(logits))
        by_hidden = (by_logits @ p["w2"].T) * (hidden > 0)
        # By the first layer's table (5, 11, 256): row t of place k collects the contexts that have token t there.
        tokens = np.arange(NOTHING + 1, dtype=np.int8)
        by_table = (rows.T[:, None, :] == tokens[None, :, None]).astype(np.float32) @ by_hidden
        w1 = p["w1"].reshape(CONTEXT, EMBEDDING, HIDDEN)
        return {
            "embedding": (by_table @ w1.transpose(0, 2, 1)).sum(axis=0),
            "w1": (p["embedding"].T @ by_table).reshape(CONTEXT * EMBEDDING, HIDDEN),
            "b1": by_hidden.sum(axis=0),
            "w2": hidden.T @ by_logits,
            "b2": by_logits.sum(axis=0),
        }

    def fingerprint(self) -> str:
        """sha256 of the values: the same for the same policy, wherever it is."""
        digest = hashlib.sha256()
        for name, value in sorted(self.parameters.items()):
            digest.update(name.encode() + np.ascontiguousarray(value, "<f4").tobytes())
        return digest.hexdigest()

    # -- files --------------------------------------------------------------------------------------------------------

    def save(self, path: Path) -> str:
        """Write the parameters as .npz, atomically and durably; returns the file's sha256."""
        return write_arrays(path, dict(self.parameters))

    @classmethod
    def load(cls, path: Path) -> Policy:
        """The policy in a file that `save` wrote."""
        with np.load(path, allow_pickle=False) as stored:
            return cls({name: np.asarray(stored[name], np.float32) for name in ("embedding", "w1", "b1", "w2", "b2")})


def _log_softmax(logits: Floats) -> Floats:
    shifted = logits - logits.max(axis=1, keepdims=True)
    found: Floats = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return found


def _distinct(contexts: Digits) -> tuple[Digits, NDArray[np.int64]]:
    """(the distinct rows, where each given row is among them)."""
    base = NOTHING + 1
    codes = contexts.astype(np.int64) @ (base ** np.arange(CONTEXT, dtype=np.int64))
    _, first, back = np.unique(codes, return_index=True, return_inverse=True)
    return contexts[first], back.astype(np.int64).reshape(-1)


def write_arrays(path: Path, arrays: dict[str, NDArray[np.generic]]) -> str:
    """Write a .npz that is there completely or not at all, also after a power cut; returns its sha256."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    content = buffer.getvalue()
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with open(part, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    os.replace(part, path)
    return hashlib.sha256(content).hexdigest()
