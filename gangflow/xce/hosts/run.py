"""One running task: from its spawn to the verified death of its whole tree."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from gangflow.xce.core.effects import Launch
from gangflow.xce.core.inputs import TaskExited, TaskReady, TaskUnready
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import TaskKey
from gangflow.xce.hosts import kernel, probes, tasklog
from gangflow.xce.hosts.brief import briefly, clean_up
from gangflow.xce.hosts.census import Census
from gangflow.xce.hosts.cgroups import TaskGroup
from gangflow.xce.hosts.children import Children, spawn
from gangflow.xce.hosts.exits import Ending, classify, died_of_memory
from gangflow.xce.hosts.outbox import TaskReport
from gangflow.xce.hosts.preparing import Prepared
from gangflow.xce.hosts.proctree import PidStart, Process, belonging, kill, read_stat
from gangflow.xce.hosts.settings import JOIN_LOOKS, LEFTOVER_GRACE_S, VERIFY_PERIODS_S

log = logging.getLogger("gangflow.agent")


class Machine(Protocol):
    """What a running task needs of its agent."""

    children: Children
    census: Census

    @property
    def recent_oom_kills(self) -> int:
        """`kernel.oom_kills()` as it was a moment ago."""
        ...


class Run:
    """A spawned task. `follow` watches it to its end and returns the exit report."""

    def __init__(
        self,
        task: TaskKey,
        host: str,
        address: str,
        launch: Launch,
        prepared: Prepared,
        mark: str,
        machine: Machine,
        report: Callable[[TaskReport], None],
    ) -> None:
        self.task = task
        self.host = host
        self.folder = prepared.folder
        self._launch = launch
        self._mark = mark
        self._group: TaskGroup | None = None
        self._machine = machine
        self._report = report
        self._edges = itertools.count(1)
        self._environment = prepared.environment
        self._cwd = prepared.cwd
        self._target = probes.Target(address, dict(launch.ports), prepared.cwd, self._run_probe)
        self._watchers: list[asyncio.Task[None]] = []
        self._live_watched = False
        self._ending: Ending | None = None
        self._stop_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._asker: asyncio.Task[None] | None = None
        self._killer: asyncio.Task[None] | None = None
        self._known: set[PidStart] = set()
        self._ended = False
        self.pid = spawn(
            (*kernel.death_wrapper(), *prepared.argv),
            environment=prepared.environment,
            cwd=prepared.cwd,
            stdout=prepared.stdout,
            stderr=prepared.stderr,
        )
        self._exit = machine.children.keep(self.pid)
        stat = read_stat(self.pid)
        if stat is not None:
            self._known.add((self.pid, stat[4]))

    # --- what others ask of it --------------------------------------------------------------------------------------

    def stop(self, grace_s: float, ending: Ending) -> None:
        """SIGTERM, then SIGKILL after the grace. Repeated: the earlier deadline counts, and the first reason."""
        if self._ending is None and not self._exit.done():
            self._ending = ending
        loop = asyncio.get_running_loop()
        at = loop.time() + max(grace_s, 0.0)
        if self._stop_at is not None and self._stop_at <= at:
            return
        if self._stop_at is None and grace_s > 0:
            self._asker = asyncio.ensure_future(self._ask_to_end())
        self._stop_at = at
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(at, self._time_is_up)

    def signal(self, number: int) -> None:
        """Signal the main process: a warning, or an injected fault. ProcessLookupError when it has ended."""
        if self._exit.done():
            raise ProcessLookupError(f"{self.task} has ended")
        os.kill(self.pid, number)

    @property
    def family(self) -> int:
        """How many processes are known to belong to it."""
        return len(self._known)

    async def know_family(self) -> None:
        """Look who belongs to it now, and remember."""
        await self._tree()

    async def join(self, group: TaskGroup, in_thread: Callable[[Callable[[], None]], Awaitable[None]]) -> None:
        """Move the tree into a control group, a moment after its start.

        The kernel takes up to 10 ms for a move, and no process of the machine can fork meanwhile: on the way to its start
        each task would hold up the next. What a task forks and orphans before this is found as without control groups.
        """
        for _ in range(JOIN_LOOKS):
            inside = group.processes()
            outside = [pid for pid in {self.pid, *await self._tree()} if pid not in inside]
            if self._exit.done() or not outside:
                break
            await in_thread(lambda pids=tuple(outside): group.take(pids))  # type: ignore[misc]
        if self._ended:
            group.remove()
        else:
            self._group = group

    # --- its life ---------------------------------------------------------------------------------------------------

    async def follow(self) -> TaskExited:
        """Probe it, wait for its end, take down what is left of its tree; returns when nothing of it runs any more."""
        if self._launch.ready is not None:
            self._watchers.append(asyncio.ensure_future(probes.watch(self._launch.ready, self._target, self._on_ready)))
        else:
            self._watch_live()
        ended = await self._exit
        ending = self._ending
        for watcher in self._watchers:
            watcher.cancel()
        await asyncio.gather(*self._watchers, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
        for task in (self._asker, self._killer):
            if task is not None:
                task.cancel()
        await self._verify_gone()
        if self._launch.cleanup:
            children, words = self._machine.children, self._launch.cleanup
            if error := await clean_up(children, words, environment=self._environment, cwd=self._cwd):
                log.warning("%s: clean-up: %s", self.task, error)
            await self._verify_gone()
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        oom = died_of_memory(self.pid, status == -signal.SIGKILL, self._machine.recent_oom_kills)
        if self._group is not None:
            oom = oom or self._group.oom_killed()
            self._group.remove()
        self._machine.children.release(self.pid)
        self._ended = True
        tail = tasklog.tail(self.folder)
        verdict = classify(status, ending, tail, oom)
        return TaskExited(self.task, self.host, verdict.cause, verdict.code, verdict.signal, verdict.message, tail)

    async def _ask_to_end(self) -> None:
        """SIGTERM to the process group."""
        await self._tree()  # who belongs is plain to see now, and may not be once parents have ended
        self._signal_group(signal.SIGTERM)
        self._signal_group(signal.SIGCONT)  # a stopped task would never see it

    def _time_is_up(self) -> None:
        if self._killer is None and not self._exit.done():
            self._killer = asyncio.ensure_future(self._kill_until_dead())

    async def _kill_until_dead(self) -> None:
        """SIGKILL to the whole tree, again and again: `follow` cancels this when the main process has ended."""
        for attempt in itertools.count():
            self._kill_all((await self._tree()).values())
            await asyncio.sleep(_pause(attempt))

    async def _verify_gone(self) -> None:
        """The main process has ended (and stays a zombie): what is left gets SIGTERM, soon SIGKILL, and is awaited, however
        long."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + LEFTOVER_GRACE_S
        told: set[PidStart] = set()
        empty = 0
        for attempt in itertools.count():
            left = await self._tree()
            if not left and not self._live_in_group():
                # A fork may have slipped between two directory entries: two looks decide.
                empty += 1
                if empty == 2:
                    return
                continue
            empty = 0
            if loop.time() >= (patience if self._stop_at is None else min(patience, self._stop_at)):
                self._kill_all(left.values())
            else:
                for process in left.values():
                    if process.key not in told:
                        told.add(process.key)
                        kill(process, signal.SIGTERM)
                        kill(process, signal.SIGCONT)
            await asyncio.sleep(_pause(attempt))

    def _live_in_group(self) -> list[int]:
        """Members of the control group that are no zombies (our own main process may be one)."""
        listed = [] if self._group is None else self._group.processes()
        return [pid for pid in listed if (stat := read_stat(pid)) is not None and stat[0] not in ("Z", "X")]

    async def _tree(self) -> dict[int, Process]:
        processes = await self._machine.census.look()
        members = self._writers(processes) + ([] if self._group is None else self._group.processes())
        tree = belonging(processes, self._mark.__eq__, leader=self.pid, known=self._known, members=members)
        # What has ended is forgotten: a task may go through many thousand processes.
        self._known = {process.key for process in tree.values()}
        return tree

    def _writers(self, processes: Mapping[int, Process]) -> list[int]:
        """Processes that were re-parented to us and write to this task's log: the last trace of one whose mark is gone."""
        mine = str(self.folder)
        found = []
        for process in processes.values():
            if process.parent == os.getpid() and not process.marks:
                for fd in (1, 2):
                    try:
                        if os.readlink(f"/proc/{process.pid}/fd/{fd}").startswith(mine):
                            found.append(process.pid)
                            break
                    except OSError:
                        continue
        return found

    def _kill_all(self, processes: Iterable[Process]) -> None:
        if self._group is not None:
            self._group.kill()
        for process in processes:
            kill(process)

    def _signal_group(self, number: int) -> None:
        """To the main process's group; its number is safe while that process is not reaped."""
        if not self._ended:
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    # --- probes -----------------------------------------------------------------------------------------------------

    def _on_ready(self, good: bool, error: str) -> None:
        if good:
            self._report(TaskReady(self.task, self.host, edge=next(self._edges)))
            self._watch_live()
        else:
            self._report(TaskUnready(self.task, self.host, error, edge=next(self._edges)))

    def _watch_live(self) -> None:
        """The live probe counts from the moment when the task was first ready: until then `ready_timeout` bounds it."""
        if self._launch.live is not None and not self._live_watched:
            self._live_watched = True
            self._watchers.append(asyncio.ensure_future(probes.watch(self._launch.live, self._target, self._on_live)))

    def _on_live(self, good: bool, error: str) -> None:
        if not good:
            self.stop(self._launch.grace_ms / 1000, Ending(Cause.UNHEALTHY, f"live probe failed: {error}"))

    async def _run_probe(self, command: tuple[str, ...], seconds: float) -> str:
        """An exec probe: a short process of the task's own tree, so it ends with the task at the latest."""
        return await briefly(self._machine.children, command, seconds, environment=self._environment, cwd=self._cwd)


def _pause(attempt: int) -> float:
    return VERIFY_PERIODS_S[min(attempt, len(VERIFY_PERIODS_S) - 1)]
