"""Claim providers at work: deadlines, failures, and releases that are never given up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from gangflow.xce.controller import claims
from gangflow.xce.controller.claims import ClaimWork
from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.core.inputs import ClaimFailed, ClaimReady, ClaimReleased, Report
from tests.unit.xce.controller.fakes import FakeProvider, until

PROVISION = Provision("c1", 1, "g1", "ckpt", "fake", ())
RELEASE = Release("c1", "g1", "ckpt", "fake", "/claims/ckpt", False)


class Bench:
    def __init__(self) -> None:
        self.provider = FakeProvider()
        self.reports: list[Report] = []
        self.left_s = 10.0
        self.work = ClaimWork({"fake": self.provider}, self._report, lambda request: self.left_s)

    async def _report(self, report: Report) -> None:
        self.reports.append(report)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(claims, "RESEND_S", (0.0,))
    monkeypatch.setattr(claims, "CANCEL_S", 0.01)
    made = Bench()
    yield made
    made.provider.left_behind.set()
    await made.work.close()


async def test_a_provision_reports_where_it_is(bench: Bench) -> None:
    bench.work.issue([PROVISION])
    await until(lambda: bench.reports)
    assert bench.reports == [ClaimReady("c1", 1, "/claims/ckpt")]


async def test_a_failure_is_reported_with_its_reason(bench: Bench) -> None:
    bench.provider.failures = 1
    bench.work.issue([PROVISION])
    await until(lambda: bench.reports)
    assert bench.reports == [ClaimFailed("c1", 1, "fake: no space left")]


async def test_a_provider_that_hangs_is_ended_at_its_deadline(bench: Bench) -> None:
    bench.provider.hang, bench.left_s = True, 0.01
    bench.work.issue([PROVISION])
    await until(lambda: bench.reports)
    assert bench.reports == [ClaimFailed("c1", 1, "fake did not answer within 0 s")]
    assert bench.provider.cancelled == 1


async def test_an_unknown_provider_fails_and_names_the_known_ones(bench: Bench) -> None:
    bench.work.issue([Provision("c1", 1, "g1", "ckpt", "nfs", ())])
    await until(lambda: bench.reports)
    assert bench.reports == [ClaimFailed("c1", 1, "no provider 'nfs' here (known: fake)")]


async def test_a_release_is_tried_until_it_succeeds(bench: Bench) -> None:
    """Scenario 13: five failures and more do not drop the obligation."""
    bench.provider.failures = 7
    bench.work.issue([RELEASE])
    await until(lambda: bench.reports)
    assert (bench.provider.release_tries, bench.reports) == (8, [ClaimReleased("c1")])


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_release_that_hangs_is_tried_again(bench: Bench, monkeypatch: pytest.MonkeyPatch, stubborn: bool) -> None:
    """Scenario 13: a call that never returns, not even when it is cancelled, must not end the obligation in silence."""
    monkeypatch.setattr(claims, "RELEASE_S", 0.01)
    bench.provider.stubborn = stubborn
    bench.provider.hang_releases = 2
    bench.work.issue([RELEASE])
    await until(lambda: bench.reports)
    assert (bench.provider.release_tries, bench.reports) == (3, [ClaimReleased("c1")])


async def test_a_release_does_not_wait_for_ever_for_a_provision_that_hangs(bench: Bench) -> None:
    """Scenario 13: the provision is left behind in the end; the release is an obligation."""
    bench.provider.hang = bench.provider.stubborn = True
    bench.work.issue([PROVISION])
    await until(lambda: bench.provider.provisioned)
    bench.work.issue([RELEASE])
    await until(lambda: bench.reports)
    assert bench.reports == [ClaimReleased("c1")]
    assert bench.provider.cancelled == 0, "it hangs still"


async def test_the_same_effect_again_does_not_begin_twice(bench: Bench) -> None:
    bench.provider.hang = True
    bench.work.issue([PROVISION])
    await until(lambda: bench.provider.provisioned)
    bench.work.issue([PROVISION])
    bench.work.reconcile([PROVISION])
    await until(lambda: True)
    assert len(bench.provider.provisioned) == 1


async def test_a_release_waits_for_the_end_of_the_provision_that_it_undoes(bench: Bench) -> None:
    bench.provider.hang = True
    bench.work.issue([PROVISION])
    await until(lambda: bench.provider.provisioned)
    bench.work.issue([RELEASE])
    await until(lambda: bench.reports)
    assert bench.provider.cancelled == 1
    assert bench.reports == [ClaimReleased("c1")]


async def test_what_is_due_and_not_under_way_begins_again(bench: Bench) -> None:
    bench.work.issue([PROVISION])
    await until(lambda: len(bench.reports) == 1)
    bench.work.reconcile([PROVISION])
    await until(lambda: len(bench.reports) == 2)


async def test_what_is_not_due_any_more_is_stopped(bench: Bench) -> None:
    bench.provider.hang = True
    bench.work.issue([PROVISION])
    await until(lambda: bench.provider.provisioned)
    bench.work.reconcile([])
    await until(lambda: bench.provider.cancelled == 1)
    assert not bench.work
    assert bench.reports == []


async def test_a_provider_that_cannot_be_loaded_says_why(bench: Bench) -> None:
    class Broken(dict[str, FakeProvider]):
        def __getitem__(self, name: str) -> FakeProvider:
            raise RuntimeError("claim provider 'x' cannot be loaded: no licence")

    work = ClaimWork(Broken(x=bench.provider), bench._report, lambda request: 10.0)
    work.issue([Provision("c1", 1, "g1", "ckpt", "x", ())])
    await until(lambda: bench.reports)
    assert bench.reports == [ClaimFailed("c1", 1, "claim provider 'x' cannot be loaded: no licence")]
    await work.close()


async def test_a_retained_claim_is_known_to_its_provider_by_its_first_id(bench: Bench) -> None:
    bench.work.issue([Release("g1-ckpt", "g1", "ckpt", "fake", "/claims/ckpt", False, made_as="g1/ckpt")])
    await until(lambda: bench.reports)
    assert bench.reports == [ClaimReleased("g1-ckpt")]
    assert [request.claim for request in bench.provider.released] == ["g1/ckpt"]
    bench.work.issue([Provision("g1-ckpt", 3, "g1", "ckpt", "fake", (), made_as="g1/ckpt")])
    await until(lambda: len(bench.reports) == 2)
    assert bench.reports[1] == ClaimReady("g1-ckpt", 3, "/claims/ckpt")
    assert bench.provider.provisioned[0].claim == "g1/ckpt"
