"""A gangflow cluster in a Ray cluster: of our own, kept in a home, or somebody's that we join."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gangflow import __version__
from gangflow.clusters import Say, silent
from gangflow.errors import (
    GangflowError,
    JournalCorrupt,
    JournalFull,
    JournalLocked,
    JournalRegressed,
    SetupError,
)
from gangflow.home import Home, root
from gangflow.ray.agents import NAMESPACE
from gangflow.ray.controller import ControllerActor
from gangflow.ray.coordinator import CoordinatorActor
from gangflow.ray.head import RayHead, head_alive, read_head, start_head, stop_head
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.document import dump
from gangflow.xce.rest.client import Client

CONTROLLER = f"controller-{__version__}"
"""With the version of the code: Ray would hand a newer one an older actor."""
READY_S = 150.0
DOWN_S = 330.0
_ERRORS: dict[str, type[GangflowError]] = {
    kind.code: kind for kind in (JournalFull, JournalLocked, JournalCorrupt, JournalRegressed)
}


class RayCluster:
    """A cluster whose controller, coordinators and agents' wrappers are actors."""

    def __init__(self, home: Home, head: RayHead | None, *, kept: bool, dashboard_url: str = "") -> None:
        self.home = home
        self.head = head
        self.name = str(home.path)
        self.dashboard_url = dashboard_url
        self._kept = kept

    # --- starting and joining -------------------------------------------------------------------------------------------

    @classmethod
    def start(cls, home: Home, spec: ClusterSpec | None, *, dashboard: bool = False, say: Say = silent) -> RayCluster:
        """Start Ray on this machine and the controller in it.

        Raises:
            SetupError: Ray or an agent did not start.
            JournalError: the journal in the home cannot be used.
        """
        if spec is not None:
            (home.path / "cluster.yaml").write_text(dump(spec))
        say("starting Ray on this machine" + (" with its dashboard" if dashboard else ""))
        head = start_head(home.path, dashboard=dashboard)
        cluster = cls(home, head, kept=False, dashboard_url=head.dashboard_url)
        try:
            _connect(head.address, head.environment)
            say("starting the controller and the host agents")
            _controller(home)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @classmethod
    def join_home(cls, home: Home, *, say: Say = silent) -> RayCluster:
        """The kept cluster of a home; Ray itself is only spoken to when an actor is needed."""
        head = read_head(home.path)
        say(f"joining the cluster in {home.path}")
        return cls(home, head, kept=True, dashboard_url=head.dashboard_url if head else "")

    @classmethod
    def join_ray(cls, address: str, *, say: Say = silent) -> RayCluster:
        """The gangflow cluster in somebody's Ray cluster; its controller is started if there is none."""
        say(f"joining Ray at {address}")
        _connect(address, {})
        gcs = ray.get_runtime_context().gcs_address
        home = Home(root() / f"ray-{sha256(gcs.encode()).hexdigest()[:8]}")
        home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = _controller(home)
        cluster = cls(Home(Path(found["home"])), None, kept=True)
        cluster._joined = (found["url"], found["token"])
        return cluster

    _joined: tuple[str, str] | None = None

    # --- use ------------------------------------------------------------------------------------------------------------

    def client(self) -> Client:
        """A client of its controller."""
        if self._joined is not None:
            return Client(*self._joined)
        return self.home.client()

    def coordinate(self, group: str) -> None:
        """Start the group's coordinator as a detached actor."""
        self._connected()
        name = f"gangflow/{group}"
        url, token = self._joined or (self.home.url, self.home.token)
        actor = ray.remote(CoordinatorActor).options(
            name=name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=0,
        )
        ray.get(actor.remote(group, (url, token), name).alive.remote(), timeout=READY_S)

    def stop(self) -> None:
        """End every group, agent and actor, and Ray if it was started for this cluster. Nothing of a kept one."""
        if self._kept:
            return
        self.stop_home(self.home)

    @classmethod
    def stop_home(cls, home: Home) -> None:
        """Stop the cluster of a home and the Ray that was started for it."""
        head = read_head(home.path)
        if head is None:
            return
        try:
            if head_alive(head):
                _connect(head.address, head.environment)
                try:
                    ray.get(ray.get_actor(CONTROLLER, NAMESPACE).take_down.remote(), timeout=DOWN_S)
                except (ValueError, ray.exceptions.RayError):
                    # The controller is gone: the agents' leases end their tasks once nobody renews them.
                    pass
        finally:
            ray.shutdown()
            stop_head(home.path)

    def _connected(self) -> None:
        if not ray.is_initialized() and self.head is not None:
            _connect(self.head.address, self.head.environment)


def _connect(address: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    if ray.is_initialized():
        return
    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR", configure_logging=False)
    except (ConnectionError, RuntimeError, OSError) as error:
        raise SetupError(f"Ray at {address} cannot be joined: {error}") from error


def _controller(home: Home) -> dict[str, Any]:
    """Start the controller's actor, or find it; what it says when it is ready."""
    actor = (
        ray.remote(ControllerActor)
        .options(
            name=CONTROLLER,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            max_restarts=-1,
            max_concurrency=64,
            num_cpus=0,
            # The journal is a file on this node.
            scheduling_strategy=NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False),
        )
        .remote(str(home.path), CONTROLLER, (home.path / "cluster.yaml").exists())
    )
    said: dict[str, Any] = ray.get(actor.ready.remote(), timeout=READY_S)
    if "error" in said:
        ray.kill(actor)
        raise _ERRORS.get(said["code"], SetupError)(said["error"])
    return said
