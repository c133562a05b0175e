"""What a vLLM server says of itself at `/metrics`, as numbers with names: how much it works on, and what came from where."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from gangflow.coordinators.engine import EngineRefused, EngineSilent
from gangflow.integrations.vllm.http import Http, Unreached, send

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?[ \t]+(\S+)(?:[ \t]+-?\d+)?[ \t]*")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Metrics:
    """A server at one moment; sums over its engines where it has several (data parallel). Counters grow from its start."""

    running: int = 0
    """Sequences in the batch."""
    waiting: int = 0
    """Sequences that wait for a place."""
    kv_cache_usage: float = 0.0
    """0 to 1; of the fullest engine."""
    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    """Sequences that lost their place and are computed again."""
    prompt_tokens_by_source: dict[str, int] = field(default_factory=dict)
    """`local_compute`, `local_cache_hit`, `external_kv_transfer`: how a prompt's keys and values were come by."""
    finished: dict[str, int] = field(default_factory=dict)
    """Requests by their end: `stop`, `length`, `abort`, `error`, …"""


def parse(text: str) -> Metrics:
    """From Prometheus' text format. ValueError when it has none of vLLM's metrics, or a line that is none."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for name, labels, value in samples(text):
        found.setdefault(name, []).append((labels, value))

    def values(name: str) -> list[float]:
        return [value for _, value in found.get(name, ())]

    def total(name: str) -> int:
        return int(sum(values(name)))

    def by(name: str, label: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for labels, value in found.get(name, ()):
            key = labels.get(label, "")
            sums[key] = sums.get(key, 0) + int(value)
        return sums

    if not any(name.startswith("vllm:") for name in found):
        raise ValueError("no metrics of a vLLM server")
    return Metrics(
        running=total("vllm:num_requests_running"),
        waiting=total("vllm:num_requests_waiting"),
        kv_cache_usage=max(values("vllm:kv_cache_usage_perc"), default=0.0),
        prompt_tokens=total("vllm:prompt_tokens_total"),
        generation_tokens=total("vllm:generation_tokens_total"),
        preemptions=total("vllm:num_preemptions_total"),
        prompt_tokens_by_source=by("vllm:prompt_tokens_by_source_total", "source"),
        finished=by("vllm:request_success_total", "finished_reason"),
    )


def samples(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """(name, labels, value) of each line that is no comment. ValueError for one that is not of the format."""
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(line)
        if match is None:
            raise ValueError(f"not a line of Prometheus' text format: {line[:200]!r}")
        labels = {name: _plain(value) for name, value in _LABEL.findall(match[2] or "")}
        yield match[1], labels, float(match[3])


async def scrape(http: Http, url: str, timeout_s: float) -> Metrics:
    """Of the server at `url`. EngineSilent when it does not answer in time, EngineRefused when it has no metrics."""
    try:
        async with asyncio.timeout(timeout_s):
            reply = await send(http, "GET", f"{url}/metrics")
    except TimeoutError as error:
        raise EngineSilent(f"/metrics: no answer within {timeout_s:g} s") from error
    except Unreached as error:
        raise EngineSilent(f"/metrics: {error}") from error
    if reply.status != 200:
        raise EngineRefused(f"/metrics: HTTP {reply.status}")
    try:
        return parse(reply.content.decode())
    except ValueError as error:
        raise EngineRefused(f"/metrics: {error}") from error


def _plain(value: str) -> str:
    return _ESCAPED.sub(lambda match: {"n": "\n"}.get(match[1], match[1]), value)
