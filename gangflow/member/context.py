"""`gangflow.context()`: who this process is in its group, and what it can do there. Synchronous; needs no Ray."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from gangflow.channel import FAILURE, WeightsId
from gangflow.errors import GangflowError
from gangflow.member.books import Books
from gangflow.member.checkpoint import Checkpoint, Checkpoints
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import PolicyMismatch
from gangflow.member.follow import Follower
from gangflow.member.heartbeat import Fields, Heartbeat
from gangflow.member.identity import Claims, Identity, Placed
from gangflow.member.io import IoThread
from gangflow.member.ledger import Ledger
from gangflow.member.rollouts import Rollouts
from gangflow.member.samples import Published
from gangflow.member.trace import Spans
from gangflow.member.weights import Weights
from gangflow.xce.rest.client import Client

if TYPE_CHECKING:
    from gangflow.member.wire import Wire
    from gangflow.xce.rest.aclient import AsyncClient


@dataclass(frozen=True, slots=True)
class Shared:
    """What both forms of one process's context use, so that each sample counts once."""

    books: Books
    checkpoints: Checkpoints
    fields: Fields
    """Of heartbeats."""
    wire: Wire | None
    """The way to the rollouts that a test gave; None: the real one."""
    connect: Callable[[], AsyncClient]
    """Makes a client for an event loop, with this task's token."""


class Context(Placed):
    """One per process (`context()` gives it). Everything that talks to XCE starts at its first use."""

    def __init__(
        self,
        identity: Identity,
        client: Client | None = None,
        *,
        aclient: Callable[[], AsyncClient] | None = None,
        wire: Wire | None = None,
    ) -> None:
        """`client`, `aclient` and `wire`: other ways to XCE and to the rollouts, for tests."""
        self.identity = identity
        self.client = client or Client(identity.url, identity.token)
        self._aclient = aclient
        self._wire = wire
        self.claims = Claims(identity)
        self._follower = Follower(self.client, identity.group)
        self._published = Published(identity.incarnation)
        self._heartbeat = Heartbeat(self._send_beat, self._own_fields)
        self._checkpoints = Checkpoints(self.client, identity.group, identity.incarnation)
        self.weights = Weights(self.client, identity.group, identity.incarnation, self._published, self._follower, self._touch)
        self._rollouts = Rollouts(
            self._follower,
            self._published,
            Ledger(identity.group),
            IoThread(),
            beat=self._touch,
            on_policy=self._tell,
            wire=wire,
        )
        self._staleness_known = False
        self._span_client: Client | None = None
        self._spans = Spans(self._send_spans, os.environ.get("TRACEPARENT", ""))

    # --- who else is there

    def endpoints(self, member: str) -> tuple[Endpoint, ...]:
        """Who may be asked now: the eligible rollouts where there is a coordinator, else the member's READY slots."""
        return self._follower.picture.endpoints(member)

    def wait_endpoints(self, member: str, count: int = 1, timeout_s: float = 60.0) -> tuple[Endpoint, ...]:
        """Wait for at least `count` of them; TimeoutError says how many there were."""
        if not self._follower.wait(lambda picture: len(picture.endpoints(member)) >= count, timeout_s):
            raise TimeoutError(f"{len(self.endpoints(member))} of {count} endpoints of {member!r} after {timeout_s:g} s")
        return self.endpoints(member)

    # --- the actor's part

    @property
    def rollouts(self) -> Rollouts:
        """Ask the eligible rollouts for samples."""
        if not self._staleness_known:
            facts = self._follower.picture.coordinator
            self._published.max_staleness = facts.max_staleness if facts else 0
            self._staleness_known = True
        return self._rollouts

    def heartbeat(self, **fields: Any) -> None:
        """Say that this program is making progress (`step=…, reward=…`); at most 4 KiB of JSON, rate limited, never blocks."""
        self._heartbeat.beat(fields)

    def checkpoint(self, step: int, path: str | os.PathLike[str], **extra: Any) -> Checkpoint:
        """Make what lies at `path` the checkpoint of `step`, with the ledger of committed samples. Durable on return.

        Write to a new path each time, and save before you publish the weights that follow from it.
        """
        return self._checkpoints.save(step, path, self._rollouts.books.through(step), self.weights.head, extra)

    def resume(self) -> Checkpoint | None:
        """The newest checkpoint, verified, or None; go on with `step + 1` and publish its weights before the first generation.

        Restores the ledger, and resets versions and staleness: what an earlier incarnation published means nothing any more.
        """
        found = self._checkpoints.newest()
        if found is None:
            return None
        saved, ledger = found
        self._rollouts.reset(ledger)
        return saved

    def diverged(self, message: str) -> NoReturn:
        """Say that an engine's samples disagree with the reference (POLICY): the group fails for it. Raises PolicyMismatch."""
        error = PolicyMismatch(message)
        self._tell(error)
        raise error

    def span(self, name: str, **attributes: str | int) -> AbstractContextManager[None]:
        """Measure what is inside the `with` as a span of the group's trace; nested ones become its children."""
        return self._spans.span(name, attributes)

    @property
    def shared(self) -> Shared:
        """What the asynchronous form of this context has in common with it."""
        return Shared(self._rollouts.books, self._checkpoints, self._heartbeat.fields, self._wire, self._connect)

    def close(self) -> None:
        """Stop the background threads; only tests need it."""
        self._heartbeat.close()
        self._follower.close()
        self._rollouts.close()
        self.client.close()

    def _connect(self) -> AsyncClient:
        if self._aclient is not None:
            return self._aclient()
        from gangflow.xce.rest.aclient import AsyncClient

        return AsyncClient(self.identity.url, self.identity.token)

    def _tell(self, error: PolicyMismatch) -> None:
        name, document = failure_document(self.incarnation, error)
        try:
            self.client.kv_put(self.group, name, document)
        except GangflowError:
            pass  # The exit of this process says it too, only less precisely.

    def _touch(self) -> None:
        self._heartbeat.beat({})

    def _send_beat(self, body: Mapping[str, Any]) -> None:
        self.client.beat(self.group, self.member, self.slot, body)

    def _send_spans(self, spans: Sequence[Mapping[str, Any]]) -> None:
        self._tracer().spans(self.group, spans)

    def _tracer(self) -> Client:
        """A client that does not wait: spans are not worth keeping anybody."""
        if self._span_client is None:
            self._span_client = Client(self.identity.url, self.identity.token, timeout=2.0, patience=0.0)
        return self._span_client

    def _own_fields(self) -> dict[str, Any]:
        head: WeightsId | None = self.weights.head
        return {
            "samples": self._rollouts.counters.document(),
            "failing": self._rollouts.streaks(),
            "weights": head.document() if head else None,
        }


def failure_document(incarnation: int, error: PolicyMismatch) -> tuple[str, str]:
    """The key-value by which the coordinator learns why this actor stops: its name, and its JSON."""
    return FAILURE, json.dumps({"class": "policy", "incarnation": incarnation, "message": error.message})


_lock = threading.Lock()
_context: Context | None = None


def context() -> Context:
    """This process's place in its group. NotAMember, with what is missing, when XCE did not start it."""
    global _context  # noqa: PLW0603 - one process is one task: there is one context
    with _lock:
        if _context is None:
            _context = Context(Identity.read(os.environ))
        return _context


@contextmanager
def installed(context: Context) -> Iterator[Context]:
    """Within the block `gangflow.context()` gives this one: for tests of programs that call it themselves."""
    global _context  # noqa: PLW0603 - the same one
    with _lock:
        before, _context = _context, context
    try:
        yield context
    finally:
        with _lock:
            _context = before
