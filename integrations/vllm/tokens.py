"""Samples as vLLM's HTTP speaks of them: what is asked, and what an answer means. Pure.

The token API (`/inference/v1/generate`) is preferred: ids in, ids out, and with each output the weights that sampled it.
`/v1/completions` stands in for it where it is not switched on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gangflow.channel import WeightsId
from gangflow.member.dispatch import Answer
from gangflow.member.failures import FailureClass

OURS = frozenset({"n", "logprobs", "prompt_logprobs", "flat_logprobs", "output_kind", "stream", "seed"})
"""Sampling parameters that are set here: `n` by `samples_per_prompt`, `seed` by the prompt."""
INFRA_STATUS = frozenset({408, 409, 425, 429})
"""Beside 500 and above."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as token ids."""

    tokens: tuple[int, ...]
    seed: int | None = None
    """The same seed with the same weights gives the same samples; sample i is drawn with `seed + i`."""


WHOLE: Final = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Samples of the model's whole distribution. What is not given, `/v1/completions` takes from the model's
`generation_config.json` (a `top_k` of 20, say), while its log-probabilities stay those of the whole: nobody would see it."""


def prompt(given: object) -> Prompt:
    """From what a program gave: a list of token ids, or {"token_ids": […], "seed": …}. ValueError for anything else."""
    ids, seed = given, None
    if isinstance(given, Mapping):
        strange = sorted(set(given) - {"token_ids", "seed"})
        if strange:
            raise ValueError(f"a prompt has token_ids and perhaps a seed, not {', '.join(map(repr, strange))}")
        ids, seed = given.get("token_ids"), given.get("seed")
    if not isinstance(ids, Sequence) or isinstance(ids, str | bytes) or not ids or not all(map(_whole, ids)):
        raise ValueError(f"a prompt is a list of token ids, not {str(ids)[:60]!r}")
    if seed is not None and not _whole(seed):
        raise ValueError(f"a seed is a whole number, not {seed!r}")
    return Prompt(tuple(ids), seed)


def parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's sampling parameters, checked and completed. ValueError for one that is set here."""
    taken = sorted(OURS & set(params))
    if taken:
        raise ValueError(f"params: {', '.join(taken)} is set by the wire (samples_per_prompt, and the seed of each prompt)")
    if params.get("stop") or "detokenize" in params:
        return dict(params)
    # Nobody looks at the text: it need not be made.
    return {**params, "detokenize": False}


def token_body(asked: Prompt, samples: int, params: Mapping[str, Any]) -> dict[str, Any]:
    """Of `/inference/v1/generate`."""
    sampling = {**params, "n": samples, "logprobs": 0}
    if asked.seed is not None:
        sampling["seed"] = asked.seed
    return {"token_ids": asked.tokens, "sampling_params": sampling}


def completion_body(asked: Prompt, samples: int, params: Mapping[str, Any]) -> dict[str, Any]:
    """Of `/v1/completions`."""
    body = {**WHOLE, **{name: value for name, value in params.items() if name != "detokenize"}}
    body |= {"prompt": asked.tokens, "n": samples, "logprobs": 0, "return_token_ids": True}
    if asked.seed is not None:
        body["seed"] = asked.seed
    return body


def score_body(tokens: Sequence[int], *, token_api: bool, first: bool) -> dict[str, Any]:
    """Ask for the log-probability of each token after the first. `first`: before all that waits (needs priority scheduling)."""
    sampling = {"n": 1, "temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0}
    body = {"token_ids": tokens, "sampling_params": sampling} if token_api else {"prompt": tokens, **sampling}
    return {**body, "priority": -1} if first else body


def scores(content: bytes, tokens: Sequence[int]) -> list[float]:
    """The answer to `score_body`. ValueError when it is none."""
    document = msgspec.json.decode(content)
    found = document.get("prompt_logprobs") or document["choices"][0].get("prompt_logprobs")
    if not isinstance(found, list) or len(found) != len(tokens):
        raise ValueError(f"log-probabilities of {len(found or ())} prompt tokens instead of {len(tokens)}")
    return [float(of[str(token)]["logprob"]) for of, token in zip(found[1:], tokens[1:], strict=True)]


class _Span(msgspec.Struct):
    version: str
    start: int
    end: int


class _Logprob(msgspec.Struct):
    logprob: float


class _Content(msgspec.Struct):
    content: list[_Logprob] | None = None
    token_logprobs: list[float] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int]
    finish_reason: str | None = None
    logprobs: _Content | None = None
    weight_versions: list[_Span] | None = None
    index: int = 0


