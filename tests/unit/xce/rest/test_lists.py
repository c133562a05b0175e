"""What the server shows: lists with filters and pages, metrics, and a seq with everything."""

from __future__ import annotations

import httpx
import pytest

from gangflow.errors import XceError
from gangflow.xce.core.state import GroupState
from gangflow.xce.rest.aclient import AsyncClient
from tests.unit.xce.rest.fake import FakeController, pending, running, state_of


@pytest.fixture
def controller() -> FakeController:
    ended = running("g10", "grpo", state=GroupState.FAILED, submitted_ms=500, ended_ms=900)
    return FakeController(state_of(ended, running(), pending("g2", "other", priority=60), pending("g3", "third")))


async def test_every_get_has_a_seq(http: httpx.AsyncClient) -> None:
    for path in (
        "groups", "groups/g1", "groups/g1/why", "queue", "hosts", "claims", "healthz", "groups/g1/kv", "groups/g1/kv/x",
        "groups/g1/heartbeats",
    ):  # fmt: skip
        answer = await http.get(f"/v1/{path}")
        assert (path, answer.status_code, answer.json().get("seq")) == (path, 200, 100)


async def test_groups_are_in_submission_order_and_filtered(admin: AsyncClient) -> None:
    async def ids(**given: object) -> list[str]:
        return [group.id for group in (await admin.groups(**given)).groups]  # type: ignore[arg-type]

    assert await ids() == ["g1", "g2", "g3", "g10"]
    assert await ids(states=["PENDING"]) == ["g2", "g3"]
    assert await ids(states=["live"]) == ["g1", "g2", "g3"]
    assert await ids(states=["failed", "RUNNING"], name="grpo") == ["g1", "g10"]
    with pytest.raises(XceError, match="known: PENDING"):
        await admin.groups(["SLEEPING"])


async def test_a_long_list_comes_in_pages(admin: AsyncClient) -> None:
    first = await admin.groups(limit=3)
    assert ([group.id for group in first.groups], first.next) == (["g1", "g2", "g3"], "g3")
    second = await admin.groups(limit=3, cursor=first.next or "")
    assert ([group.id for group in second.groups], second.next) == (["g10"], None)
    with pytest.raises(XceError, match="less than or equal"):
        await admin.groups(limit=100_000)


async def test_every_list_comes_in_pages(admin: AsyncClient) -> None:
    for key in "abc":
        await admin.kv_put("g1", key, "1")
    queue, hosts, values = await admin.queue(limit=1), await admin.hosts(limit=1), await admin.kv_list("g1", limit=2)
    assert ([item.id for item in queue.groups], queue.next) == (["g2"], "g2")
    assert ([host.name for host in hosts.hosts], hosts.next) == (["h0"], "h0")
    assert ([value.key for value in values.values], values.next) == (["a", "b"], "b")
    assert [item.id for item in (await admin.queue(cursor="g2")).groups] == ["g3"]
    assert [host.name for host in (await admin.hosts(cursor="h0")).hosts] == ["h1"]
    assert [value.key for value in (await admin.kv_list("g1", cursor="b")).values] == ["c"]
    with pytest.raises(XceError, match="list again"):
        await admin.hosts(cursor="h7")


async def test_a_name_means_the_live_group(admin: AsyncClient, controller: FakeController) -> None:
    assert (await admin.group("grpo")).id == "g1"
    controller.state = state_of(*(group for group in controller.state.groups.values() if group.id != "g1"))
    assert (await admin.group("grpo")).id == "g10"


async def test_only_the_detail_has_the_document(admin: AsyncClient) -> None:
    assert (await admin.group("g1")).document == {"name": "grpo"}
    assert [group.document for group in (await admin.groups()).groups] == [None] * 4


async def test_the_queue_is_in_the_order_of_the_session(admin: AsyncClient) -> None:
    items = (await admin.queue()).groups
    assert [(item.position, item.id, item.reason.code if item.reason else "") for item in items] == [
        (1, "g2", "WAITING_CAPACITY"),
        (2, "g3", "WAITING_CAPACITY"),
    ]


async def test_why_takes_four_levels(admin: AsyncClient) -> None:
    assert [len((await admin.why("g2", level)).hosts) > 0 for level in range(4)] == [False, False, True, True]
    with pytest.raises(XceError, match="less than or equal to 3"):
        await admin.why("g2", 4)


async def test_claims_and_hosts(admin: AsyncClient) -> None:
    assert [(claim.id, claim.path) for claim in (await admin.claims()).claims] == [("c1", "/claims/c1")]
    assert (await admin.claims("g2")).claims == ()
    assert [(host.name, host.lsf) for host in (await admin.hosts()).hosts] == [("h0", "ok"), ("h1", "ok")]


async def test_metrics_are_prometheus_text(http: httpx.AsyncClient) -> None:
    answer = await http.get("/v1/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert values['gangflow_groups{state="PENDING"}'] == "2"
    assert values['gangflow_capacity{resource="cpu"}'] == "8000"
    assert values['gangflow_allocated{resource="gpus"}'] == "2000"
    assert values['gangflow_restarts{group="g1",name="grpo"}'] == "2"
    assert values["gangflow_journal_seq"] == "100"
    assert (await http.get("/v1/metrics", headers={"Authorization": ""})).status_code == 401


async def test_the_page_is_served(http: httpx.AsyncClient) -> None:
    answer = await http.get("/gangflow")
    assert answer.headers["content-type"].startswith("text/html")
    assert "{{API}}" not in answer.text
