"""Run a group from Python: `launch` submits one, `attach` finds one that runs, and a `Run` is what both return.

`gangflow.aio` has the same for programs with an event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gangflow import clusters, outcomes
from gangflow.errors import Gone, NotFound, Unauthorized, Unreachable, XceError
from gangflow.home import Home, given_token, homes
from gangflow.specs.group import CoStartGroup, grouped

if TYPE_CHECKING:
    from gangflow.events import Event
    from gangflow.specs.cluster import ClusterSpec
    from gangflow.specs.coordinator import RLCoordinator
    from gangflow.specs.member import Job, ReplicaSet
    from gangflow.xce.rest.client import Client
    from gangflow.xce.rest.messages import EventView
    from gangflow.xce.rest.schema import ChangeView, GroupView, WhyView

HORIZON_TRIES = 5
"""The journal's horizon may move on between the question where it is and the watch from there."""
LOG_PIECE = 1_048_576


class Run:
    """A submitted group. As a context manager it leaves nothing behind: the group is cancelled and an own cluster stopped.

    Every call may raise what the client raises: Unreachable, NotFound (the group was forgotten), Unauthorized, Conflict (not in
    this state). In a notebook it shows itself as a table; `watch` keeps one up to date.
    """

    def __init__(self, group: str, name: str, cluster: clusters.Cluster, *, owns: bool) -> None:
        self.id = group
        self.name = name
        self.cluster = cluster
        self.client: Client = cluster.client()
        self._owns = owns

    # --- looking

    def status(self) -> GroupView:
        """The group as it is now. Its `seq` is where `events` goes on without a gap."""
        return self.client.group(self.id)

    def why(self, level: int = 1) -> WhyView:
        """Why it waits; `level` 0 to 3 as `bjobs -p0` to `-p3` (counts, the key reason, candidate hosts, all hosts)."""
        return self.client.why(self.id, level)

    def events(self, after: int | None = None, *, follow: bool = True) -> Iterator[Event]:
        """Typed events of the group, oldest first, up to its end: the last one is a `GroupEnded`.

        `after`: go on behind that seq (`status().seq`, or the last event's), without a gap; None: from the submission, as far
        as records are kept. It connects again by itself where it was. `follow=False` ends with what there is now.

        Raises:
            Gone: records behind `after` are not kept any more. Its `seq` is where the journal stands: look at `status()`, and
                go on from there.
        """
        from gangflow.events import GroupEnded, read

        for record in self._records(after, follow=follow):
            event = read(record)
            if event is not None:
                yield event
                if isinstance(event, GroupEnded):
                    return

    def logs(
        self,
        member: str,
        index: int = 0,
        *,
        incarnation: int = 0,
        task: int = 0,
        stream: str = "stdout",
        follow: bool = False,
    ) -> Iterator[str]:
        """A task's log in pieces: what there is, or (with `follow`) as it grows, until the incarnation is over.

        `"".join(run.logs("actor"))` is all of it. `incarnation` 0 is the newest; `stream` is `stdout` or `stderr`.
        """
        if follow:
            for view in self.client.follow_log(self.id, member, index, incarnation, task, stream):
                yield view.text
            return
        offset = 0
        while True:
            view = self.client.log(self.id, member, index, incarnation, task, stream, offset, LOG_PIECE)
            if not view.text:
                return
            yield view.text
            # One incarnation's log: a restart meanwhile must not go on in another's.
            offset, incarnation = view.next_offset, view.incarnation

    def wait(self, timeout: float | None = None, *, check: bool = True) -> GroupView:
        """Wait until the group has ended. Ctrl-C (or a notebook's interrupt) ends the waiting, never the group.

        Raises:
            GroupEnded: it did not succeed (with `check`); carries its state and cause.
            TimeoutError: it has not ended after `timeout` seconds; it goes on.
        """
        view = self.status()
        if not view.terminal:
            view = self._until_ended(view) if timeout is None else self._ended_within(timeout)
        return outcomes.judged(view, self.name, check=check)

    def watch(self, timeout: float | None = None) -> GroupView:
        """Show the group until it ends: a table that renews itself in a notebook, a line for each event elsewhere.

        Returns the group as it is then (ended, or not after `timeout` seconds). Interrupting it leaves the group alone.
        """
        from gangflow.notebook import watch

        return watch(self, timeout)

    def _repr_html_(self) -> str:
        from gangflow.notebook import shown

        return shown(self)

    def __repr__(self) -> str:
        return f"<Run {self.name!r} ({self.id}) in {self.cluster.name}>"

    # --- changing

    def scale(
        self,
        targets: Mapping[str, int] | None = None,
        /,
        *,
        timeout: float | None = None,
        wait: bool = False,
        **members: int,
    ) -> ChangeView | None:
        """Other numbers of replicas: `scale(rollout=4)`, or `scale({"my-rollout": 4})`. One durable change for all of them.

        Returns it as it was accepted, or (with `wait`) as it ended; None: the targets were these already. `timeout`: seconds
        after which the change fails and what stands becomes the target; None: the group's own.

        Raises:
            Conflict: `no_fit` says what is short, `conflict` in which state it cannot be; nothing has changed.
            XceError: `invalid`: a number outside the member's bounds, a job, a broken ratio or budget of GPUs.
            ChangeFailed: with `wait`: it was accepted and failed later; the message says why.
        """
        answer = self.client.scale(self.id, outcomes.wanted(targets, members), timeout)
        change = answer.change
        if change is None or not wait:
            return change
        if not change.over:
            for record in self.client.events(answer.seq, self.id):
                if record.type in {"ChangeMoved", "GroupChanged"}:
                    change = self.client.change(self.id, change.id)
                    if change.over or record.data.get("state") in outcomes.TERMINAL:
                        break
        return outcomes.settled(change)

    def change(self, change: str) -> ChangeView:
        """How far a change of targets is (`c1`, `c2`, …). NotFound when it is not kept any more."""
        return self.client.change(self.id, change)

    def suspend(self, message: str = "") -> None:
        """Give everything back and wait for a `resume`: SUSPENDING until all is gone, then SUSPENDED. Targets are kept."""
        self.client.suspend(self.id, message)

    def resume(self) -> None:
        """A suspended group waits for a place again, with its first submission time. Conflict when it is not SUSPENDED."""
        self.client.resume(self.id)

    def restart(self, member: str | None = None, index: int = 0, *, message: str = "") -> None:
        """Restart the whole group, or one slot: outside rules and budgets. It is the newest incarnation that is meant."""
        if member is None:
            self.client.restart_group(self.id, message)
        else:
            self.client.restart(self.id, member, index, self._newest(member, index))

    def drain(self, member: str, index: int = 0) -> None:
        """Let one slot finish what it has, then stop it with cause `drained`; the rules decide what follows."""
        self.client.drain_slot(self.id, member, index, self._newest(member, index))

    def stop_member(self, member: str) -> None:
        """Stop one member for good; the rest goes on. `restart(member, index)` brings it back."""
        self.client.stop_member(self.id, member)

    def fail(self, cause: str = "user", message: str = "") -> None:
        """Take the group down as FAILED, with that cause."""
        self.client.fail(self.id, cause, message)

    def cancel(self) -> None:
        """Take the group down as CANCELLED. Returns when that is durable; `wait(check=False)` waits until all is gone."""
        self.client.cancel(self.id)

    # --- its end

    def close(self) -> None:
        """Stop a cluster that was started for this run, and everything in it. A joined one, and the group in it, goes on."""
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

    # --- inside

    def _newest(self, member: str, index: int) -> int:
        try:
            return self.status().slot(member, index).incarnation
        except KeyError as error:
            raise NotFound(f"group {self.name!r} has no slot {member}[{index}]", status=404) from error

    def _records(self, after: int | None, *, follow: bool) -> Iterator[EventView]:
        view = self.status()
        until = view.seq if view.terminal or not follow else None
        for tries_left in reversed(range(HORIZON_TRIES)):
            start = self.client.healthz().horizon if after is None else after
            began = False
            try:
                for record in self.client.events(start, self.id, until):
                    began = True
                    yield record
            except Gone:
                if began or after is not None or not tries_left:
                    raise
            else:
                return

    def _until_ended(self, view: GroupView) -> GroupView:
        # The stream only says when to look again; what is true is what the view says.
        for record in self.client.events(after=view.seq, group=self.id):
            if record.type == "GroupChanged":
                view = self.status()
                if view.terminal:
                    break
        return view

    def _ended_within(self, timeout: float) -> GroupView:
        """A blocked read cannot be given up at a moment of one's choice; a task of an event loop can."""
        from gangflow.aio.runs import until_ended
        from gangflow.member.io import IoThread

        async def ended() -> GroupView:
            async with self.cluster.aclient() as client:
                return await until_ended(client, self.id)

        io = IoThread()
        waiting = io.submit(ended())
        try:
            return waiting.result(max(0.0, timeout))
        except TimeoutError:
            if waiting.done() and not waiting.cancelled():
                raise
            raise outcomes.overdue(self.status(), self.name, timeout) from None
        finally:
            waiting.cancel()
            io.close()


