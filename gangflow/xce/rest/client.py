"""The synchronous client of the contract. Needs httpx, not FastAPI, and knows no controller but by its URL."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource, SSEError
from tenacity import Retrying

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


class Client:
    """Calls an XCE, embedded or remote.

    A call that nobody answers, or that is answered by 503, is sent again for `patience` seconds under one idempotency key.
    Refusals are exceptions of `gangflow.errors`: NotFound, Superseded, Fenced, Conflict, Gone, Unauthorized, SpecError, …;
    Unreachable when the patience is over. `group` arguments take an id or a live group's name.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        *,
        timeout: float = 10.0,
        patience: float = 15.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url
        self.patience = patience
        self.term = 0
        """A coordinator's term, sent with every call; see `take_coordination`."""
        self._http = httpx.Client(**options(url, token, timeout), transport=transport)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- groups

    def submit(self, spec: Mapping[str, Any] | Document, *, key: str = "", delegation: Sequence[str] = ()) -> Submitted:
        """Submit a group: a spec, or the JSON form of one. SpecError names what is wrong with it.

        `delegation`: tokens of other owners that the spec names. Unauthorized (`forbidden`): an owner who may not be named.
        """
        return self._call(calls.submit(spec, key, delegation))

    def submit_job(self, spec: Mapping[str, Any] | Document, *, key: str = "", delegation: Sequence[str] = ()) -> Submitted:
        """Submit a plain job or replica set: a group of one, whose member is called `main`."""
        return self._call(calls.submit_job(spec, key, delegation))

    def jobs(self, states: Sequence[str] = (), name: str = "", limit: int | None = None, cursor: str = "") -> GroupList:
        """A page of plain jobs, as `groups` has them."""
        return self._call(calls.jobs(states, name, limit, cursor))

    def groups(self, states: Sequence[str] = (), name: str = "", limit: int | None = None, cursor: str = "") -> GroupList:
        """A page of groups; `next` of the answer is the `cursor` of the next page."""
        return self._call(calls.groups(states, name, limit, cursor))

    def group(self, group: str) -> GroupView:
        return self._call(calls.group(group))

    def cancel(self, group: str, *, key: str = "") -> Done:
        return self._call(calls.cancel(group, key))

    def fail(self, group: str, cause: str, message: str = "", *, key: str = "") -> Done:
        """End a group as FAILED, with that cause."""
        return self._call(calls.fail(group, cause, message, key))

    def suspend(self, group: str, message: str = "", *, key: str = "") -> GroupMoved:
        """Give everything back and wait for a resume: SUSPENDING until all is gone, then SUSPENDED."""
        return self._call(calls.suspend(group, message, key))

    def resume(self, group: str, *, key: str = "") -> GroupMoved:
        """A SUSPENDED group waits for a place again, with its first submission time. Conflict if it is not SUSPENDED."""
        return self._call(calls.resume(group, key))

    def restart_group(self, group: str, message: str = "", *, key: str = "") -> GroupMoved:
        """An operator's restart of a group that was started, outside rules and budgets. Conflict in any other state."""
        return self._call(calls.restart_group(group, message, key))

    def lift_exclusion(self, group: str, host: str, *, key: str = "") -> Done:
        """The group may use an excluded host again."""
        return self._call(calls.lift_exclusion(group, host, key))

    def why(self, group: str, level: int = 1) -> WhyView:
        """Why a group waits; level 0 to 3 as `bjobs -p0` to `-p3`."""
        return self._call(calls.why(group, level))

    def queue(self, limit: int | None = None, cursor: str = "") -> QueueView:
        return self._call(calls.queue(limit, cursor))

    # --- members

    def scale(self, group: str, targets: Mapping[str, int], timeout_s: float | None = None, *, key: str = "") -> ScaleView:
        """Other targets for the replica sets that are named: one durable change, which `change` follows; None: nothing to do.

        Conflict (`no_fit` says what is short, `conflict` in which state it cannot be); XceError `invalid` for a bad target.
        """
        return self._call(calls.scale(group, targets, timeout_s, key))

    def change(self, group: str, change: str) -> ChangeView:
        """How far a change of targets is; NotFound when it is not kept any more."""
        return self._call(calls.change(group, change))

    def changes(self, group: str, limit: int | None = None, cursor: str = "") -> ChangeList:
        """The newest changes of targets, oldest first."""
        return self._call(calls.changes(group, limit, cursor))

    def stop_member(self, group: str, member: str, *, key: str = "") -> Done:
        """Stop one member for good; the rest of the group goes on."""
        return self._call(calls.stop_member(group, member, key))

    # --- slots

    def report(self, group: str, member: str, index: int, incarnation: int, cause: str, message: str = "") -> Done:
        """A coordinator's verdict about an incarnation; the group's rules decide what follows."""
        return self._call(calls.report(group, member, index, incarnation, cause, message))

    def restart(self, group: str, member: str, index: int, incarnation: int) -> Done:
        """An operator's restart, outside rules and budgets."""
        return self._call(calls.restart(group, member, index, incarnation))

    def drain_slot(self, group: str, member: str, index: int, incarnation: int, *, key: str = "") -> Done:
        """Drain and stop one incarnation, cause `drained`; the rules decide what follows."""
        return self._call(calls.drain_slot(group, member, index, incarnation, key))

    def signal(self, group: str, member: str, index: int, incarnation: int, signal: int = 9, task: int = 0) -> Done:
        """Fault injection: send a signal to a task's main process."""
        return self._call(calls.signal(group, member, index, incarnation, signal, task))

    def log(
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
        return self._call(calls.log(group, member, index, incarnation, task, stream, offset, limit))

    def follow_log(
        self,
        group: str,
        member: str,
        index: int,
        incarnation: int = 0,
        task: int = 0,
        stream: str = "stdout",
        offset: int = 0,
    ) -> Iterator[LogView]:
        """A log as it grows, until the incarnation is over."""
        return self._follow(watch.log(group, member, index, incarnation, task, stream, offset), None)

    # --- group services

    def take_coordination(self, group: str) -> TermView:
        """Take the group's next coordinator term. Set it as `term`, so that an older coordinator's calls are refused."""
        return self._call(calls.take_coordination(group))

    def kv_get(self, group: str, name: str) -> ValueView:
        return self._call(calls.kv_get(group, name))

    def kv_list(self, group: str, prefix: str = "", limit: int | None = None, cursor: str = "") -> ValueList:
        return self._call(calls.kv_list(group, prefix, limit, cursor))

    def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView:
        """Compare-and-set: `expect` is the version that it replaces (0: must not exist; -1: any). Conflict if it lost."""
        return self._call(calls.kv_put(group, name, value, expect))

    def beat(self, group: str, member: str, index: int, body: Mapping[str, Any]) -> Done:
        """A heartbeat: any JSON object of at most 4 KiB. Not sent again when nobody answers; the next one says more."""
        return self._call(calls.beat(group, member, index, body))

    def beats(self, group: str) -> BeatList:
        return self._call(calls.beats(group))

    def follow_beats(self, group: str) -> Iterator[BeatView]:
        """Heartbeats as they come, after the latest of each slot."""
        return self._follow(watch.beats(group), None)

    def spans(self, group: str, measured: Sequence[Mapping[str, Any]]) -> Done:
        """Hand in spans that a member measured itself, at most 512; they join the group's trace."""
        return self._call(calls.spans(group, measured))

    # --- the rest of the cluster

    def hosts(self, limit: int | None = None, cursor: str = "") -> HostList:
        return self._call(calls.hosts(limit, cursor))

    def close_host(self, host: str, drain: bool = False, message: str = "", *, key: str = "") -> HostMoved:
        """No new work there; with `drain`, what runs there is told `drained`, too."""
        return self._call(calls.close_host(host, drain, message, key))

    def open_host(self, host: str, *, key: str = "") -> HostMoved:
        """New work may go there again."""
        return self._call(calls.open_host(host, key))

    def claims(self, group: str = "", limit: int | None = None, cursor: str = "") -> ClaimList:
        return self._call(calls.claims(group, limit, cursor))

    def create_claim(self, spec: Mapping[str, Any] | Document, *, key: str = "", delegation: Sequence[str] = ()) -> Submitted:
        """A standalone claim; its name is its id."""
        return self._call(calls.create_claim(spec, key, delegation))

    def claim(self, name: str) -> ClaimView:
        return self._call(calls.claim(name))

    def delete_claim(self, name: str, *, key: str = "") -> Done:
        """Release a standalone claim. Conflict (`in_use`) while a live group uses it."""
        return self._call(calls.delete_claim(name, key))

    def owners(self, limit: int | None = None, cursor: str = "") -> OwnerList:
        """What each owner's members hold now."""
        return self._call(calls.owners(limit, cursor))

    def make_token(self, owner: str = "", kind: str = "owner", ttl_s: float = 86_400.0) -> TokenView:
        """A token of an owner, or (kind `delegation`) one by which its holder may name that owner at submission."""
        return self._call(calls.make_token(owner, kind, ttl_s))

    def healthz(self) -> HealthView:
        return self._call(calls.healthz())

    def events(
        self, after: int | None = None, group: str = "", until: int | None = None, *, patience: float | None = None
    ) -> Iterator[EventView]:
        """Durable records after a position (None: from now on), without end; connects again by itself, without a gap.

        With `until` it ends after that position. Gone when the journal does not reach back to `after`: list again.
        Unreachable after `patience` seconds of silence.
        """
        return self._follow(watch.events(after, group, until), patience)

    # --- sending

    def _call(self, call: Call[T]) -> T:
        given = request(call, self.term)

        def send() -> Any:
            response = self._http.request(**given)
            return accepted(response.status_code, response.content)

        try:
            return call.view(Retrying(**policy(self.patience))(send) if call.retry else send())
        except Exception as error:
            if transient(error):
                raise unanswered(self.url, error) from error
            raise

    def _follow(self, what: Watch[T], patience: float | None) -> Iterator[T]:
        while not what.ended:
            response = self._open(what, self.patience if patience is None else patience)
            before = what.position
            try:
                for message in EventSource(response).iter_sse():
                    value = what.take(message.event, message.id, message.data)
                    if value is not None:
                        yield value
            except (httpx.TransportError, SSEError) as error:
                if not transient(error):
                    raise unanswered(self.url, error) from error
            finally:
                response.close()
            if what.position == before and not what.ended:
                time.sleep(0.2)  # A server that accepts and closes at once is not asked in a tight loop.

    def _open(self, what: Watch[Any], patience: float) -> httpx.Response:
        def connect() -> httpx.Response:
            asked = self._http.build_request("GET", what.path, params=what.params(), timeout=STREAM_TIMEOUT)
            response = self._http.send(asked, stream=True)
            if response.status_code != 200:
                try:
                    accepted(response.status_code, response.read())
                finally:
                    response.close()
            return response

        try:
            opened: httpx.Response = Retrying(**policy(patience))(connect)
        except Exception as error:
            if transient(error):
                raise unanswered(self.url, error) from error
            raise
        return opened
