"""`context.weights`: publish a new policy to the rollouts, by path, with its digest."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from gangflow.channel import HEAD, Head, Probe, WeightsId
from gangflow.errors import Conflict, NoQuorum, Superseded
from gangflow.member.digest import settle, write_atomically
from gangflow.member.endpoints import Picture
from gangflow.member.follow import Follower, quiet
from gangflow.member.samples import Published
from gangflow.xce.rest.messages import ValueView, VersionView


class Values(Protocol):
    """The group's durable key-values; `gangflow.xce.rest.client.Client` is one."""

    def kv_get(self, group: str, name: str) -> ValueView: ...

    def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView: ...


class AsyncValues(Protocol):
    """The same for an event loop; `gangflow.xce.rest.aclient.AsyncClient` is one."""

    async def kv_get(self, group: str, name: str) -> ValueView: ...

    async def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView: ...


class Cell:
    """One key-value of which this incarnation is the only writer, replaced by compare-and-set.

    A lost compare means that somebody else writes it. `own` tells a value of this incarnation (a call whose answer was lost)
    from another's: a newer incarnation's ends this one with Superseded.
    """

    def __init__(self, values: Values, group: str, name: str, newer: Callable[[str], bool]) -> None:
        self._values = values
        self._group = group
        self._name = name
        self._newer = newer
        self._version: int | None = None

    def read(self) -> str | None:
        view = self._values.kv_get(self._group, self._name)
        return self._seen(view)

    def write(self, value: str) -> None:
        """Conflict when it is lost twice: two live writers."""
        for last_try in (False, True):
            if self._version is None:
                self._check(self.read())
            try:
                self._version = self._values.kv_put(self._group, self._name, value, self._version or 0).version
                return
            except Conflict:
                self._version = None
                if last_try:
                    raise

    async def aread(self, values: AsyncValues) -> str | None:
        """`read`, through the client of an event loop."""
        return self._seen(await values.kv_get(self._group, self._name))

    async def awrite(self, values: AsyncValues, value: str) -> None:
        """`write`, through the client of an event loop. Cancelled, it was written or not; to write again is safe."""
        for last_try in (False, True):
            if self._version is None:
                self._check(await self.aread(values))
            version, self._version = self._version or 0, None  # Not known, should this be cancelled on the way.
            try:
                self._version = (await values.kv_put(self._group, self._name, value, version)).version
                return
            except Conflict:
                if last_try:
                    raise

    def _seen(self, view: ValueView) -> str | None:
        self._version = view.version
        return view.value

    def _check(self, there: str | None) -> None:
        if there is not None and self._newer(there):
            raise Superseded(f"{self._name} was written by a newer incarnation: this one must stop")


class Publishing:
    """The steps of a publish, in their order; the blocking and the asynchronous form take the same."""

    def __init__(self, values: Values, group: str, incarnation: int, published: Published) -> None:
        self.cell = Cell(values, group, HEAD, self._newer)
        self.head: WeightsId | None = None
        """What this incarnation published last; None before its first."""
        self._incarnation = incarnation
        self._published = published

    @property
    def version(self) -> int:
        """−1 before the first publish of this incarnation."""
        return self.head.version if self.head else -1

    def check(self, version: int) -> None:
        """ValueError unless it follows what was published last."""
        if version <= self.version:
            raise ValueError(f"version {version} does not follow {self.version}")

    def written(self, version: int, path: str | os.PathLike[str], data: bytes | None, probe: Probe | None) -> Head:
        """Put the files on the disk, and name them by their content."""
        if data is not None:
            write_atomically(path, data)
        found = settle(path)
        return Head(WeightsId(self._incarnation, version, found.sha256), os.path.abspath(path), probe, found.seal)

    def announce(self, weights: WeightsId) -> None:
        """From here on nothing older than `max_staleness` is sent anything, before the coordinator has even seen it."""
        self._published.add(weights)

    def done(self, weights: WeightsId) -> None:
        """It is durable."""
        self.head = weights

    def carried(self, picture: Picture, member: str, version: int) -> int:
        """How many eligible rollouts carry that version of this incarnation."""
        return sum(self._carries(endpoint.weights, version) for endpoint in picture.endpoints(member))

    def _carries(self, weights: WeightsId | None, version: int) -> bool:
        return weights is not None and weights.version == version and weights.actor_incarnation == self._incarnation

    def _newer(self, text: str) -> bool:
        try:
            return Head.parse(text).weights.actor_incarnation > self._incarnation
        except ValueError:
            return False


class Weights:
    """One writer per incarnation of the actor. Save a checkpoint before you publish what came after it."""

    def __init__(
        self,
        values: Values,
        group: str,
        incarnation: int,
        published: Published,
        follower: Follower,
        beat: Callable[[], object] = quiet,
    ) -> None:
        """`beat`: called while `wait_synced` waits, at least once a second."""
        self.steps = Publishing(values, group, incarnation, published)
        self._follower = follower
        self._beat = beat
        self._lock = threading.Lock()

    @property
    def head(self) -> WeightsId | None:
        """What this incarnation published last; None before its first."""
        return self.steps.head

    @property
    def version(self) -> int:
        """The trainer's version: −1 before the first publish of this incarnation."""
        return self.steps.version

    def publish(
        self, version: int, path: str | os.PathLike[str], data: bytes | None = None, probe: Probe | None = None
    ) -> WeightsId:
        """Make the file (or folder) at `path` the policy, as `version`. Returns once that is durable.

        `data` is written there first, atomically; without it the path is already written, is synced, and must not change any
        more: use a new name for each version, in a claim that the rollouts share. Versions grow within an incarnation
        (ValueError); after a restart they may begin anew, since the incarnation is part of the id. Superseded when a newer
        incarnation of the actor has published.

        `probe`: a few hundred tokens at most with the log-probabilities that this policy gives them. No rollout is asked for
        samples of this version before its engine has said the same of them, within the coordinator's `probe_tolerance`.
        """
        with self._lock:
            self.steps.check(version)
            head = self.steps.written(version, path, data, probe)
            self.steps.announce(head.weights)
            self.steps.cell.write(head.render())
            self.steps.done(head.weights)
            return head.weights

    def wait_synced(self, version: int | None = None, rollouts: int | None = None, timeout_s: float | None = None) -> float:
        """Wait till `rollouts` (default: `min_rollouts`) eligible ones carry `version` (default: the newest), in seconds.

        NoQuorum after `timeout_s` (default: `quorum_timeout`). Not needed before `rollouts.generate`, which waits by itself.
        """
        wanted = self.version if version is None else version
        began = time.monotonic()
        facts = self._follower.picture.coordinator
        if facts is None:
            raise NoQuorum("this group has no coordinator: nobody brings weights to its rollouts")
        member, need = facts.rollout, facts.min_rollouts if rollouts is None else rollouts
        limit = facts.quorum_timeout_s if timeout_s is None else timeout_s
        if not self._follower.wait(lambda picture: self.steps.carried(picture, member, wanted) >= need, limit, self._beat):
            raise NoQuorum(f"fewer than {need} rollouts carry version {wanted}")
        return time.monotonic() - began
