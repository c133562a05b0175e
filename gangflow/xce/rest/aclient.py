"""The asynchronous client of the contract: the same surface as `client.Client`; only the sending differs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource, SSEError
from tenacity import AsyncRetrying

from gangflow.xce.rest import calls, watch
from gangflow.xce.rest.calls import Call, Document
from gangflow.xce.rest.connection import STREAM_TIMEOUT, options, policy, request
from gangflow.xce.rest.messages import (
    BeatList,
    BeatView,
    Done,
    EventView,
    GroupMoved,
    HealthView,
    HostMoved,
    LogView,
    ScaleView,
    Submitted,
    TermView,
    TokenView,
    ValueList,
    ValueView,
    VersionView,
)
from gangflow.xce.rest.refusals import accepted, transient, unanswered
from gangflow.xce.rest.schema import (
    ChangeList,
    ChangeView,
    ClaimList,
    ClaimView,
    GroupList,
    GroupView,
    HostList,
    OwnerList,
    QueueView,
    WhyView,
)
from gangflow.xce.rest.watch import Watch

T = TypeVar("T")


class AsyncClient:
    """Calls an XCE, embedded or remote, from an event loop. Tries, refusals and arguments are those of `client.Client`."""

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = 10.0,
        patience: float = 15.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url
        self.patience = patience
        self.term = 0
        """A coordinator's term, sent with every call; see `take_coordination`."""
        self._http = httpx.AsyncClient(**options(url, token, timeout), transport=transport)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    # --- groups

    async def submit(self, spec: Mapping[str, Any] | Document, *, key: str = "", delegation: Sequence[str] = ()) -> Submitted:
        """Submit a group: a spec, or the JSON form of one. SpecError names what is wrong with it.

        `delegation`: tokens of other owners that the spec names. Unauthorized (`forbidden`): an owner who may not be named.
        """
        return await self._call(calls.submit(spec, key, delegation))

    async def submit_job(
        self, spec: Mapping[str, Any] | Document, *, key: str = "", delegation: Sequence[str] = ()
    ) -> Submitted:
        """Submit a plain job or replica set: a group of one, whose member is called `main`."""
        return await self._call(calls.submit_job(spec, key, delegation))

    async def jobs(self, states: Sequence[str] = (), name: str = "", limit: int | None = None, cursor: str = "") -> GroupList:
        """A page of plain jobs, as `groups` has them."""
        return await self._call(calls.jobs(states, name, limit, cursor))

    async def groups(self, states: Sequence[str] = (), name: str = "", limit: int | None = None, cursor: str = "") -> GroupList:
        """A page of groups; `next` of the answer is the `cursor` of the next page."""
        return await self._call(calls.groups(states, name, limit, cursor))

    async def group(self, group: str) -> GroupView:
        return await self._call(calls.group(group))

    async def cancel(self, group: str, *, key: str = "") -> Done:
        return await self._call(calls.cancel(group, key))

    async def fail(self, group: str, cause: str, message: str = "", *, key: str = "") -> Done:
        """End a group as FAILED, with that cause."""
        return await self._call(calls.fail(group, cause, message, key))

    async def suspend(self, group: str, message: str = "", *, key: str = "") -> GroupMoved:
        """Give everything back and wait for a resume: SUSPENDING until all is gone, then SUSPENDED."""
        return await self._call(calls.suspend(group, message, key))

    async def resume(self, group: str, *, key: str = "") -> GroupMoved:
        """A SUSPENDED group waits for a place again, with its first submission time. Conflict if it is not SUSPENDED."""
        return await self._call(calls.resume(group, key))

    async def restart_group(self, group: str, message: str = "", *, key: str = "") -> GroupMoved:
        """An operator's restart of a group that was started, outside rules and budgets. Conflict in any other state."""
        return await self._call(calls.restart_group(group, message, key))

    async def lift_exclusion(self, group: str, host: str, *, key: str = "") -> Done:
        """The group may use an excluded host again."""
        return await self._call(calls.lift_exclusion(group, host, key))

    async def why(self, group: str, level: int = 1) -> WhyView:
        """Why a group waits; level 0 to 3 as `bjobs -p0` to `-p3`."""
        return await self._call(calls.why(group, level))

    async def queue(self, limit: int | None = None, cursor: str = "") -> QueueView:
        return await self._call(calls.queue(limit, cursor))

    # --- members

    async def scale(
        self, group: str, targets: Mapping[str, int], timeout_s: float | None = None, *, key: str = ""
    ) -> ScaleView:
        """Other targets for the replica sets that are named: one durable change, which `change` follows; None: nothing to do.

        Conflict (`no_fit` says what is short, `conflict` in which state it cannot be); XceError `invalid` for a bad target.
        """
        return await self._call(calls.scale(group, targets, timeout_s, key))

    async def change(self, group: str, change: str) -> ChangeView:
        """How far a change of targets is; NotFound when it is not kept any more."""
        return await self._call(calls.change(group, change))

    async def changes(self, group: str, limit: int | None = None, cursor: str = "") -> ChangeList:
        """The newest changes of targets, oldest first."""
        return await self._call(calls.changes(group, limit, cursor))

    async def stop_member(self, group: str, member: str, *, key: str = "") -> Done:
        """Stop one member for good; the rest of the group goes on."""
        return await self._call(calls.stop_member(group, member, key))

    # --- slots

    async def report(self, group: str, member: str, index: int, incarnation: int, cause: str, message: str = "") -> Done:
        """A coordinator's verdict about an incarnation; the group's rules decide what follows."""
        return await self._call(calls.report(group, member, index, incarnation, cause, message))

    async def restart(self, group: str, member: str, index: int, incarnation: int) -> Done:
        """An operator's restart, outside rules and budgets."""
        return await self._call(calls.restart(group, member, index, incarnation))

    async def drain_slot(self, group: str, member: str, index: int, incarnation: int, *, key: str = "") -> Done:
        """Drain and stop one incarnation, cause `drained`; the rules decide what follows."""
        return await self._call(calls.drain_slot(group, member, index, incarnation, key))

    async def signal(self, group: str, member: str, index: int, incarnation: int, signal: int = 9, task: int = 0) -> Done:
        """Fault injection: send a signal to a task's main process."""
        return await self._call(calls.signal(group, member, index, incarnation, signal, task))

    async def log(
        self,
        group: str,
        member: str,
        index: int,
        incarnation: int = 0,
        task: int = 0,
        stream: str = "stdout",
        offset: int = 0,
        limit: int = 65_536,
    ) -> LogView:
        """A piece of a log; incarnation 0 is the newest, a negative offset counts from the end."""
        return await self._call(calls.log(group, member, index, incarnation, task, stream, offset, limit))

    def follow_log(
        self,
        group: str,
        member: str,
        index: int,
        incarnation: int = 0,
        task: int = 0,
        stream: str = "stdout",
        offset: int = 0,
    ) -> AsyncIterator[LogView]:
        """A log as it grows, until the incarnation is over."""
        return self._follow(watch.log(group, member, index, incarnation, task, stream, offset), None)

    # --- group services

    async def take_coordination(self, group: str) -> TermView:
        """Take the group's next coordinator term. Set it as `term`, so that an older coordinator's calls are refused."""
        return await self._call(calls.take_coordination(group))

    async def kv_get(self, group: str, name: str) -> ValueView:
        return await self._call(calls.kv_get(group, name))

    async def kv_list(self, group: str, prefix: str = "", limit: int | None = None, cursor: str = "") -> ValueList:
        return await self._call(calls.kv_list(group, prefix, limit, cursor))

    async def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView:
        """Compare-and-set: `expect` is the version that it replaces (0: must not exist; -1: any). Conflict if it lost."""
        return await self._call(calls.kv_put(group, name, value, expect))

    async def beat(self, group: str, member: str, index: int, body: Mapping[str, Any]) -> Done:
        """A heartbeat: any JSON object of at most 4 KiB. Not sent again when nobody answers; the next one says more."""
        return await self._call(calls.beat(group, member, index, body))

    async def beats(self, group: str) -> BeatList:
        return await self._call(calls.beats(group))

    def follow_beats(self, group: str) -> AsyncIterator[BeatView]:
        """Heartbeats as they come, after the latest of each slot."""
        return self._follow(watch.beats(group), None)

    async def spans(self, group: str, measured: Sequence[Mapping[str, Any]]) -> Done:
        """Hand in spans that a member measured itself, at most 512; they join the group's trace."""
        return await self._call(calls.spans(group, measured))

    # --- the rest of the cluster

    async def hosts(self, limit: int | None = None, cursor: str = "") -> HostList:
        return await self._call(calls.hosts(limit, cursor))

    async def close_host(self, host: str, drain: bool = False, message: str = "", *, key: str = "") -> HostMoved:
        """No new work there; with `drain`, what runs there is told `drained`, too."""
        return await self._call(calls.close_host(host, drain, message, key))

    async def open_host(self, host: str, *, key: str = "") -> HostMoved:
        """New work may go there again."""
        return await self._call(calls.open_host(host, key))

    async def claims(self, group: str = "", limit: int | None = None, cursor: str = "") -> ClaimList:
        return await self._call(calls.claims(group, limit, cursor))

    async def create_claim(
        self, spec: Mapping[str, Any] | Document, *, key: str = "", delegation: Sequence[str] = ()
    ) -> Submitted:
        """A standalone claim; its name is its id."""
        return await self._call(calls.create_claim(spec, key, delegation))

    async def claim(self, name: str) -> ClaimView:
        return await self._call(calls.claim(name))

    async def delete_claim(self, name: str, *, key: str = "") -> Done:
        """Release a standalone claim. Conflict (`in_use`) while a live group uses it."""
        return await self._call(calls.delete_claim(name, key))

    async def owners(self, limit: int | None = None, cursor: str = "") -> OwnerList:
        """What each owner's members hold now."""
        return await self._call(calls.owners(limit, cursor))

    async def make_token(self, owner: str = "", kind: str = "owner", ttl_s: float = 86_400.0) -> TokenView:
        """A token of an owner, or (kind `delegation`) one by which its holder may name that owner at submission."""
        return await self._call(calls.make_token(owner, kind, ttl_s))

    async def healthz(self) -> HealthView:
        return await self._call(calls.healthz())

    def events(
        self, after: int | None = None, group: str = "", until: int | None = None, *, patience: float | None = None
    ) -> AsyncIterator[EventView]:
        """Durable records after a position (None: from now on), without end; connects again by itself, without a gap.

        With `until` it ends after that position. Gone when the journal does not reach back to `after`: list again.
        Unreachable after `patience` seconds of silence.
        """
        return self._follow(watch.events(after, group, until), patience)

    # --- sending

    async def _call(self, call: Call[T]) -> T:
        given = request(call, self.term)

        async def send() -> Any:
            response = await self._http.request(**given)
            return accepted(response.status_code, response.content)

        try:
            return call.view(await AsyncRetrying(**policy(self.patience))(send) if call.retry else await send())
        except Exception as error:
            if transient(error):
                raise unanswered(self.url, error) from error
            raise

    async def _follow(self, what: Watch[T], patience: float | None) -> AsyncIterator[T]:
        while not what.ended:
            response = await self._open(what, self.patience if patience is None else patience)
            before = what.position
            try:
                async for message in EventSource(response).aiter_sse():
                    value = what.take(message.event, message.id, message.data)
                    if value is not None:
                        yield value
            except (httpx.TransportError, SSEError) as error:
                if not transient(error):
                    raise unanswered(self.url, error) from error
            finally:
                await response.aclose()
            if what.position == before and not what.ended:
                await asyncio.sleep(0.2)  # A server that accepts and closes at once is not asked in a tight loop.

    async def _open(self, what: Watch[Any], patience: float) -> httpx.Response:
        async def connect() -> httpx.Response:
            asked = self._http.build_request("GET", what.path, params=what.params(), timeout=STREAM_TIMEOUT)
            response = await self._http.send(asked, stream=True)
            if response.status_code != 200:
                try:
                    accepted(response.status_code, await response.aread())
                finally:
                    await response.aclose()
            return response

        try:
            opened: httpx.Response = await AsyncRetrying(**policy(patience))(connect)
        except Exception as error:
            if transient(error):
                raise unanswered(self.url, error) from error
            raise
        return opened
