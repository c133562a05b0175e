"""Commands: idempotency, incarnations, terms, compare-and-set."""

from __future__ import annotations

from dataclasses import replace

from gangflow.xce.core import inputs as inp
from gangflow.xce.core.events import AnswersForgotten
from gangflow.xce.core.inputs import Request
from gangflow.xce.core.limits import (
    ANSWERS_FORGOTTEN_AT_ONCE,
    ANSWERS_KEPT_MAX,
    ANSWERS_KEPT_MS,
    ENDED_KEPT_MAX,
    FORGET_EVERY_MS,
    VALUE_MAX,
)
from gangflow.xce.core.state import GroupState, PendCode, Reason
from gangflow.xce.machine import handle
from tests.property.greedy import Greedy
from tests.unit.xce.core.plans import hosts, job, plan, replicas
from tests.unit.xce.core.stage import Stage

G = GroupState
PAIR = plan(job(), replicas())


def test_a_command_is_done_once_however_often_it_is_sent() -> None:
    stage = Stage()
    request = Request(key="k1", digest="d1")
    first = stage.ask(inp.SubmitGroup(PAIR, request))
    assert (first.status, dict(first.fields)) == (201, {"id": "g1"})
    again = stage.feed(inp.SubmitGroup(PAIR, request))
    assert again.replies == (first,)
    assert again.events == ()
    other = stage.ask(inp.SubmitGroup(PAIR, replace(request, digest="d2")))
    assert (other.status, other.code) == (422, "idempotency_mismatch")
    assert list(stage.state.groups) == ["g1"]


def test_a_refusal_is_remembered_too() -> None:
    stage = Stage()
    request = Request(key="k1", digest="d1")
    refused = stage.ask(inp.EndGroup("g1", G.CANCELLED, request=request))
    assert (refused.status, refused.code) == (404, "not_found")
    stage.submit(PAIR)
    assert stage.ask(inp.EndGroup("g1", G.CANCELLED, request=request)) == refused


def test_answers_are_kept_for_a_day() -> None:
    stage = Stage()
    request = Request(key="k1", digest="d1")
    stage.ask(inp.SubmitGroup(PAIR, request))
    stage.wait(ANSWERS_KEPT_MS - 1)
    assert "k1" in stage.state.answers
    stage.wait(FORGET_EVERY_MS + 1)
    assert stage.state.answers == {}


def test_only_so_many_answers_are_kept_and_the_oldest_go_first() -> None:
    stage = Stage()
    for number in range(0, ANSWERS_KEPT_MAX + 2, 1_024):
        keys = range(number, min(number + 1_024, ANSWERS_KEPT_MAX + 2))
        stage.feed(*(inp.EndGroup("none", G.CANCELLED, request=Request(f"k{key}", "d")) for key in keys))
    kept = list(stage.state.answers)
    assert len(kept) <= ANSWERS_KEPT_MAX
    assert (kept[0], kept[-1]) == (f"k{ANSWERS_FORGOTTEN_AT_ONCE}", f"k{ANSWERS_KEPT_MAX + 1}")
    forgotten = [event for event in stage.events if isinstance(event, AnswersForgotten)]
    assert len(forgotten) == 1, "many at once"


def test_what_a_coordinator_wrote_no_task_writes_over() -> None:
    """Scenario 80: who is eligible is the coordinator's word; a member's token, and an operator without a term, are fenced."""
    stage = Stage()
    stage.run(PAIR)
    task = stage.key(stage.slot("rollout"))
    assert stage.ask(inp.PutValue("g1", "rollouts/eligible", "task", -1, task)).ok, "nobody's yet"
    stage.ask(inp.TakeCoordination("g1"))
    assert stage.ask(inp.PutValue("g1", "rollouts/eligible", "first", request=Request(term=1))).ok
    for writer, term in ((task, 0), (task, 1), (None, 0)):
        fenced = stage.ask(inp.PutValue("g1", "rollouts/eligible", "forged", -1, writer, Request(term=term)))
        assert (fenced.status, fenced.code, dict(fenced.fields)) == (409, "fenced", {"term": 1})
    stage.ask(inp.TakeCoordination("g1"))
    assert stage.ask(inp.PutValue("g1", "rollouts/eligible", "old", request=Request(term=1))).code == "fenced"
    assert stage.ask(inp.PutValue("g1", "rollouts/eligible", "second", request=Request(term=2))).ok
    value = stage.state.values["g1", "rollouts/eligible"]
    assert (value.value, value.term, value.version) == ("second", 2, 3)
    assert stage.ask(inp.PutValue("g1", "weights/head", "1", -1, task)).ok, "the members' own keys stay theirs"


