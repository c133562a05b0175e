"""Hosts and agents: registration, boots, inventories, fences; what is superseded is stopped, what is unknown is shown."""

from __future__ import annotations

from dataclasses import replace

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.effects import Prepare, Start, Stop
from gangflow.xce.core.limits import TERM_GRACE_MS
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import GroupState, HostState, SlotState, TaskKey
from gangflow.xce.machine import effects_due_on, next_deadline
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G, S = GroupState, SlotState


def held(stage: Stage, host: str) -> list[TaskKey]:
    """What the journal believes to be on the host."""
    return [
        stage.key(slot, task.index, group.id)
        for group in stage.state.groups.values()
        for slot in group.slots.values()
        for task in slot.tasks
        if task.host == host
    ]


def test_a_registration_that_says_nothing_new_changes_nothing() -> None:
    """Scenario 77: agents that register again with what they run start nothing, stop nothing, and no member changes."""
    stage = Stage()
    stage.run(plan(job(), replicas()))
    before = stage.state
    decision = stage.feed(inp.HostUp(stage.facts["h0"], "b1", tuple(held(stage, "h0"))))
    assert decision.events == ()
    assert decision.effects == ()
    assert stage.state is before


def test_a_new_term_touches_no_member() -> None:
    """Scenario 77: in every state of its members a controller's restart re-issues only what is still owed."""
    for steps in range(4):
        stage = Stage()
        stage.submit(plan(job(), replicas()))
        for step in ("prepare", "start", "ready")[:steps]:
            getattr(stage, step)()
        groups, due = stage.state.groups, stage.due()
        stage.feed(inp.StartTerm("whatever"))
        for name in stage.facts:
            stage.up_host(name, "b1", held(stage, name))
        assert stage.state.groups == groups
        assert stage.due() == due
        assert stage.state.term == 2
        assert stage.state.cluster_id == "test", "the first controller named it"


def test_tasks_that_a_restarted_agent_does_not_hold_are_lost_with_it() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.up_host("h0", "b2", held(stage, "h0")[:2])
    lost = stage.slot("rollout", 1)
    assert stage.slot("rollout", 0).state is S.READY, "what it still holds is adopted"
    assert lost.state is S.BACKOFF
    assert lost.exit is not None
    assert lost.exit.cause is Cause.AGENT_LOST


def test_an_agent_that_did_not_restart_still_owes_the_exit() -> None:
    """With the same boot a missing task has ended, and its report says how: it is waited for."""
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.up_host("h0", "b1", held(stage, "h0")[:2])
    assert stage.slot("rollout", 1).state is S.READY
    stage.exit("rollout", 1, code=3)
    exit = stage.slot("rollout", 1).exit
    assert exit is not None
    assert exit.code == 3


def test_a_dead_agent_on_a_living_host_is_its_own_cause() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    stage.feed(inp.HostGone("h0", 5_000, agent_only=True))
    exit = stage.slot("rollout").exit
    assert stage.slot("rollout").state is S.LOST
    assert exit is not None
    assert exit.cause is Cause.AGENT_LOST
    stage.up_host("h0", "b2")
    assert stage.slot("rollout").state is S.BACKOFF, "the new agent holds nothing of it: it is gone"


def test_a_host_that_returns_in_time_stops_what_was_given_up() -> None:
    """A lost incarnation is judged: when its host is back and still holds it, it is stopped, and not adopted."""
    stage = Stage()
    stage.run(plan(job(), replicas(), rules=()))
    keys = held(stage, "h0")
    stage.lose("h0", fence_ms=60_000)
    assert stage.due(Stop) == [], "an unreachable agent is told nothing"
    stage.up_host("h0", "b1", keys)
    assert stage.slot("rollout").state is S.STOPPING
    assert [effect.task for effect in stage.due(Stop)] == keys
    stage.gone()
    assert stage.slot("rollout").state is S.BACKOFF
    stage.wait(1_000)
    assert stage.slot("rollout").tasks[0].host == "h0", "in place, since its host is up"


