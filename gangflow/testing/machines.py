"""The hosts of a cluster for tests: they answer what they are told at once, as real agents would, and run nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from gangflow.xce.core.effects import Effect, Launch, Prepare, Provision, Release, Start, Stop, Unprepare, Warn
from gangflow.xce.core.inputs import (
    ClaimFailed,
    ClaimReady,
    ClaimReleased,
    HostUp,
    Report,
    TaskExited,
    TaskPrepared,
    TaskReady,
    TaskRefused,
    TaskStarted,
    TaskUnprepared,
    TaskUnready,
    TaskWarned,
)
from gangflow.xce.core.state import HostFacts, TaskKey

PORT_FIRST = 20_000


@dataclass(slots=True)
class Held:
    """A task on a host: prepared (`pid` 0) or running."""

    key: TaskKey
    host: str
    launch: Launch
    pid: int = 0
    ready: bool = False
    edge: int = 0


@dataclass(slots=True)
class Machine:
    """One host with its agent."""

    facts: HostFacts
    boot: int = 1
    up: bool = True
    """It answers."""
    held: dict[TaskKey, Held] = field(default_factory=dict)

    @property
    def token(self) -> str:
        return f"{self.facts.name}-{self.boot}"

    def registration(self) -> HostUp:
        """What it says of itself when it comes, or comes back."""
        return HostUp(self.facts, self.token, tuple(self.held))


class Machines:
    """All hosts, and the providers of claims. Not thread-safe: the cluster's loop owns it."""

    def __init__(self, facts: Iterable[HostFacts], folder: Path, *, ready: bool) -> None:
        self.folder = folder
        self.ready = ready
        """Probes succeed as soon as a task runs; else when a test says so."""
        self.by_name = {each.name: Machine(_with_ports(number, each)) for number, each in enumerate(facts)}
        self.launches: dict[TaskKey, Launch] = {}
        """Of every task that was ever prepared: its environment is asked for after its end, too."""
        self.refusals: dict[str, list[tuple[str, bool]]] = {}
        """Member → (message, permanent) for its next preparations."""
        self.hung: set[str] = set()
        """Members whose processes do not end when they are told to."""
        self.claim_faults: dict[str, list[str]] = {}
        """Claim name → messages for its next provisions."""
        self.signals: list[tuple[TaskKey, int]] = []
        self._pid = 1_000

    def find(self, key: TaskKey) -> Held | None:
        """Where that task is held, if it is."""
        return next((machine.held[key] for machine in self.by_name.values() if key in machine.held), None)

    def answer(self, effect: Effect) -> list[Report]:
        """What comes back for an effect; nothing from a host that is down."""
        if isinstance(effect, Provision):
            return self._provide(effect)
        if isinstance(effect, Release):
            return [ClaimReleased(effect.claim, effect.attempt)]
        machine = self.by_name.get(effect.host)
        if machine is None or not machine.up:
            return []
        held = machine.held.get(effect.task)
        match effect:
            case Prepare():
                return self._prepare(machine, effect)
            case Unprepare() if held is None or not held.pid:
                machine.held.pop(effect.task, None)
                return [TaskUnprepared(effect.task, effect.host)]
            case Start() if held is not None and effect.token == machine.token:
                return self._start(held)
            case Warn():
                return [TaskWarned(effect.task, effect.host)]
            case Stop() | Unprepare():
                return self._stop(machine, effect.task)
        return []

    def end(self, key: TaskKey, exit_: TaskExited) -> list[Report]:
        """A task ends by itself."""
        machine = self.by_name[exit_.host]
        machine.held.pop(key, None)
        return [exit_] if machine.up else []

    def turn(self, held: Held, *, ready: bool, message: str = "") -> list[Report]:
        """An edge of a task's ready probe; nothing if it is so already, or has no probe."""
        if held.launch.ready is None or held.ready == ready or not held.pid:
            return []
        held.ready, held.edge = ready, held.edge + 1
        if ready:
            return [TaskReady(held.key, held.host, held.edge)]
        return [TaskUnready(held.key, held.host, message, held.edge)]

    def _prepare(self, machine: Machine, effect: Prepare) -> list[Report]:
        known = machine.held.get(effect.task)
        if known is not None and known.pid:
            return []
        refusals = self.refusals.get(effect.task.member)
        if known is None and refusals:
            message, permanent = refusals.pop(0)
            return [TaskRefused(effect.task, effect.host, message, permanent)]
        machine.held[effect.task] = known or Held(effect.task, effect.host, effect.launch)
        self.launches[effect.task] = effect.launch
        return [TaskPrepared(effect.task, effect.host, machine.token)]

    def _start(self, held: Held) -> list[Report]:
        if not held.pid:
            self._pid += 1
            held.pid = self._pid
        reports: list[Report] = [TaskStarted(held.key, held.host, held.pid)]
        return [*reports, *self.turn(held, ready=True)] if self.ready else reports

    def _stop(self, machine: Machine, key: TaskKey) -> list[Report]:
        held = machine.held.get(key)
        if held is not None and held.pid and key.member in self.hung:
            return []
        machine.held.pop(key, None)
        return [TaskExited(key, machine.facts.name, signal=15 if held else None, message="stopped")]

    def _provide(self, effect: Provision) -> list[Report]:
        faults = self.claim_faults.get(effect.name)
        if faults:
            return [ClaimFailed(effect.claim, effect.attempt, faults.pop(0))]
        path = self.folder / "claims" / effect.claim.replace("/", "-")
        path.mkdir(parents=True, exist_ok=True)
        return [ClaimReady(effect.claim, effect.attempt, str(path))]


def _with_ports(number: int, facts: HostFacts) -> HostFacts:
    """Its own range of port numbers, and a node of its own: hosts of a test are lost one by one."""
    first = PORT_FIRST + number * max(1, facts.port_count) % 40_000
    return replace(facts, node=facts.name, port_first=first)
