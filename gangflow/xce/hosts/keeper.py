"""The tasks of one node: carries out effects, and reports what became of them."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gangflow.xce.core.effects import Launch, Prepare, Start, Stop, TaskEffect, Unprepare, Warn
from gangflow.xce.core.inputs import TaskExited, TaskPrepared, TaskRefused, TaskStarted, TaskUnprepared, TaskWarned
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts import kernel, marks, proctree, records, tasklog
from gangflow.xce.hosts.brief import clean_up
from gangflow.xce.hosts.census import Census
from gangflow.xce.hosts.cgroups import AgentGroup
from gangflow.xce.hosts.children import Children
from gangflow.xce.hosts.exits import Ending
from gangflow.xce.hosts.models import ModelWork
from gangflow.xce.hosts.outbox import Outbox, TaskReport
from gangflow.xce.hosts.preparing import Prepared, Refusal, folder_of, inherited_environment, prepare
from gangflow.xce.hosts.run import Run
from gangflow.xce.hosts.settings import (
    DISK_WAIT_S,
    FAMILY_S,
    KEEP_BYTES,
    KEEP_FOLDERS,
    OOM_MEMORY,
    RECORD_DELAY_S,
    SWEEP_PERIOD_S,
    TASK_LIMIT,
    TOMBSTONES,
    VERIFY_PERIODS_S,
    AgentOptions,
)
from gangflow.xce.hosts.standing import StandingFile, write_atomically
from gangflow.xce.hosts.wire import Held, Status
from gangflow.xce.ports import LogChunk

log = logging.getLogger("gangflow.agent")
T = TypeVar("T")


@dataclass(slots=True)
class Entry:
    """A task that this agent holds: being prepared (neither), prepared, or running."""

    task: TaskKey
    host: str
    launch: Launch
    prepared: Prepared | None = None
    run: Run | None = None
    noting: asyncio.TimerHandle | None = None
    """Its record is about to be written."""
    dropped: Stop | Unprepare | None = None
    """Asked for while its preparation was still under way."""
    warned: bool = False
    """It was told that its runtime limit is near."""


class TaskKeeper:
    """The tasks of one node. Everything happens in the loop of the main thread; disk work in one thread beside it, in order."""

    def __init__(self, directory: Path, node: str, hosts: Sequence[HostFacts], options: AgentOptions) -> None:
        self.directory = directory
        self.node = node
        self.options = options
        self.hosts = {host.name: host for host in hosts}
        self.agent_id = _agent_id(directory)
        self.life = secrets.token_hex(4)
        self.standing = StandingFile(directory / "standing.json")
        self.outbox = Outbox(self._acknowledged)
        self.census = Census()
        self.children = Children()
        self.models = ModelWork()
        self._oom_kills = deque([kernel.oom_kills()], maxlen=OOM_MEMORY)
        self.groups = AgentGroup.make(self.agent_id, self.life) if options.control_groups else AgentGroup(None)
        self._tasks = directory / "tasks"
        self._tasks.mkdir(mode=0o700, exist_ok=True)
        self._retention = records.Retention(self._tasks, KEEP_FOLDERS, KEEP_BYTES)
        self._disk = ThreadPoolExecutor(1, "disk")
        self._moves = ThreadPoolExecutor(1, "groups")
        self._boots = 1
        self._entries: dict[TaskKey, Entry] = {}
        self._tombs: OrderedDict[TaskKey, TaskExited] = OrderedDict()
        self._followers: set[asyncio.Task[None]] = set()
        self._ended_since_sweep = 1
        self._next_sweep = self._next_family = 0.0
        self._inherited = inherited_environment()
        self._outer_mark = os.environ.get(marks.VARIABLE, "")

    @property
    def boot(self) -> str:
        """Changes with every life of the agent and with every fence: what was prepared under another one is void."""
        return f"{self.life}.{self._boots}"

    @property
    def recent_oom_kills(self) -> int:
        """`kernel.oom_kills()` as it was some seconds ago: a big process takes a while to die of one."""
        return self._oom_kills[0]

    @property
    def busy(self) -> bool:
        """Whether it holds a task. Exits that nobody has confirmed are on disk, where the next agent finds them."""
        return bool(self._entries)

    def inventory(self) -> tuple[tuple[str, TaskKey], ...]:
        return tuple((entry.host, entry.task) for entry in self._entries.values())

    def status(self, watchdog: int) -> Status:
        held = [
            Held(each.task, each.host, "running", each.run.pid, each.run.family)
            if each.run is not None
            else Held(each.task, each.host, "prepared" if each.prepared else "preparing")
            for each in self._entries.values()
        ]
        return Status(self.boot, os.getpid(), watchdog, tuple(held), len(self.outbox))

    # --- former lives -----------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Take down what a former life of this agent left running, and report how its tasks ended. Before anything else."""
        prefix = marks.life_prefix(self.agent_id)
        known: set[proctree.PidStart] = set()
        for attempt in range(10**9):
            left = proctree.belonging(await self.census.look(), lambda mark: mark.startswith(prefix), known=known)
            if not left:
                break
            log.warning("killing %d processes of a former agent", len(left))
            known |= {process.key for process in left.values()}
            for process in left.values():
                proctree.kill(process)
            await asyncio.sleep(VERIFY_PERIODS_S[min(attempt, len(VERIFY_PERIODS_S) - 1)])
        left_behind = await self.on_disk(lambda: list(records.left_behind(self._tasks)))
        await asyncio.gather(*(self._clean_up(record) for _, record in left_behind if record.exit is None and record.cleanup))
        for folder, record in left_behind:
            lost = TaskExited(
                record.task, record.host, Cause.AGENT_LOST, message="its host agent died", stderr_tail=tasklog.tail(folder)
            )
            self._bury(record.exit or lost)

    async def _clean_up(self, record: records.Record) -> None:
        """What the container of a task left that ended with its agent: where a daemon runs it, all of it."""
        environment = {**self._inherited, marks.VARIABLE: self._mark(record.task, nested=True)}
        if error := await clean_up(self.children, record.cleanup, environment=environment):
            log.warning("%s: clean-up: %s", record.task, error)

    # --- effects ----------------------------------------------------------------------------------------------------

    async def carry_out(self, effects: Sequence[TaskEffect]) -> None:
        """Effects in order; each is answered by a report, sooner or later, also when it was carried out before."""
        for effect in effects:
            match effect:
                case Prepare():
                    self._prepare(effect)
                case Unprepare():
                    self._unprepare(effect)
                case Start():
                    self._start(effect)
                    await asyncio.sleep(0)  # a spawn takes a millisecond: let reports out in between
                case Stop():
                    self._stop(effect)
                case Warn():
                    self._warn(effect)

    def _prepare(self, effect: Prepare) -> None:
        key = effect.task
        if key in self._tombs:
            self.outbox.add(self._tombs[key])
        elif (entry := self._entries.get(key)) is not None:
            if entry.run is not None:
                self.outbox.add(TaskStarted(key, entry.host, entry.run.pid))
            elif entry.prepared is not None:
                self.outbox.add(TaskPrepared(key, entry.host, self.boot))
        elif effect.host not in self.hosts:
            self.outbox.add(TaskRefused(key, effect.host, f"node {self.node} has no host {effect.host!r}", permanent=True))
        elif len(self._entries) >= TASK_LIMIT:
            self.outbox.add(TaskRefused(key, effect.host, f"this agent holds {TASK_LIMIT} tasks already"))
        else:
            entry = self._entries[key] = Entry(key, effect.host, effect.launch)
            self._follow(self._make_ready(entry))

    async def _make_ready(self, entry: Entry) -> None:
        boot = self.boot
        refusal: Refusal | None = None
        try:
            folder = folder_of(self._tasks, entry.task)
            address = self.hosts[entry.host].address
            entry.prepared = await self.on_disk(
                lambda: prepare(folder, entry.launch, address, self._mark(entry.task, nested=True), self._inherited)
            )
        except Refusal as error:
            refusal = error
        if refusal is None and boot == self.boot and entry.dropped is None:
            self.outbox.add(TaskPrepared(entry.task, entry.host, boot))
            return
        self._drop(entry)
        if isinstance(entry.dropped, Stop):
            self.outbox.add(TaskExited(entry.task, entry.host, message="stopped before it was started"))
        elif entry.dropped is not None:
            self.outbox.add(TaskUnprepared(entry.task, entry.host))
        elif refusal is not None:
            self.outbox.add(TaskRefused(entry.task, entry.host, refusal.message, refusal.permanent))

    def _unprepare(self, effect: Unprepare) -> None:
        entry = self._entries.get(effect.task)
        if entry is None:
            self.outbox.add(TaskUnprepared(effect.task, effect.host))
        elif entry.run is not None:  # cannot be undone, only stopped; its exit is the answer
            entry.run.stop(entry.launch.grace_ms / 1000, Ending(None, "stopped"))
        elif entry.prepared is None:
            entry.dropped = entry.dropped or effect
        else:
            self._drop(entry)
            self.outbox.add(TaskUnprepared(effect.task, effect.host))

    def _start(self, effect: Start) -> None:
        key = effect.task
        entry = self._entries.get(key)
        if key in self._tombs:
            self.outbox.add(self._tombs[key])
        elif entry is not None and entry.run is not None:
            self.outbox.add(TaskStarted(key, entry.host, entry.run.pid))
        elif effect.token != self.boot:
            self.outbox.add(
                TaskRefused(key, effect.host, f"prepared under boot {effect.token}, but this agent's is {self.boot}")
            )
        elif entry is None or entry.prepared is None:
            self.outbox.add(TaskExited(key, effect.host, Cause.START_FAILED, message="it is not prepared here"))
        else:
            self._spawn(entry, entry.prepared)

    def _spawn(self, entry: Entry, prepared: Prepared) -> None:
        try:
            run = Run(
                entry.task,
                entry.host,
                self.hosts[entry.host].address,
                entry.launch,
                prepared,
                self._mark(entry.task),
                self,
                self.outbox.add,
            )
        except OSError as error:
            self._drop(entry)
            self._bury(TaskExited(entry.task, entry.host, Cause.START_FAILED, message=f"cannot be started: {error}"))
            return
        prepared.close()
        entry.run = run
        record = records.Record(entry.task, entry.host, run.pid, cleanup=entry.launch.cleanup)
        # A moment later, so that it does not slow down the starts of the same order. Until then a crash of the agent tells the
        # controller as much: it finds the task missing.
        entry.noting = asyncio.get_running_loop().call_later(RECORD_DELAY_S, self._settle, run, record)
        self.outbox.add(TaskStarted(entry.task, entry.host, run.pid))
        self._follow(self._to_the_end(entry, run))

    def _settle(self, run: Run, record: records.Record) -> None:
        """A started task goes on record and into a control group of its own."""
        self._disk.submit(_quietly, records.write, run.folder, record)
        group = self.groups.task()
        if group is not None:
            self._follow(run.join(group, self._in_group_thread))

    async def _in_group_thread(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._moves, work)

    async def _to_the_end(self, entry: Entry, run: Run) -> None:
        ended = await run.follow()
        if entry.noting is not None:
            entry.noting.cancel()
        record = records.Record(entry.task, entry.host, run.pid, ended)
        try:
            async with asyncio.timeout(DISK_WAIT_S):
                await self.on_disk(lambda: _quietly(records.write, run.folder, record))
        except TimeoutError:
            log.warning("the disk is slow: the exit of %s is reported before it is recorded", entry.task)
        del self._entries[entry.task]
        self._bury(ended)

    def _stop(self, effect: Stop) -> None:
        entry = self._entries.get(effect.task)
        if entry is None:
            known = self._tombs.get(effect.task)
            self.outbox.add(known or TaskExited(effect.task, effect.host, message="never started here"))
        elif entry.run is not None:
            entry.run.stop(effect.grace_ms / 1000, Ending(None, "stopped"))
        elif entry.prepared is None:
            entry.dropped = effect
        else:
            self._drop(entry)
            self.outbox.add(TaskExited(effect.task, effect.host, message="stopped before it was started"))

    def _warn(self, effect: Warn) -> None:
        """Once per incarnation, however often it is asked for. What does not run (any more) is answered, too: nothing is left
        to be warned."""
        entry = self._entries.get(effect.task)
        if entry is not None and entry.run is not None and not entry.warned:
            entry.warned = True
            try:
                entry.run.signal(effect.signal)
            except OSError as error:
                log.info("%s was not warned: %s", effect.task, error)
        self.outbox.add(TaskWarned(effect.task, effect.host))

    # --- all of them ------------------------------------------------------------------------------------------------

    def fence(self, message: str) -> None:
        """Kill everything at once and void every preparation: the controller may start others in their place."""
        self._boots += 1
        for entry in list(self._entries.values()):
            if entry.run is not None:
                entry.run.stop(0.0, Ending(Cause.HOST_LOST, message))
            elif entry.prepared is not None:
                self._drop(entry)

    async def stop_all(self, message: str, grace_s: float | None = None) -> None:
        """Stop every task (with its own grace, or a shorter one), drop what is prepared; returns when nothing is left."""
        for entry in list(self._entries.values()):
            if entry.run is not None:
                own = entry.launch.grace_ms / 1000
                entry.run.stop(own if grace_s is None else min(own, grace_s), Ending(Cause.AGENT_LOST, message))
            elif entry.prepared is None:
                entry.dropped = Unprepare(entry.task, entry.host)
            else:
                self._drop(entry)
        while self._followers:
            await asyncio.wait(self._followers)

    def close(self) -> None:
        """After `stop_all`."""
        self.children.close()
        self.census.close()
        self.groups.remove()
        self.models.close()
        self._disk.shutdown(wait=True)
        self._moves.shutdown(wait=True)

    # --- logs, faults, upkeep ---------------------------------------------------------------------------------------

    async def read_log(self, task: TaskKey, stream: str, offset: int, limit: int) -> LogChunk:
        """FileNotFoundError when there is none."""
        entry = self._entries.get(task)
        try:
            folder = folder_of(self._tasks, task)
        except Refusal as error:
            raise FileNotFoundError(error.message) from error
        ended = entry is None
        return await self.on_disk(lambda: tasklog.read(folder, stream, offset, limit, ended=ended))

    def signal(self, task: TaskKey, number: int) -> None:
        """ProcessLookupError when the task does not run here."""
        entry = self._entries.get(task)
        if entry is None or entry.run is None:
            raise ProcessLookupError(f"{task} does not run here")
        entry.run.signal(number)

    def upkeep(self) -> None:
        """Once a second: keep logs within their bound, now and then remove old ones."""
        now = time.monotonic()
        if self._ended_since_sweep and now >= self._next_sweep:
            self._ended_since_sweep, self._next_sweep = 0, now + SWEEP_PERIOD_S
            in_use = frozenset(folder_of(self._tasks, key) for key in self._entries)
            self._disk.submit(_quietly, self._retention.sweep, in_use)
        running = [entry.run.folder for entry in self._entries.values() if entry.run is not None]
        if running and self.groups.path is None and now >= self._next_family:
            self._next_family = now + FAMILY_S
            for entry in self._entries.values():
                if entry.run is not None:
                    self._follow(entry.run.know_family())
        if running:
            self._oom_kills.append(kernel.oom_kills())
            self._disk.submit(_rotate, running, self.options.log_bytes)

    async def on_disk(self, work: Callable[[], T]) -> T:
        """Do something that may wait for the disk, after all that was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._disk, work)

    # --- within -----------------------------------------------------------------------------------------------------

    def _mark(self, task: TaskKey, *, nested: bool = False) -> str:
        own = marks.mark(self.agent_id, self.life, self.standing.value.cluster_id, str(task))
        return marks.nested(own, self._outer_mark) if nested else own

    def _drop(self, entry: Entry) -> None:
        self._entries.pop(entry.task, None)
        if entry.prepared is not None:
            entry.prepared.close()
            entry.prepared = None

    def _bury(self, ended: TaskExited) -> None:
        """Report the end of something that ran, and remember it: it is never started again."""
        self._tombs[ended.task] = ended
        self._tombs.move_to_end(ended.task)
        while len(self._tombs) > TOMBSTONES:
            self._tombs.popitem(last=False)
        self.outbox.add(ended)

    def _acknowledged(self, report: TaskReport) -> None:
        if isinstance(report, TaskExited):
            try:
                folder = folder_of(self._tasks, report.task)
            except Refusal:
                return
            self._disk.submit(_quietly, records.forget, folder)
            self._ended_since_sweep += 1

    def _follow(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self._followers.add(task)
        task.add_done_callback(self._followed)

    def _followed(self, task: asyncio.Task[None]) -> None:
        self._followers.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # An agent that has lost track of a task must not go on: its watchdog takes everything down.
            log.critical("lost track of a task", exc_info=error)
            os._exit(70)


def _agent_id(directory: Path) -> str:
    """The name of this agent's folder, for good."""
    path = directory / "agent.id"
    if not path.exists():
        write_atomically(path, secrets.token_hex(6))
    return path.read_text().strip()


def _quietly(work: Callable[..., object], *arguments: object) -> None:
    """Bookkeeping on disk that may fail without harm (a full disk): the controller is told all the same."""
    try:
        work(*arguments)
    except OSError as error:
        log.warning("%s: %s", getattr(work, "__name__", work), error)


def _rotate(folders: Sequence[Path], limit: int) -> None:
    for folder in folders:
        for stream in tasklog.STREAMS:
            _quietly(tasklog.rotate, folder, stream, limit)
