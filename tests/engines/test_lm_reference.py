"""The reference server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import reference, wire
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.judging import Judges
from gangflow.recipes.services.packing import pack_whole
from gangflow.recipes.services.serving import JsonServer, NobodyWaits

PROMPTS, ANSWERS = [[5, 6, 7], [8], [9, 10]], [[11, 1], [12, 13, 14, 1], [1]]


@pytest.fixture
def url(tiny_model: Path) -> Iterator[str]:
    model = models.load(tiny_model)
    with JsonServer(
        "127.0.0.1", 0, {"/logprobs": reference.judge(model, models.fingerprint(tiny_model), micro_batch=2)}
    ) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.url
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_it_says_what_the_model_says(url: str, tiny_model: Path, temperature: float) -> None:
    judges = Judges(lambda member: [url], reference=models.fingerprint(tiny_model), patience_s=5.0)
    try:
        found = judges.reference(PROMPTS, ANSWERS, temperature)
    finally:
        judges.close()
    batch = pack(PROMPTS, ANSWERS)
    with torch.no_grad():
        said = models.token_logprobs(models.load(tiny_model), batch.tokens, batch.attention, temperature=temperature)
    for row, values in enumerate(found):
        assert values == pytest.approx(said[row][batch.answer[row]].tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"lengths": [5, 5]}, "as many lengths as starts"),
        ({"lengths": [5, 5, 4]}, "13 tokens, but lengths of 14"),
        ({"starts": [3, 0, 2]}, "1 ≤ start < length"),
        ({"tokens": pack_whole([200] * 13)}, "from 0 to 127, got 200 … 200"),
        ({"tokens": "?"}, "not packed numbers"),
        ({"temperature": 0}, "above 0"),
    ],
)
def test_what_it_cannot_weigh_it_refuses(url: str, change: dict[str, Any], said: str) -> None:
    tokens = [token for parts in zip(PROMPTS, ANSWERS, strict=True) for part in parts for token in part]
    body = {"tokens": pack_whole(tokens), "lengths": [5, 5, 3], "starts": [3, 1, 2], "temperature": 1.0}
    answer = httpx.post(f"{url}/logprobs", json={**body, **change}, trust_env=False)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def test_it_computes_no_further_for_nobody(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows are two portions; before the second one whoever asked has gone."""
    here = iter([True, False])

    def check() -> None:
        if not next(here):
            raise NobodyWaits

    computed: list[int] = []
    real = models.token_logprobs
    monkeypatch.setattr(reference, "check_asker", check)
    monkeypatch.setattr(models, "token_logprobs", lambda *args, **kw: computed.append(1) or real(*args, **kw))
    answer = reference.judge(models.load(tiny_model), "f", micro_batch=2)
    with pytest.raises(NobodyWaits):
        answer({**wire.sequences(PROMPTS, ANSWERS), "temperature": 1.0})
    assert computed == [1]
