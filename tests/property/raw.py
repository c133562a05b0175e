"""Raw inputs: what may come from outside in any order. Nobody here behaves unless it happens to.

Agents that answer what is due, or say what was never asked; reports that come late, twice, about other incarnations, hosts and
epochs; inventories that are half of the truth; commands on every state; several of all that in one batch; clocks that jump.
`World` plays histories that can happen; this plays those that cannot, since a controller must not stop for any of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

from gangflow.xce.core import events as ev
from gangflow.xce.core import inputs as inp
from gangflow.xce.core.asking import asks_of
from gangflow.xce.core.asks import Grant
from gangflow.xce.core.counts import ACTIVE, RUNS
from gangflow.xce.core.due import make_all, owed_in
from gangflow.xce.core.effects import Effect, Prepare, Provision, Release, Start, Stop, Unprepare
from gangflow.xce.core.evolve import apply
from gangflow.xce.core.index import Index
from gangflow.xce.core.inputs import Input
from gangflow.xce.core.invariants import check, check_step
from gangflow.xce.core.plan import Action, BackoffPlan, Cause, ClaimPlan, GroupPlan, MemberKind, RulePlan, ScalePlan, Use
from gangflow.xce.core.state import ClaimState, Group, GroupState, Host, Slot, SlotState, State, Task, TaskKey, TaskPhase
from gangflow.xce.core.turn import Turn
from gangflow.xce.journal import image
from gangflow.xce.journal.image import Image
from gangflow.xce.machine import Decision, Machine, Scheduler, effects_due, handle, next_deadline
from tests.property.histories import random_plan
from tests.property.world import name_of
from tests.unit.xce.core.plans import hosts, job

G, S, P = GroupState, SlotState, TaskPhase
CLAIMS = ("data", "weights", "disk")
LONG_MS = 4_000_000
"""Longer than anything that the plans below wait for."""


class Raw:
    """One seed: a machine, and whatever comes."""

    def __init__(self, seed: int, scheduler: Callable[[], Scheduler]) -> None:
        self.random = random = Random(seed)
        self.make_scheduler = scheduler
        self.facts = hosts(random.randint(2, 4), node=random.choice(["", "", "one"]), cpu=random.choice([3_000, 4_000, 6_000]))
        self.gpus = random.random() < 0.5
        if self.gpus:
            self.facts = tuple(replace(one, gpus=2, gpu_first=2 * number) for number, one in enumerate(self.facts))
        self.behaved = random.random()
        """How much of what comes is what should come."""
        self.crowded = random.random() < 0.3
        """Many commands on one group in a batch."""
        self.machine = Machine(State(), scheduler())
        self.now_ms = 1_000_000
        self.seen: list[tuple[TaskKey, str]] = []
        """Tasks that agents were ever told of."""
        self.said: list[list[Input]] = []
        """Reports of earlier batches, to come again."""
        self.boots = {one.name: "b1" for one in self.facts}
        self.submitted = self.steps = 0
        self.focus = ""
        self.answered: dict[str, int] = {}
        self.feed([inp.StartTerm("raw"), *(inp.HostUp(one, "b1") for one in self.facts)])

    @property
    def state(self) -> State:
        return self.machine.state

    # --- steps --------------------------------------------------------------------------------------------------------

    def feed(self, batch: list[Input]) -> Decision:
        """One batch, and everything that must hold after any."""
        before, inputs = self.state, tuple(batch)
        decision = self.machine.handle(inputs, self.now_ms)
        self.steps += 1
        faults = [
            *check_step(before, decision.events, decision.state),
            *check(decision.state),
            *_of_events(before, inputs, decision),
        ]
        assert not faults, f"{faults}\nafter {inputs}"
        old = owed_in(before, before.groups, before.hosts, before.claims)
        state = decision.state
        new = [one for one in owed_in(state, state.groups, state.hosts, state.claims) if one not in old]
        assert sorted(map(name_of, decision.effects)) == sorted(map(name_of, make_all(state, new)))
        assert self.machine.next_deadline() == next_deadline(state)
        if self.steps % 5 == 0:
            # A machine that knows nothing but the state, or an image of it, decides the same.
            stored = image.decode(image.encode(Image(before, self.steps, b"")))
            assert stored.state == before
            for known in (before, stored.state):
                assert handle(known, inputs, self.now_ms, self.make_scheduler()) == decision
        for effect in decision.effects:
            if not isinstance(effect, Provision | Release):
                self.seen.append((effect.task, effect.host))
        del self.seen[:-400]
        for command, reply in zip(inputs, decision.replies, strict=True):
            if reply is not None:
                name = f"{type(command).__name__} {reply.status}"
                self.answered[name] = self.answered.get(name, 0) + 1
        return decision

    def move(self) -> None:
        """A batch of anything, at any time."""
        random = self.random
        self.focus = ""
        batch: list[Input] = []
        for number in range(random.choice([1, 2, 6, 10] if self.crowded else [1, 1, 1, 2, 3, 6])):
            batch += [self.command()] if self.crowded and number and random.random() < 0.6 else self.anything()
            if random.random() < 0.3:
                random.shuffle(batch)
        del batch[60:]
        reports = [one for one in batch if type(one).__name__.startswith(("Task", "Claim", "Host"))]
        self.said.append(reports)
        del self.said[:-40]
        self.now_ms += random.choice([0, 0, 1, 50, 200, 1_000, 4_000, 15_000, 40_000, -500])
        if random.random() < 0.2:
            self.now_ms = max(self.now_ms, self.machine.next_deadline() or 0)
        self.feed(batch)
        self.tick()

    def tick(self) -> None:
        """As a shell does: until nothing is due now. Each Tick that was due does something."""
        for _ in range(50):
            deadline = self.machine.next_deadline()
            if deadline is None or deadline > self.now_ms:
                return
            assert self.feed([inp.Tick()]).events, f"{deadline} is due at {self.now_ms}, and nothing happens"
        raise AssertionError("it is never quiet")

    def anything(self) -> list[Input]:
        choice = self.random.random()
        good = 0.3 * self.behaved
        if choice < 0.35 + good:
            due = effects_due(self.state)
            return [self.answer(one) for one in self.random.sample(due, min(len(due), self.random.choice([1, 2, 4, 50])))]
        if choice < 0.45 + good:
            return self.probes()
        if choice < 0.50 + good:
            return self.ends()
        if choice < 0.66 + 0.2 * self.behaved:
            return [self.command()]
        if choice < 0.86:
            return [self.report()]
        if choice < 0.93:
            return [self.claim_report()]
        if choice < 0.975:
            return [self.host_report()]
        if choice < 0.98:
            return [inp.StartTerm("another")]
        return list(self.random.choice(self.said)) if self.said else []

    # --- what should come ---------------------------------------------------------------------------------------------

    def answer(self, effect: Effect, *, refuses: int = 3) -> Input:
        """What an agent or provider says to an effect; of a hundred preparations it `refuses` some."""
        if isinstance(effect, Prepare):
            if self.random.randrange(100) < refuses:
                return inp.TaskRefused(effect.task, effect.host, "port 1 is taken")
            return inp.TaskPrepared(effect.task, effect.host, self.state.hosts[effect.host].boot)
        if isinstance(effect, Unprepare):
            return inp.TaskUnprepared(effect.task, effect.host)
        if isinstance(effect, Start):
            return inp.TaskStarted(effect.task, effect.host, 7)
        if isinstance(effect, Stop):
            return inp.TaskExited(effect.task, effect.host, signal=15)
        if isinstance(effect, Provision):
            bound = effect.hosts[0] if effect.provider == "local" and effect.hosts else ""
            return inp.ClaimReady(effect.claim, effect.attempt, "/made", bound)
        if isinstance(effect, Release):
            return inp.ClaimReleased(effect.claim, effect.attempt)
        return inp.TaskWarned(effect.task, effect.host)

    def probes(self) -> list[Input]:
        """Whoever runs becomes ready."""
        return [inp.TaskReady(key, task.host) for slot, key, task in self.tasks() if slot.state is S.RUNNING]

    def ends(self) -> list[Input]:
        """Some end, well or not, or hang."""
        found: list[Input] = []
        for slot, key, task in self.tasks():
            if task.phase not in (P.RUNNING, P.READY) or self.random.random() > 0.2:
                continue
            kinds: list[Input] = [
                inp.TaskExited(key, task.host, Cause.APP_EXIT, self.random.choice([1, 3])),
                inp.TaskUnready(key, task.host, "503"),
            ]
            if self.state.groups[key.group].plan.member(slot.member).kind is MemberKind.JOB:
                kinds += [inp.TaskExited(key, task.host, None, 0)] * 2
            found.append(self.random.choice(kinds))
        return found

    def tasks(self) -> list[tuple[Slot, TaskKey, Task]]:
        """Everything that the journal knows of."""
        return [
            (slot, key_of(group, slot, task), task)
            for group in self.state.groups.values()
            for slot in group.slots.values()
            for task in slot.tasks
        ]

    # --- what should not ----------------------------------------------------------------------------------------------

    def group(self) -> Group | None:
        if self.crowded and self.focus in self.state.groups and self.random.random() < 0.9:
            return self.state.groups[self.focus]
        groups = list(self.state.groups.values())
        living = [group for group in groups if not group.state.terminal]
        chosen = self.random.choice(living if living and self.random.random() < 0.9 else groups) if groups else None
        self.focus = chosen.id if chosen is not None else ""
        return chosen

    def some_task(self) -> tuple[TaskKey, str]:
        """One that there is, or was, or never was; on its host, or elsewhere."""
        random = self.random
        key, host = TaskKey("g9", 1, "nobody", 0, 1, 0), "h0"
        group = self.group()
        if self.seen and random.random() < 0.6:
            key, host = random.choice(self.seen)
        elif group is not None:
            slot = random.choice(list(group.slots.values()))
            task = random.choice(slot.tasks) if slot.tasks else Task(0, random.choice(self.facts).name)
            key, host = key_of(group, slot, task), task.host
        if random.random() < 0.15:
            by = random.choice([-7, -1, 1, 1, 5])
            key = random.choice(
                [
                    replace(key, epoch=key.epoch + by),
                    replace(key, index=key.index + by),
                    replace(key, incarnation=key.incarnation + by),
                    replace(key, task=key.task + by),
                    replace(key, member=random.choice(["actor", "rollout", "nobody"])),
                    replace(key, group=random.choice(["g1", "g2", "g99", "x", ""])),
                ]
            )
        return key, host if random.random() > 0.07 else random.choice(["h0", "h1", "h2", "nowhere"])

    def report(self) -> Input:
        random = self.random
        key, host = self.some_task()
        causes = [None, None, Cause.APP_EXIT, Cause.OOM, Cause.START_FAILED, Cause.AGENT_LOST, Cause.NOT_READY, Cause.UNHEALTHY]
        edge = random.choice([0, 0, 1, 2, 3])
        exit = inp.TaskExited(
            key, host, random.choice(causes), random.choice([None, 0, 0, 1, 3]), random.choice([None, None, 9])
        )
        started = inp.TaskStarted(key, host, random.choice([0, 5, 77]))
        return random.choice(
            [
                inp.TaskPrepared(key, host, random.choice([self.boots.get(host, "b1"), "b0"])),
                inp.TaskRefused(key, host, "no", random.random() < 0.1),
                inp.TaskUnprepared(key, host),
                started,
                inp.TaskReady(key, host, edge),
                inp.TaskUnready(key, host, "503", edge),
                exit,
                inp.TaskWarned(key, host),
            ]
        )

    def claim_report(self) -> Input:
        random = self.random
        if not self.state.claims:
            return inp.ClaimReleased("nothing")
        claim = random.choice(list(self.state.claims.values()))
        attempt = claim.attempt + random.choice([0, 0, 0, -1, 1])
        host, both = random.choice(["", "", "h0", "h1", "nowhere"]), random.choice([(), ("h0", "h1"), ("h1",)])
        return random.choice(
            [
                inp.ClaimReady(claim.id, attempt, "/made", host, both),
                inp.ClaimReady(claim.id, attempt, "/made"),
                inp.ClaimFailed(claim.id, attempt, "disk full"),
                inp.ClaimReleased(claim.id),
                inp.ClaimLost(claim.id, attempt, "it is gone"),
            ]
        )

    def host_report(self) -> Input:
        random = self.random
        facts = random.choice(self.facts)
        if random.random() < 0.5:
            name = random.choice([facts.name, facts.name, "nowhere"])
            return inp.HostGone(name, random.choice([0, 0, 3_000, 8_000]), random.random() < 0.4)
        if random.random() < 0.5:
            self.boots[facts.name] = f"b{random.randrange(1_000)}"
        keeps = random.choice([0, 0.5, 1])
        held = [key for _, key, task in self.tasks() if task.host == facts.name and random.random() < keeps]
        held += [key for key, _ in self.seen[-60:] if random.random() < 0.25]
        return inp.HostUp(facts, self.boots[facts.name], (*held, self.some_task()[0]))

    # --- commands -----------------------------------------------------------------------------------------------------

    def command(self) -> Input:
        random = self.random
        group = self.group()
        if group is None or random.random() < 0.08:
            if sum(1 for one in self.state.groups.values() if not one.state.terminal) < 5:
                return inp.SubmitGroup(self.plan())
            return inp.CreateClaim(ClaimPlan(random.choice(CLAIMS), timeout_ms=3_000))
        slot = random.choice(list(group.slots.values()))
        named = (group.id, slot.member, slot.index, slot.incarnation - random.choice([0, 0, 0, 0, 1]))
        sets = [member for member in group.plan.members if member.kind is MemberKind.REPLICA_SET and random.random() < 0.8]
        targets = tuple((one.name, random.randint(max(0, one.min_replicas - 1), one.max_replicas)) for one in sets)
        request = inp.Request(term=random.choice([0] * 9 + [1]), key=random.choice([""] * 9 + [f"k{random.randrange(50)}"]))
        host, verdict = random.choice(self.facts).name, random.choice([Cause.HUNG, Cause.STALE, Cause.OOM])
        scale = inp.ScaleGroup(group.id, targets, random.choice([0, 1, 5_000, 30_000]), request)
        resume, restart = inp.ResumeGroup(group.id, request), inp.RestartSlot(*named, request)
        commands: list[Input] = [
            inp.ReportSlot(*named, verdict, request=request),
            *[restart, restart, scale, scale, scale, resume, resume],
            inp.TakeCoordination(group.id, request),
            inp.PutValue(group.id, "head", "1", random.choice([-1, 0, 1]), request=request),
            inp.SuspendGroup(group.id, request=request),
            inp.RestartGroup(group.id, request=request),
            inp.DrainSlot(*named, request),
            inp.LiftExclusion(group.id, random.choice(group.excluded or ("h0",)), request),
            inp.CloseHost(host, random.random() < 0.4),
            *[inp.OpenHost(host), inp.OpenHost(host)],
            inp.CreateClaim(ClaimPlan(random.choice(CLAIMS), timeout_ms=3_000)),
            inp.DeleteClaim(random.choice([*self.state.claims, "nothing"])),
        ]
        if random.random() < 0.4:
            commands.append(inp.EndGroup(group.id, random.choice([G.CANCELLED, G.FAILED, G.SUCCEEDED]), request=request))
            commands.append(inp.StopMember(group.id, slot.member, request))
        return random.choice(commands)

    def plan(self) -> GroupPlan:
        """A group that can be scaled, drained, and sometimes counts its GPUs."""
        random = self.random
        self.submitted += 1
        there = [
            claim.id for claim in self.state.claims.values() if not claim.group and claim.state is not ClaimState.RELEASING
        ]
        made = random_plan(random, f"group-{self.submitted}", there)
        members = []
        for member in made.members:
            member = replace(member, drain_ms=random.choice([0, 1_500, 5_000]))
            if member.kind is MemberKind.REPLICA_SET:
                least, most = random.choice([0, member.min_replicas]), member.max_replicas + random.choice([0, 2])
                gpus = (Use("gpus", random.choice([300, 500, 1_000])),) if self.gpus and random.random() < 0.6 else ()
                term = replace(member.terms[0], uses=(*member.terms[0].uses, *gpus))
                member = replace(member, min_replicas=least, max_replicas=most, terms=(term,))
            members.append(member)
        if random.random() < 0.3:
            members.append(job("prep", tasks=2, cpu=300, primary=random.random() < 0.5))
        watches = RulePlan(
            random.choice([Action.RESTART_MEMBER, Action.TOLERATE, Action.RESTART_ROLE]),
            "rollout",
            floor=random.choice([0, 1, 2]),
            floor_grace_ms=random.choice([0, 2_000, 9_000]),
            max_restarts=random.choice([-1, 1, 2]),
            then=random.choice(list(Action)),
            backoff=BackoffPlan(200, 2_000, 4_000),
        )
        rules = (watches, *made.rules) if random.random() < 0.4 else made.rules
        scale = ScalePlan(max_gpus=random.choice([0, 0, 2_000, 3_000]), timeout_ms=20_000)
        return replace(made, members=tuple(members), rules=rules, scale=scale)

    # --- the end ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """From here on everybody does what he should: nothing that came before may keep anything from its end."""
        for facts in self.facts:
            known = [key for _, key, task in self.tasks() if task.host == facts.name and task.phase not in (P.PLACED, P.GONE)]
            self.feed([inp.HostUp(facts, self._host(facts.name).boot, tuple(known)), inp.OpenHost(facts.name)])
        for group in list(self.state.groups.values()):
            self.feed([inp.LiftExclusion(group.id, host) for host in group.excluded])
        end = self.now_ms + LONG_MS
        for _ in range(3_000):
            good: list[Input] = [self.answer(effect, refuses=0) for effect in effects_due(self.state)]
            if self.feed([*good, *self.probes()]).events:
                continue
            deadline = self.machine.next_deadline()
            if deadline is None or deadline > end:
                self._at_rest()
                return
            self.now_ms = max(self.now_ms, deadline)
            assert self.feed([inp.Tick()]).events
        living = [group for group in self.state.groups.values() if not group.state.terminal]
        assert any(map(restless, living)), "it never comes to rest"

    def _host(self, name: str) -> Host:
        return self.state.hosts[name]

    def _at_rest(self) -> None:
        state = self.state
        assert effects_due(state) == ()
        assert not any(host.superseded for host in state.hosts.values())
        for group in state.groups.values():
            if restless(group):
                continue
            assert group.state.terminal or group.state in (G.RUNNING, G.DEGRADED, G.PENDING, G.SUSPENDED), group
            assert not group.changes or group.changes[-1].state.over, group
            assert group.reason is None or group.reason.code != "BACKOFF", group
            for slot in group.slots.values():
                assert slot.state in (S.PENDING, S.READY, S.DONE, S.RETIRED, S.EXIT), slot
        turn = Turn(state, self.now_ms, Index(state))
        asks = [ask for group in state.groups.values() for ask in asks_of(turn, group)]
        answers = self.make_scheduler().decide(state, asks)
        assert not [one for one in answers if isinstance(one, Grant)], "somebody waits in vain"


def restless(group: Group) -> bool:
    """What may run for so long only and is restarted then, or may be restarted for ever because a floor is broken."""
    limited = any(member.runtime_limit_ms for member in group.plan.members)
    return limited or any(rule.floor_grace_ms and rule.max_restarts < 0 for rule in group.plan.rules)


def key_of(group: Group, slot: Slot, task: Task) -> TaskKey:
    return TaskKey(group.id, slot.epoch, slot.member, slot.index, slot.incarnation, task.index)


def _of_events(before: State, inputs: tuple[Input, ...], decision: Decision) -> list[str]:
    """What the invariants do not speak of: rules are asked only where the design says so, and what finished stays so."""
    found: list[str] = []
    state = before
    again = any(isinstance(one, inp.RestartSlot) for one in inputs)
    for event in decision.events:
        group = state.groups.get(getattr(event, "group", ""))
        if group is not None and isinstance(event, ev.FailureJudged) and event.action:
            slot = group.slots[event.member, event.index]
            if group.state not in ACTIVE or slot.out or event.member in group.stopped:
                found.append(f"a rule is asked about {slot} of a group that is {group.state.value}")
        done_again = isinstance(event, ev.SlotChanged) and event.before is S.DONE and not again
        if done_again and group is not None and group.state is not G.RESTARTING:
            found.append(f"{event} although nobody restarts what finished")
        if isinstance(event, ev.SlotPlaced) and group is not None and group.slots[event.member, event.index].state in RUNS:
            found.append(f"{event} while it runs")
        state = apply(state, event, decision.now_ms)
    for group in decision.state.groups.values():
        old = before.groups.get(group.id)
        if old is not None and old.submitted_ms != group.submitted_ms:
            found.append(f"{group.id} was submitted at another time")
    return found