class _Choices(msgspec.Struct):
    choices: list[_Choice]


_DECODER = msgspec.json.Decoder(_Choices)


def answer(content: bytes, samples: int, around: tuple[str, str] | None, *, labelled: bool) -> Answer:
    """What came back for one prompt.

    `around` are the engine's versions before and after, for answers that say none themselves: the older one counts. `labelled`:
    a sample of weights that nobody published is refused (INFRA: the engine was restarted, or is being loaded); False in a group
    without a coordinator, where nobody publishes any.
    """
    try:
        choices = sorted(_DECODER.decode(content).choices, key=lambda choice: choice.index)
    except msgspec.DecodeError as error:
        return Answer(failure=FailureClass.DATA, message=f"an answer that is none: {error}")
    outputs: list[dict[str, Any]] = []
    weights: list[WeightsId | None] = []
    for choice in choices:
        if choice.finish_reason in (None, "abort", "error"):
            return Answer(failure=FailureClass.INFRA, message=f"the engine ended it: {choice.finish_reason}")
        logprobs = _logprobs(choice)
        if len(logprobs) != len(choice.token_ids):
            message = f"{len(logprobs)} log-probabilities for {len(choice.token_ids)} tokens"
            return Answer(failure=FailureClass.DATA, message=message)
        spans = _spans(choice, around)
        ids = [WeightsId.from_label(version) for version, _, _ in spans]
        ours = [each for each in ids if each is not None]
        if labelled and (len(ours) < len(ids) or not ours):
            names = ", ".join(repr(version) for version, _, _ in spans) or "nobody says which"
            return Answer(failure=FailureClass.INFRA, message=f"sampled by weights that nobody published: {names}")
        outputs.append(
            {
                "token_ids": choice.token_ids,
                "logprobs": logprobs,
                "finish_reason": choice.finish_reason,
                "versions": [
                    [each.version, start, end] for each, (_, start, end) in zip(ids, spans, strict=True) if each is not None
                ],
            }
        )
        weights.append(min(ours, key=_age, default=None))
    if len(outputs) != samples:
        return Answer(failure=FailureClass.DATA, message=f"{len(outputs)} samples instead of {samples}")
    return Answer(tuple(outputs), tuple(weights))


def failure_of(status: int) -> FailureClass:
    """The class of an HTTP error: the server's trouble, or the request's."""
    return FailureClass.INFRA if status >= 500 or status in INFRA_STATUS else FailureClass.DATA


def _logprobs(choice: _Choice) -> list[float]:
    found = choice.logprobs
    if found is None:
        return []
    if found.content is not None:
        return [each.logprob for each in found.content]
    return found.token_logprobs or []


def _spans(choice: _Choice, around: tuple[str, str] | None) -> list[tuple[str, int, int]]:
    if choice.weight_versions is not None:
        return [(span.version, span.start, span.end) for span in choice.weight_versions]
    if around is None:
        return []
    ids = [WeightsId.from_label(version) for version in around]
    if ids[0] is not None and ids[1] is not None:
        older = around[0] if _age(ids[0]) <= _age(ids[1]) else around[1]
    else:
        # One of them is not ours: neither can the sample be said to be.
        older = around[0] if ids[0] is None else around[1]
    return [(older, 0, len(choice.token_ids))]


def _age(weights: WeightsId) -> tuple[int, int]:
    return (weights.actor_incarnation, weights.version)


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
