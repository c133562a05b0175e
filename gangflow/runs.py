"""Run a group from Python: `launch` submits one, `attach` finds one that runs, and a `Run` is what both return."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gangflow import clusters
from gangflow.errors import GroupEnded, NotFound, Unreachable, XceError
from gangflow.home import Home, homes
from gangflow.specs.group import CoStartGroup

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec
    from gangflow.specs.coordinator import RLCoordinator
    from gangflow.xce.rest.client import Client
    from gangflow.xce.rest.messages import EventView
    from gangflow.xce.rest.schema import GroupView


class Run:
    """A submitted group. As a context manager it leaves nothing behind: the group is cancelled and an own cluster stopped."""

    def __init__(self, group: str, name: str, cluster: clusters.Cluster, *, owns: bool) -> None:
        self.id = group
        self.name = name
        self.cluster = cluster
        self.client: Client = cluster.client()
        self._owns = owns

    def status(self) -> GroupView:
        """The group as it is now."""
        return self.client.group(self.id)

    def wait(self, *, check: bool = True) -> GroupView:
        """Wait until the group has ended.

        Raises:
            GroupEnded: it did not succeed (with `check`); carries its state and cause.
        """
        view = self.status()
        if not view.terminal:
            # The stream only says when to look again; what is true is what the view says.
            for event in self.client.events(after=view.seq, group=self.id):
                if event.type == "GroupChanged":
                    view = self.status()
                    if view.terminal:
                        break
        if check and view.state != "SUCCEEDED":
            because = f"{view.cause}: {view.message}".strip(": ")
            message = f"group {self.name!r} ended {view.state} ({because})" + _last_words(view)
            raise GroupEnded(message, group=self.id, state=view.state, cause=view.cause)
        return view

    def events(self, after: int | None = None) -> Iterator[EventView]:
        """The group's durable records, from its submission on (as far as they are kept), without end."""
        return self.client.events(after=self.client.healthz().horizon if after is None else after, group=self.id)

    def cancel(self) -> None:
        """Tear the group down. Returns when that is durable; `wait(check=False)` waits until all is gone."""
        self.client.cancel(self.id)

    def close(self) -> None:
        """Stop a cluster that was started for this run, and everything in it."""
        self.client.close()
        if self._owns:
            self.cluster.stop()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if not self.status().terminal:
                self.cancel()
                self.wait(check=False)
        except XceError:
            # The group's end is asked for on the way out; the error that led here is the one to see.
            if kind is None:
                raise
        finally:
            self.close()


def _last_words(view: GroupView) -> str:
    """The last lines of stderr of the last slot that failed; empty when none did, or it said nothing."""
    exits = [(slot.exit, slot) for member in view.members for slot in member.slots if slot.exit and slot.exit.cause]
    if not exits:
        return ""
    exit_, slot = max(exits, key=lambda pair: pair[0].at_ms)
    tail = exit_.stderr_tail.rstrip()
    return f"\nthe last lines of stderr of {slot.member}[{slot.index}]:\n{tail}" if tail else ""


def launch(
    group: CoStartGroup,
    coordinator: RLCoordinator | None = None,
    *,
    address: str = "",
    cluster: ClusterSpec | None = None,
    runtime: str = "ray",
    dashboard: bool = False,
    say: clusters.Say = clusters.silent,
) -> Run:
    """Submit a group and return at once.

    Without an `address` (an XCE's URL, a kept cluster's home, or a Ray address) it starts a cluster of its own on this machine;
    `cluster` describes its hosts. `coordinator` is short for the group's field of that name.

    Raises:
        SpecError: the group is wrong, or could never fit; nothing was created.
        SetupError, Unreachable: there is no cluster to submit to.
    """
    if coordinator is not None:
        group = CoStartGroup(**{**dict(group), "coordinator": coordinator})  # Not a copy: it is checked as a whole.
    owns = not address
    used = (
        clusters.join_cluster(address, say=say)
        if address
        else clusters.own_cluster(group.name, cluster, runtime=runtime, dashboard=dashboard, say=say)
    )
    try:
        return submit(group, used, owns=owns)
    except BaseException:
        if owns:
            used.stop()
        raise


def submit(group: CoStartGroup, cluster: clusters.Cluster, *, owns: bool = False) -> Run:
    """Submit a group to a cluster that is there, and start its coordinator if it has one.

    As in LSF, a member that names no working directory runs in the one that it was submitted from.
    """
    group = group.model_copy(
        update={
            "members": {
                name: member if member.cwd else member.model_copy(update={"cwd": str(Path.cwd())})
                for name, member in group.members.items()
            }
        }
    )
    with cluster.client() as client:
        submitted = client.submit(group)
    if group.coordinator is not None:
        try:
            cluster.coordinate(submitted.id)
        except BaseException:
            # Without its coordinator the group would hold its hosts and do nothing.
            with cluster.client() as client:
                client.cancel(submitted.id)
            raise
    return Run(submitted.id, group.name, cluster, owns=owns)


def attach(name: str, *, address: str = "") -> Run:
    """The running group of that name (or id), at `address` or in any of this user's clusters on this machine.

    Raises:
        NotFound: there is none, or there are several; the message says where.
    """
    if address:
        return _attached(name, clusters.join_cluster(address))
    seen = [(home, terminal) for home in homes() if home.alive and (terminal := _ended(home, name)) is not None]
    # An ended group of that name is meant only where none lives.
    found = [home for home, ended in seen if not ended] or [home for home, _ in seen]
    if not found:
        raise NotFound(f"no live group {name!r} in any cluster of this user; `gangflow status` lists them")
    if len(found) > 1:
        places = ", ".join(str(home.path) for home in found)
        raise NotFound(f"{len(found)} clusters have a group {name!r}: name one by its address: {places}")
    return _attached(name, clusters.join_cluster(str(found[0].path)))


def _ended(home: Home, name: str) -> bool | None:
    """Whether the group of that name in a home has ended; None: there is none."""
    try:
        with home.client(patience=1) as client:
            return client.group(name).terminal
    except (NotFound, Unreachable):
        return None


def _attached(name: str, cluster: clusters.Cluster) -> Run:
    with cluster.client() as client:
        view = client.group(name)
    return Run(view.id, view.name, cluster, owns=False)
