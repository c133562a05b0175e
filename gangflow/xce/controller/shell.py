"""The controller: journal first, then act. Everything that decides is in `xce.machine`; this keeps it supplied and obeyed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gangflow.errors import GangflowError, JournalError, JournalRegressed, NotFound, Superseded
from gangflow.xce.controller.beats import Beat, Beats, SlotKey
from gangflow.xce.controller.claim_checks import ClaimChecks
from gangflow.xce.controller.claims import ClaimWork
from gangflow.xce.controller.delivery import Deliveries
from gangflow.xce.controller.feed import Feed
from gangflow.xce.controller.liveness import Leases
from gangflow.xce.controller.options import Options, SystemClock
from gangflow.xce.controller.writer import Writer
from gangflow.xce.core.due import effects_due
from gangflow.xce.core.effects import ClaimEffect, Prepare, Provision, Release, TaskEffect
from gangflow.xce.core.events import GroupForgotten
from gangflow.xce.core.inputs import Command, HostUp, Input, Reply, Report, StartTerm
from gangflow.xce.core.state import HostState, State, TaskKey
from gangflow.xce.journal import image
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.recovery import Recovered, recover
from gangflow.xce.journal.store import Journal, Stamped
from gangflow.xce.machine import Decision
from gangflow.xce.ports import Clock, Hosts, LogChunk, Provider
from gangflow.xce.providers.registry import catalog_of
from gangflow.xce.providers.rules import Catalog

_log = logging.getLogger(__name__)
SWEEP_S = 1.0
"""How often what is owed is compared with what is due, and leases are looked at."""
FULL_SWEEP = 10
"""Every so many sweeps also when nothing is known to be owed."""


class Controller:
    """The embedded XCE's heart, in process; the REST service and Ray's actor call this.

    `start` recovers the journal; `stop` lets go of it and leaves every member running.
    """

    def __init__(
        self,
        journal: Journal,
        hosts: Hosts,
        providers: Mapping[str, Provider] | None = None,
        options: Options | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options or Options()
        self.recovered: Recovered | None = None
        """What `start` found in the journal."""
        self._journal = journal
        self._hosts = hosts
        self._clock = clock or SystemClock()
        self._feed = Feed(journal)
        self._beats = Beats()
        self._deliveries = Deliveries(hosts, self._node_of, self._addressed, self.refuse_mutations)
        self.providers: Mapping[str, Provider] = providers or {}
        """Of claims."""
        self._claims = ClaimWork(self.providers, self._report_one, self._time_left_s)
        self._checks = ClaimChecks(self._claims.learn, self._report_one, lambda: self.state.claims)
        self._sweep = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._batches = self._events = 0
        """Since the last state image."""
        self._saving = False
        self._seq = journal.seq

    # --- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, journal the new term, take up what is due. Raises a JournalError; then nothing runs."""
        self.recovered = await asyncio.to_thread(recover, self._journal)
        for note in self.recovered.notes:
            _log.warning("recovery: %s", note)
        options = self.options
        self._leases = Leases(
            options.lease_ms,
            options.lease_ms + options.fence_ms + options.kill_grace_ms,
            options.grace_ms,
            self._clock.now_ms(),
        )
        self._writer = Writer(self._journal, self.recovered.state, self._clock, self._adopt)
        await self._writer.begin(StartTerm(self._journal.cluster_id, options.levels))
        self._reconcile()
        self._spawn(self._watch(), "watch")

    async def stop(self) -> None:
        """Stop deciding and let go of the journal. Members, agents and claims stay as they are."""
        if self.recovered is not None and hasattr(self, "_writer"):
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._checks.close()
            await self._claims.close()
            await self._deliveries.close()
            await self._writer.close()
        self._feed.close()
        await asyncio.to_thread(self._journal.close)

    async def failed(self) -> GangflowError:
        """Returns when the controller cannot go on by itself, with the reason (never, as long as it can)."""
        task = self._writer.finished
        assert task is not None, "it has not been started"
        await asyncio.wait([task])
        return self._writer.trouble or GangflowError("the controller was stopped")

    # --- what it knows ------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """As of the last durable batch."""
        return self._writer.state

    @property
    def seq(self) -> int:
        """Of the last event that `state` shows."""
        return self._seq

    @property
    def cluster_id(self) -> str:
        return self._journal.cluster_id

    @property
    def term(self) -> int:
        return self.state.term

    @property
    def taking(self) -> bool:
        """Whether it has recovered its journal, and so can take reports."""
        return hasattr(self, "_writer") and self._writer.finished is not None

    @property
    def position(self) -> tuple[str, int, int]:
        """(cluster_id, term, seq): what an agent compares with the highest that it has seen."""
        return (self.cluster_id, self.term, self._seq)

    @property
    def trouble(self) -> GangflowError | None:
        """Why commands are refused now; None: it is ready."""
        return self._writer.trouble

    @property
    def horizon(self) -> int:
        """The smallest position that `events` can begin after."""
        return self._journal.horizon

    @property
    def catalog(self) -> Catalog:
        """Its claim providers, as admission reads them."""
        return catalog_of(self.providers)

    @property
    def url(self) -> str:
        return self.options.url

    @property
    def token(self) -> str:
        return self.options.token

    @property
    def home(self) -> Path | None:
        return self.options.home

    @property
    def unknown_until_ms(self) -> int:
        """Before this nobody's silence means anything: the controller has just started."""
        return self._leases.unknown_until_ms

    def node_of(self, host: str) -> str:
        """The node that serves a host; of one that is not known, its own name."""
        return self._node_of(host)

    def now_ms(self) -> int:
        """The controller's clock."""
        return self._clock.now_ms()

    # --- what it is told ----------------------------------------------------------------------------------------------

    async def command(self, command: Command) -> Reply:
        """The machine's reply, once it is durable. Raises JournalFull (or the other reason in `trouble`) when it cannot be."""
        return await self._writer.command(command)

    async def report(self, reports: Sequence[Report]) -> None:
        """Returns when the reports are durable: only then may their sender forget them."""
        await self._writer.report(reports)

    def renew(self, node: str, boot: str) -> bool:
        """A node's agent lives. False: it has to register again (HostUp), since none of its hosts is UP with this boot."""
        self._leases.renew(node, boot, self._clock.now_ms())
        mine = (host for host in self.state.hosts.values() if host.facts.node == node)
        return any(host.boot == boot and host.state in (HostState.UP, HostState.CLOSED) for host in mine)

    def refuse_mutations(self, error: JournalRegressed) -> None:
        """An agent knows a later position of this journal, or another journal: members run on, an operator decides."""
        if not isinstance(self._writer.trouble, JournalRegressed):
            _log.error("%s (%s)", error, error.advice)
            self._writer.halt(error)

    def wake(self) -> None:
        """Look at the clock again (tests move it)."""
        self._writer.wake()
        self._sweep.set()

    # --- what it shows ------------------------------------------------------------------------------------------------

    def events(self, after: int) -> AsyncIterator[Stamped]:
        """Every event after `after`, from the journal first and then live; Gone when it is not kept any more (or never was)."""
        return self._feed.after(after)

    async def beat(self, key: TaskKey, body: Mapping[str, Any]) -> None:
        """A heartbeat of an incarnation; Superseded if it is not its slot's newest."""
        group = self.state.groups.get(key.group)
        slot = group.slots.get((key.member, key.index)) if group else None
        if slot is None:
            raise NotFound(f"there is no {key.member}[{key.index}] in {key.group}", status=404)
        if (slot.incarnation, slot.epoch) != (key.incarnation, key.epoch):
            newest = f"incarnation {slot.incarnation} of epoch {slot.epoch}"
            raise Superseded(f"{key.member}[{key.index}] is at {newest}, not {key.incarnation} of {key.epoch}", status=409)
        self._beats.put(key, self._clock.now_ms(), body)

    def beats(self, group: str) -> dict[SlotKey, Beat]:
        """(member, index) → its newest heartbeat, of slots that sent one to this controller."""
        return self._beats.of(group)

    def watch_beats(self, group: str) -> AsyncIterator[Beat]:
        """The newest heartbeats, then every change; a slow watcher sees fewer."""
        return self._beats.watch(group)

    async def read_log(self, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        """A piece of the log of any incarnation that is kept. FileNotFoundError when no node has it; OSError when a node that
        may have it does not answer."""
        unanswered: OSError | None = None
        for node in self._nodes(task):
            try:
                return await self._hosts.read_log(node, task, stream, offset, limit)
            except FileNotFoundError:
                continue
            except OSError as error:
                unanswered = error
        raise unanswered or FileNotFoundError(f"no node keeps {stream} of {task}")

    async def signal(self, task: TaskKey, number: int) -> None:
        """Fault injection: a signal to the main process; the controller learns of it only by the exit. OSError if it has none,
        or its node does not answer."""
        node = next(self._nodes(task, present=True), None)
        if node is None:
            raise ProcessLookupError(f"{task} does not run")
        await self._hosts.signal(node, task, number)

    # --- inside -------------------------------------------------------------------------------------------------------

    def _adopt(self, inputs: Sequence[Input], decision: Decision, batch: Batch) -> None:
        """A batch is durable and its state is taken over: act on it, and tell who watches."""
        self._seq = batch.last_seq
        self._issue(decision.effects)
        self._feed.publish([Stamped(seq, batch.now_ms, event) for seq, event in enumerate(batch.events, batch.first_seq)])
        for event in batch.events:
            if isinstance(event, GroupForgotten):
                self._beats.forget(event.group)
        for node, boot in dict.fromkeys((each.facts.node, each.boot) for each in inputs if isinstance(each, HostUp)):
            # It is alive now: one that joins must not be held to have been silent ever since this controller started.
            self._leases.renew(node, boot, self._clock.now_ms())
            self._deliveries.hurry(node)
            self._sweep.set()
        self._batches += 1
        self._events += len(batch.events)
        every = self.options.image_every
        if (self._batches >= every or self._events >= every * 50) and not self._saving:
            self._saving, self._batches, self._events = True, 0, 0
            self._spawn(self._save_image(Image(decision.state, batch.last_seq, bytes.fromhex(batch.digest))), "image")

    def _issue(self, effects: Sequence[TaskEffect | ClaimEffect]) -> None:
        self._deliveries.issue([each for each in effects if not isinstance(each, Provision | Release)])
        self._claims.issue([each for each in effects if isinstance(each, Provision | Release)])

    def _reconcile(self) -> None:
        due = effects_due(self.state)
        self._deliveries.reconcile([each for each in due if not isinstance(each, Provision | Release)])
        self._claims.reconcile([each for each in due if isinstance(each, Provision | Release)])

    async def _watch(self) -> None:
        """What is owed is sent until the state says that it is not; nodes that are silent are reported."""
        sweeps = 0
        while True:
            try:
                async with asyncio.timeout(SWEEP_S):
                    await self._sweep.wait()
            except TimeoutError:
                pass
            forced = self._sweep.is_set()
            self._sweep.clear()
            sweeps += 1
            try:
                self._look_after(forced or sweeps % FULL_SWEEP == 0)
            except Exception:
                _log.exception("a sweep failed; the next one tries again")

    def _look_after(self, all_of_it: bool) -> None:
        if isinstance(self.trouble, JournalRegressed):
            return
        if all_of_it or self._deliveries or self._claims:
            self._reconcile()
        if self.state.claims:
            self._checks.look()
        verdicts = self._leases.verdicts(self.state.hosts, self._clock.now_ms())
        if verdicts:
            self._spawn(self.report(verdicts), "verdicts")

    async def _save_image(self, taken: Image) -> None:
        """An image is a convenience: when it cannot be written, recovery reads more of the journal."""
        try:
            raw = await asyncio.to_thread(image.encode, taken)
            before_ms = taken.state.now_ms - self.options.retention_ms

            def save() -> None:
                self._journal.save_image(taken.seq, raw, self.options.images)
                self._journal.forget(before_ms, self.options.retention_bytes)

            await self._writer.on_disk(save)
        except JournalError as error:
            _log.warning("no state image was kept: %s", error)
        finally:
            self._saving = False

    def _spawn(self, work: Any, name: str) -> None:
        task: asyncio.Task[None] = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)

    async def _report_one(self, report: Report) -> None:
        await self.report([report])

    def _node_of(self, host: str) -> str:
        found = self.state.hosts.get(host)
        return found.facts.node if found else host

    def _nodes(self, task: TaskKey, *, present: bool = False) -> Iterator[str]:
        """The node where a task is, or (unless `present`) every node, for one of an incarnation that is over."""
        group = self.state.groups.get(task.group)
        slot = group.slots.get((task.member, task.index)) if group else None
        if slot is not None and slot.incarnation == task.incarnation:
            for each in slot.tasks:
                if each.index == task.task:
                    yield self._node_of(each.host)
                    return
        if not present:
            yield from dict.fromkeys(host.facts.node for host in self.state.hosts.values())

    def _time_left_s(self, request: Provision) -> float:
        claim = self.state.claims[request.claim]
        until_ms = claim.until_ms or self._clock.now_ms() + claim.plan.timeout_ms
        return (until_ms - self._clock.now_ms()) / 1000

    def _addressed(self, effect: TaskEffect) -> TaskEffect:
        """With what only the shell knows: where XCE is, who the task is, which trace it belongs to."""
        if not isinstance(effect, Prepare):
            return effect
        options, task = self.options, effect.task
        added = {"XCE_URL": options.url}
        if options.task_token is not None:
            added["XCE_TOKEN"] = options.task_token(task)
        if options.traceparent is not None:
            added["TRACEPARENT"] = options.traceparent(self.cluster_id, task)
        environment = (*effect.launch.environment, *added.items())
        return replace(effect, launch=replace(effect.launch, environment=environment))
