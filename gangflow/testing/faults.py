"""What a test may do to a cluster: end, fail and lose its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from gangflow.specs.faults import nearest
from gangflow.xce.core.inputs import ClaimLost, CloseHost, DrainSlot, HostGone, OpenHost, ReportSlot, TaskExited
from gangflow.xce.core.plan import REPORTABLE_CAUSES, Cause
from gangflow.xce.core.state import ClaimState, Group, Slot, TaskKey

if TYPE_CHECKING:
    from gangflow.testing.machines import Held, Machine
    from gangflow.testing.xce import FakeXCE

T = TypeVar("T")
OF_MACHINES = {Cause.HOST_LOST, Cause.AGENT_LOST, Cause.DRAINED, Cause.CLAIM_LOST}
SEEN_ON_THE_HOST = {Cause.APP_EXIT, Cause.SIGNAL, Cause.OOM, Cause.START_FAILED}
CAUSES = [each for each in Cause if each in SEEN_ON_THE_HOST | REPORTABLE_CAUSES | OF_MACHINES]
BY_TIME = {Cause.NOT_READY: "unready(member, index), then advance(…)", Cause.RUN_LIMIT: "advance(…) beyond its runtime limit"}


def known(value: str, names: Iterable[str], what: str) -> str:
    """The value itself, if it is one of the names; else ValueError with all of them, and the nearest."""
    every = [str(name) for name in names]
    if value in every:
        return value
    near = nearest(value, every)
    hint = f"; did you mean {near!r}?" if near else ""
    raise ValueError(f"there is no {what} {value!r}{hint} (there are: {', '.join(every)})")


class Faults:
    """Part of `FakeCluster`. Where `group` is left out, the only live one is meant."""

    xce: FakeXCE

    if TYPE_CHECKING:

        def do(self, work: Callable[[], T]) -> T: ...
        def _group(self, name: str) -> Group: ...
        def _slot(self, group: str, member: str, index: int) -> Slot: ...
        def _task(self, group: str, member: str, index: int, task: int) -> TaskKey: ...
        def _tell(self, command: Any) -> None: ...

    # --- slots

    def finish(self, member: str, index: int = 0, *, group: str = "") -> None:
        """Every task of the slot ends with code 0: a job is DONE by that, a replica has failed."""
        self.do(lambda: self._end_all(group, member, index, lambda held: TaskExited(held.key, held.host, code=0)))

    def fail(
        self,
        member: str,
        index: int = 0,
        *,
        cause: str = "app_exit",
        code: int | None = None,
        signal: int | None = None,
        message: str = "",
        stderr: str = "",
        task: int = 0,
        group: str = "",
    ) -> None:
        """The slot's newest incarnation fails for a cause; the group's rules decide what follows.

        `app_exit` (with `code`, 1 by default), `signal`, `oom`, `start_failed`: one task ends so. `unhealthy`, `hung`, `stale`,
        `diverged`: a coordinator says so. `host_lost` and `agent_lost`: the host of the task, or its agent, and so everything
        there. `drained`: an operator drains the slot. `claim_lost`: its claims, or else the group's, are lost. ValueError for
        any other.
        """
        known(cause, [*CAUSES, *(each for each in BY_TIME if each == cause)], "cause that a test can make")
        self.do(lambda: self._fail(Cause(cause), group, member, index, task, (code, signal, message, stderr)))

    def ready(self, member: str, index: int | None = None, *, group: str = "") -> None:
        """The ready probes of a slot (of all slots of the member, without an index) succeed."""
        self.do(lambda: self._turn(group, member, index, ready=True, message=""))

    def unready(self, member: str, index: int | None = None, *, message: str = "503", group: str = "") -> None:
        """They fail again."""
        self.do(lambda: self._turn(group, member, index, ready=False, message=message))

    def refuse(self, member: str, message: str, *, permanent: bool = False, times: int = 1) -> None:
        """The next preparations of the member's tasks are refused: a port is taken, an executable missing (`permanent`)."""
        self.do(lambda: self.xce.machines.refusals.setdefault(member, []).extend([(message, permanent)] * times))

    def hang(self, member: str, *, hung: bool = True) -> None:
        """The member's processes do not end when they are told to, from now on; or (`hung=False`) end after all."""

        def change() -> None:
            (self.xce.machines.hung.add if hung else self.xce.machines.hung.discard)(member)
            self.xce.feed()

        self.do(change)

    def write(self, member: str, index: int, text: str, *, stream: str = "stdout", task: int = 0, group: str = "") -> None:
        """The task writes to its log."""

        def add() -> None:
            key = (self._task(group, member, index, task), stream)
            self.xce.logs[key] = self.xce.logs.get(key, "") + text

        self.do(add)

    def hold_coordinator(self, *, held: bool = True, group: str = "") -> None:
        """The stand-in coordinator says nothing for a while; or (`held=False`) goes on."""

        def change() -> None:
            self.xce.standin.hold(self._group(group).id, held=held)
            self.xce.feed()

        self.do(change)

    # --- hosts

    def lose_host(self, host: str, *, fence: float = 10.0) -> None:
        """The host does not answer any more: LOST now, and FENCED (what it held is free) after so many seconds."""

        def lose() -> None:
            self._machine(host).up = False
            self.xce.feed(HostGone(host, round(fence * 1000)))

        self.do(lose)

    def return_host(self, host: str, *, rebooted: bool = True) -> None:
        """It is back: with nothing (`rebooted`), or with everything that ran there when it was lost."""

        def come_back() -> None:
            machine = self._machine(host)
            machine.up = True
            if rebooted:
                machine.boot += 1
                machine.held.clear()
            self.xce.feed(machine.registration())

        self.do(come_back)

    def close_host(self, host: str, *, drain: bool = False, message: str = "") -> None:
        """An operator closes it for new work; with `drain`, what runs there is told `drained`."""
        self.do(lambda: self._tell(CloseHost(host, drain, message or "closed by a test")))

    def open_host(self, host: str) -> None:
        """An operator opens it again."""
        self.do(lambda: self._tell(OpenHost(host)))

    # --- claims

    def fail_claim(self, name: str, message: str = "no space left", *, times: int = 1) -> None:
        """The next provisions of the claim of that name fail."""
        self.do(lambda: self.xce.machines.claim_faults.setdefault(name, []).extend([message] * times))

    def lose_claim(self, name: str, message: str = "it is gone", *, group: str = "") -> None:
        """What was made for the claims of that name (a group's, its slots', or a standalone one) is not there any more."""
        self.do(lambda: self._lose_claims(name, group, message))

    # --- inside

    def _machine(self, host: str) -> Machine:
        machine = self.xce.machines.by_name.get(host)
        if machine is None:
            raise ValueError(f"there is no host {host!r}; there are: {', '.join(self.xce.machines.by_name)}")
        return machine

    def _running(self, group: str, member: str, index: int) -> list[Held]:
        slot = self._slot(group, member, index)
        keys = [self._task(group, member, index, task.index) for task in slot.tasks]
        held = [found for key in keys if (found := self.xce.machines.find(key)) is not None and found.pid]
        if not held:
            because = f", {slot.reason.code}: {slot.reason.text}" if slot.reason else ""
            raise ValueError(f"{member}[{index}] does not run: it is {slot.state}{because}")
        return held

    def _end_all(self, group: str, member: str, index: int, exit_of: Callable[[Held], TaskExited]) -> None:
        self.xce.report([report for held in self._running(group, member, index) for report in self._ended(held, exit_of)])

    def _ended(self, held: Held, exit_of: Callable[[Held], TaskExited]) -> list[Any]:
        return self.xce.machines.end(held.key, exit_of(held))

    def _fail(
        self,
        cause: Cause,
        group: str,
        member: str,
        index: int,
        task: int,
        how: tuple[int | None, int | None, str, str],
    ) -> None:
        code, signal, message, stderr = how
        if cause in BY_TIME:
            raise ValueError(f"{cause} comes with time: {BY_TIME[cause]}")
        running = self._running(group, member, index)
        victim = next((held for held in running if held.key.task == task), None)
        if victim is None:
            raise ValueError(f"{member}[{index}] has no task {task} that runs")
        slot, group_id = self._slot(group, member, index), self._group(group).id
        if cause in SEEN_ON_THE_HOST:
            if cause is Cause.APP_EXIT and code is None:
                code = 1
            elif cause in (Cause.SIGNAL, Cause.OOM) and signal is None:
                signal = 9
            exit_ = TaskExited(victim.key, victim.host, cause, code, signal, message, stderr)
            self.xce.report(self.xce.machines.end(victim.key, exit_))
        elif cause in REPORTABLE_CAUSES:
            self._tell(ReportSlot(group_id, member, index, slot.incarnation, cause, message))
        elif cause is Cause.DRAINED:
            self._tell(DrainSlot(group_id, member, index, slot.incarnation))
        elif cause is Cause.CLAIM_LOST:
            self._lose_slot_claims(group_id, member, index, message)
        else:
            self._lose_machine(victim.host, agent_only=cause is Cause.AGENT_LOST)

    def _lose_machine(self, host: str, *, agent_only: bool) -> None:
        machine = self._machine(host)
        if agent_only:
            # Its watchdog ends what ran there, and a new agent comes up with nothing.
            machine.boot += 1
            machine.held.clear()
            self.xce.feed(machine.registration())
        else:
            machine.up = False
            self.xce.feed(HostGone(host, 10_000))

    def _turn(self, group: str, member: str, index: int | None, *, ready: bool, message: str) -> None:
        found = self._group(group)
        indices = [number for name, number in found.slots if name == member] if index is None else [index]
        if not indices:
            raise ValueError(f"there is no member {member!r}; there are: {', '.join(each.name for each in found.plan.members)}")
        reports = []
        for number in indices:
            slot = self._slot(group, member, number)
            for task in slot.tasks:
                held = self.xce.machines.find(self._task(group, member, number, task.index))
                if held is not None:
                    reports += self.xce.machines.turn(held, ready=ready, message=message)
        self.xce.report(reports)

    def _lose_slot_claims(self, group: str, member: str, index: int, message: str) -> None:
        claims = [claim for claim in self.xce.state.claims.values() if claim.group == group]
        own = [claim for claim in claims if (claim.member, claim.index) == (member, index)]
        self._lose([claim.id for claim in own or [claim for claim in claims if not claim.member]], message)

    def _lose_claims(self, name: str, group: str, message: str) -> None:
        claims = self.xce.state.claims.values()
        standalone = [claim.id for claim in claims if claim.id == name]
        group_id = "" if standalone else self._group(group).id
        self._lose(standalone or [claim.id for claim in claims if claim.group == group_id and claim.plan.name == name], message)

    def _lose(self, ids: list[str], message: str) -> None:
        ready = [self.xce.state.claims[claim] for claim in ids if self.xce.state.claims[claim].state is ClaimState.READY]
        if not ready:
            raise ValueError("there is no such claim that is READY")
        self.xce.feed(*(ClaimLost(claim.id, claim.attempt, message) for claim in ready))
