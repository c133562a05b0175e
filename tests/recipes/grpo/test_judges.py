"""The reward and reference servers over HTTP, and how the actor asks them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import httpx
import numpy as np
import pytest

from gangflow.recipes.grpo import ref, reward, task
from gangflow.recipes.grpo.judges import Judges, WrongReference
from gangflow.recipes.grpo.policy import Policy
from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.serving import JsonServer


@contextmanager
def _running(answers: dict[str, Any]) -> Iterator[str]:
    with JsonServer("127.0.0.1", 0, answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _judges(urls: Callable[[str], list[str]], patience_s: float = 10.0, **more: Any) -> Iterator[Judges]:
    judges = Judges(urls, reference=Policy.fresh(0).fingerprint(), patience_s=patience_s, **more)
    try:
        yield judges
    finally:
        judges.close()


def _some() -> tuple[task.Digits, task.Digits]:
    prompts = task.prompts_of(np.arange(0, 10_000, 37))
    return prompts, np.random.default_rng(0).integers(0, 10, (len(prompts), 3)).astype(np.int8)


def _both() -> AbstractContextManager[str]:
    return _running({"/score": reward.score, "/logprobs": ref.judge(Policy.fresh(0))})


def test_judgements_are_those_of_the_task_and_the_first_policy() -> None:
    prompts, answers = _some()
    with _both() as url, _judges(lambda member: [url]) as judges:
        assert np.array_equal(judges.rewards(prompts, answers), task.rewards(prompts, answers))
        assert np.array_equal(judges.reference(prompts, answers), Policy.fresh(0).logprobs(prompts, answers))
        assert httpx.get(f"{url}/health").json() == {"ok": True}
        assert judges.repeated == 0


def test_a_reference_of_another_seed_is_refused() -> None:
    other = {"/logprobs": ref.judge(Policy.fresh(1))}
    with (
        _running(other) as url,
        _judges(lambda member: [url]) as judges,
        pytest.raises(WrongReference, match="ref serves the policy"),
    ):
        judges.reference(*_some())


def test_a_server_that_is_away_is_asked_again_where_it_is_by_then() -> None:
    """A failure to judge is never a reward of 0: the same request is judged by the next incarnation."""
    prompts, answers = _some()
    with _both() as dead:
        pass
    with _both() as alive:
        where: list[list[str]] = [[], [dead], [alive]]
        told: list[str] = []
        with _judges(lambda member: where.pop(0), waiting=told.append) as judges:
            assert np.array_equal(judges.rewards(prompts, answers), task.rewards(prompts, answers))
            assert judges.repeated == 2
        assert "no endpoint" in told[0]
        assert dead in told[1]


def test_a_server_that_stays_away_fails_with_its_address() -> None:
    with _both() as dead:
        pass
    with _judges(lambda member: [dead], patience_s=0.2) as judges, pytest.raises(ServiceFailed, match=dead):
        judges.rewards(*_some())


def test_a_refused_request_is_not_asked_again() -> None:
    with _both() as url, _judges(lambda member: [url]) as judges:
        prompts, answers = _some()
        with pytest.raises(ServiceFailed, match=r"status 400.*3 answers"):
            judges.rewards(prompts, answers[:3])
        assert judges.repeated == 0


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/score", b"{", 400), ("/score", b"[]", 400), ("/score", b"{}", 400), ("/nothing", b"{}", 404)],
)
def test_the_server_refuses_nonsense_and_goes_on(path: str, body: bytes, status: int) -> None:
    with _both() as url, httpx.Client(base_url=url) as client:
        assert client.post(path, content=body).status_code == status
        assert client.get("/health").status_code == 200
        assert client.get("/other").status_code == 404
