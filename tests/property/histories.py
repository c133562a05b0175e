"""Random histories for the machine: commands, faults, and the checks that go with them. One seed is one history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asking import asks_of
from gangflow.xce.core.asks import Grant
from gangflow.xce.core.counts import ACTIVE, RUNS
from gangflow.xce.core.due import make_all, owed_in
from gangflow.xce.core.index import Index
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
    MemberPlan,
    RulePlan,
)
from gangflow.xce.core.state import Group, GroupState, HostFacts, SlotState, State, TaskPhase
from gangflow.xce.core.turn import Turn
from gangflow.xce.machine import Decision, Scheduler, handle, next_deadline
from tests.property.greedy import Greedy
from tests.property.world import Faults, World, name_of
from tests.unit.xce.core.plans import READY, hosts, job, plan, replicas

G = GroupState
LONGEST_MS = 60_000
"""The largest timeout of the plans below."""
BARRIER = BarrierPlan(timeout_ms=20_000, start_timeout_ms=40_000, backoff=BackoffPlan(500, 2_000, 5_000))
BACKOFF = BackoffPlan(200, 2_000, 4_000)


def random_plan(random: Random, name: str, standalone: Sequence[str] = ()) -> GroupPlan:
    """A group of one to three members, sometimes with claims (also `standalone` ones), odd rules, too large to fit."""
    members: list[MemberPlan] = []
    if random.random() < 0.8:
        probed = {"ready": READY, "ports": ("http",), "ready_timeout_ms": 15_000} if random.random() < 0.2 else {}
        tasks, cpu = random.choice([1, 1, 2, 3]), random.choice([500, 1_000, 2_000])
        limits = random_limits(random)
        members.append(job("actor", tasks=tasks, cpu=cpu, grace_ms=2_000, **probed, **limits))
    if random.random() < 0.8 or not members:
        count = random.randint(1, 3)
        least = random.randint(1, count)
        probe: dict[str, Any] = {} if random.random() < 0.7 else {"ready": None}
        probe |= random_limits(random)
        members.append(
            replicas("rollout", count, least, cpu=random.choice([500, 1_000]), ready_timeout_ms=15_000, grace_ms=2_000, **probe)
        )
    if random.random() < 0.3:
        members.append(job("ref", cpu=500, primary=False, grace_ms=1_000, ports=("http",)))
    claims: list[ClaimPlan] = []
    if random.random() < 0.4:
        provider = random.choice(["directory", "directory", "local"])
        claims.append(ClaimPlan("ckpt", provider, timeout_ms=3_000, retain=random.random() < 0.5))
    if random.random() < 0.2:
        after = ("ckpt",) if claims and random.random() < 0.5 else ()
        retain = random.random() < 0.2
        provider = random.choice(["directory", "local"])
        claims.append(ClaimPlan("scratch", provider, members[0].name, retain, timeout_ms=3_000, after=after))
    for used in random.sample(list(standalone), min(len(standalone), random.choice([0, 1, 1, 2]))):
        access = random.choice([Access.EXCLUSIVE, Access.SHARED, Access.SHARED])
        claims.append(ClaimPlan(f"use-{used}", scope=random.choice(["", members[0].name]), uses=used, access=access))
    rules = tuple(random_rule(random, members) for _ in range(random.choice([0, 0, 1, 2, 3])))
    made = plan(
        *members,
        name=name,
        rules=rules,
        claims=tuple(claims),
        barrier=replace(BARRIER, max_attempts=random.choice([1, 3, 5])),
        priority=random.choice([50, 50, 80]),
        recovery_timeout_ms=30_000,
        termination_delay_ms=random.choice([0, 0, 3_000]),
        exclusion=ExclusionPlan(random.choice([0, 1, 1, 2]), 60_000, random.choice([1, 4])),
    )
    return replace(made, rules=tuple(replace(rule, backoff=BACKOFF) for rule in made.rules))


def random_limits(random: Random) -> dict[str, int]:
    """Sometimes a runtime limit, perhaps with a warning, and a time to drain."""
    limits = {"drain_ms": random.choice([0, 0, 1_500])}
    if random.random() < 0.2:
        limits |= {"runtime_limit_ms": random.choice([8_000, 30_000])}
        limits |= random.choice([{}, {"warn_before_ms": 3_000, "warn_signal": 10}])
    return limits


def random_rule(random: Random, members: list[MemberPlan]) -> RulePlan:
    """Any action for any cause, with a small budget."""
    return RulePlan(
        action=random.choice(list(Action)),
        member=random.choice(["", *(member.name for member in members)]),
        causes=tuple(random.sample(list(Cause), random.choice([0, 1, 3]))),
        exit_codes=random.choice([(), (3,)]),
        max_restarts=random.choice([-1, 0, 1, 3]) if random.random() < 0.5 else 2,
        window_ms=60_000,
        max_elapsed_ms=random.choice([0, 0, 40_000]),
        backoff=BACKOFF,
        floor=random.choice([-1, -1, 0, 1]),
        floor_grace_ms=random.choice([0, 0, 8_000]),
        count_machine_losses=random.random() < 0.3,
        then=random.choice(list(Action)),
    )


def random_faults(random: Random) -> Faults:
    """From none to many."""
    level = random.choice([0, 1, 3])
    return Faults(
        lose=level * random.choice([0, 20, 60]),
        double=level * random.choice([0, 20, 60]),
        refuse=level * random.choice([0, 20]),
        exit_fail=level * random.choice([0, 10, 40]),
        unready=level * random.choice([0, 20]),
        hang=level * random.choice([0, 0, 20]),
        claim_fail=level * random.choice([0, 50]),
        never_ready=level * random.choice([0, 20]),
        late=level * random.choice([0, 20, 60]),
        stale=level * random.choice([0, 20, 60]),
    )


def waits_for_places(group: Group) -> bool:
    """Whether a slot of a group that runs waits for room, and says so."""
    return any(slot.state is SlotState.PENDING and slot.reason is not None for slot in group.slots.values())


class History:
    """One seed's history: `play` it, then `calm` it and see that everything comes to an end."""

    def __init__(self, seed: int, scheduler: type[Scheduler] = Greedy, facts: tuple[HostFacts, ...] = ()) -> None:
        self.random = Random(seed)
        self.facts = facts or hosts(self.random.randint(2, 4), node=self.random.choice(["", "", "one"]))
        self.world = World(self.random, self.facts, scheduler, random_faults(self.random))
        self.world.duration_ms = self.random.choice([4, 400, 5_000, 20_000, 60_000])
        self.world.after_step.append(self.check)
        self.world.after_step.append(self.follow)
        self.world.after_step.append(self.all_that_became_due_is_sent)
        self.world.after_step.append(self.nothing_kept_decides)
        self.world.after_step.append(self.what_is_ready_is_known)
        self.index = Index(self.world.state)
        self.submitted = 0
        self.steps = 0
        self.moved: dict[str, int] = {}
        """When something last happened to a group."""

    def check(self, world: World, before: State, decision: Decision) -> None:
        """Every invariant, after every step."""
        self.steps += 1
        self.moved.update(dict.fromkeys(decision.touched if decision.events else (), decision.now_ms))
        faults = [*check_step(before, decision.events, decision.state), *check(decision.state)]
        told = "\n  ".join(repr(event)[:300] for event in decision.events)
        assert not faults, f"at {decision.now_ms}: {faults}\nafter\n  {told}"

    def all_that_became_due_is_sent(self, world: World, before: State, decision: Decision) -> None:
        """A step's effects are exactly what is owed after it and was not owed before, over the whole state."""
        state = decision.state
        old = owed_in(before, before.groups, before.hosts, before.claims)
        new = [owed for owed in owed_in(state, state.groups, state.hosts, state.claims) if owed not in old]
        assert sorted(map(name_of, decision.effects)) == sorted(map(name_of, make_all(decision.state, new)))

    def nothing_kept_decides(self, world: World, before: State, decision: Decision) -> None:
        """A machine that has followed the whole history decides as one that knows nothing but the state."""
        if self.steps % 5 == 0:
            assert handle(before, world.inputs, decision.now_ms, world.make_scheduler()) == decision

    def follow(self, world: World, before: State, decision: Decision) -> None:
        """An index that follows the steps equals one that is made anew."""
        self.index.refresh(decision.state, decision.touched, decision.touched_hosts, decision.touched_claims)
        fresh = Index(decision.state)
        for name in ("deadlines", "waiting", "hosts", "on_host", "claims", "named", "ended"):
            assert getattr(self.index, name) == getattr(fresh, name), name
        assert self.index.lost == fresh.lost
        assert self.index.next_deadline(decision.state) == next_deadline(decision.state)

    def play(self, moves: int = 40) -> None:
        """Commands and faults at random moments."""
        self.world.start()
        for _ in range(moves):
            self.world.run(self.world.now_ms + self.random.choice([1, 20, 200, 1_000, 4_000, 15_000]))
            self.move()

    def move(self) -> None:
        """One random command or fault."""
        moves = [self.submit] * 5 + [self.end, self.report, self.restart, self.value, self.coordinate]
        moves += [self.create_claim, self.delete_claim, self.lose_claim]
        moves += [self.suspend, self.resume, self.resume, self.restart_group, self.stop_member, self.drain_slot]
        moves += [self.close, self.open, self.open, self.lift]
        moves += [self.kill_agent, self.kill_node, self.cut_off, self.revive, self.revive, self.crash, self.again]
        self.random.choice(moves)()

    # --- commands -----------------------------------------------------------------------------------------------------

    def submit(self) -> None:
        if sum(1 for group in self.world.state.groups.values() if not group.state.terminal) < 5:
            self.submitted += 1
            request = inp.Request(key=f"submit-{self.submitted}", digest="1")
            self.world.feed(inp.SubmitGroup(random_plan(self.random, f"group-{self.submitted}", self.standalone()), request))

    def again(self) -> None:
        """The same command with the same key: nothing happens twice."""
        if self.submitted:
            groups = len(self.world.state.groups)
            request = inp.Request(key=f"submit-{self.submitted}", digest="1")
            decision = self.world.feed(inp.SubmitGroup(plan(job()), request))
            assert decision.replies[0] is not None
            assert len(self.world.state.groups) == groups

    def some_group(self) -> str | None:
        groups = [group.id for group in self.world.state.groups.values() if not group.state.terminal]
        return self.random.choice(groups) if groups else None

    def end(self) -> None:
        group = self.some_group()
        if group is not None:
            self.world.feed(inp.EndGroup(group, self.random.choice([G.CANCELLED, G.FAILED]), "user"))

    def some_slot(self) -> tuple[str, str, int, int] | None:
        group = self.some_group()
        if group is None:
            return None
        slot = self.random.choice(list(self.world.state.groups[group].slots.values()))
        return group, slot.member, slot.index, slot.incarnation - self.random.choice([0, 0, 0, 1])

    def report(self) -> None:
        found = self.some_slot()
        if found is not None:
            cause = self.random.choice([Cause.UNHEALTHY, Cause.HUNG, Cause.STALE, Cause.DIVERGED])
            self.world.feed(inp.ReportSlot(*found, cause))

    def restart(self) -> None:
        found = self.some_slot()
        if found is not None:
            self.world.feed(inp.RestartSlot(*found))

    def suspend(self) -> None:
        group = self.some_group()
        if group is not None:
            self.ask(inp.SuspendGroup(group, "at night"))

    def resume(self) -> None:
        suspended = [group.id for group in self.world.state.groups.values() if group.state is G.SUSPENDED]
        group = self.random.choice(suspended) if suspended else self.some_group()
        if group is not None:
            self.ask(inp.ResumeGroup(group))

    def restart_group(self) -> None:
        group = self.some_group()
        if group is not None:
            self.ask(inp.RestartGroup(group))

    def stop_member(self) -> None:
        group = self.some_group()
        if group is not None and self.random.random() < 0.5:
            members = self.world.state.groups[group].plan.members
            self.ask(inp.StopMember(group, self.random.choice(members).name))

    def drain_slot(self) -> None:
        found = self.some_slot()
        if found is not None:
            self.ask(inp.DrainSlot(*found))

    def close(self) -> None:
        self.ask(inp.CloseHost(self.random.choice(self.facts).name, self.random.random() < 0.5))

    def open(self) -> None:
        closed = [host.facts.name for host in self.world.state.hosts.values() if host.closed]
        self.ask(inp.OpenHost(self.random.choice(closed or [self.facts[0].name])))

    def lift(self) -> None:
        for group in self.world.state.groups.values():
            for host in group.excluded:
                if self.random.random() < 0.5:
                    self.ask(inp.LiftExclusion(group.id, host))

    def ask(self, command: inp.Command) -> None:
        """A command whose good answers are counted, so that a test can see that it does something at all."""
        decision = self.world.feed(command)
        if decision.replies[0] is not None and decision.replies[0].ok and decision.events:
            name = type(command).__name__
            self.world.fired[name] = self.world.fired.get(name, 0) + 1

    def value(self) -> None:
        group = self.some_group()
        if group is not None:
            self.world.feed(inp.PutValue(group, "head", "1", self.random.choice([-1, 0, 1])))

    def coordinate(self) -> None:
        group = self.some_group()
        if group is not None:
            self.world.feed(inp.TakeCoordination(group))

    # --- claims -------------------------------------------------------------------------------------------------------

    def standalone(self) -> list[str]:
        return [claim.id for claim in self.world.state.claims.values() if not claim.group]

    def create_claim(self) -> None:
        name = self.random.choice(["data", "weights", "disk"])
        self.world.feed(inp.CreateClaim(ClaimPlan(name, "directory", timeout_ms=3_000)))

    def delete_claim(self) -> None:
        if self.standalone():
            self.world.feed(inp.DeleteClaim(self.random.choice(self.standalone())))

    def lose_claim(self) -> None:
        """A provider does not find what it made."""
        there = [claim for claim in self.world.state.claims.values() if claim.state == "READY"]
        if there:
            self.world.lose_claim(self.random.choice(there))

    # --- faults -------------------------------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        agent = self.random.choice(list(self.world.agents.values()))
        if agent.up and not agent.cut:
            self.world.kill_agent(agent)

    def kill_node(self) -> None:
        self.world.kill_node(self.random.choice(list(self.world.agents.values())))

    def cut_off(self) -> None:
        self.world.cut_off(self.random.choice(list(self.world.agents.values())))

    def revive(self) -> None:
        for agent in self.world.agents.values():
            if not agent.up or agent.cut:
                self.world.revive(agent)
                return

    def crash(self) -> None:
        self.world.restart_controller()

    # --- the end ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """After the last fault: everything comes back, and within 10 × the longest timeout all is as it should be."""
        self.world.faults = Faults()
        for agent in self.world.agents.values():
            if not agent.up or agent.cut:
                self.world.revive(agent)
        for host in self.world.state.hosts.values():
            self.world.feed(inp.OpenHost(host.facts.name))
        for group in self.world.state.groups.values():
            for host_name in group.excluded:
                self.world.feed(inp.LiftExclusion(group.id, host_name))
        self.world.run(self.world.now_ms + LONGEST_MS)
        for group in self.world.state.groups.values():
            assert group.state is not G.SUSPENDING, f"{group.id} is not gone yet: {group.slots}"
            if group.state is G.SUSPENDED and self.random.random() < 0.8:
                self.world.feed(inp.ResumeGroup(group.id))
        self.world.run(self.world.now_ms + 10 * LONGEST_MS)
        for group in self.world.state.groups.values():
            story = f"{group.id} is {group.state.value}: {group.cause} {group.message} {group.reason}"
            if not group.state.terminal and any(member.runtime_limit_ms for member in group.plan.members):
                # What may run for so long only, and is restarted then, is never at rest; but it does not stand still either.
                if group.state not in (G.RUNNING, G.PENDING, G.SUSPENDED) and not waits_for_places(group):
                    assert self.moved[group.id] + 2 * LONGEST_MS > self.world.now_ms, story
                continue
            assert group.state.terminal or group.state in (G.RUNNING, G.PENDING, G.SUSPENDED, *ACTIVE), story
            if group.state is G.PENDING:
                assert group.reason is not None, story
                assert group.reason.code != "BACKOFF", story
            elif group.state in ACTIVE and group.state is not G.RUNNING:
                # Broken and repaired as soon as there is room: the slot says so.
                assert group.state is G.DEGRADED, story
                assert waits_for_places(group), story
        self.nobody_waits_in_vain()
        self.nobody_is_left_unready()
        for host in self.world.state.hosts.values():
            assert not host.superseded
        for claim in self.world.state.claims.values():
            if claim.group:
                assert claim.state in ("READY", "GONE") or not self.world.state.groups[claim.group].state.terminal
            else:
                assert claim.state == "READY", claim
        held = {key for agent in self.world.agents.values() for key in agent.held}
        wanted = {
            (group.id, slot.epoch, slot.member, slot.index, slot.incarnation)
            for group in self.world.state.groups.values()
            for slot in group.slots.values()
            if slot.tasks
        }
        for key in held:
            assert (key.group, key.epoch, key.member, key.index, key.incarnation) in wanted, f"{key} was left behind"

    def what_is_ready_is_known(self, world: World, before: State, decision: Decision) -> None:
        """Whatever came late or twice: the state says of a task's readiness what its agent said last."""
        for agent in world.agents.values():
            for key, held in agent.held.items() if not agent.outbox else ():
                group = decision.state.groups.get(key.group)
                slot = group.slots[key.member, key.index] if group is not None else None
                if slot is None or slot.incarnation != key.incarnation or slot.state not in RUNS or not held.edges:
                    continue
                phase = slot.tasks[key.task].phase
                assert (phase is TaskPhase.READY) == held.ready, f"{key} is {phase}; its agent says {held.ready}"

    def nobody_is_left_unready(self) -> None:
        """A service that hangs was not waited for without end."""
        for agent in self.world.agents.values():
            for key, held in agent.held.items():
                assert held.ready or held.effect.launch.ready is None, f"{key} hangs, and nobody does anything about it"

    def nobody_waits_in_vain(self) -> None:
        """The reasons are true: a session that knows nothing but the state cannot place anybody who waits."""
        state = self.world.state
        turn = Turn(state, self.world.now_ms, Index(state))
        asks = [ask for group in state.groups.values() for ask in asks_of(turn, group)]
        answers = self.world.make_scheduler().decide(state, asks)
        assert not [answer for answer in answers if isinstance(answer, Grant)]
