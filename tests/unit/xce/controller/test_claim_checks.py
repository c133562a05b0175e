"""Looks at claims that are READY: a few at a time, reported when they are lost, and nothing when nobody can tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from gangflow.xce.controller import claim_checks
from gangflow.xce.controller.claim_checks import ClaimChecks, held
from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.core.inputs import ClaimLost, Report
from gangflow.xce.core.plan import ClaimPlan
from gangflow.xce.core.state import Claim, ClaimState
from gangflow.xce.ports import Held, Provider, Provisioned
from tests.unit.xce.controller.fakes import FakeProvider, until


@dataclass
class Able:
    """A provider that can tell."""

    wrong: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    go_on: asyncio.Event | None = None
    at_once: int = 0
    most: int = 0

    async def provision(self, request: Provision) -> Provisioned:
        raise AssertionError(f"nobody provisions {request.claim} here")

    async def release(self, request: Release) -> None:
        raise AssertionError(f"nobody releases {request.claim} here")

    async def check(self, what: Held) -> str:
        self.asked.append(what.claim)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            if self.go_on is not None:
                await self.go_on.wait()
            if self.wrong.get(what.claim) == "raise":
                raise OSError("stale handle")
            return self.wrong.get(what.claim, "")
        finally:
            self.at_once -= 1


class Bench:
    def __init__(self) -> None:
        self.able = Able()
        self.claims: dict[str, Claim] = {}
        self.reports: list[Report] = []
        self.checks = ClaimChecks(self._provider, self._report, lambda: self.claims)

    async def _provider(self, name: str) -> Provider:
        found: dict[str, Callable[[], Provider]] = {"able": lambda: self.able, "unable": FakeProvider}
        return found[name]()

    async def _report(self, report: Report) -> None:
        self.reports.append(report)

    def add(self, name: str, provider: str = "able", state: ClaimState = ClaimState.READY) -> None:
        self.claims[name] = Claim(name, "", ClaimPlan(name, provider), state, attempt=2)

    async def round(self, pause: Callable[[], Awaitable[None]] | None = None) -> None:
        self.checks._next = 0.0
        self.checks.look()
        assert self.checks._round is not None
        await self.checks._round


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.checks.close()


async def test_what_is_lost_is_reported(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.add(name)
    bench.able.wrong = {"b": "export is gone", "c": "raise"}
    await bench.round()
    assert bench.able.asked == ["a", "b", "c"]
    assert bench.reports == [ClaimLost("b", 2, "export is gone")], "one that cannot tell says nothing"


async def test_only_ready_claims_of_providers_that_can_tell_are_looked_at(bench: Bench) -> None:
    bench.add("a", state=ClaimState.PROVISIONING)
    bench.add("b", "unable")
    bench.add("c", "not-there")
    bench.add("d")
    await bench.round()
    assert bench.able.asked == ["d"]
    assert bench.reports == []


async def test_a_few_at_a_time_and_one_round_at_a_time(bench: Bench) -> None:
    for number in range(30):
        bench.add(f"c{number}")
    bench.able.go_on = asyncio.Event()
    bench.checks.look()
    await until(lambda: bench.able.asked)
    bench.checks._next = 0.0
    bench.checks.look()
    assert len(bench.able.asked) == claim_checks.CHECKS_AT_ONCE
    bench.able.go_on.set()
    await until(lambda: len(bench.able.asked) == 30)
    assert bench.able.most == claim_checks.CHECKS_AT_ONCE


async def test_rounds_are_not_more_often_than_they_should_be(bench: Bench) -> None:
    bench.add("a")
    for _ in range(5):
        bench.checks.look()
        await until(lambda: bench.able.asked)
    assert bench.able.asked == ["a"]


async def test_a_look_that_hangs_ends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_checks, "CHECK_LIMIT_S", 0.01)
    bench.add("a")
    bench.able.go_on = asyncio.Event()
    await bench.round()
    assert bench.reports == []


def test_a_retained_claim_is_known_by_what_it_was_made_as() -> None:
    claim = Claim("g1-rollout-0-m", "", ClaimPlan("g1-rollout-0-m"), ClaimState.READY, path="/x", made_as="g1/rollout[0]/m")
    assert held(claim) == Held("g1/rollout[0]/m", "g1", "m", "directory", "/x", (), ("rollout", 0))
