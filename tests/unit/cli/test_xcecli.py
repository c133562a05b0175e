"""The command line over a client that answers from a state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gangflow.cli import xce_app, xcecli
from gangflow.cli.xce_acts import ALIASES
from gangflow.errors import Conflict, NotFound, SpecError
from gangflow.xce.core.plan import ClaimPlan
from gangflow.xce.core.state import Change, ChangeState, Claim, ClaimState
from gangflow.xce.rest.explain import why_view
from gangflow.xce.rest.host_views import host_views
from gangflow.xce.rest.messages import Done, EventView, GroupMoved, HealthView, HostMoved, ScaleView, Submitted, TokenView
from gangflow.xce.rest.owner_views import owner_views
from gangflow.xce.rest.schema import ClaimList, ClaimView, GroupList, GroupView, HostList, OwnerList, QueueView, WhyView
from gangflow.xce.rest.views import change_view, claim_view, group_view, queue_items
from tests.unit.xce.rest.fake import pending, running, state_of

CHANGE = Change(
    "c1", ChangeState.DRAINING, (("actor", 1), ("rollout", 1)), (("actor", 1), ("rollout", 2)), (), (("rollout", 1),), 1_900
)
PLAIN = replace(running("g4", "hello"), plan=replace(running().plan, name="hello", plain=True))
STATE = state_of(running(changes=(CHANGE,), stopped=("rollout",)), pending("g2", "other"), pending("g3", "third"), PLAIN)
DATA = Claim("data", "", ClaimPlan("data"), ClaimState.READY, path="/data", owner="ada")
STATE = replace(
    STATE,
    claims={**STATE.claims, "data": DATA},
    hosts={**STATE.hosts, "h1": replace(STATE.hosts["h1"], closed="broken fan", draining=True)},
)
Run = Callable[..., str]


class FakeClient:
    """Knows the state above; what it was told to do stands in `done`."""

    def __init__(self) -> None:
        self.watched: list[tuple[Any, ...]] = []
        self.done: list[tuple[Any, ...]] = []

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None: ...

    # --- lists

    def group(self, name: str) -> GroupView:
        for group in STATE.groups.values():
            if name in (group.id, group.plan.name):
                return group_view(STATE, group, 9)
        raise NotFound(f"no group {name!r}")

    def groups(self, states: list[str], cursor: str) -> GroupList:
        ids = list(STATE.groups)
        start = ids.index(cursor) + 1 if cursor else 0
        found = [self.group(name) for name in ids[start : start + 2]]
        return GroupList(seq=9, groups=tuple(found), next=ids[start + 1] if start + 2 < len(ids) else None)

    def jobs(self, states: list[str], cursor: str) -> GroupList:
        return GroupList(seq=9, groups=(self.group("g4"),))

    def hosts(self, cursor: str) -> HostList:
        return HostList(seq=9, hosts=host_views(STATE))

    def claims(self, group: str, cursor: str) -> ClaimList:
        wanted = self.group(group).id if group else None
        found = [claim for claim in STATE.claims.values() if wanted in (None, claim.group)]
        return ClaimList(seq=9, claims=tuple(claim_view(STATE, claim) for claim in found))

    def claim(self, name: str) -> ClaimView:
        if name not in STATE.claims:
            raise NotFound(f"no claim {name!r}")
        return claim_view(STATE, STATE.claims[name])

    def queue(self, cursor: str) -> QueueView:
        return QueueView(seq=9, groups=queue_items(STATE.groups.values()))

    def owners(self, cursor: str) -> OwnerList:
        return OwnerList(seq=9, owners=owner_views(STATE))

    def why(self, group: str, level: int) -> WhyView:
        return why_view(STATE, STATE.groups[self.group(group).id], 9, level)

    def healthz(self) -> HealthView:
        return HealthView(seq=9, horizon=3, status="ok", cluster_id="c", term=1, version="0")

    def events(self, after: int, group: str, until: int | None) -> Iterator[EventView]:
        self.watched.append((after, group, until))
        yield EventView(seq=4, at_ms=1, type="GroupChanged", group="g1", data={"group": "g1", "state": "RUNNING"})
        data = {"group": "g1", "member": "rollout", "index": 2, "state": "READY"}
        yield EventView(seq=5, at_ms=1, type="SlotChanged", group="g1", data=data)

    # --- commands

    def _did(self, *what: Any) -> Done:
        self.done.append(what)
        return Done(seq=10)

    def submit(self, spec: Any, *, delegation: Sequence[str]) -> Submitted:
        self._did("submit", spec, tuple(delegation))
        return Submitted(seq=10, id="g10")

    def suspend(self, group: str, message: str) -> GroupMoved:
        self._did("suspend", self.group(group).id, message)
        return GroupMoved(seq=10, id=self.group(group).id, state="SUSPENDED" if group == "g2" else "SUSPENDING")

    def resume(self, group: str) -> GroupMoved:
        if group == "g1":
            raise Conflict("group g1 is RUNNING, not SUSPENDED", status=409)
        self._did("resume", group)
        return GroupMoved(seq=10, id=group, state="PENDING")

    def restart_group(self, group: str, message: str) -> GroupMoved:
        self._did("restart_group", group, message)
        return GroupMoved(seq=10, id=group, state="RESTARTING")

    def cancel(self, group: str) -> Done:
        return self._did("cancel", self.group(group).id)

    def fail(self, group: str, cause: str, message: str) -> Done:
        return self._did("fail", group, cause, message)

    def stop_member(self, group: str, member: str) -> Done:
        return self._did("stop_member", group, member)

    def restart(self, group: str, member: str, index: int, incarnation: int) -> Done:
        return self._did("restart", group, member, index, incarnation)

    def drain_slot(self, group: str, member: str, index: int, incarnation: int) -> Done:
        return self._did("drain_slot", group, member, index, incarnation)

    def scale(self, group: str, targets: Mapping[str, int], timeout_s: float | None) -> ScaleView:
        self._did("scale", group, dict(targets), timeout_s)
        change = change_view(STATE.groups["g1"], CHANGE) if group == "g1" else None
        return ScaleView(seq=10, id=group, change=change)

    def lift_exclusion(self, group: str, host: str) -> Done:
        return self._did("lift_exclusion", group, host)

    def close_host(self, host: str, drain: bool, message: str) -> HostMoved:
        if host not in STATE.hosts:
            raise NotFound(f"no host {host!r}")
        self._did("close_host", host, drain, message)
        return HostMoved(seq=10, host=host, state="CLOSED")

    def open_host(self, host: str) -> HostMoved:
        self._did("open_host", host)
        return HostMoved(seq=10, host=host, state="UP" if host == "h0" else "LOST")

    def create_claim(self, spec: Any, *, delegation: Sequence[str]) -> Submitted:
        self._did("create_claim", spec, tuple(delegation))
        return Submitted(seq=10, id=spec.name)

    def delete_claim(self, name: str) -> Done:
        return self._did("delete_claim", name)

    def make_token(self, owner: str, kind: str, ttl_s: float) -> TokenView:
        self._did("make_token", owner, kind, ttl_s)
        return TokenView(seq=10, token="xcu1.secret", owner=owner or "me", kind=kind, expires_ms=5_000)


@pytest.fixture(name="client")
def client_fixture(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(xce_app, "client", lambda _context: fake)
    return fake


@pytest.fixture(name="run")
def run_fixture(client: FakeClient) -> Run:
    def call(*words: str, exit_code: int = 0, raises: type[Exception] | None = None) -> str:
        result = CliRunner().invoke(xcecli.app, list(words))
        if raises is not None:
            assert isinstance(result.exception, raises), result.output
            return str(result.exception)
        assert result.exit_code == exit_code, (result.output, result.exception)
        return result.output

    return call


# --- lists ------------------------------------------------------------------------------------------------------------


def test_groups_come_from_every_page(run: Run) -> None:
    assert [line.split()[0] for line in run("groups").splitlines()] == ["JOBID", "g1", "g2", "g3", "g4"]
    assert [line.split()[0] for line in run("groups", "-noheader", "other").splitlines()] == ["g2"]
    assert "Job <g1>, Job Name <grpo>" in run("groups", "-l", "grpo")


def test_single_dash_words_are_options(run: Run) -> None:
    assert json.loads(run("groups", "-json", "-o", "jobid stat", "g1"))["RECORDS"] == [{"JOBID": "g1", "STAT": "RUN"}]
    assert len(json.loads(run("hosts", "-json"))["RECORDS"]) == 2


@pytest.mark.parametrize("name", ["grpo", "g1", "g1.rollout", "grpo.rollout[1]"])
def test_what_is_part_of_a_group_names_it_too(run: Run, name: str) -> None:
    assert [line.split()[0] for line in run("groups", "-noheader", name, "g1").splitlines()] == ["g1"]


def test_members_are_named_with_their_groups(run: Run) -> None:
    assert [line.split()[1] for line in run("members", "-noheader", "grpo").splitlines()] == ["actor", "rollout[0-1]"]
    assert [line.split()[1] for line in run("members", "-noheader", "g1.actor").splitlines()] == ["actor"]
    assert run("members", "-noheader", "-o", "member", "g1.rollout[1]").split() == ["g1.rollout"]
    text = run("members", "-l", "grpo.rollout")
    assert text.startswith("Member <g1.rollout>, Job Name <grpo>, auxiliary replica set")
    assert "1 of 2 ready, at least 1, at most 4" in text


def test_slots_are_named_with_their_groups(run: Run) -> None:
    names = [line.split()[:2] for line in run("slots", "-noheader", "grpo").splitlines()]
    assert names == [["g1", "actor[0]"], ["g1", "rollout[0]"], ["g1", "rollout[1]"]]
    assert run("slots", "-noheader", "-o", "id", "grpo.rollout").split() == ["g1.rollout[0]", "g1.rollout[1]"]
    text = run("slots", "-l", "g1.rollout[0]")
    assert text.startswith("Slot <g1.rollout[0]>, Status <RUN>, State <READY>")
    assert "Task 0 on h1: ready, pid 77; cpu 1, mem 512MiB, GPU 0 (0.5), port http 127.0.0.1:20001;" in text
    assert "PENDING REASON: WAITING_CAPACITY" in run("slots", "-l", "g1.rollout[1]")


def test_slots_that_were_scaled_away_are_listed_when_they_are_asked_for(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    group = STATE.groups["g1"]
    away = replace(group.slots["rollout", 1], out=True)
    groups = {**STATE.groups, "g1": replace(group, slots={**group.slots, ("rollout", 1): away})}
    monkeypatch.setitem(globals(), "STATE", replace(STATE, groups=groups))
    assert "g1     rollout[1]" not in run("slots")
    assert "rollout[1]" not in run("slots", "g1") + run("members", "-l", "g1")
    assert "rollout[1]" in run("slots", "-a", "g1")
    assert "Scaled away" in run("slots", "-l", "g1.rollout[1]")
    assert run("members", "-noheader", "-o", "array_spec njobs", "g1.rollout").split() == ["rollout[0]", "1"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nobody", "no group 'nobody'"),
        ("g1.rolout", "no member 'rolout'; it has actor, rollout. Did you mean 'rollout'?"),
        ("g1.rollout[7]", "g1.rollout has no slot 7; it has 0 to 1"),
        ("g1.actor[3]", "it has 0"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(run: Run, name: str, said: str) -> None:
    assert said in run("slots", name, raises=NotFound)


@pytest.mark.parametrize("name", ["", ".", "g1.", "g1.rollout[", "g1.rollout[x]", "g1[2]", "g1.a.b", "g1 g2", "g1.rollout[-1]"])
def test_what_is_no_name_is_said_to_be_none(run: Run, name: str) -> None:
    assert "g1.rollout[2]" in run("slots", name, raises=SpecError)


def test_hosts_tell_who_closed_them(run: Run) -> None:
    assert run("hosts", "-noheader", "h1").split()[0] == "h1"
    assert "STATUS ok" in run("hosts", "-l", "h0")
    text = run("hosts", "-l", "h1")
    assert "STATUS closed_Adm (draining)" in text
    assert "ADMIN ACTION COMMENT: broken fan" in text
    assert run("hosts", "-noheader", "-o", "host_name closed reason", "h1").split("  ") == [
        "h1",
        "closed_Adm (draining)",
        "broken fan\n",
    ]


def test_claims_of_groups_and_on_their_own(run: Run) -> None:
    assert [line.split()[1] for line in run("claims", "-noheader").splitlines()] == ["ckpt", "data"]
    assert "No claims found" in run("claims", "g2")
    assert run("claims", "-noheader", "-o", "claim owner", "data").split() == ["data", "ada"]
    text = run("claims", "-l")
    assert "Claim <c1>, Name <ckpt>, of the group" in text
    assert "Claim <data> standalone" in text
    assert "no group 'nothing'" in run("claims", "nothing", raises=NotFound)


def test_the_queue(run: Run) -> None:
    assert [line.split()[1] for line in run("queue", "-noheader").splitlines()] == ["g2", "g3"]
    text = run("queue", "-l")
    assert "place in the queue: 1;" in text
    assert "missing in s0: cpu 8;" in text
    assert "blocked by: g1;" in text


def test_plain_jobs(run: Run) -> None:
    lines = run("jobs").splitlines()
    assert lines[0].split() == ["JOBID", "USER", "STAT", "QUEUE", "FROM_HOST", "EXEC_HOST", "JOB_NAME", "SUBMIT_TIME"]
    assert [line.split()[0] for line in lines[1:]] == ["g4"]
    assert run("jobs", "-noheader", "-o", "type", "g4", "g2").split() == ["job", "group"]


def test_changes(run: Run) -> None:
    assert run("changes", "-noheader", "-o", "jobid change state targets").split() == ["g1", "c1", "DRAINING", "rollout", "2→1"]
    assert "still there: rollout[1];" in run("changes", "-l", "g1")
    text = run("groups", "-l", "g1")
    assert "Change <c1>" in text
    assert "Stopped members: rollout;" in text


def test_owners(run: Run) -> None:
    assert run("owners", "-noheader").split()[0] == "ada"
    assert "1 claims" in run("owners", "-l")
    assert json.loads(run("owners", "-json", "-o", "user claims"))["RECORDS"] == [{"USER": "ada", "CLAIMS": "1"}]


LISTS = ["groups", "jobs", "members", "slots", "hosts", "claims", "queue", "changes", "owners"]


@pytest.mark.parametrize("name", LISTS)
def test_every_list_has_lsfs_options(run: Run, name: str) -> None:
    """-o, -json, -noheader, -l; and each of its columns can be asked for."""
    with_header, without = run(name).splitlines(), run(name, "-noheader").splitlines()
    assert with_header[1:] == without or [line.split() for line in with_header[1:]] == [line.split() for line in without]
    document = json.loads(run(name, "-json"))
    assert document["COMMAND"] == f"xcecli {name}"
    assert len(document["RECORDS"]) == len(without)
    assert run(name, "-l").strip()
    unknown = run(name, "-o", "nonsense", raises=SpecError)
    columns = unknown.split("one of ")[1].split(" (got")[0].replace(",", "")
    assert len(run(name, "-noheader", "-o", columns).splitlines()) == len(without)


@pytest.mark.parametrize(("flag", "hosts"), [("-p1", False), ("-p0", True), ("-p2", True), ("-p3", True)])
def test_why_has_the_levels_of_bjobs(run: Run, flag: str, hosts: bool) -> None:
    text = run("why", "g2", flag)
    assert text.startswith("JOBID")
    assert "WAITING_CAPACITY: 8 CPU short;" in text
    assert ("host" in text.split("Place in the queue")[1]) is hosts
    assert json.loads(run("why", "g2", flag, "-json"))["level"] == int(flag[2])


def test_why_of_a_slot_shows_that_slot(run: Run) -> None:
    text = run("why", "grpo.rollout[1]")
    assert "rollout[1]" in text.splitlines()[1]
    assert "actor" not in text


def test_two_levels_exclude_each_other(run: Run) -> None:
    assert "exclude each other" in run("why", "g2", "-p0", "-p3", exit_code=2)


def test_events_end_where_the_journal_ends_unless_followed(run: Run, client: FakeClient) -> None:
    assert "GroupChanged" in run("events")
    assert json.loads(run("events", "-json", "g1", "--after", "7").splitlines()[0])["seq"] == 4
    run("events", "-f")
    assert client.watched == [(3, "", 9), (7, "g1", 9), (3, "", None)]


def test_events_of_a_slot(run: Run, client: FakeClient) -> None:
    assert run("events").split()[:3] == ["SEQ", "TIME", "JOBID"]
    for name in ("g1.rollout", "g1.rollout[2]"):
        assert [line.split()[0] for line in run("events", "-noheader", name).splitlines()] == ["5"]
    assert run("events", "-noheader", "g1.rollout[0]") == ""
    assert {each[1] for each in client.watched[1:]} == {"g1"}


def test_events_with_chosen_columns(run: Run) -> None:
    assert run("events", "-o", "seq:3 event delimiter=;").splitlines() == ["SEQ;EVENT", "4;GroupChanged", "5;SlotChanged"]
    assert run("events", "-noheader", "-o", "seq:3 what").splitlines() == ["4    state=RUNNING", "5    rollout[2] state=READY"]
    assert "one of seq, time" in run("events", "-o", "nonsense", raises=SpecError)


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said", "done"),
    [
        ("suspend g1 -C later", "Job <g1> is being stopped", ("suspend", "g1", "later")),
        ("suspend g2", "Job <g2> is suspended", ("suspend", "g2", "")),
        ("resume g2", "Job <g2> is being resumed", ("resume", "g2")),
        ("kill grpo", "Job <grpo> is being terminated", ("cancel", "g1")),
        ("kill g1.rollout", "Job <g1.rollout> is being terminated", ("stop_member", "g1", "rollout")),
        ("stop g1.rollout", "Member <g1.rollout> is being stopped", ("stop_member", "g1", "rollout")),
        ("restart g1 -C why", "Job <g1> is being restarted", ("restart_group", "g1", "why")),
        ("restart grpo.rollout[0]", "Job <g1.rollout[0]> is being restarted", ("restart", "g1", "rollout", 0, 3)),
        ("fail g1 --cause bad_data -C nan", "Job <g1> is being failed", ("fail", "g1", "bad_data", "nan")),
        ("lift g1 h0", "Host <h0> is no longer excluded for job <g1>", ("lift_exclusion", "g1", "h0")),
        ("drain h0 -C fan", "Drain <h0> ...... done", ("close_host", "h0", True, "fan")),
        ("drain g1.rollout[0]", "Job <g1.rollout[0]> is being drained", ("drain_slot", "g1", "rollout", 0, 3)),
        ("close h0 -C fan", "Close <h0> ...... done", ("close_host", "h0", False, "fan")),
        ("open h0", "Open <h0> ...... done", ("open_host", "h0")),
        ("open h1", "Open <h1> ...... done (it is LOST)", ("open_host", "h1")),
        ("claim delete data", "Claim <data> is being released", ("delete_claim", "data")),
        (
            "scale g1 rollout=1 --timeout 2m",
            "Job <g1> resize request <c1> is DRAINING: rollout 2→1",
            ("scale", "g1", {"rollout": 1}, 120.0),
        ),
        ("scale g2 rollout=2", "Job <g2> has these targets already", ("scale", "g2", {"rollout": 2}, None)),
        ("token ada", "xcu1.secret", ("make_token", "ada", "owner", 86_400.0)),
        ("token --delegation --ttl 1h", "xcu1.secret", ("make_token", "", "delegation", 3_600.0)),
    ],
    ids=str,
)
def test_a_command_says_what_was_accepted(run: Run, client: FakeClient, words: str, said: str, done: tuple[Any, ...]) -> None:
    assert said in run(*words.split()).splitlines()
    assert client.done == [done]


def test_a_members_name_restarts_each_of_its_slots(run: Run, client: FakeClient) -> None:
    assert len(run("restart", "g1.rollout").splitlines()) == 2
    assert client.done == [("restart", "g1", "rollout", 0, 3), ("restart", "g1", "rollout", 1, 0)]


def test_one_that_is_refused_keeps_none_of_the_others_from_it(run: Run, client: FakeClient) -> None:
    text = run("resume", "g1", "g2", "g3", exit_code=10)
    assert "Job <g1>: group g1 is RUNNING, not SUSPENDED" in text
    assert "Job <g3> is being resumed" in text
    assert client.done == [("resume", "g2"), ("resume", "g3")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("suspend g1.rollout", "`xcecli stop` is for a member"),
        ("kill g1.rollout[1]", "`xcecli drain`"),
        ("stop g1", "`xcecli suspend` is for a group"),
        ("fail g1.actor", "a group"),
    ],
)
def test_a_name_of_the_wrong_kind_is_told_what_is_there_for_it(run: Run, client: FakeClient, words: str, said: str) -> None:
    assert said in run(*words.split(), exit_code=2)
    assert client.done == []


@pytest.mark.parametrize("words", ["rollout", "rollout=", "rollout=x", "rollout=-1", "=3", "rollout=1 rollout=2", "rollout=٣"])
def test_targets_that_are_none_are_named(run: Run, client: FakeClient, words: str) -> None:
    assert "member=N, each member once" in run("scale", "g1", *words.split(), raises=SpecError)
    assert client.done == []


def test_a_timeout_that_is_none_is_named(run: Run) -> None:
    assert "a duration" in run("scale", "g1", "rollout=1", "--timeout", "soon", raises=SpecError)


def test_a_document_is_submitted(run: Run, client: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: hello\njob: {command: [echo, hi]}\n")
    assert run("submit", str(file), "--delegation", "xcd1.a", "--delegation", "xcd1.b") == "Job <g10> is submitted.\n"
    what, spec, delegation = client.done[0]
    assert (what, spec.name, delegation) == ("submit", "hello", ("xcd1.a", "xcd1.b"))
    assert spec.members["main"].cwd == str(Path.cwd())


def test_a_coordinator_is_not_left_out_in_silence(run: Run, client: FakeClient, tmp_path: Path) -> None:
    from gangflow.cli.sources import read
    from gangflow.specs.document import dump

    file = tmp_path / "grpo.yaml"
    file.write_text(dump(read("grpo", ["preset=smoke"]).group))
    assert "gangflow run FILE --address" in run("submit", str(file), raises=SpecError)
    assert client.done == []


def test_a_claim_is_made_from_a_document(run: Run, client: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "claim.yaml"
    file.write_text("name: data\nprovider: directory\n")
    assert run("claim", "create", str(file)) == "Claim <data> is created.\n"
    assert client.done[0][1].name == "data"
    assert "a text file that can be read" in run("claim", "create", str(tmp_path / "none"), raises=SpecError)


def test_lsfs_own_names_do_the_same(run: Run, client: FakeClient) -> None:
    run("bstop", "g1")
    run("bkill", "g1")
    run("hclose", "h0")
    assert [each[0] for each in client.done] == ["suspend", "cancel", "close_host"]
    assert {"bsub", "bstop", "bresume", "bkill", "brequeue", "bresize", "hclose", "hopen"} == set(ALIASES)


# --- the rest ---------------------------------------------------------------------------------------------------------


def test_what_is_not_part_of_this_version_is_refused(run: Run) -> None:
    assert "planning before submission is not part of this version" in run("plan", "file.yaml", exit_code=2)


def test_errors_are_one_message_and_an_exit_code(client: FakeClient, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["xcecli", "hosts", "h9"])
    with pytest.raises(SystemExit) as end:
        xcecli.main()
    assert end.value.code == 10
    assert capsys.readouterr().err.startswith("no host 'h9'\n→ ")


def test_xcecli_starts_without_the_servers_libraries() -> None:
    import subprocess
    import sys

    heavy = ("fastapi", "httpx", "ray", "numpy")
    code = f"import sys, gangflow.cli.xcecli; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