def test_a_superseded_incarnation_is_stopped_as_a_durable_obligation() -> None:
    """Scenarios 13 and 17: a fenced host that was only frozen comes back with an old incarnation: owed until confirmed."""
    stage = Stage(hosts(2, cpu=2_000))
    stage.run(plan(replicas(count=2)))
    old = held(stage, "h0")
    stage.lose("h0", fence_ms=1_000)
    stage.wait(1_000)
    stage.bring_up()
    assert stage.slot("rollout").tasks[0].host == "h1"
    stage.up_host("h0", "b1", old)
    assert stage.state.hosts["h0"].superseded == tuple(old)
    for _ in range(5):
        assert [effect.task for effect in stage.due(Stop)] == old, "re-derived from the state for as long as it is owed"
        stage.wait(60_000)
    stage.submit(plan(job(cpu=2_000), name="next"))
    assert stage.due(Prepare) == [], "what the old ones hold is not free yet"
    stage.gone()
    assert stage.state.hosts["h0"].superseded == ()
    assert len(stage.due(Prepare)) == 1
    assert stage.group().state is G.RUNNING


def test_an_obligation_is_in_the_same_batch_as_what_caused_it() -> None:
    """Scenario 14: whoever recovers from the journal right after the batch finds the obligation in it."""
    stage = Stage()
    stage.run(plan(job(), replicas()))
    decision = stage.feed(stage.exited("actor", code=1))
    assert stage.group().state is G.STOPPING
    assert {effect.task.member for effect in decision.effects if isinstance(effect, Stop)} == {"rollout"}
    assert stage.due(Stop) == list(decision.effects)


def test_what_the_journal_never_heard_of_is_shown_and_not_stopped() -> None:
    stage = Stage()
    stage.run(plan(job(), replicas()))
    unknown = [TaskKey("g7", 1, "x", 0, 1, 0), TaskKey("g1", 1, "rollout", 0, 9, 0)]
    stage.up_host("h1", "b1", unknown)
    assert stage.state.hosts["h1"].strays == tuple(sorted(map(str, unknown)))
    assert stage.due(Stop) == []
    stage.up_host("h1", "b1", [])
    assert stage.state.hosts["h1"].strays == ()


def test_an_order_that_came_late_is_undone() -> None:
    """A preparation that arrives after its opposite holds room on the agent: its own report brings the obligation."""
    stage = Stage()
    stage.submit(plan(job(), replicas()))
    late = stage.due(Prepare)[0]
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    stage.gone()
    assert stage.group().state is G.CANCELLED
    stage.feed(inp.TaskPrepared(late.task, late.host, "b1"))
    assert [effect.task for effect in stage.due(Stop)] == [late.task]
    stage.gone()
    assert stage.due() == []


def test_stale_and_doubled_reports_change_nothing() -> None:
    """Scenario 17: reports of an earlier incarnation, or said twice, are no news."""
    stage = Stage()
    stage.run(plan(job(), replicas()))
    old = stage.slot("rollout")
    key, host = stage.key(old), old.tasks[0].host
    stage.exit("rollout")
    stage.wait(1_000)
    stage.bring_up()
    before = stage.state
    for report in (
        inp.TaskExited(key, host, code=1),
        inp.TaskReady(key, host),
        inp.TaskUnready(key, host),
        inp.TaskUnprepared(key, host),
        inp.TaskRefused(key, host, "no"),
        inp.TaskStarted(stage.key(stage.slot("rollout")), host, 4_242),
        inp.TaskPrepared(stage.key(stage.slot("rollout")), host, "b1"),
        inp.TaskReady(stage.key(stage.slot("rollout")), "h1"),
        inp.TaskReady(TaskKey("g9", 1, "rollout", 0, 1, 0), host),
        inp.ClaimReady("g1/none", 1, "/x"),
        inp.ClaimReleased("g1/none"),
        inp.HostGone("h9"),
    ):
        decision = stage.feed(report)
        assert decision.events == (), report
        assert decision.effects == ()
    assert stage.state is before


