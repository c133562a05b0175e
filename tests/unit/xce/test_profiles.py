"""What a cluster gives to its members: profiles and a container runtime, merged at admission and shown by `render`."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.specs import (
    ClusterSpec,
    CoStartGroup,
    HostSpec,
    HttpProbe,
    Job,
    Profile,
    ReplicaSet,
    Resources,
    RunWarning,
    dump,
    load,
)
from gangflow.specs.container import ContainerRuntime
from gangflow.specs.profiles import merge
from gangflow.xce.admission import admit
from gangflow.xce.core.plan import ContainerPlan, MemberPlan, ProbeKind, Use
from gangflow.xce.rendered import rendered

RUNTIME = ContainerRuntime(
    ["podman", "run", "--name", "{name}", "{environment}", "{mounts}", "{image}", "{command}"],
    variable=["--env", "{variable}"],
    mount=["--volume", "{source}:{target}"],
)
SERVING = Profile(
    wrapper=["nsys", "profile"],
    environment={"A": "profile", "B": "profile", "C": "profile"},
    resreq="select[big] order[-mem] rusage[cpu=2:mem=8GB]",
    container="vllm:1",
    ready=HttpProbe("http", "/health"),
    live={"tcp": {"port": "http"}},
    ready_timeout="20m",
    termination_grace="30s",
    runtime_limit="2h",
    warning={"before": "5m", "signal": "USR1"},
    drain="1m",
)
CLUSTER = ClusterSpec(
    "c",
    hosts=[HostSpec("h[0-1]", cpu=8, counters={"licence": 2}, attributes={"big": "1"})],
    profiles={"serving": SERVING, "cheap": Profile(resources={"cpu": 1, "counters": {"licence": 1}})},
    container_runtime=RUNTIME,
)


def planned(cluster: ClusterSpec = CLUSTER, environment: dict[str, str] | None = None, **fields: Any) -> MemberPlan:
    """The plan of a replica set with a port, with these fields."""
    member = ReplicaSet(["serve"], **{"profile": "serving", "ports": ["http"], **fields})
    return admit(CoStartGroup("g", {"a": member}, environment=environment or {}), cluster).members[0]


def test_what_the_member_leaves_out_is_the_profiles() -> None:
    plan = planned()
    assert (plan.profile, plan.command) == ("serving", ("nsys", "profile", "serve"))
    assert dict(plan.environment) == {"A": "profile", "B": "profile", "C": "profile"}
    (term,) = plan.terms
    assert (term.select, term.order, term.uses) == ("big", ("-mem",), (Use("cpu", 2_000), Use("mem", 8_192)))
    assert plan.ready is not None and plan.live is not None  # noqa: PT018
    assert (plan.ready.target, plan.live.kind) == ("/health", ProbeKind.TCP)
    assert (plan.ready_timeout_ms, plan.grace_ms, plan.drain_ms) == (1_200_000, 30_000, 60_000)
    assert (plan.runtime_limit_ms, plan.warn_before_ms, plan.warn_signal) == (7_200_000, 300_000, 10)
    assert plan.container == ContainerPlan("vllm:1", RUNTIME.command, RUNTIME.variable, RUNTIME.mount)


def test_what_the_member_gives_wins_also_where_it_is_the_default() -> None:
    """A member that says what would hold without any profile has said it."""
    plan = planned(
        ready_timeout="10m",
        termination_grace="10s",
        drain=0,
        runtime_limit="1h",
        warning=RunWarning("1m", "USR2"),
        container="own:2",
        live={"http": {"port": "http", "path": "/live"}},
    )
    assert (plan.ready_timeout_ms, plan.grace_ms, plan.drain_ms) == (600_000, 10_000, 0)
    assert (plan.runtime_limit_ms, plan.warn_before_ms, plan.warn_signal) == (3_600_000, 60_000, 12)
    assert plan.container is not None
    assert plan.container.image == "own:2"
    assert plan.live is not None
    assert plan.live.target == "/live"


def test_what_was_given_survives_the_document() -> None:
    """It goes to XCE as a document without defaults: what a member said must not be lost on the way."""
    group = CoStartGroup(
        "g", {"a": ReplicaSet(["x"], profile="serving", ports=["http"], ready_timeout="10m", termination_grace="10s", drain=0)}
    )
    assert admit(load(dump(group)), CLUSTER).members == admit(group, CLUSTER).members
    assert admit(group, CLUSTER).members[0].drain_ms == 0


def test_variables_are_defaults_behind_the_groups_and_the_members() -> None:
    plan = planned(environment={"B": "group", "C": "group"}, profile="serving")
    assert dict(plan.environment) == {"A": "profile"}
    member = ReplicaSet(["x"], profile="serving", ports=["http"], environment={"C": "member"})
    group = CoStartGroup("g", {"a": member}, environment={"B": "group", "C": "group"})
    assert dict(admit(group, CLUSTER).members[0].environment) == {"A": "profile", "C": "member"}


@pytest.mark.parametrize(
    ("profile", "member", "merged"),
    [
        # `select` is ANDed, `rusage` overridden per key, other sections are defaults.
        (
            "select[big] rusage[cpu=2:mem=8GB] order[-mem]",
            "select[x||y] rusage[mem=1GB/host] span[hosts=1]",
            "select[big&&(x||y)] order[-mem] rusage[cpu=2:mem=1GB/host] span[hosts=1]",
        ),
        ("select[big] order[-mem]", "select[big] order[cpu]", "select[big] order[cpu]"),
        ("select[a&&b]", "select[b&&c]", "select[a&&b&&c]"),
        ("rusage[gpus=1]", "rusage[ngpus_physical=2]", "rusage[gpus=2]"),
        ("rusage[cpu=1,mem=1]", "rusage[cpu=2:duration=1m]", None),
        (
            "select[big] rusage[cpu=2] span[ptile=2]",
            "1*{select[a] span[hosts=1]}+2*{rusage[cpu=1]}",
            "1*{select[big&&a] rusage[cpu=2] span[hosts=1]}+2*{select[big] rusage[cpu=1] span[ptile=2]}",
        ),
        ("select[big]", "", "select[big]"),
    ],
)
def test_requirements_are_merged(profile: str, member: str, merged: str | None) -> None:
    if merged is None:
        with pytest.raises(SpecError, match="duration"):
            Job(["x"], resreq=member)
        return
    assert merge(Job(["x"], resreq=member), Profile(resreq=profile)).member.resreq == merged


def test_structured_resources_are_merged_per_key() -> None:
    low = Profile(resources={"cpu": 2, "mem": "1GiB", "counters": {"a": 1, "b": 1}})
    both = merge(Job(["x"], resources={"cpu": 0.5, "gpus": 1, "counters": {"b": 2}}), low).member
    assert both.resources == Resources(cpu=0.5, mem="1GiB", gpus=1, counters={"a": 1, "b": 2})
    assert both.resreq is None


def test_the_two_forms_of_a_requirement_merge_into_a_string() -> None:
    """Also a zero overrides."""
    text = Profile(resreq="select[big] rusage[cpu=2:gpus=1]")
    assert merge(Job(["x"], resources={"cpu": 0, "mem": "1GiB"}), text).member.resreq == (
        "select[big] rusage[gpus=1:cpu=0/task:mem=1024MB/task]"
    )
    amounts = Profile(resources={"cpu": 2, "gpus": 0.5})
    assert merge(Job(["x"], resreq="select[big] rusage[cpu=1]"), amounts).member.resreq == (
        "select[big] rusage[gpus=0.5/task:cpu=1]"
    )


def test_rendered_says_what_came_from_where_and_reads_back_as_the_same() -> None:
    member = ReplicaSet(
        ["serve"], profile="serving", ports=["http"], resreq="rusage[cpu=4]", environment={"B": "own"}, drain="5s"
    )
    group = CoStartGroup("g", {"a": member, "b": Job(["train"])}, environment={"C": "group"})
    text, defaults = rendered(group, CLUSTER).split("# Where no rule")
    assert [line.lstrip("# ") for line in defaults.splitlines()[1:]] == [
        "a, anything: restart_member, 5 in 1h, then tolerate while 1 remains, else fail_group",
        "b, host_lost, agent_lost, drained: restart_member, 3 in 1h, then fail_group",
        "b, anything else: fail_group",
    ]
    notes = [line.strip() for line in text.splitlines() if "#" in line]
    assert notes == [
        "# command: member and profile 'serving'",
        "# container: profile 'serving'",
        "# resreq: member and profile 'serving'",
        "# environment: A of profile 'serving'",
        "# ready: profile 'serving'",
        "# live: profile 'serving'",
        "# ready_timeout: profile 'serving'",
        "# termination_grace: profile 'serving'",
        "# runtime_limit: profile 'serving'",
        "# warning: profile 'serving'",
    ]
    for row, line in enumerate(lines := text.splitlines()):
        if "#" in line:  # each comment stands above its key
            assert lines[row + 1].strip().startswith(line.strip()[2:].split(":")[0] + ":")
    assert "select[big] order[-mem] rusage[mem=8192MB/task:cpu=4/task]" in text
    before, after = admit(group, CLUSTER), admit(load(text), CLUSTER)
    assert [m.__class__(**{**_fields(m), "profile": ""}) for m in before.members] == list(after.members)


def _fields(member: MemberPlan) -> dict[str, Any]:
    return {name: getattr(member, name) for name in member.__dataclass_fields__}


@pytest.mark.parametrize(
    ("fields", "path", "expected", "nearest"),
    [
        ({"profile": "servng"}, "members.a.replica_set.profile", "a profile of the cluster: serving, cheap", "serving"),
        ({"ports": []}, "members.a.replica_set.profile", "`ready.http.port` is 'http'", ""),
        ({"ready": {"exec": {"command": ["x"]}}}, "members.a.replica_set.ready", "has no `probe`", ""),
        ({"warning": {"before": "2h"}}, "members.a.replica_set.warning.before", "less than `runtime_limit`, 2h", ""),
        ({"runtime_limit": "1m"}, "members.a.replica_set.profile", "`warning.before` is '5m'", ""),
        ({"warning": {"before": "1m"}}, "members.a.replica_set.warning.signal", "keep SIGURG for themselves", ""),
        ({"cwd": "rel"}, "members.a.replica_set.cwd", "an absolute path", ""),
        ({"profile": "cheap", "resreq": "rusage[licnce=1]"}, "members.a.replica_set.resreq", "a resource", "licence"),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], path: str, expected: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        planned(**fields)
    problem = caught.value.problems[0]
    assert (problem.path, problem.nearest) == (path, nearest)
    assert expected in problem.expected


def test_a_container_needs_a_runtime_that_can_do_what_it_asks() -> None:
    bare = ClusterSpec(hosts=[HostSpec("h")])
    with pytest.raises(SpecError, match=r"members.a.replica_set.container: expected no container.*no `container_runtime`"):
        planned(bare, profile=None, container="i")
    closed = ClusterSpec(hosts=[HostSpec("h")], container_runtime=ContainerRuntime(["run", "{image}", "{command}"]))
    with pytest.raises(SpecError, match=r"container.mounts: expected no mounts"):
        planned(closed, profile=None, container={"image": "i", "mounts": ["/a"]})
    with pytest.raises(SpecError, match=r"members.a.replica_set.profile: expected a profile of the cluster: it has none"):
        planned(bare)


@pytest.mark.parametrize(
    ("profile", "path", "expected"),
    [
        ({"command": ["x"]}, "profiles.p.command", "into the member"),
        ({"ports": ["http"]}, "profiles.p.ports", "into the member"),
        ({"wrapper": "nice -5"}, "profiles.p.wrapper", "a list of words"),
        ({"wrapper": [""]}, "profiles.p.wrapper[0]", "a program"),
        ({"resreq": "2*{a}+1*{b}"}, "profiles.p.resreq", "a simple requirement"),
        ({"resreq": "select[a]", "resources": {"cpu": 1}}, "profiles.p.resreq", "either"),
        ({"resreq": "span[stripe]"}, "profiles.p.resreq", "not enforced"),
        ({"container": "i"}, "profiles.p.container", "no `container_runtime`"),
        ({"runtime_limt": 1}, "profiles.p.runtime_limt", "a known key"),
    ],
)
def test_a_mistake_in_a_profile_is_told_with_the_cluster(profile: dict[str, Any], path: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        ClusterSpec(hosts=[HostSpec("h")], profiles={"p": profile})
    problem = caught.value.problems[0]
    assert problem.path == path
    assert expected in problem.expected


def test_a_cluster_with_profiles_reads_back() -> None:
    assert load(dump(CLUSTER), ClusterSpec) == CLUSTER


def test_a_profiles_probe_that_the_runtime_cannot_ask_is_told_as_the_profiles() -> None:
    runtime = ContainerRuntime(["run", "{image}", "{command}"])
    profiles = {"p": Profile(ready={"exec": {"command": ["x"]}})}
    cluster = ClusterSpec(hosts=[HostSpec("h")], container_runtime=runtime, profiles=profiles)
    with pytest.raises(SpecError) as caught:
        admit(CoStartGroup("g", {"a": Job(["x"], profile="p", container="i")}), cluster)
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("members.a.job.profile", "'p'")
    assert problem.expected.startswith("another profile: this one's `ready` is {'exec': ['x']}, which must be another probe")
