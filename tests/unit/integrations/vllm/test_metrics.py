"""Numbers of a server, from what a real one said."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from gangflow.coordinators.engine import EngineRefused, EngineSilent
from gangflow.integrations.vllm import metrics
from tests.unit.integrations.vllm.within import Within

REAL = Path(__file__).with_name("metrics.txt").read_text()
"""Of vLLM 0.32 after three requests; histograms' buckets left out."""


def test_what_a_real_server_said() -> None:
    found = metrics.parse(REAL)
    assert (found.running, found.waiting, found.kv_cache_usage, found.preemptions) == (0, 0, 0.0, 0)
    assert (found.prompt_tokens, found.generation_tokens) == (15, 7)
    assert found.prompt_tokens_by_source == {"local_compute": 15, "local_cache_hit": 0, "external_kv_transfer": 0}
    assert found.finished == {"stop": 0, "length": 3, "abort": 0, "error": 0, "repetition": 0}


def test_engines_of_one_server_are_summed_and_the_fullest_cache_counts() -> None:
    text = """
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 3.0
vllm:num_requests_running{engine="1",model_name="a"} 4.0 1700000000000
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 7.5e-01
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 5
vllm:prompt_tokens_by_source_total{engine="1",source="local_compute"} 6
"""
    found = metrics.parse(text)
    assert (found.running, found.kv_cache_usage, found.prompt_tokens_by_source) == (7, 0.75, {"local_compute": 11})


def test_labels_are_read_with_their_escapes() -> None:
    line = r'vllm:x{a="one, \"two\"",b="back\\slash",c="new\nline",d="}"} +Inf'
    assert list(metrics.samples(line)) == [
        ("vllm:x", {"a": 'one, "two"', "b": "back\\slash", "c": "new\nline", "d": "}"}, float("inf"))
    ]


@pytest.mark.parametrize("text", ["", "python_gc_total 3\n", "<html></html>", 'vllm:x{a="1"} many\n', "vllm:x\n"])
def test_what_is_no_metrics_of_vllm_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"metrics of a vLLM|Prometheus|could not convert"):
        metrics.parse(text)


async def scraped(handler: httpx.MockTransport) -> metrics.Metrics:
    return await metrics.scrape(Within(handler), "http://rollout", 1.0)


async def test_a_scrape() -> None:
    found = await scraped(httpx.MockTransport(lambda request: httpx.Response(200, text=REAL)))
    assert found == metrics.parse(REAL)


async def test_a_server_without_metrics_refuses_and_one_that_is_away_is_silent() -> None:
    for answer in (httpx.Response(404), httpx.Response(200, text="<html>")):
        with pytest.raises(EngineRefused):
            await scraped(httpx.MockTransport(lambda request, answer=answer: answer))

    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("late", request=request)

    with pytest.raises(EngineSilent, match="ReadTimeout"):
        await scraped(httpx.MockTransport(away))
