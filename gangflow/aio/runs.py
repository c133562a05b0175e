"""`gangflow.aio.launch`, `attach` and `AsyncRun`: `gangflow.runs` for programs with an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from gangflow import clusters, outcomes
from gangflow.errors import Gone, NotFound, Unauthorized, Unreachable, XceError
from gangflow.home import Home, given_token, homes
from gangflow.runs import HORIZON_TRIES, LOG_PIECE, coordinated, delegated, here, the_one
from gangflow.specs.group import grouped
from gangflow.threads import in_thread

if TYPE_CHECKING:
    from gangflow.events import Event
    from gangflow.specs.cluster import ClusterSpec
    from gangflow.specs.coordinator import RLCoordinator
    from gangflow.specs.group import CoStartGroup
    from gangflow.specs.member import Job, ReplicaSet
    from gangflow.xce.rest.aclient import AsyncClient
    from gangflow.xce.rest.messages import EventView
    from gangflow.xce.rest.schema import ChangeView, GroupView, WhyView


class AsyncRun:
    """A submitted group, from an event loop: `gangflow.Run` with its methods awaited. Errors and meaning are the same.

    As an asynchronous context manager it leaves nothing behind. It belongs to the event loop that it was made in.
    """

    def __init__(self, group: str, name: str, cluster: clusters.Cluster, *, owns: bool) -> None:
        self.id = group
        self.name = name
        self.cluster = cluster
        self.client: AsyncClient = cluster.aclient()
        self._owns = owns

    # --- looking

    async def status(self) -> GroupView:
        """The group as it is now. Its `seq` is where `events` goes on without a gap."""
        return await self.client.group(self.id)

    async def why(self, level: int = 1) -> WhyView:
        """Why it waits; `level` 0 to 3 as `bjobs -p0` to `-p3` (counts, the key reason, candidate hosts, all hosts)."""
        return await self.client.why(self.id, level)

    def events(self, after: int | None = None, *, follow: bool = True) -> AsyncGenerator[Event, None]:
        """Typed events of the group, oldest first, up to its end; see `Run.events`.

        Raises:
            Gone: records behind `after` are not kept any more. Its `seq` is where the journal stands.
        """
        return self._events(after, follow=follow)

    async def logs(
        self,
        member: str,
        index: int = 0,
        *,
        incarnation: int = 0,
        task: int = 0,
        stream: str = "stdout",
        follow: bool = False,
    ) -> AsyncIterator[str]:
        """A task's log in pieces: what there is, or (with `follow`) as it grows, until the incarnation is over."""
        if follow:
            async for view in self.client.follow_log(self.id, member, index, incarnation, task, stream):
                yield view.text
            return
        offset = 0
        while True:
            view = await self.client.log(self.id, member, index, incarnation, task, stream, offset, LOG_PIECE)
            if not view.text:
                return
            yield view.text
            offset, incarnation = view.next_offset, view.incarnation

    async def wait(self, timeout: float | None = None, *, check: bool = True) -> GroupView:
        """Wait until the group has ended. Cancelling it ends the waiting, never the group.

        Raises:
            GroupEnded: it did not succeed (with `check`); carries its state and cause.
            TimeoutError: it has not ended after `timeout` seconds; it goes on.
        """
        try:
            async with asyncio.timeout(timeout):
                view = await until_ended(self.client, self.id)
        except TimeoutError:
            if timeout is None:
                raise
            raise outcomes.overdue(await self.status(), self.name, timeout) from None
        return outcomes.judged(view, self.name, check=check)

    async def watch(self, timeout: float | None = None) -> GroupView:
        """Show the group until it ends: a table that renews itself in a notebook, a line for each event elsewhere.

        Returns the group as it is then (ended, or not after `timeout` seconds). Cancelling it leaves the group alone.
        """
        from gangflow.notebook import awatch

        return await awatch(self, timeout)

    def __repr__(self) -> str:
        return f"<AsyncRun {self.name!r} ({self.id}) in {self.cluster.name}>"

    # --- changing

    async def scale(
        self,
        targets: Mapping[str, int] | None = None,
        /,
        *,
        timeout: float | None = None,
        wait: bool = False,
        **members: int,
    ) -> ChangeView | None:
        """Other numbers of replicas, as one durable change; see `Run.scale`.

        Raises:
            Conflict, XceError, ChangeFailed: as `Run.scale`.
        """
        answer = await self.client.scale(self.id, outcomes.wanted(targets, members), timeout)
        change = answer.change
        if change is None or not wait:
            return change
        if not change.over:
            async with aclosing(_closing(self.client.events(answer.seq, self.id))) as records:
                async for record in records:
                    if record.type in {"ChangeMoved", "GroupChanged"}:
                        change = await self.client.change(self.id, change.id)
                        if change.over or record.data.get("state") in outcomes.TERMINAL:
                            break
        return outcomes.settled(change)

    async def change(self, change: str) -> ChangeView:
        """How far a change of targets is (`c1`, `c2`, …). NotFound when it is not kept any more."""
        return await self.client.change(self.id, change)

    async def suspend(self, message: str = "") -> None:
        """Give everything back and wait for a `resume`: SUSPENDING until all is gone, then SUSPENDED. Targets are kept."""
        await self.client.suspend(self.id, message)

    async def resume(self) -> None:
        """A suspended group waits for a place again, with its first submission time. Conflict when it is not SUSPENDED."""
        await self.client.resume(self.id)

    async def restart(self, member: str | None = None, index: int = 0, *, message: str = "") -> None:
        """Restart the whole group, or one slot: outside rules and budgets. It is the newest incarnation that is meant."""
        if member is None:
            await self.client.restart_group(self.id, message)
        else:
            await self.client.restart(self.id, member, index, await self._newest(member, index))

    async def drain(self, member: str, index: int = 0) -> None:
        """Let one slot finish what it has, then stop it with cause `drained`; the rules decide what follows."""
        await self.client.drain_slot(self.id, member, index, await self._newest(member, index))

    async def stop_member(self, member: str) -> None:
        """Stop one member for good; the rest goes on. `restart(member, index)` brings it back."""
        await self.client.stop_member(self.id, member)

    async def fail(self, cause: str = "user", message: str = "") -> None:
        """Take the group down as FAILED, with that cause."""
        await self.client.fail(self.id, cause, message)

    async def cancel(self) -> None:
        """Take the group down as CANCELLED. Returns when that is durable; `wait(check=False)` waits until all is gone."""
        await self.client.cancel(self.id)

    # --- its end

    async def close(self) -> None:
        """Stop a cluster that was started for this run, and everything in it. A joined one, and the group in it, goes on."""
        try:
            await self.client.close()
        finally:
            if self._owns:
                await in_thread(self.cluster.stop)

    async def __aenter__(self) -> AsyncRun:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not (await self.status()).terminal:
                await self.cancel()
                await self.wait(check=False)
        except XceError:
            if kind is None:
                raise
        finally:
            await self.close()

    # --- inside

    async def _newest(self, member: str, index: int) -> int:
        try:
            return (await self.status()).slot(member, index).incarnation
        except KeyError as error:
            raise NotFound(f"group {self.name!r} has no slot {member}[{index}]", status=404) from error

    async def _events(self, after: int | None, *, follow: bool) -> AsyncGenerator[Event, None]:
        from gangflow.events import GroupEnded, read

        async with aclosing(self._records(after, follow=follow)) as records:
            async for record in records:
                event = read(record)
                if event is not None:
                    yield event
                    if isinstance(event, GroupEnded):
                        return

    async def _records(self, after: int | None, *, follow: bool) -> AsyncGenerator[EventView, None]:
        view = await self.status()
        until = view.seq if view.terminal or not follow else None
        for tries_left in reversed(range(HORIZON_TRIES)):
            start = (await self.client.healthz()).horizon if after is None else after
            began = False
            try:
                async with aclosing(_closing(self.client.events(start, self.id, until))) as records:
                    async for record in records:
                        began = True
                        yield record
            except Gone:
                if began or after is not None or not tries_left:
                    raise
            else:
                return


