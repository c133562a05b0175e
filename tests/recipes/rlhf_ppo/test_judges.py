"""The actor's side of the reward model. Without torch; what a real one answers is in tests/engines."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator

import pytest

from gangflow.recipes.rlhf_ppo.judges import RlhfJudges
from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.packing import pack_floats
from gangflow.recipes.services.serving import JsonServer

Judged = Callable[[list[float]], RlhfJudges]


@pytest.fixture
def judged() -> Iterator[Judged]:
    """Judges that ask a reward model which answers these scores."""
    said: list[float] = []
    with JsonServer("127.0.0.1", 0, {"/score": lambda asked: {"scores": pack_floats(said), "model": "m"}}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        judges = RlhfJudges(lambda member: [server.url], reference="", patience_s=5.0)

        def with_scores(scores: list[float]) -> RlhfJudges:
            said[:] = scores
            return judges

        yield with_scores
        judges.close()
        server.shutdown()
        thread.join()


def test_scores_arrive_as_they_were_given(judged: Judged) -> None:
    assert judged([0.5, -2.0]).scores([[1], [1]], [[2], [3]]) == [0.5, -2.0]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_a_failure_and_no_score(judged: Judged, score: float) -> None:
    with pytest.raises(ServiceFailed, match=f"reply 1 of 2 as {score}: expected a finite number"):
        judged([0.5, score]).scores([[1], [1]], [[2], [3]])


def test_too_few_scores_are_a_failure(judged: Judged) -> None:
    with pytest.raises(ServiceFailed, match="1 replies of 2"):
        judged([0.5]).scores([[1], [1]], [[2], [3]])
