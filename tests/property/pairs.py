"""Two operations on one group, the second while the first is under way: what no single test thinks of.

A small cluster with the real placement; a group with everything (jobs, one of them finished; replicas that drain; own, slot and
standalone claims; a runtime limit); a second group that waits for a claim of the first. Virtual time, agents that answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.changes import open_change
from gangflow.xce.core.counts import RUNS, slots_of, target
from gangflow.xce.core.invariants import check, check_step
from gangflow.xce.core.plan import (
    Access,
    Action,
    BackoffPlan,
    BarrierPlan,
    Cause,
    ClaimPlan,
    ExclusionPlan,
    GroupPlan,
    RulePlan,
)
from gangflow.xce.core.state import ClaimState, Group, GroupState, Slot, SlotState, State
from gangflow.xce.machine import Decision, handle
from gangflow.xce.placement import Scheduler
from tests.property.world import Agent, Faults, Running, World
from tests.unit.xce.core.plans import hosts, job, plan, replicas

G, S = GroupState, SlotState
BARRIER = BarrierPlan(timeout_ms=20_000, start_timeout_ms=40_000, max_attempts=50, backoff=BackoffPlan(500, 2_000, 2_000))
RULES = (RulePlan(Action.RESTART_MEMBER, backoff=BackoffPlan(1_000, 2_000, 4_000)),)
"""Whatever fails is restarted, without a budget: a group ends only when somebody ends it, or its actor is DONE."""


def everything(name: str) -> GroupPlan:
    """A group with a bit of everything."""
    claims = (
        ClaimPlan("data", uses="data", access=Access.EXCLUSIVE),
        ClaimPlan("ckpt", retain=True, timeout_ms=3_000),
        ClaimPlan("cache", scope="rollout", timeout_ms=3_000, after=("ckpt",)),
    )
    rollout = replicas("rollout", 2, 1, ready_timeout_ms=15_000, grace_ms=1_000, drain_ms=2_000)
    members = (
        job("actor", cpu=2_000, grace_ms=1_000),
        job("prep", cpu=500, primary=False),
        replace(rollout, max_replicas=4),
        replicas("judge", 1, 0, cpu=500, runtime_limit_ms=9_000, warn_before_ms=2_000, warn_signal=10),
    )
    exclusion = ExclusionPlan(after=2, at_most=1)
    more = {"rules": RULES, "claims": claims, "barrier": BARRIER, "recovery_timeout_ms": 8_000, "exclusion": exclusion}
    return plan(*members, name=name, **more)


class Pair:
    """One world; `at` a moment `first`, after a while `second`, perhaps a crash of the controller, then everybody behaves."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World(self.random, hosts(3), Scheduler, Faults())
        self.world.jobs_end = False
        self.world.after_step.append(self._check)
        self.steps = 0
        self.crash_in = 0
        self.answered: list[str] = []
        """What the operations were answered, for whoever wants to know that they did something."""
        self.ended_as = G.PENDING
        """What the first group was, once everybody behaved."""
        self.world.start()
        self.world.feed(inp.CreateClaim(ClaimPlan("data")))
        self.world.feed(inp.SubmitGroup(everything("all")))
        self.world.feed(inp.SubmitGroup(everything("behind")))

    def _check(self, world: World, before: State, decision: Decision) -> None:
        self.steps += 1
        faults = [*check_step(before, decision.events, decision.state), *check(decision.state)]
        told = "\n  ".join(repr(event)[:300] for event in decision.events)
        assert not faults, f"at {decision.now_ms}: {faults}\nafter {world.inputs}\n  {told}"
        for group in decision.state.groups.values():
            self._promises(before.groups.get(group.id), group, decision.state)
        if self.steps % 7 == 0:
            assert handle(before, world.inputs, decision.now_ms, Scheduler()) == decision

    def _promises(self, old: Group | None, group: Group, state: State) -> None:
        """Of suspension and runtime limits, which the invariants of a state do not speak of."""
        if group.state is G.SUSPENDED:
            assert not any(slot.tasks or slot.live for slot in group.slots.values()), group
        if old is not None and old is not group:
            assert group.submitted_ms == old.submitted_ms
        if old is not None and old.state is G.SUSPENDED and group.state is G.PENDING:
            assert group.attempt == 0, group
            was, now = ({key for key, slot in each.slots.items() if slot.state is S.DONE} for each in (old, group))
            assert was == now, group
        for slot in group.slots.values() if state.grace_until_ms <= state.now_ms else ():
            assert slot.state not in RUNS or not slot.run_until_ms or slot.run_until_ms > state.now_ms, slot

    # --- time ---------------------------------------------------------------------------------------------------------

    def go(self, steps: int) -> None:
        """So many steps of the machine further; a crash of the controller may come between two of them."""
        end = self.steps + steps
        for _ in range(100 * steps):
            if self.steps >= end:
                return
            self.world.run(self.world.now_ms + 20)
            if self.crash_in and self.steps >= self.crash_in:
                self.crash_in = 0
                self.world.restart_controller()

    def until(self, *states: GroupState) -> None:
        """Until the first group is in one of these states."""
        for _ in range(2_000):
            if self.group.state in states:
                return
            self.world.run(self.world.now_ms + 20)
        raise AssertionError(f"not {states}: {self.group}")

    # --- what is ------------------------------------------------------------------------------------------------------

    @property
    def group(self) -> Group:
        return self.world.state.groups["g1"]

    def some(self, member: str, *states: SlotState) -> Slot:
        """A slot of a member, in one of these states if there is one."""
        slots = [slot for slot in self.group.slots.values() if slot.member == member and not slot.out]
        return next((slot for slot in slots if slot.state in states), slots[0])

    def host_of(self, member: str) -> str:
        """A host on which a slot of the member stands; the first one if none does."""
        tasks = [task for slot in self.group.slots.values() if slot.member == member for task in slot.tasks]
        return tasks[0].host if tasks else "h0"

    def agent(self, member: str) -> Agent:
        return self.world.agent_of(self.host_of(member))

    def ask(self, command: inp.Command) -> None:
        reply = self.world.feed(command).replies[0]
        assert reply is not None
        assert reply.status != 500, reply
        self.answered.append(f"{type(command).__name__} {reply.status} {reply.code}")

    def held(self, member: str) -> Running | None:
        """A process of the member that runs, as its agent has it."""
        found = [each for agent in self.world.agents.values() for each in agent.held.values() if each.pid]
        return next((each for each in found if each.effect.task.member == member and each.effect.task.group == "g1"), None)

    def exit(self, member: str, code: int) -> None:
        """A process of it ends by itself."""
        running = self.held(member)
        if running is not None:
            key = running.effect.task
            cause = Cause.APP_EXIT if code else None
            self.world._end(self.world.agent_of(running.host), running, inp.TaskExited(key, running.host, cause, code))

    def lose_claim(self, name: str) -> None:
        """A provider finds that a claim is not there any more."""
        for claim in self.world.state.claims.values():
            if claim.state is ClaimState.READY and claim.plan.name == name:
                self.world.feed(inp.ClaimLost(claim.id, claim.attempt, "it is gone"))
                return

    # --- the end ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Everything is put right that an operator can put right; then it must be as it should."""
        world = self.world
        for agent in world.agents.values():
            if not agent.up or agent.cut:
                world.revive(agent)
        for name in world.state.hosts:
            world.feed(inp.OpenHost(name))
        world.run(world.now_ms + 60_000)
        for group in list(world.state.groups.values()):
            assert group.state is not G.SUSPENDING, group
            if group.state is G.SUSPENDED:
                world.feed(inp.ResumeGroup(group.id))
        world.run(world.now_ms + 120_000)
        self._everybody_is_right()
        self.ended_as = self.group.state
        # And whoever waited behind the holder of the claim has his turn.
        world.feed(inp.EndGroup(world_first(world.state) or "g1", G.CANCELLED))
        world.run(world.now_ms + 60_000)
        self._everybody_is_right()

    def _everybody_is_right(self) -> None:
        for _ in range(200):  # The judge comes and goes with its runtime limit.
            if all(group.state in {G.RUNNING, G.PENDING} or group.state.terminal for group in self.world.state.groups.values()):
                break
            self.world.run(self.world.now_ms + 100)
        for group in self.world.state.groups.values():
            self._right(group)
        self._nothing_left_behind()

    def _right(self, group: Group) -> None:
        first = world_first(self.world.state)
        if group.state.terminal:
            assert not any(slot.tasks for slot in group.slots.values())
            return
        story = (
            f"{self.answered}: {group.id} is {group.state.value}: {group.cause} {group.message} {group.reason} {group.slots}"
        )
        if group.id != first:
            assert group.state is G.PENDING, story
            assert group.reason is not None, story
            assert group.reason.code == "WAITING_CLAIMS", story
            assert not any(slot.tasks for slot in group.slots.values()), story
            return
        assert group.state is G.RUNNING, story
        assert open_change(group) is None, story
        for member in group.plan.members:
            slots = slots_of(group, member)
            assert len(slots) == target(group, member.name), story
            if member.name in group.stopped:
                assert all(slot.state in (S.RETIRED, S.DONE) for slot in slots), story
            elif member.name != "judge":
                assert all(slot.state in (S.READY, S.DONE) for slot in slots), f"{member.name}: {story}"

    def _nothing_left_behind(self) -> None:
        state = self.world.state
        wanted = {
            (group.id, slot.epoch, slot.member, slot.index, slot.incarnation)
            for group in state.groups.values()
            for slot in group.slots.values()
            if slot.tasks
        }
        for agent in self.world.agents.values():
            for key in agent.held:
                assert (key.group, key.epoch, key.member, key.index, key.incarnation) in wanted, f"{key} was left behind"
        for host in state.hosts.values():
            assert not host.superseded
        for claim in state.claims.values():
            owner = state.groups.get(claim.group)
            if owner is not None and owner.state.terminal:
                assert claim.state is ClaimState.GONE, f"{self.answered}: {claim}"
            elif not claim.group:
                assert claim.state is ClaimState.READY, f"{self.answered}: {claim}"


