"""`/gangflow` in Ray's dashboard and on the controller, in a real browser, while a group is hurt; and Ray's metrics of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gangflow.home import Home
from gangflow.ray.runtime import RayCluster
from gangflow.xce.rest.schema import GroupView
from tests.integration.ray.browser import Page, chromium, opened
from tests.integration.ray.world import Kept, group, running, state, until

pytestmark = [pytest.mark.ray, pytest.mark.browser]
needs_browser = pytest.mark.skipif(chromium() is None, reason="needs Debian's `chromium` package for a headless browser")
PICTURE = "GANGFLOW_SCREENSHOT"
"""Set to a file's name: a picture of the dashboard's page is kept there."""


@pytest.fixture(scope="module")
def shown(root: Path) -> Iterator[tuple[Kept, RayCluster]]:
    """A cluster with Ray's dashboard."""
    home = Home(root / "shown")
    home.path.mkdir()
    cluster = RayCluster.start(home, None, dashboard=True)
    try:
        yield Kept(home), cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="module")
def hurt(shown: tuple[Kept, RayCluster], root: Path) -> Iterator[GroupView]:
    """A group that runs again after one of its members was killed."""
    kept, _ = shown
    with kept.client as client, running(client, group("painted", root / "never", "actor", "rollout")) as view:
        client.signal(view.id, "rollout", 0, 1, signal.SIGKILL)
        until(lambda: client.group(view.id).slot("rollout", 0).incarnation == 2, "a second incarnation")
        yield state(client, view.id, "RUNNING")


async def looks_right(page: Page, view: GroupView) -> None:
    """Names, states, members, the second incarnation, and bars for both in the trace."""
    await page.until("document.querySelector('.group strong')?.textContent === 'painted'")
    await page.until("document.querySelector('.group .state').textContent === 'RUNNING'")
    await page.until("document.querySelector('#trace rect[data-span=\"rollout[0] #2\"]')")
    cells = await page.evaluate(
        "[...document.querySelectorAll('#detail tbody tr')].map(row => [...row.cells].slice(0, 5).map(one => one.textContent))"
    )
    host = view.slot("actor", 0).hosts[0]
    assert cells == [["actor[0]", "READY", host, "1", "0"], ["rollout[0]", "READY", host, "2", "1"]]
    bars = await page.evaluate("[...document.querySelectorAll('#trace rect')].map(bar => bar.dataset.span)")
    assert {"actor[0] #1", "rollout[0] #1", "rollout[0] #2", "queued", "running", "degraded"} <= set(bars)
    widths = await page.evaluate("[...document.querySelectorAll('#trace rect')].map(bar => +bar.getAttribute('width'))")
    assert all(width > 0 for width in widths)
    failed = await page.evaluate("document.querySelector('#trace rect[data-span=\"rollout[0] #1\"]').getAttribute('fill')")
    assert failed == "var(--bad)"
    said = await page.evaluate("document.querySelector('#trace rect[data-span=\"rollout[0] #1\"] title').textContent")
    assert "SIGKILL" in said
    assert await page.evaluate("document.getElementById('fault').textContent") == ""


@needs_browser
async def test_page_in_rays_dashboard(shown: tuple[Kept, RayCluster], hurt: GroupView) -> None:
    """Behind the dashboard's own login; the cluster's token never reaches the browser."""
    kept, cluster = shown
    url, secret = cluster.dashboard_url, (Path(kept.folder) / "token").read_text().strip()
    async with opened() as page:
        await page.open(url)
        await page.until("document.readyState === 'complete' && location.protocol === 'http:'")
        login = (
            f"fetch('/api/authenticate', {{method: 'POST', headers: {{Authorization: 'Bearer {secret}'}}}}).then(r => r.status)"
        )
        assert await page.evaluate(login) == 200
        await page.open(f"{url}/gangflow")
        await looks_right(page, hurt)
        assert kept.home.token not in await page.evaluate("document.documentElement.outerHTML")
        if os.environ.get(PICTURE):
            await asyncio.to_thread(Path(os.environ[PICTURE]).write_bytes, await page.screenshot())


@needs_browser
async def test_page_on_the_controller(shown: tuple[Kept, RayCluster], hurt: GroupView) -> None:
    """The same page, where Ray's dashboard is not: with the token in the address's fragment, which no server sees."""
    kept, _ = shown
    async with opened() as page:
        await page.open(f"{kept.home.url}/gangflow")
        await page.until("document.getElementById('fault').textContent.includes('needs the cluster')")
        await page.open("about:blank")
        await page.open(f"{kept.home.url}/gangflow#token={kept.home.token}")
        await looks_right(page, hurt)


def test_what_the_dashboard_does_not_pass_on(shown: tuple[Kept, RayCluster], hurt: GroupView) -> None:
    """Only what the page reads: nothing can be changed through it, and nothing else of the contract is reached."""
    kept, cluster = shown
    assert httpx.get(f"{cluster.dashboard_url}/gangflow").status_code == 401
    assert httpx.get(f"{cluster.dashboard_url}/api/gangflow/groups").status_code == 401
    with httpx.Client(
        base_url=cluster.dashboard_url,
        headers={"Authorization": f"Bearer {(Path(kept.folder) / 'token').read_text().strip()}"},
    ) as dashboard:
        assert dashboard.get("/api/gangflow/groups").json()["groups"][0]["name"] == "painted"
        assert dashboard.get(f"/api/gangflow/groups/{hurt.id}/trace").json()["spans"]
        assert dashboard.get("/api/gangflow/events").status_code == 404
        assert dashboard.get("/api/gangflow/groups/..%2f..%2fhealthz").status_code == 404
        assert dashboard.delete(f"/api/gangflow/groups/{hurt.id}").status_code in (403, 404, 405)
        assert dashboard.get(f"/api/gangflow/groups/{hurt.id}").json()["state"] == "RUNNING"


def test_rays_metrics_have_the_groups(shown: tuple[Kept, RayCluster], hurt: GroupView) -> None:
    """`ray_gangflow_*` on the node's metrics endpoint, where Prometheus and Grafana find them."""
    kept, _ = shown
    discovery = Path(kept.folder) / "r" / "prom_metrics_service_discovery.json"
    until(discovery.exists, "the file that tells Prometheus where to look")

    def samples() -> dict[str, float]:
        found: dict[str, float] = {}
        for target in (target for entry in json.loads(discovery.read_text()) for target in entry["targets"]):
            for line in httpx.get(f"http://{target}/metrics").text.splitlines():
                if match := re.match(r"ray_(gangflow_\w+)\{(.*)\} (\S+)$", line):
                    labels = dict(re.findall(r'(\w+)="([^"]*)"', match[2]))
                    wanted = [labels[key] for key in ("group", "member", "state") if key in labels]
                    found[" ".join([match[1], *wanted])] = float(match[3])
        return found

    expected = {
        "gangflow_groups RUNNING": 1.0,
        "gangflow_slots painted actor READY": 1.0,
        "gangflow_slots painted rollout READY": 1.0,
        "gangflow_restarts_total painted rollout": 1.0,
        "gangflow_pend_seconds_count painted": 1.0,
    }
    until(lambda: expected.items() <= samples().items(), f"{expected}; last seen {samples()}")
