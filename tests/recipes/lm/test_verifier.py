"""The verifier, and how the actor asks it and the reference."""

import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from gangflow.recipes.grpo.lm.build import Config, build
from gangflow.recipes.lm import judging
from gangflow.recipes.lm.judging import Judges, WrongReference
from gangflow.recipes.lm.problems import Problem
from gangflow.recipes.lm.verifier import judge, main
from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.packing import pack_floats, whole
from gangflow.recipes.services.serving import Answer, JsonServer

PROBLEMS = [Problem(number, f"{word}>", word[::-1]) for number, word in enumerate(("sun", "moon", "star"))]
POLICY = "f" * 64


@contextmanager
def _served(answers: Mapping[str, Answer]) -> Iterator[str]:
    with JsonServer("127.0.0.1", 0, answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def _judges(*urls: str, reference: str = POLICY) -> Iterator[Judges]:
    judges = Judges(lambda member: list(urls), reference=reference, patience_s=10.0)
    try:
        yield judges
    finally:
        judges.close()


def _reference(request: dict[str, Any]) -> dict[str, Any]:
    """Says of a token its negative hundredth, so that the test sees which one is meant."""
    tokens, found, at = whole(request["tokens"]), [], 0
    for length, start in zip(request["lengths"], request["starts"], strict=True):
        found += [-token / 100 for token in tokens[at + start : at + length]]
        at += length
    return {"logprobs": pack_floats(found), "policy": POLICY}


def test_verdicts_are_those_of_the_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SCORED", 2)  # so that they are asked for in two portions
    asked: list[list[int]] = []

    def score(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(request["problems"])
        return judge(PROBLEMS)(request)

    with _served({"/score": score}) as url, _judges(url) as judges:
        verdicts = judges.verdicts([0, 1, 2], ["nus", "moon", "rats"])
    assert verdicts.exact == [True, False, True]
    assert verdicts.rewards == [2.0, 0.5, 2.0]
    assert sorted(asked) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("numbers", "texts", "said"),
    [([0, 3], ["a", "b"], "a number below 3, got 3"), ([0], [1], "expected a text, got 1"), ([0, 1], ["a"], "as many texts")],
)
def test_what_cannot_be_judged_is_refused_and_never_a_reward_of_0(numbers: list[int], texts: list[Any], said: str) -> None:
    with _served({"/score": judge(PROBLEMS)}) as url, _judges(url) as judges, pytest.raises(ServiceFailed, match=said):
        judges.verdicts(numbers, texts)


def test_too_few_verdicts_are_a_failure() -> None:
    half = {"/score": lambda request: {"rewards": [1.0], "exact": [False]}}
    with _served(half) as url, _judges(url) as judges, pytest.raises(ServiceFailed, match="judged 1 answers of 2"):
        judges.verdicts([0, 1], ["a", "b"])


def test_the_reference_speaks_of_the_answers_tokens_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions go to different replicas, and come back in order."""
    monkeypatch.setattr(judging, "WEIGHED", 1)
    with _served({"/logprobs": _reference}) as one, _served({"/logprobs": _reference}) as two, _judges(one, two) as judges:
        found = judges.reference([[1, 2], [3], [4, 5, 6]], [[7, 8], [9], [10, 11, 12]], 1.0)
    assert found == [pytest.approx([-0.07, -0.08]), pytest.approx([-0.09]), pytest.approx([-0.1, -0.11, -0.12])]


def test_each_replica_has_one_request_at_a_time_and_all_of_them_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes one after the other: what waited there would have the others' time in its own."""
    monkeypatch.setattr(judging, "WEIGHED_TOKENS", 3)
    both = threading.Barrier(2)
    lock = threading.Lock()
    under_way, most, done = [0, 0], [0, 0], [0, 0]

    def replica(number: int) -> Answer:
        def answer(request: dict[str, Any]) -> dict[str, Any]:
            with lock:
                under_way[number] += 1
                most[number] = max(most[number], under_way[number])
                first, done[number] = done[number] == 0, done[number] + 1
            if first:
                both.wait(60)  # The other one has something to do, too.
            found = _reference(request)
            with lock:
                under_way[number] -= 1
            return found

        return answer

    told: list[str] = []
    with _served({"/logprobs": replica(0)}) as one, _served({"/logprobs": replica(1)}) as two:
        judges = Judges(lambda member: [one, two], reference=POLICY, patience_s=60.0, waiting=told.append)
        found = judges.reference([[1, 2]] * 9, [[token] for token in range(9)], 1.0)
        assert judges.repeated == 0
        judges.close()
    assert found == [pytest.approx([-token / 100]) for token in range(9)]
    assert most == [1, 1]
    assert sum(done) == 9
    assert told == [f"ref has answered {n} of 9 requests" for n in range(1, 10)]


def test_two_who_ask_at_the_same_time_share_the_replica(monkeypatch: pytest.MonkeyPatch) -> None:
    """As steps do that overlap."""
    monkeypatch.setattr(judging, "WEIGHED", 1)
    lock = threading.Lock()
    under_way = most = 0

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        found = _reference(request)
        with lock:
            under_way -= 1
        return found

    with _served({"/logprobs": answer}) as url, _judges(url) as judges, ThreadPoolExecutor(2) as threads:
        asks = [threads.submit(judges.reference, [[1]] * 20, [[step]] * 20, 1.0) for step in (3, 4)]
        assert [each.result(60) for each in asks] == [[pytest.approx([-step / 100])] * 20 for step in (3, 4)]
    assert most == 1


def test_the_first_refusal_ends_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WEIGHED", 1)
    asked: list[int] = []

    def refuses(request: dict[str, Any]) -> dict[str, Any]:
        asked.append(1)
        raise ValueError("no such token")

    with _served({"/logprobs": refuses}) as url, _judges(url) as judges, pytest.raises(ServiceFailed, match="no such token"):
        judges.reference([[1]] * 40, [[2]] * 40, 1.0)
    assert asked == [1]


def test_another_reference_is_refused() -> None:
    with (
        _served({"/logprobs": _reference}) as url,
        _judges(url, reference="e" * 64) as judges,
        pytest.raises(WrongReference, match="ref serves the policy ffffffffffff, this run's is eeeeeeeeeeee"),
    ):
        judges.reference([[1]], [[2]], 1.0)


def test_a_problem_set_that_cannot_be_read_ends_the_group_instead_of_restarting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_CONFIG", '{"problems": "/no/such.jsonl"}')
    monkeypatch.setattr(sys, "argv", ["verifier"])
    code = main()
    assert "/no/such.jsonl" in capsys.readouterr().err
    first, _ = build(Config()).members["reward"].on_failure
    assert (first.action, first.match.cause, first.match.exit_codes) == ("fail_group", ("app_exit",), (code,))
