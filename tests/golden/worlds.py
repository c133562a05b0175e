"""The histories that every version leaves to those after it: modelled worlds, small, from a seed each, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.limits import ENDED_KEPT_MS
from gangflow.xce.core.plan import Action, BackoffPlan, Cause, ClaimPlan, RulePlan
from gangflow.xce.core.state import GroupState
from gangflow.xce.placement import Scheduler
from tests.property.histories import History
from tests.property.pairs import MOMENTS, OPERATIONS, Pair
from tests.property.test_scale import ScaleHistory
from tests.property.world import Batch, Faults, World
from tests.unit.xce.core.plans import hosts, job, plan, replicas

MINUTE = 60_000


def _world(seed: int, count: int = 3, faults: Faults | None = None) -> World:
    world = World(Random(seed), hosts(count), Scheduler, faults or Faults())
    world.start()
    return world


def start_and_finish() -> Sequence[Batch]:
    """Two groups that start behind their barriers, one after the other where there is no room for both, and succeed."""
    world = _world(1, 2)
    for number in range(3):
        rollout = replicas(count=2, least=1, cpu=1_000)
        request = inp.Request(f"key-{number}", f"{number}", actor="admin")
        world.feed(inp.SubmitGroup(plan(job(tasks=2), rollout, name=f"group-{number}"), request))
    world.feed(inp.SubmitGroup(plan(job("main"), name="hello", plain=True, priority=70)))
    world.run(world.now_ms + 5 * MINUTE)
    return world.journal


def failures() -> Sequence[Batch]:
    """Every action, paid from small budgets, until they are spent; probes that flap; starts and claims that are refused."""
    world = _world(2, 4, Faults(exit_fail=60, unready=40, hang=10, refuse=100, claim_fail=400))
    backoff = BackoffPlan(200, 2_000, 4_000)
    for action in Action:
        rules = (
            RulePlan(action, "rollout", max_restarts=2, backoff=backoff, floor=1, floor_grace_ms=5_000, then=Action.TOLERATE),
            RulePlan(Action.RESTART_MEMBER, "actor", causes=(Cause.APP_EXIT,), max_restarts=3, backoff=backoff),
        )
        members = (job(cpu=500), replicas(count=2, least=1, cpu=500, ready_timeout_ms=10_000))
        claims = (ClaimPlan("ckpt", timeout_ms=3_000), ClaimPlan("cache", scope="rollout", timeout_ms=3_000))
        world.feed(inp.SubmitGroup(plan(*members, name=action.value.replace("_", "-"), rules=rules, claims=claims)))
    world.run(world.now_ms + 10 * MINUTE)
    return world.journal


def lost_hosts() -> Sequence[Batch]:
    """Agents that crash, nodes that die, networks that part; recovery under first claim, and what is superseded."""
    world = _world(3, 4)
    world.jobs_end = False
    for number in range(2):
        world.feed(inp.SubmitGroup(plan(job(), replicas(count=3, least=2), name=f"group-{number}", recovery_timeout_ms=20_000)))
    world.run(world.now_ms + 5_000)
    agents = list(world.agents.values())
    for harm, agent in ((world.kill_agent, agents[0]), (world.kill_node, agents[1]), (world.cut_off, agents[2])):
        harm(agent)
        world.run(world.now_ms + 15_000)
    for agent in agents[1:3]:
        world.revive(agent)
        world.run(world.now_ms + 10_000)
    world.restart_controller()
    world.run(world.now_ms + MINUTE)
    return world.journal


def told(*operations: str, seed: int = 0, crash: bool = False) -> Sequence[Batch]:
    """A group with a bit of everything, and one that waits behind it for a claim; operators tell them this and that."""
    pair = Pair(seed)
    MOMENTS["running"](pair)
    for name in operations:
        OPERATIONS[name](pair)
        if crash:
            pair.crash_in = pair.steps + 3
        pair.go(25)
    pair.calm()
    return pair.world.journal


def coordinated() -> Sequence[Batch]:
    """A coordinator takes over and over, writes values, reports slots; an older one is fenced; commands come twice; groups are
    forgotten a day later."""
    world = _world(4)
    world.jobs_end = False
    world.feed(inp.SubmitGroup(plan(job(), replicas(count=2), name="rl"), inp.Request("submit", "1")))
    world.feed(inp.SubmitGroup(plan(job(), replicas(count=2), name="rl"), inp.Request("submit", "1")))
    world.run(world.now_ms + 5_000)
    for term in (1, 2):
        world.feed(inp.TakeCoordination("g1", inp.Request(f"take-{term}", "")))
        for version in range(3):
            value, name = f'{{"version": {version}}}', "rollouts/eligible"
            world.feed(inp.PutValue("g1", name, value, -1 if term > 1 else version, request=inp.Request("", "", term)))
        slot = world.state.groups["g1"].slots["rollout", 0]
        cause = Cause.HUNG if term == 1 else Cause.STALE
        report = inp.ReportSlot(
            "g1", "rollout", 0, slot.incarnation, cause, "no answer", inp.Request(f"report-{term}", "", term)
        )
        world.feed(report)
        world.run(world.now_ms + 20_000)
    world.feed(inp.PutValue("g1", "late", "1", request=inp.Request("", "", 1)))
    world.feed(inp.EndGroup("g1", GroupState.FAILED, "no_quorum", "too few rollouts"))
    world.run(world.now_ms + MINUTE)
    world.run(world.now_ms + ENDED_KEPT_MS + MINUTE)
    world.feed(inp.SubmitGroup(plan(job(), name="next"), inp.Request("another", "1")))
    return world.journal


def excluded() -> Sequence[Batch]:
    """A host where slots fail again and again is excluded, and used again when that is lifted; strays are seen."""
    from gangflow.xce.core.plan import ExclusionPlan
    from gangflow.xce.core.state import TaskKey

    world = _world(6, 4)
    world.jobs_end = False
    rules = (RulePlan(Action.RESTART_MEMBER, backoff=BackoffPlan(100, 1_000, 100)),)
    members = (job(cpu=2_000), replicas(count=4, least=2, cpu=2_000))
    world.feed(inp.SubmitGroup(plan(*members, name="picky", rules=rules, exclusion=ExclusionPlan(2, 600_000, 2))))
    world.run(world.now_ms + 5_000)
    for _ in range(6):
        for agent in list(world.agents.values())[1:3]:
            for held in [one for one in agent.held.values() if one.pid][:1]:
                world._end(agent, held, inp.TaskExited(held.effect.task, held.host, Cause.APP_EXIT, 3, stderr_tail="boom"))
        world.run(world.now_ms + 4_000)
    group = world.state.groups["g1"]
    assert group.excluded, "nothing was excluded: the history does not tell what it is there for"
    for host in group.excluded:
        world.feed(inp.LiftExclusion("g1", host))
    facts = next(iter(world.agents.values())).hosts[0]
    stray = TaskKey("g9", 1, "actor", 0, 1, 0)
    agent = world.agent_of(facts.name)
    world.feed(inp.HostUp(facts, agent.token, (*agent.inventory(facts.name), stray)))
    world.run(world.now_ms + 20_000)
    return world.journal


def mixed(kind: type[History], seed: int) -> Sequence[Batch]:
    """A random history: commands and faults of every kind."""
    history = kind(seed, Scheduler)
    history.play(40)
    return history.world.journal


WORLDS: dict[str, Callable[[], Sequence[Batch]]] = {
    "start-and-finish": start_and_finish,
    "failures": failures,
    "lost-hosts": lost_hosts,
    "suspend": partial(
        told, "suspend", "resume", "restart group", "suspend", "cancel behind", "resume", "stop rollout", "restart slot"
    ),
    "scale": partial(told, "scale up", "scale down", "scale too far", "scale by hand back", "drain slot", "scale up", seed=1),
    "claims": partial(told, "lose cache", "lose data", "delete data", "suspend", "delete data", "resume", "actor ends", seed=2),
    "hosts": partial(
        told, "close host", "open hosts", "drain host", "open hosts", "kill agent", "report", "wait for the limit", seed=3
    ),
    "crashes": partial(
        told, "suspend", "resume", "scale up", "kill node", "revive", "rollout fails", "drain slot", seed=4, crash=True
    ),
    "coordinated": coordinated,
    "excluded": excluded,
    **{f"mixed-{seed}": partial(mixed, History, seed) for seed in (11, 17, 23, 42)},
    **{f"scaled-{seed}": partial(mixed, ScaleHistory, seed) for seed in (19, 20, 26)},
}
"""By the name of the file."""