def launch(
    group: CoStartGroup | Job | ReplicaSet,
    coordinator: RLCoordinator | None = None,
    *,
    name: str = "",
    address: str = "",
    cluster: ClusterSpec | None = None,
    runtime: str = "ray",
    dashboard: bool = False,
    delegation: Sequence[str] = (),
    say: clusters.Say = clusters.silent,
) -> Run:
    """Submit a group and return at once.

    Without an `address` (an XCE's URL, a kept cluster's home, or a Ray address) it starts a cluster of its own on this machine;
    `cluster` describes its hosts. `coordinator` is short for the group's field of that name. A job or replica set alone is a
    group of one: `launch(gf.Job(["train"]), name="train")`; without a name it is called after its program.

    Raises:
        SpecError: the group is wrong, or could never fit; nothing was created.
        SetupError, Unreachable: there is no cluster to submit to.
    """
    group = coordinated(grouped(group, name), coordinator)
    owns = not address
    used = (
        clusters.join_cluster(address, say=say)
        if address
        else clusters.own_cluster(group.name, cluster, runtime=runtime, dashboard=dashboard, say=say)
    )
    try:
        return submit(group, used, owns=owns, delegation=delegation)
    except BaseException as error:
        if owns:
            clusters.abandon(used, error)
        raise


