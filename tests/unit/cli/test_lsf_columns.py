"""The renderers of xcecli: views in, text out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from gangflow.cli.lsf_columns import (
    CLAIMS,
    GROUPS,
    HOSTS,
    MEMBERS,
    QUEUE,
    SLOTS,
    hosts_text,
    members_of,
    record_words,
    slots_of,
)
from gangflow.cli.lsf_long import event_line, group_lines, host_lines
from gangflow.cli.lsf_table import Layout
from gangflow.errors import SpecError
from gangflow.xce.core.events import SlotChanged, TaskMoved
from gangflow.xce.core.state import GroupState, HostState, SlotState, TaskKey, TaskPhase
from gangflow.xce.rest.event_views import event_view
from gangflow.xce.rest.host_views import host_views
from gangflow.xce.rest.schema import GroupView
from gangflow.xce.rest.views import claim_view, group_view, queue_items
from tests.unit.xce.rest.fake import ended, host, pending, running, state_of

STATE = state_of(running(), pending("g2", "other"))
VIEWS = [group_view(STATE, group, 9) for group in STATE.groups.values()]


def headers(text: str) -> list[str]:
    return text.splitlines()[0].split()


def test_groups_have_the_columns_of_bjobs() -> None:
    text = GROUPS.text(VIEWS, GROUPS.choose(""))
    assert headers(text)[:8] == ["JOBID", "USER", "STAT", "QUEUE", "FROM_HOST", "EXEC_HOST", "JOB_NAME", "SUBMIT_TIME"]
    first, second = (line.split() for line in text.splitlines()[1:])
    assert first[:7] == ["g1", "-", "RUN", "-", "-", "h0:h1", "grpo"]
    assert second[2] == "PEND"
    assert first[-1] == "RUNNING"


def test_members_have_the_columns_of_bjobs_a() -> None:
    text = MEMBERS.text(members_of(VIEWS[:1]), MEMBERS.choose(""))
    assert " ".join(headers(text)[:11]) == "JOBID ARRAY_SPEC OWNER NJOBS PEND DONE RUN EXIT SSUSP USUSP PSUSP"
    rows = [line.split() for line in text.splitlines()[1:]]
    assert [row[1] for row in rows] == ["actor", "rollout[0-1]"]
    assert rows[1][3:7] == ["2", "1", "0", "1"]
    assert rows[1][-2:] == ["1/2", "2"]


def test_hosts_have_the_columns_of_bhosts() -> None:
    views = host_views(replace(STATE, hosts={**STATE.hosts, "h1": host("h1", state=HostState.LOST)}))
    text = HOSTS.text(views, HOSTS.choose(""))
    assert headers(text) == ["HOST_NAME", "STATUS", "JL/U", "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV"]
    assert [line.split() for line in text.splitlines()[1:]] == [
        ["h0", "ok", "-", "4", "1", "1", "0", "0", "0"],
        ["h1", "unavail", "-", "4", "1", "1", "0", "0", "0"],
    ]
    assert HOSTS.text(views[:1], HOSTS.choose("gpus mem"), header=False) == "0.5/2  512MiB/8GiB"


def test_claims_slots_and_the_queue() -> None:
    claims = [claim_view(STATE, claim) for claim in STATE.claims.values()]
    assert CLAIMS.text(claims, CLAIMS.choose("name state path"), header=False) == "ckpt  READY  /claims/c1"
    slots = SLOTS.text(slots_of(VIEWS[:1]), SLOTS.choose("slot state address reason"), header=False).splitlines()
    assert slots[0].split() == ["actor[0]", "READY", "http=127.0.0.1:20000", "-"]
    assert slots[2].endswith("WAITING_CAPACITY: 1 GPU short")
    queue = QUEUE.text(queue_items(STATE.groups.values()), QUEUE.choose("position jobid pend_reason"), header=False)
    assert queue == "1  g2  WAITING_CAPACITY: 8 CPU short"


def test_columns_are_chosen_by_name_width_and_delimiter() -> None:
    assert GROUPS.text(VIEWS, GROUPS.choose("JOBID stat")).splitlines()[1:] == ["g1     RUN", "g2     PEND"]
    assert GROUPS.text(VIEWS, GROUPS.choose("jobid:4 job_name:2 stat"), header=False).splitlines()[0] == "g1    gr  RUN"
    assert GROUPS.text(VIEWS, GROUPS.choose("jobid stat delimiter=','"), header=False).splitlines() == ["g1,RUN", "g2,PEND"]


@pytest.mark.parametrize(("wanted", "nearest"), [("jobname", "job_name"), ("stats", "stat")])
def test_an_unknown_column_names_the_nearest(wanted: str, nearest: str) -> None:
    with pytest.raises(SpecError, match=f"did you mean '{nearest}'"):
        GROUPS.choose(wanted)
    with pytest.raises(SpecError, match="a width"):
        GROUPS.choose("jobid:x")


def test_json_is_as_bjobs_prints_it() -> None:
    document = json.loads(GROUPS.document(VIEWS, GROUPS.choose("jobid stat")))
    assert document == {
        "COMMAND": "xcecli groups",
        "JOBS": 2,
        "RECORDS": [{"JOBID": "g1", "STAT": "RUN"}, {"JOBID": "g2", "STAT": "PEND"}],
    }


def test_tasks_on_one_host_are_counted() -> None:
    slot = VIEWS[0].slot("actor", 0)
    assert hosts_text([slot, slot, VIEWS[0].slot("rollout", 0)]) == "2*h0:h1"


@pytest.mark.parametrize("table", [GROUPS, MEMBERS, SLOTS, HOSTS, CLAIMS, QUEUE])
def test_every_column_prints_something_for_every_view(table: object) -> None:
    views = {
        id(GROUPS): VIEWS, id(MEMBERS): members_of(VIEWS), id(SLOTS): slots_of(VIEWS), id(HOSTS): host_views(STATE),
        id(CLAIMS): [claim_view(STATE, claim) for claim in STATE.claims.values()],
        id(QUEUE): queue_items(STATE.groups.values()),
    }[id(table)]  # fmt: skip
    assert views
    names = tuple(table.fields)  # type: ignore[attr-defined]
    for row in table.rows(views, Layout(names)):  # type: ignore[attr-defined]
        assert len(row) == len(names)
        assert all(isinstance(cell, str) and cell for cell in row)


def dead() -> GroupView:
    told = {"cause": "app_exit", "message": "actor[0] ended with 3"}
    group = running(state=GroupState.FAILED, ended_ms=3_000, excluded=("h7",), **told)
    slot = replace(group.slots["actor", 0], state=SlotState.EXIT, tasks=(), exit=ended())
    group = replace(group, slots={**group.slots, ("actor", 0): slot}, tolerated=(("rollout", 1),))
    return group_view(state_of(group), group, 9)


def test_the_long_form_tells_the_end_and_the_last_words() -> None:
    text = "\n".join(group_lines(dead()))
    for wanted in (
        "Job <g1>, Job Name <grpo>", "State <FAILED>", "app_exit: actor[0] ended with 3;", "Tolerated exits: rollout[1];",
        "Excluded hosts: h7;", "Last lines of stderr of actor[0], incarnation 1:", "   boom",
        "Claim <c1>, Name <ckpt>, of the group",
    ):  # fmt: skip
        assert wanted in text


def test_the_long_form_of_a_host_names_what_is_owed() -> None:
    state = replace(STATE, hosts={"h0": host("h0", superseded=(TaskKey("g1", 1, "actor", 0, 1, 0),), strays=("x/1",))})
    text = "\n".join(host_lines(host_views(state)[0]))
    assert "superseded, to be stopped: g1/1/actor/0/1/0" in text
    assert "not of this journal: x/1" in text
    assert "cpu: 1 of 4 in use" in text
    assert "g1.actor[0]: 1 tasks, 1 running" in text


def test_an_event_is_one_line() -> None:
    view = event_view(7, 1_500, SlotChanged("g1", "rollout", 1, 3, SlotState.STARTING, SlotState.READY, message="up\nnow"))
    assert view is not None
    line = event_line(view)
    assert line.split()[0] == "7"
    assert ".500" in line
    assert 'rollout[1] incarnation=3 before=STARTING state=READY message="up\\nnow"' in line
    moved = event_view(8, 1_500, TaskMoved(TaskKey("g1", 1, "actor", 0, 2, 0), "h0", TaskPhase.READY, pid=77))
    assert moved is not None
    assert "actor[0]/0 incarnation 2 host=h0 phase=ready pid=77" in event_line(moved)


def test_a_records_fields_are_words_whatever_is_in_them() -> None:
    data = {"group": "g1", "exit": {"code": 3, "message": "no file", "signal": None}, "ups": [{"member": "x", "index": 0}],
            "hosts": ["h0", "h1"], "out": True}  # fmt: skip
    assert record_words(data) == 'exit.code=3 exit.message="no file" ups[0]=x[0] hosts=h0,h1 out=yes'