def test_virtual_hosts_share_an_agent() -> None:
    stage = Stage(hosts(2, cpu=2_000, node="one"))
    stage.run(plan(job(), replicas(count=3)))
    everything = held(stage, "h0") + held(stage, "h1")
    before = stage.state.groups
    for name in ("h0", "h1"):
        stage.up_host(name, "b1", everything)
    assert stage.state.groups == before
    assert not any(host.superseded for host in stage.state.hosts.values())
    assert effects_due_on(stage.state, "one") == ()
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    assert {effect.host for effect in effects_due_on(stage.state, "one")} == {"h0", "h1"}
    assert effects_due_on(stage.state, "another") == ()


def test_a_start_goes_to_the_boot_that_prepared_it_or_nowhere() -> None:
    stage = Stage()
    stage.submit(plan(job(), replicas()))
    stage.prepare()
    assert {effect.token for effect in stage.due(Start)} == {"b1"}
    stage.up_host("h0", "b2")
    assert stage.due(Start) == []
    assert stage.group().state is G.PENDING, "before it was ever RUNNING: back to placement"


def test_lost_then_fenced_then_up() -> None:
    stage = Stage()
    stage.lose("h0", fence_ms=2_000)
    host = stage.state.hosts["h0"]
    assert (host.state, host.until_ms) == (HostState.LOST, stage.now_ms + 2_000)
    stage.wait(2_000)
    assert stage.state.hosts["h0"].state is HostState.FENCED
    stage.lose("h0")
    assert stage.state.hosts["h0"].state is HostState.FENCED
    stage.up_host("h0", "b2")
    assert (stage.state.hosts["h0"].state, stage.state.hosts["h0"].boot) == (HostState.UP, "b2")


def test_a_controller_that_was_away_waits_for_what_it_missed() -> None:
    """Scenario 77: an hour of absence passes no deadline that a report of that hour would have met."""
    stage = Stage()
    stage.submit(plan(job(), replicas()))
    stage.prepare()
    stage.start()
    everything = {name: held(stage, name) for name in stage.facts}
    stage.now_ms += 3_600_000
    stage.feed(inp.StartTerm("test"))
    assert stage.group().state is G.STARTING
    assert next_deadline(stage.state) == stage.now_ms + TERM_GRACE_MS
    for name, keys in everything.items():
        stage.up_host(name, "b1", keys)
    stage.ready()
    assert stage.group().state is G.RUNNING
    assert stage.slot("rollout").incarnation == 1


def test_silence_counts_once_the_grace_is_over() -> None:
    stage = Stage()
    stage.submit(plan(job(), replicas()))
    stage.prepare()
    stage.start()
    stage.now_ms += 3_600_000
    stage.feed(inp.StartTerm("test"))
    stage.wait(TERM_GRACE_MS - 1)
    assert stage.slot("rollout").state is S.RUNNING
    stage.wait(1)
    assert stage.group().state is G.STOPPING
    assert stage.group().cause == "not_ready"


def test_what_was_never_placed_like_that_is_shown_and_not_stopped() -> None:
    """An incarnation has one epoch and so many tasks: another epoch or task of it was never heard of."""
    stage = Stage()
    group = stage.run(plan(job(), replicas()))
    key = stage.key(stage.slot("actor"))
    odd = (replace(key, epoch=key.epoch + 1), replace(key, task=7), replace(key, epoch=0))
    stage.feed(*(inp.TaskStarted(one, "h0", 7) for one in odd))
    stage.up_host("h0", inventory=(key, *odd))
    assert not stage.state.hosts["h0"].superseded
    assert stage.state.hosts["h0"].strays == tuple(sorted(map(str, odd)))
    assert stage.group(group).state is G.RUNNING