def coordinated(group: CoStartGroup, coordinator: RLCoordinator | None) -> CoStartGroup:
    """The group with that coordinator. SpecError when it does not fit the group."""
    if coordinator is None:
        return group
    return CoStartGroup(**{**dict(group), "coordinator": coordinator})  # Not a copy: it is checked as a whole.


def here(group: CoStartGroup) -> CoStartGroup:
    """The group with this process's working directory for members that name none."""
    members = {
        name: member if member.cwd else member.model_copy(update={"cwd": str(Path.cwd())})
        for name, member in group.members.items()
    }
    return group.model_copy(update={"members": members})


def delegated(tokens: Sequence[str]) -> dict[str, Any]:
    """How delegation tokens are handed to a client."""
    return {"delegation": tokens} if tokens else {}


def submit(group: CoStartGroup, cluster: clusters.Cluster, *, owns: bool = False, delegation: Sequence[str] = ()) -> Run:
    """Submit a group to a cluster that is there, and start its coordinator if it has one.

    As in LSF, a member that names no working directory runs in the one that it was submitted from.
    """
    with cluster.client() as client:
        submitted = client.submit(here(group), **delegated(delegation))
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
    # An ended group of that name is meant only where none lives.
    seen = [(home, terminal) for home in homes() if home.alive and (terminal := _ended(home, name)) is not None]
    return _attached(name, clusters.join_cluster(str(the_one(name, seen).path)))


def the_one(name: str, seen: Sequence[tuple[Home, bool]]) -> Home:
    """Of the homes that have a group of that name, with whether it has ended there: the one that is meant. Else NotFound."""
    found = [home for home, ended in seen if not ended] or [home for home, _ in seen]
    if not found:
        raise NotFound(f"no live group {name!r} in any cluster of this user; `gangflow status` lists them")
    if len(found) > 1:
        places = ", ".join(str(home.path) for home in found)
        raise NotFound(f"{len(found)} clusters have a group {name!r}: name one by its address: {places}")
    return found[0]


def _ended(home: Home, name: str) -> bool | None:
    """Whether the group of that name in a home has ended; None: there is none."""
    try:
        with home.client(patience=1, token=given_token()) as client:
            return client.group(name).terminal
    except (NotFound, Unauthorized, Unreachable):  # A token that is given may be another cluster's.
        return None


def _attached(name: str, cluster: clusters.Cluster) -> Run:
    with cluster.client() as client:
        view = client.group(name)
    return Run(view.id, view.name, cluster, owns=False)
