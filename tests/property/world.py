"""A small modelled world around the machine: agents and providers that answer effects, in virtual time, with faults.

It is deterministic: all randomness comes from the generator that it is given. Nothing here decides for the machine; the world
delivers effects as the controller's shell would (again after a while, when nobody confirmed), and reports as agents would:
each agent's reports in order, from the first that was not acknowledged, so that some come twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Effect, Prepare, Provision, Release, Start, Stop, Unprepare, Warn
from gangflow.xce.core.events import Event
from gangflow.xce.core.evolve import apply_all
from gangflow.xce.core.inputs import Command, Input, Reply, Report
from gangflow.xce.core.plan import Cause, MemberKind
from gangflow.xce.core.state import Claim, HostFacts, State, TaskKey
from gangflow.xce.machine import Decision, Machine, Scheduler, effects_due, next_deadline

RESEND_MS = 1_000
LEASE_MS = 3_000
FENCE_MS = 5_000


@dataclass
class Batch:
    """What the journal keeps of one step."""

    now_ms: int
    inputs: tuple[Input, ...]
    events: tuple[Event, ...]


@dataclass
class Running:
    """A task on an agent: prepared (`pid` 0) or with a process."""

    effect: Prepare
    host: str
    pid: int = 0
    ready: bool = False
    edges: int = 0
    """Edges of its ready probe that were reported."""


@dataclass
class Agent:
    """One node's agent: what it holds, and what it still has to say."""

    node: str
    hosts: list[HostFacts]
    boot: int = 1
    up: bool = True
    """The agent answers. A node that is down runs nothing; one that is cut off runs on and says nothing."""
    cut: bool = False
    held: dict[TaskKey, Running] = field(default_factory=dict)
    outbox: list[Report] = field(default_factory=list)

    @property
    def token(self) -> str:
        return f"{self.node}-{self.boot}"

    def inventory(self, host: str) -> tuple[TaskKey, ...]:
        """What it holds on one of its hosts."""
        return tuple(key for key, running in self.held.items() if running.host == host)


@dataclass
class Faults:
    """How often something goes wrong, in thousandths of each opportunity."""

    lose: int = 0
    """An effect, or an answer to a report, gets lost."""
    double: int = 0
    refuse: int = 0
    exit_fail: int = 0
    """A task that runs fails (each time it is looked at)."""
    unready: int = 0
    hang: int = 0
    """A service's probe fails and never succeeds again, and it does not end."""
    claim_fail: int = 0
    never_ready: int = 0
    late: int = 0
    """An effect arrives seconds late, perhaps after its opposite."""
    stale: int = 0
    """A report that was taken before comes once more, perhaps much later."""


