"""`gangflow up` and `gangflow down`: a cluster that stays."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gangflow import clusters
from gangflow.cli.running import speaker
from gangflow.cli.sources import read_cluster
from gangflow.errors import GangflowError, SetupError
from gangflow.home import Home, default_home, homes, remember


def bring_up(console: Console, home: Path | None, cluster: Path | None, runtime: str, dashboard: bool) -> None:
    """Start a cluster in a home and leave it running."""
    place = Home(home.expanduser().resolve()) if home else default_home()
    if place.alive:
        raise SetupError(f"a controller runs in {place.path} already", remedy=f"`gangflow down --home {place.path}` stops it")
    if cluster is None and (place.path / "cluster.yaml").exists():
        console.print(f"hosts as described in {place.path / 'cluster.yaml'}", markup=False, highlight=False, soft_wrap=True)
    started = clusters.start_cluster(place, read_cluster(cluster), runtime=runtime, dashboard=dashboard, say=speaker(console))
    remember(place)
    console.print(f"up: {place.url} (home {place.path})", markup=False, highlight=False, soft_wrap=True)
    console.print(f"run groups on it with --address {place.path}", markup=False, highlight=False, soft_wrap=True)
    page, secret = getattr(started, "dashboard_url", ""), getattr(started, "dashboard_token", "")
    if page:
        console.print(
            f"dashboard: {page} (its token is in {secret}), then {page}/gangflow", markup=False, highlight=False, soft_wrap=True
        )


def take_down(console: Console, home: Path | None, every: bool) -> None:
    """Stop what runs in a home, or in all of them."""
    places = list(homes()) if every else [Home(home.expanduser().resolve()) if home else default_home()]
    found = False
    for place in places:
        if not place.used:
            raise SetupError(f"no cluster has ever run in {place.path}")
        if not (place.alive or place.uses_ray or place.left_behind):
            if not every:
                console.print(f"nothing runs in {place.path}", markup=False, highlight=False, soft_wrap=True)
            continue
        found = True
        try:
            clusters.stop_cluster(place)
        except GangflowError as error:
            console.print(f"{place.path}: {error.message}", markup=False, soft_wrap=True, style="red")
            if not every:
                raise
        else:
            console.print(f"down: {place.path}", markup=False, highlight=False, soft_wrap=True)
    if every and not found:
        console.print("no cluster of this user runs on this machine", markup=False, highlight=False, soft_wrap=True)