def world_first(state: State) -> str:
    """The group whose turn it is to have the exclusive claim: the one that has a place, else the first that lives."""
    living = [group for group in state.groups.values() if not group.state.terminal]
    holding = [group.id for group in living if any(slot.tasks for slot in group.slots.values())]
    return holding[0] if holding else living[0].id if living else ""


OPERATIONS: dict[str, Callable[[Pair], None]] = {
    "nothing": lambda p: None,
    "suspend": lambda p: p.ask(inp.SuspendGroup("g1")),
    "resume": lambda p: p.ask(inp.ResumeGroup("g1")),
    "restart group": lambda p: p.ask(inp.RestartGroup("g1")),
    "scale up": lambda p: p.ask(inp.ScaleGroup("g1", (("rollout", 4),), 30_000)),
    "scale down": lambda p: p.ask(inp.ScaleGroup("g1", (("rollout", 1), ("judge", 0)), 30_000)),
    "scale by hand back": lambda p: p.ask(inp.ScaleGroup("g1", (("rollout", 2), ("judge", 1)), 30_000)),
    "scale too far": lambda p: p.ask(inp.ScaleGroup("g1", (("rollout", 9),))),
    "stop rollout": lambda p: p.ask(inp.StopMember("g1", "rollout")),
    "stop actor": lambda p: p.ask(inp.StopMember("g1", "actor")),
    "drain slot": lambda p: p.ask(_about(p, inp.DrainSlot, "rollout", *RUNS)),
    "restart slot": lambda p: p.ask(_about(p, inp.RestartSlot, "rollout", *RUNS, S.RETIRED, S.BACKOFF)),
    "run prep again": lambda p: p.ask(_about(p, inp.RestartSlot, "prep")),
    "report": lambda p: p.ask(inp.ReportSlot("g1", "rollout", 0, p.group.slots["rollout", 0].incarnation, Cause.HUNG)),
    "close host": lambda p: p.ask(inp.CloseHost(p.host_of("rollout"))),
    "drain host": lambda p: p.ask(inp.CloseHost(p.host_of("actor"), drain=True)),
    "open hosts": lambda p: _open(p),
    "kill agent": lambda p: p.world.kill_agent(p.agent("rollout")),
    "kill node": lambda p: p.world.kill_node(p.agent("actor")),
    "cut off": lambda p: p.world.cut_off(p.agent("rollout")),
    "revive": lambda p: _revive(p),
    "lose data": lambda p: p.lose_claim("data"),
    "lose cache": lambda p: p.lose_claim("cache"),
    "delete data": lambda p: p.ask(inp.DeleteClaim("data")),
    "rollout fails": lambda p: p.exit("rollout", 3),
    "actor fails": lambda p: p.exit("actor", 3),
    "prep ends": lambda p: p.exit("prep", 0),
    "actor ends": lambda p: p.exit("actor", 0),
    "cancel": lambda p: p.ask(inp.EndGroup("g1", G.CANCELLED)),
    "cancel behind": lambda p: p.ask(inp.EndGroup("g2", G.CANCELLED)),
    "wait for the limit": lambda p: p.world.run(p.world.now_ms + 9_500),
}
MOMENTS: dict[str, Callable[[Pair], None]] = {
    "running": lambda p: _running(p),
    "preparing": lambda p: p.until(G.PREPARING),
    "starting": lambda p: p.until(G.STARTING),
    "pending": lambda p: p.until(G.PENDING),
}


def _running(pair: Pair) -> None:
    """Everybody serves, and one job is DONE."""
    pair.until(G.RUNNING)
    pair.exit("prep", 0)
    pair.go(40)


def _open(pair: Pair) -> None:
    for name in pair.world.state.hosts:
        pair.ask(inp.OpenHost(name))


def _revive(pair: Pair) -> None:
    for agent in pair.world.agents.values():
        if not agent.up or agent.cut:
            pair.world.revive(agent)


def _about(pair: Pair, command: type, member: str, *states: SlotState) -> inp.Command:
    slot = pair.some(member, *states)
    made: inp.Command = command("g1", member, slot.index, slot.incarnation)
    return made


def play(moment: str, first: str, second: str, gap: int, crash: int, seed: int = 0) -> Pair:
    """`gap`: steps of the machine between the two; `crash`: so many steps after the first the controller dies; 0: it lives."""
    pair = Pair(seed)
    MOMENTS[moment](pair)
    OPERATIONS[first](pair)
    if crash:
        pair.crash_in = pair.steps + crash
    pair.go(gap)
    OPERATIONS[second](pair)
    pair.go(30)
    pair.calm()
    return pair
