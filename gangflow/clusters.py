"""Clusters as a run sees them: one to join by its address, or one of its own to start and to stop again.

Four kinds, one surface: our own on Ray (the default), our own without Ray (`runtime="local"`), one that somebody keeps (a
home, or a Ray address), and a remote XCE by URL.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gangflow.errors import ClusterRefused, Problem, SpecError, Unreachable, UsageError, XceError
from gangflow.home import Home, given_token, new_home, root
from gangflow.specs.cluster import ClusterSpec
from gangflow.xce.rest.client import Client

if TYPE_CHECKING:
    from gangflow.xce.rest.aclient import AsyncClient

Say = Callable[[str], None]
"""Hears what is being done, for people who wait."""
RUNTIMES = ("ray", "local")


def silent(_: str) -> None:
    """Nobody listens."""


def with_scripts(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment whose PATH begins with this interpreter's folder: in a cluster of one's own, a member's `python` (and
    whatever is installed beside it) is the one that started the cluster."""
    scripts = os.path.dirname(sys.executable)
    rest = [entry for entry in environment.get("PATH", os.defpath).split(os.pathsep) if entry != scripts]
    return {**environment, "PATH": os.pathsep.join([scripts, *rest])}


class Cluster(Protocol):
    """A cluster that a run uses."""

    @property
    def name(self) -> str:
        """For people: where it is."""
        ...

    def client(self) -> Client: ...

    def aclient(self) -> AsyncClient:
        """As `client`, for an event loop."""
        ...

    def coordinate(self, group: str) -> None:
        """Start the group's coordinator; it outlives this process and is restarted when it dies."""
        ...

    def stop(self) -> None:
        """End it and everything that runs in it. Does nothing to a cluster that somebody else keeps."""
        ...


class Remote:
    """An XCE by URL. Its coordinators run on this machine."""

    def __init__(self, url: str, token: str) -> None:
        self.name = url
        self._token = token

    def client(self) -> Client:
        """A client of it."""
        return Client(self.name, self._token)

    def aclient(self) -> AsyncClient:
        """The same for an event loop."""
        from gangflow.xce.rest.aclient import AsyncClient

        return AsyncClient(self.name, self._token)

    def coordinate(self, group: str) -> None:
        """The coordinator is a supervised process on this machine."""
        from gangflow.local import start_coordinator

        start_coordinator(group, self.name, self._token, None)

    def stop(self) -> None:
        """It is not ours to stop."""


def own_cluster(
    name: str, spec: ClusterSpec | None, *, runtime: str = "ray", dashboard: bool = True, say: Say = silent
) -> Cluster:
    """Start a cluster of one's own in a new home. `spec` None: this machine as one host. What is refused leaves no home."""
    _check_runtime(runtime)
    home = new_home(name)
    try:
        return start_cluster(home, spec, runtime=runtime, dashboard=dashboard, say=say)
    except (SpecError, ClusterRefused):
        shutil.rmtree(home.path, ignore_errors=True)
        raise


def abandon(cluster: Cluster, error: BaseException) -> None:
    """Stop a cluster of one's own whose group was not submitted because of that error.

    When the group was refused, nothing has happened that its journal or logs could tell, and its home is removed. After any
    other error (nobody answered, a coordinator did not start) they are what says why, and stay.
    """
    cluster.stop()
    place = Path(cluster.name)
    refused = isinstance(error, SpecError | XceError) and not isinstance(error, Unreachable)
    if refused and place.parent == root() / "runs":
        shutil.rmtree(place, ignore_errors=True)


def _check_runtime(runtime: str) -> None:
    if runtime not in RUNTIMES:
        raise UsageError([Problem("runtime", repr(runtime), f"one of {', '.join(RUNTIMES)}")])


def start_cluster(
    home: Home, spec: ClusterSpec | None, *, runtime: str = "ray", dashboard: bool = True, say: Say = silent
) -> Cluster:
    """Start a cluster in a home, on the journal that is there if there is one.

    Raises:
        SetupError: Ray, the controller or an agent did not come up.
        JournalError: the journal cannot be used; says why and what to do.
    """
    _check_runtime(runtime)
    home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
    lived_before = (home.path / "journal.db").exists()
    started: Cluster
    if runtime == "ray":
        from gangflow.ray.runtime import RayCluster

        started = RayCluster.start(home, spec, dashboard=dashboard, say=say)
    else:
        from gangflow.local import LocalCluster

        _end_ray(home)
        started = LocalCluster.start(home, spec, say=say)
    if lived_before:
        _coordinate_again(started, say)
    return started


def _coordinate_again(cluster: Cluster, say: Say) -> None:
    """Groups that the journal has alive need their coordinators, which may be gone (the machine was started again). One that
    is there after all is fenced by the new one, and no member notices."""
    with cluster.client() as client:
        cursor: str | None = ""
        while cursor is not None:
            page = client.groups(["live"], cursor=cursor)
            for view in page.groups:
                if (client.group(view.id).document or {}).get("coordinator") is not None:
                    say(f"group {view.name!r} ({view.id}) goes on: starting its coordinator")
                    cluster.coordinate(view.id)
            cursor = page.next


IN_PROCESS: dict[str, Cluster] = {}
"""Clusters that live in this very process, by address: `gangflow.testing` keeps its own here while they are open."""


def join_cluster(address: str, *, say: Say = silent) -> Cluster:
    """The cluster at an address: an XCE's URL, the home of a kept cluster, or a Ray cluster's `host:port`.

    `GANGFLOW_TOKEN` (or `XCE_TOKEN`) says who calls, at any of them; without one it is the token that the home keeps.
    """
    if address in IN_PROCESS:
        return IN_PROCESS[address]
    if address.startswith(("http://", "https://")):
        return Remote(address.rstrip("/"), given_token())
    path = Path(address).expanduser()
    if path.is_dir():
        home = Home(path)
        if home.uses_ray:
            from gangflow.ray.runtime import RayCluster

            return RayCluster.join_home(home, say=say)
        from gangflow.local import LocalCluster

        return LocalCluster(home, kept=True)
    if os.sep in address:
        raise UsageError([Problem("address", repr(address), "an existing home, a URL, or a Ray address (host:port)")])
    from gangflow.ray.runtime import RayCluster

    return RayCluster.join_ray(address, say=say)


def stop_cluster(home: Home) -> None:
    """Stop everything that runs in a home: members, agents, controller, and Ray if it was started for it."""
    if home.uses_ray:
        from gangflow.ray.runtime import RayCluster

        RayCluster.stop_home(home)
        return
    from gangflow.local import LocalCluster

    LocalCluster(home, kept=False).stop()


def _end_ray(home: Home) -> None:
    """What is left of a Ray that was started for this home: its next life is without one."""
    if home.uses_ray:
        from gangflow.ray.head import stop_head

        stop_head(home.path)