class World:
    """Virtual time, a machine, agents, providers, a journal; `step` after `step` until `now_ms` or rest."""

    def __init__(self, random: Random, hosts: Sequence[HostFacts], scheduler: Callable[[], Scheduler], faults: Faults) -> None:
        self.random = random
        self.faults = faults
        self.make_scheduler = scheduler
        self.machine = Machine(State(), scheduler())
        self.now_ms = 1_000_000
        self.inputs: tuple[Input, ...] = ()
        """Of the last step."""
        self.journal: list[Batch] = []
        self.after_step: list[Callable[[World, State, Decision], None]] = []
        """Called with the state before and the decision, after every step: checks."""
        self.agents: dict[str, Agent] = {}
        for facts in hosts:
            self.agents.setdefault(facts.node, Agent(facts.node, [])).hosts.append(facts)
        self.claims: dict[str, int] = {}
        """Claims that a provider has made: id → attempt."""
        self.sent: dict[tuple[str, str], int] = {}
        """When an effect was last sent."""
        self.replies: list[tuple[Command, Reply]] = []
        self.duration_ms = 20_000
        """How long a job's task runs, about."""
        self.jobs_end = True
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._pid = 100
        self.fired: dict[str, int] = {}
        """Faults that really happened."""

    @property
    def state(self) -> State:
        """What the controller believes."""
        return self.machine.state

    # --- time ---------------------------------------------------------------------------------------------------------

    def later(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something so many ms from now."""
        self._order += 1
        heappush(self._queue, (self.now_ms + delay_ms, self._order, act))

    def run(self, until_ms: int) -> None:
        """Let everything happen that happens before `until_ms`."""
        while True:
            deadline = next_deadline(self.state)
            queued = self._queue[0][0] if self._queue else None
            times = [time for time in (deadline, queued) if time is not None]
            if not times or min(times) > until_ms:
                self.now_ms = max(self.now_ms, until_ms)
                return
            if queued is not None and (deadline is None or queued <= deadline):
                self.now_ms = max(self.now_ms, queued)
                heappop(self._queue)[2]()
            else:
                assert deadline is not None
                stuck = self.now_ms >= deadline
                self.now_ms = max(self.now_ms, deadline)
                decision = self.feed(inp.Tick())
                assert decision.events or not stuck, f"a deadline that passed changes nothing: {deadline}"

    def chance(self, per_mille: int, name: str) -> bool:
        """Whether a fault happens now."""
        if per_mille and self.random.randrange(1_000) < per_mille:
            self.fired[name] = self.fired.get(name, 0) + 1
            return True
        return False

    # --- the controller -----------------------------------------------------------------------------------------------

    def feed(self, *inputs: Input) -> Decision:
        """One batch through the machine and the journal; effects go out, replies are kept."""
        before = self.state
        self.inputs = inputs
        decision = self.machine.handle(inputs, self.now_ms)
        if decision.events:
            self.journal.append(Batch(decision.now_ms, inputs, decision.events))
        for one, reply in zip(inputs, decision.replies, strict=True):
            if reply is not None:
                self.replies.append((one, reply))  # type: ignore[arg-type]
        for check in self.after_step:
            check(self, before, decision)
        for effect in decision.effects:
            self.send(effect)
        return decision

    def start(self) -> None:
        """A first controller, agents that register, and the sweep that sends again what nobody confirmed."""
        self.feed(inp.StartTerm("test-cluster"))
        for agent in self.agents.values():
            self.register(agent)
        self.later(RESEND_MS, self._sweep)

    def restart_controller(self) -> None:
        """The controller dies at this record: its successor has the journal only, and derives what is owed."""
        self.fired["controller"] = self.fired.get("controller", 0) + 1
        state = State()
        for batch in self.journal:
            state = apply_all(state, batch.events, batch.now_ms)
        assert state == self.state, "the journal does not give the state back"
        self.machine = Machine(state, self.make_scheduler())
        self.now_ms += self.random.choice([0, 0, 500, 20_000, 100_000])
        self.sent.clear()
        self.feed(inp.StartTerm("another id, which is not taken"))
        for agent in self.agents.values():
            if agent.up and not agent.cut:
                self.register(agent)

    def _sweep(self) -> None:
        for effect in effects_due(self.state):
            if self.now_ms - self.sent.get(name_of(effect), -RESEND_MS) >= RESEND_MS:
                self.send(effect)
        for agent in self.agents.values():
            self._speak(agent)
        self.later(RESEND_MS, self._sweep)

    def send(self, effect: Effect) -> None:
        """An effect on its way: it may be late, lost or doubled."""
        self.sent[name_of(effect)] = self.now_ms
        if self.chance(self.faults.lose, "lost effect"):
            return
        for _ in range(2 if self.chance(self.faults.double, "doubled effect") else 1):
            delay = self.random.randrange(1, 50)
            if self.chance(self.faults.late, "late effect"):
                delay += self.random.randrange(500, 8_000)
            self.later(delay, lambda: self._arrive(effect))

    def _arrive(self, effect: Effect) -> None:
        if isinstance(effect, Provision | Release):
            self.later(self.random.randrange(1, 200), lambda: self._provide(effect))
        else:
            self._deliver(self.agent_of(effect.host), effect)

    def agent_of(self, host: str) -> Agent:
        """The agent that serves a host."""
        return next(agent for agent in self.agents.values() if any(facts.name == host for facts in agent.hosts))

    # --- agents -------------------------------------------------------------------------------------------------------

    def register(self, agent: Agent) -> None:
        """The agent says who it is and what it holds, host by host."""
        for facts in agent.hosts:
            self.feed(inp.HostUp(facts, agent.token, agent.inventory(facts.name)))

    def say(self, agent: Agent, report: Report) -> None:
        """A report into the agent's outbox; it is sent until acknowledged, in order."""
        agent.outbox.append(report)
        self.later(self.random.randrange(1, 30), lambda: self._speak(agent))

    def _speak(self, agent: Agent) -> None:
        if not agent.up or agent.cut or not agent.outbox:
            return
        count = self.random.randrange(1, len(agent.outbox) + 1)
        reports = agent.outbox[:count]
        self.feed(*reports)
        if self.chance(self.faults.stale, "stale report"):
            if any(isinstance(one, inp.TaskReady | inp.TaskUnready) for one in reports):
                self.fired["stale edge"] = self.fired.get("stale edge", 0) + 1
            self.later(self.random.randrange(100, 20_000), lambda: self.feed(*reports) and None)
        if not self.chance(self.faults.lose, "lost acknowledgement"):
            del agent.outbox[:count]

    def _deliver(self, agent: Agent, effect: Prepare | Unprepare | Start | Stop | Warn) -> None:
        if not agent.up or agent.cut:
            return
        key = effect.task
        held = agent.held.get(key)
        if isinstance(effect, Prepare):
            self._prepare(agent, effect, held)
        elif isinstance(effect, Unprepare):
            if held is None or not held.pid:
                agent.held.pop(key, None)
                self.say(agent, inp.TaskUnprepared(key, effect.host))
            else:
                self._end(agent, held, inp.TaskExited(key, effect.host, message="unprepared while it ran"))
        elif isinstance(effect, Start):
            self._start(agent, effect, held)
        elif isinstance(effect, Warn):
            self._warn(agent, effect, held)
        elif held is None:
            self.say(agent, inp.TaskExited(key, effect.host, message="not known here"))
        else:
            wait = self.random.randrange(1, max(2, effect.grace_ms // 4))
            exit = inp.TaskExited(key, effect.host, signal=15, message="stopped")
            self.later(wait, lambda: self._end(agent, held, exit))

    def _prepare(self, agent: Agent, effect: Prepare, held: Running | None) -> None:
        if held is None:
            if self.chance(self.faults.refuse, "refused"):
                self.say(agent, inp.TaskRefused(effect.task, effect.host, "port 1 is taken"))
                return
            agent.held[effect.task] = Running(effect, effect.host)
        elif held.pid:
            return
        self.say(agent, inp.TaskPrepared(effect.task, effect.host, agent.token))

    def _start(self, agent: Agent, effect: Start, held: Running | None) -> None:
        if held is None or effect.token != agent.token:
            return
        if held.pid:
            self.say(agent, inp.TaskStarted(effect.task, effect.host, held.pid))
            return
        self._pid += 1
        held.pid = self._pid
        self.say(agent, inp.TaskStarted(effect.task, effect.host, held.pid))
        if held.effect.launch.ready is not None and not self.chance(self.faults.never_ready, "never ready"):
            self.later(self.random.randrange(10, 2_000), lambda: self._become_ready(agent, held))
        self._live(agent, held)

    def _warn(self, agent: Agent, effect: Warn, held: Running | None) -> None:
        """The runtime limit is near: some jobs finish in time because of it."""
        self.fired["warned"] = self.fired.get("warned", 0) + 1
        self.say(agent, inp.TaskWarned(effect.task, effect.host))
        if held is not None and held.pid and self.random.random() < 0.3:
            self.later(500, lambda: self._end(agent, held, inp.TaskExited(effect.task, held.host, code=0)))

    def _become_ready(self, agent: Agent, held: Running) -> None:
        if agent.held.get(held.effect.task) is held and agent.up and not held.ready:
            held.ready = True
            held.edges += 1
            self.say(agent, inp.TaskReady(held.effect.task, held.host, held.edges))

    def _live(self, agent: Agent, held: Running) -> None:
        """What a process does by itself: a job ends, anything may fail, a probe may fail for a while."""
        group = self.state.groups.get(held.effect.task.group)
        job = group is not None and group.plan.member(held.effect.task.member).kind is MemberKind.JOB
        if job and self.jobs_end:
            wait = self.random.randrange(self.duration_ms // 2, self.duration_ms * 2)
            self.later(wait, lambda: self._end(agent, held, inp.TaskExited(held.effect.task, held.host, code=0)))
        self.later(self.random.randrange(500, 5_000), lambda: self._look(agent, held))

    def _look(self, agent: Agent, held: Running) -> None:
        if agent.held.get(held.effect.task) is not held or not agent.up:
            return
        key = held.effect.task
        if self.chance(self.faults.exit_fail, "failed"):
            self._end(agent, held, inp.TaskExited(key, held.host, Cause.APP_EXIT, 3, stderr_tail="boom"))
            return
        if held.ready and self.chance(self.faults.unready, "unready"):
            self._lose_readiness(agent, held)
            self.later(self.random.randrange(100, 3_000), lambda: self._become_ready(agent, held))
        elif held.ready and self.chance(self.faults.hang, "hang"):
            self._lose_readiness(agent, held)
            return
        self.later(self.random.randrange(500, 5_000), lambda: self._look(agent, held))

    def _lose_readiness(self, agent: Agent, held: Running) -> None:
        held.ready = False
        held.edges += 1
        self.say(agent, inp.TaskUnready(held.effect.task, held.host, "503", held.edges))

    def _end(self, agent: Agent, held: Running, exit: inp.TaskExited) -> None:
        if agent.held.get(held.effect.task) is held and agent.up:
            del agent.held[held.effect.task]
            self.say(agent, exit)

    def kill_agent(self, agent: Agent) -> None:
        """The agent dies, and its watchdog kills every tree; it comes back with another boot and nothing."""
        self.fired["agent"] = self.fired.get("agent", 0) + 1
        agent.held.clear()
        agent.outbox.clear()
        agent.boot += 1
        self.later(self.random.randrange(50, 2_000), lambda: self._come_back(agent))

    def _come_back(self, agent: Agent) -> None:
        if agent.up and not agent.cut:
            self.register(agent)

    def kill_node(self, agent: Agent) -> None:
        """The node dies with all that it ran; the verdict comes when its lease is over."""
        if agent.up and not agent.cut:
            self.fired["node"] = self.fired.get("node", 0) + 1
            agent.up = False
            agent.held.clear()
            agent.outbox.clear()
            self.later(LEASE_MS, lambda: self._verdict(agent))

    def cut_off(self, agent: Agent) -> None:
        """The network to the node is gone: it runs on, until it fences itself."""
        if agent.up and not agent.cut:
            self.fired["cut"] = self.fired.get("cut", 0) + 1
            agent.cut = True
            self.later(LEASE_MS, lambda: self._verdict(agent))
            self.later(LEASE_MS + FENCE_MS - 500, lambda: self._fence_itself(agent))

    def _verdict(self, agent: Agent) -> None:
        if not agent.up or agent.cut:
            self.feed(*(inp.HostGone(facts.name, FENCE_MS) for facts in agent.hosts))

    def _fence_itself(self, agent: Agent) -> None:
        if agent.cut:
            for key, held in list(agent.held.items()):
                del agent.held[key]
                if held.pid:
                    agent.outbox.append(inp.TaskExited(key, held.host, signal=9, message="fenced itself"))

    def revive(self, agent: Agent) -> None:
        """The node, or the network to it, is back."""
        if not agent.up:
            agent.up = True
            agent.boot += 1
        agent.cut = False
        self.register(agent)
        self._speak(agent)

    # --- providers ----------------------------------------------------------------------------------------------------

    def _provide(self, effect: Provision | Release) -> None:
        if isinstance(effect, Release):
            self.claims.pop(effect.claim, None)
            self.feed(inp.ClaimReleased(effect.claim, effect.attempt))
        elif self.chance(self.faults.claim_fail, "claim"):
            self.feed(inp.ClaimFailed(effect.claim, effect.attempt, "disk full"))
        else:
            self.claims[effect.claim] = effect.attempt
            bound = effect.hosts if effect.provider == "local" else ()
            host = bound[0] if bound else ""
            hosts = bound if effect.slot is not None and len(bound) > 1 else ()
            self.feed(inp.ClaimReady(effect.claim, effect.attempt, f"/claims/{effect.claim}", host, hosts))

    def lose_claim(self, claim: Claim) -> None:
        """What was made of a claim is gone; its provider's next look finds that out."""
        self.fired["claim lost"] = self.fired.get("claim lost", 0) + 1
        self.claims.pop(claim.id, None)
        self.feed(inp.ClaimLost(claim.id, claim.attempt, "it is not there any more"))


def name_of(effect: Effect) -> tuple[str, str]:
    """The identity of an effect: what it does, to which task or claim."""
    if isinstance(effect, Provision | Release):
        return (type(effect).__name__, effect.claim)
    return (type(effect).__name__, str(effect.task))
