"""No replica is asked by two at once, and none is left idle while somebody waits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gangflow.recipes.services import lanes
from gangflow.recipes.services.lanes import Lanes

DEADLINE_S = 60.0


@pytest.mark.parametrize(("replicas", "at_once"), [(0, 1), (1, 1), (3, 3)])
def test_as_many_at_once_as_there_are_replicas(replicas: int, at_once: int) -> None:
    made = Lanes(lambda: replicas)
    inside: set[int] = set()
    full, all_in, lock = threading.Event(), threading.Barrier(at_once), threading.Lock()
    most = 0

    def work() -> int:
        nonlocal most
        with made.one() as lane:
            with lock:
                assert lane not in inside
                inside.add(lane)
                most = max(most, len(inside))
            if not full.is_set():
                all_in.wait(DEADLINE_S)
                full.set()
            with lock:
                inside.remove(lane)
        return lane

    with ThreadPoolExecutor(6) as threads:
        used = [done.result(DEADLINE_S) for done in [threads.submit(work) for _ in range(at_once * 5)]]
    assert most == at_once
    assert set(used) == set(range(at_once))


def test_a_replica_that_comes_is_asked_by_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LOOK_S", 0.01)
    there = 1
    made = Lanes(lambda: there)
    with ThreadPoolExecutor(1) as threads, made.one() as mine:

        def other() -> int:
            with made.one() as lane:
                return lane

        waits = threads.submit(other)
        there = 2
        assert (mine, waits.result(DEADLINE_S)) == (0, 1)


def test_a_failure_inside_gives_the_replica_back() -> None:
    made = Lanes(lambda: 1)
    with pytest.raises(ValueError, match="mine"), made.one():
        raise ValueError("mine")
    with made.one() as lane:
        assert lane == 0