async def until_ended(client: AsyncClient, group: str) -> GroupView:
    """The group, once it has ended. The stream only says when to look again; what is true is what the view says."""
    view = await client.group(group)
    if view.terminal:
        return view
    async with aclosing(_closing(client.events(view.seq, group))) as records:
        async for record in records:
            if record.type == "GroupChanged":
                view = await client.group(group)
                if view.terminal:
                    break
    return view


async def launch(
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
) -> AsyncRun:
    """Submit a group; `gangflow.launch` for an event loop. Cancelled while it starts a cluster, it leaves none behind.

    Raises:
        SpecError: the group is wrong, or could never fit; nothing was created.
        SetupError, Unreachable: there is no cluster to submit to.
    """
    group = coordinated(grouped(group, name), coordinator)
    owns = not address
    if owns:
        used = await in_thread(
            lambda: clusters.own_cluster(group.name, cluster, runtime=runtime, dashboard=dashboard, say=say),
            undo=lambda made: made.stop(),
        )
    else:
        used = await in_thread(lambda: clusters.join_cluster(address, say=say))
    try:
        return await _submit(group, used, delegation, owns=owns)
    except BaseException as error:
        if owns:
            await in_thread(partial(clusters.abandon, used, error))
        raise


async def _submit(group: CoStartGroup, cluster: clusters.Cluster, delegation: Sequence[str], *, owns: bool) -> AsyncRun:
    async with cluster.aclient() as client:
        submitted = await client.submit(here(group), **delegated(delegation))
        if group.coordinator is not None:
            try:
                await in_thread(lambda: cluster.coordinate(submitted.id))
            except BaseException:
                # Without its coordinator the group would hold its hosts and do nothing.
                await client.cancel(submitted.id)
                raise
    return AsyncRun(submitted.id, group.name, cluster, owns=owns)


async def attach(name: str, *, address: str = "") -> AsyncRun:
    """The running group of that name (or id), at `address` or in any of this user's clusters on this machine.

    Raises:
        NotFound: there is none, or there are several; the message says where.
    """
    if address:
        return await _attached(name, await in_thread(lambda: clusters.join_cluster(address)))
    alive = await in_thread(lambda: [home for home in homes() if home.alive])
    ended = await asyncio.gather(*(_ended(home, name) for home in alive))
    home = the_one(name, [(home, over) for home, over in zip(alive, ended, strict=True) if over is not None])
    return await _attached(name, await in_thread(lambda: clusters.join_cluster(str(home.path))))


async def _ended(home: Home, name: str) -> bool | None:
    """Whether the group of that name in a home has ended; None: there is none."""
    try:
        async with home.aclient(patience=1, token=given_token()) as client:
            return (await client.group(name)).terminal
    except (NotFound, Unauthorized, Unreachable):  # A token that is given may be another cluster's.
        return None


async def _attached(name: str, cluster: clusters.Cluster) -> AsyncRun:
    async with cluster.aclient() as client:
        view = await client.group(name)
    return AsyncRun(view.id, view.name, cluster, owns=False)


async def _closing(stream: AsyncIterator[EventView]) -> AsyncGenerator[EventView, None]:
    """A stream that closes its connection when it is left, not when it is collected."""
    try:
        async for record in stream:
            yield record
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            await close()