def test_a_name_is_taken_while_its_group_lives() -> None:
    stage = Stage()
    stage.submit(PAIR)
    taken = stage.ask(inp.SubmitGroup(PAIR))
    assert (taken.status, taken.code) == (409, "conflict")
    assert "g1 is PREPARING" in taken.message
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    stage.gone()
    assert stage.submit(PAIR) == "g2"


def test_what_never_fits_is_refused_and_not_created() -> None:
    class Knowing(Greedy):
        """A scheduler that knows at submission."""

        def never_fits(self, state: object, plan: object) -> Reason:
            return Reason(PendCode.NEVER_FITS, "actor: no host has 900 GPUs")

    stage = Stage()
    decision = handle(stage.state, [inp.SubmitGroup(PAIR)], stage.now_ms, Knowing())
    (reply,) = decision.replies
    assert reply is not None
    assert (reply.status, reply.code, reply.message) == (422, "never_fits", "actor: no host has 900 GPUs")
    assert decision.events == ()


def test_an_older_coordinator_is_fenced_in_everything_it_does() -> None:
    """Scenario 80: two coordinators of one group: every write of the older term is refused."""
    stage = Stage()
    stage.run(PAIR)
    terms = [dict(stage.ask(inp.TakeCoordination("g1")).fields)["term"] for _ in range(2)]
    assert terms == [1, 2]
    old, new = Request(term=1), Request(term=2)
    for command in (
        inp.EndGroup("g1", G.FAILED, request=old),
        inp.ReportSlot("g1", "rollout", 0, 1, inp.Cause.HUNG, request=old),
        inp.RestartSlot("g1", "rollout", 0, 1, request=old),
        inp.PutValue("g1", "rollouts/eligible", "[]", request=old),
    ):
        before = stage.state
        reply = stage.ask(command)
        assert (reply.status, reply.code) == (409, "fenced")
        assert stage.state is before
    assert stage.ask(inp.PutValue("g1", "rollouts/eligible", "[]", request=new)).ok
    assert stage.ask(inp.PutValue("g1", "note", "1", request=Request(term=7))).code == "fenced", "a term nobody gave out"


def test_compare_and_set() -> None:
    stage = Stage()
    stage.submit(PAIR)
    put = inp.PutValue("g1", "checkpoint/head", '{"step":1}', expect=0)
    assert dict(stage.ask(put).fields) == {"version": 1}
    lost = stage.ask(put)
    assert (lost.status, lost.code, dict(lost.fields)) == (409, "conflict", {"version": 1})
    assert dict(stage.ask(replace(put, expect=1)).fields) == {"version": 2}
    assert dict(stage.ask(replace(put, expect=-1)).fields) == {"version": 3}
    assert stage.state.values["g1", "checkpoint/head"].version == 3
    large = stage.ask(replace(put, value="x" * (VALUE_MAX + 1), expect=-1))
    assert (large.status, large.code) == (413, "too_large")


def test_a_superseded_or_lost_task_writes_nothing() -> None:
    """I4: what a frozen host still writes is void by its incarnation."""
    stage = Stage()
    stage.run(PAIR)
    writer = stage.key(stage.slot("rollout"))
    put = inp.PutValue("g1", "x", "1", writer=writer)
    assert stage.ask(put).ok
    stage.lose("h0", fence_ms=1_000)
    assert stage.ask(put).code == "superseded"
    stage.wait(1_000)
    stage.bring_up()
    assert stage.ask(put).code == "superseded"
    assert stage.ask(replace(put, writer=stage.key(stage.slot("rollout")))).ok


def test_commands_about_what_is_not_there() -> None:
    stage = Stage()
    stage.submit(PAIR)
    assert stage.ask(inp.TakeCoordination("g9")).status == 404
    assert stage.ask(inp.ReportSlot("g1", "rollout", 7, 0, inp.Cause.HUNG)).status == 404
    assert stage.ask(inp.ReportSlot("g1", "rollout", 0, 9, inp.Cause.HUNG)).code == "superseded"
    assert stage.ask(inp.EndGroup("g1", G.SUCCEEDED)).status == 422
    stage.ask(inp.EndGroup("g1", G.CANCELLED))
    stage.gone()
    assert stage.ask(inp.TakeCoordination("g1")).code == "conflict"


def test_only_so_many_ended_groups_are_kept() -> None:
    stage = Stage(hosts(0))
    for n in range(ENDED_KEPT_MAX + 3):
        stage.now_ms += 1
        decision = handle(stage.state, [inp.SubmitGroup(PAIR), inp.EndGroup(f"g{n + 1}", G.CANCELLED)], stage.now_ms, Greedy())
        stage.state = decision.state
    assert len(stage.state.groups) == ENDED_KEPT_MAX
    assert next(iter(stage.state.groups)) == "g4"
