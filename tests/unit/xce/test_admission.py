"""Admission: a spec becomes a plan of integers, with the default rules behind the user's own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.specs import (
    Claim,
    ClusterSpec,
    CoStartGroup,
    ExecProbe,
    FailureMatch,
    FailureRule,
    FileProbe,
    HostSpec,
    HttpProbe,
    Job,
    Pack,
    Placement,
    ReplicaSet,
    TcpProbe,
    validate,
)
from gangflow.specs.resreq import render
from gangflow.xce.admission import ClusterDefaults, admit, requirement
from gangflow.xce.core.plan import (
    Action,
    BackoffPlan,
    Cause,
    ClaimPlan,
    ExclusionPlan,
    MemberKind,
    Per,
    ProbeKind,
    ProbePlan,
    RatioPlan,
    RulePlan,
    ScalePlan,
    TaskTerm,
    Use,
)
from gangflow.xce.core.plan import (
    Pack as PackPlan,
)
from gangflow.xce.core.scale_rules import gpus_of

CLUSTER = ClusterSpec(
    "c",
    levels=["block", "switch"],
    hosts=[HostSpec("h[0-3]", cpu=4, counters={"licence": 2}, domains={"block": "b", "switch": "s"})],
)


def terms(**fields: Any) -> tuple[TaskTerm, ...]:
    return admit(CoStartGroup("g", {"a": Job(["x"], **fields)}), CLUSTER).members[0].terms


def test_resources_are_per_task_and_integers() -> None:
    uses = (Use("cpu", 500), Use("gpus", 2_000), Use("mem", 1_024), Use("licence", 1))
    resources = {"cpu": 0.5, "gpus": 2, "mem": "1GiB", "counters": {"licence": 1}}
    assert terms(tasks=3, resources=resources) == (TaskTerm(3, uses),)
    assert terms() == (TaskTerm(1),)
    assert terms(resources={"cpu": 0, "gpus": 0}) == (TaskTerm(1),)


def test_a_resreq_is_terms_in_order() -> None:
    text = (
        "1*{select[big && mem > 100] span[hosts=1] rusage[mem=2GB/host]}"
        "+4*{order[-mem:cpu] span[ptile=2] rusage[gpus=0.5,licence=1/job]}"
    )
    assert terms(resreq=text) == (
        TaskTerm(1, (Use("mem", 2_048, Per.HOST),), "big&&mem>100", (), one_host=True),
        TaskTerm(4, (Use("gpus", 500), Use("licence", 1, Per.JOB)), "", ("-mem", "cpu"), ptile=2),
    )
    assert terms(resreq="span[hosts=-1]", tasks=2) == (TaskTerm(2),)


def test_a_value_without_a_per_follows_the_cluster() -> None:
    group = CoStartGroup("g", {"a": Job(["x"], resreq="rusage[mem=1:cpu=1/task]"), "b": Job(["x"], resources={"cpu": 1})})
    plan = admit(group, ClusterDefaults(reserve_per="host", unit_for_limits="GB"))
    assert plan.members[0].terms[0].uses == (Use("mem", 1_024, Per.HOST), Use("cpu", 1_000, Per.TASK))
    assert plan.members[1].terms[0].uses == (Use("cpu", 1_000, Per.TASK),)
    assert render(requirement(group.members["a"], ClusterDefaults())) == "rusage[mem=1MB/task:cpu=1/task]"


def test_every_field_of_a_group_arrives() -> None:
    group = CoStartGroup(
        "g",
        {
            "job": Job(
                ["a", "b"],
                environment={"A": "1"},
                cwd="/w",
                primary=False,
                ready_timeout="1m",
                termination_grace="2s",
                pack=Pack("switch"),
                pack_slot=Pack("block", required=True),
                claims=[Claim("scratch")],
            ),
            "set": ReplicaSet(
                ["c"],
                replicas=3,
                min_replicas=1,
                max_replicas=5,
                ports=["http", "p"],
                ready=HttpProbe("http", "/health", delay="1s", period="2s", timeout="3s", failures=4, successes=5),
                live=TcpProbe("p"),
            ),
        },
        priority=70,
        environment={"E": "x"},
        claims=[Claim("ckpt", retain=True, timeout="5s", parameters={"path": "/x"})],
        placement=Placement(pack=Pack("block", required=True)),
        barrier={
            "timeout": "1m",
            "start_timeout": "2m",
            "max_attempts": 7,
            "backoff": {"initial": "2s", "factor": 1.5, "max": "4s"},
        },
        recovery={"timeout": "3m"},
        termination_delay="9s",
    )
    plan = admit(group, CLUSTER)
    job, service = plan.members
    assert (job.name, job.kind, job.command, job.environment, job.cwd) == (
        "job",
        MemberKind.JOB,
        ("a", "b"),
        (("A", "1"),),
        "/w",
    )
    assert (job.primary, job.ready_timeout_ms, job.grace_ms) == (False, 60_000, 2_000)
    assert (job.pack, job.pack_slot) == (PackPlan("switch"), PackPlan("block", required=True))
    assert (job.replicas, job.min_replicas, job.max_replicas) == (1, 1, 1)
    assert (service.kind, service.replicas, service.min_replicas, service.max_replicas) == (MemberKind.REPLICA_SET, 3, 1, 5)
    assert (service.primary, service.ports) == (False, ("http", "p"))
    assert service.ready == ProbePlan(ProbeKind.HTTP, "http", "/health", (), 1_000, 2_000, 3_000, 4, 5)
    assert service.live == ProbePlan(ProbeKind.TCP, "p", period_ms=500, successes=2)
    assert plan.claims == (
        ClaimPlan("ckpt", retain=True, timeout_ms=5_000, parameters=(("path", "/x"),)),
        ClaimPlan("scratch", scope="job"),
    )
    assert (plan.barrier.timeout_ms, plan.barrier.start_timeout_ms, plan.barrier.max_attempts) == (60_000, 120_000, 7)
    assert plan.barrier.backoff == BackoffPlan(2_000, 1_500, 4_000)
    assert (plan.pack, plan.priority, plan.environment) == (PackPlan("block", required=True), 70, (("E", "x"),))
    assert (plan.termination_delay_ms, plan.recovery_timeout_ms) == (9_000, 180_000)
    assert validate(CoStartGroup, json.loads(plan.document)) == group


def test_owners_come_down_from_the_group() -> None:
    members = {"a": Job(["x"], owner="eve"), "b": Job(["x"])}
    plan = admit(CoStartGroup("g", members, owner="ann"), owner="whoever")
    assert (plan.owner, [member.owner for member in plan.members]) == ("ann", ["eve", "ann"])
    plan = admit(CoStartGroup("g", members), owner="bob")
    assert (plan.owner, [member.owner for member in plan.members]) == ("bob", ["eve", "bob"])


def test_limits_of_a_groups_life_arrive() -> None:
    group = CoStartGroup(
        "g",
        {
            "a": ReplicaSet(
                ["x"], replicas=2, runtime_limit="1h", warning={"before": "1m", "signal": "TERM"}, drain="5s", profile=None
            ),
            "b": ReplicaSet(["y"], replicas=4),
        },
        scale={"max_gpus": 3, "timeout": "2m"},
        ratio={"a": "b", "min": "1/4"},
        recovery={"exclude_host_after": 3, "exclude_hosts_at_most": 2, "exclude_window": "2h"},
    )
    plan = admit(group)
    assert plan.scale == ScalePlan((RatioPlan("a", "b", (1, 4)),), 3_000, 120_000)
    assert plan.exclusion == ExclusionPlan(3, 7_200_000, 2)
    member = plan.member("a")
    assert (member.runtime_limit_ms, member.warn_before_ms, member.warn_signal, member.drain_ms) == (
        3_600_000,
        60_000,
        15,
        5_000,
    )
    other = plan.member("b")
    assert (other.runtime_limit_ms, other.warn_before_ms, other.warn_signal, other.drain_ms) == (0, 0, 0, 0)
    assert not plan.plain


def test_a_plain_job_is_a_group_of_one_with_its_own_paths() -> None:
    plan = admit(CoStartGroup.of_one("t", Job(["x"], tasks=2)), CLUSTER)
    assert (plan.plain, [member.name for member in plan.members], plan.members[0].tasks) == (True, ["main"], 2)
    assert json.loads(plan.document) == {"name": "t", "job": {"command": ["x"], "tasks": 2}}
    with pytest.raises(SpecError) as caught:
        admit(CoStartGroup.of_one("t", Job(["x"], pack=Pack("swich"), resreq="rusage[lcence=1]", profile="p")), CLUSTER)
    assert [problem.path for problem in caught.value.problems] == ["job.pack.level", "job.profile", "job.resreq"]


def test_the_first_targets_keep_the_budget_of_gpus() -> None:
    """What is asked for per host is counted for the fewest hosts that there can be."""
    compound = "1*{span[hosts=1] rusage[gpus=2/host]}+4*{span[ptile=2] rusage[gpus=1/host]}+2*{rusage[gpus=0.5/task]}"
    members = {"a": Job(["x"], resreq=compound), "b": ReplicaSet(["y"], replicas=3, resources={"gpus": 1})}
    plan = admit(CoStartGroup("g", members, scale={"max_gpus": 8}))
    assert [gpus_of(member) for member in plan.members] == [5_000, 1_000]
    with pytest.raises(SpecError, match=r"scale.max_gpus: expected at least the 8 GPUs .*: a 5, b 3 \(got 7\)"):
        admit(CoStartGroup("g", members, scale={"max_gpus": 7}))


@pytest.mark.parametrize(
    ("probe", "plan"),
    [
        (ExecProbe(["t", "-x"]), ProbePlan(ProbeKind.EXEC, command=("t", "-x"), period_ms=500, successes=2)),
        (FileProbe("done"), ProbePlan(ProbeKind.FILE, target="done", period_ms=500, successes=2)),
    ],
)
def test_probes_arrive(probe: Any, plan: ProbePlan) -> None:
    assert admit(CoStartGroup("g", {"a": Job(["x"], ready=probe)})).members[0].ready == plan


def test_rules_are_members_first_then_the_group_s_then_the_defaults() -> None:
    own = FailureRule(
        "restart_role",
        match=FailureMatch(slot=1, cause=["app_exit"], exit_codes=[3]),
        max_restarts=2,
        window="1m",
        max_elapsed="1h",
        backoff={"initial": "2s", "factor": 3, "max": "9s"},
        floor=1,
        floor_grace="5s",
        count_machine_losses=True,
        then="restart_group",
    )
    group = CoStartGroup(
        "g",
        {"a": Job(["x"]), "r": ReplicaSet(["y"], replicas=3, min_replicas=2, on_failure=[own])},
        failure=[FailureRule("tolerate", match=FailureMatch(member="a")), FailureRule("restart_group")],
    )
    assert admit(group).rules == (
        RulePlan(
            Action.RESTART_ROLE,
            member="r",
            slot=1,
            causes=(Cause.APP_EXIT,),
            exit_codes=(3,),
            max_restarts=2,
            window_ms=60_000,
            max_elapsed_ms=3_600_000,
            backoff=BackoffPlan(2_000, 3_000, 9_000),
            floor=1,
            floor_grace_ms=5_000,
            count_machine_losses=True,
            then=Action.RESTART_GROUP,
        ),
        RulePlan(Action.TOLERATE, member="a"),
        RulePlan(Action.RESTART_GROUP),
        # The defaults of a job: machine losses 3 times an hour, anything else fails the group …
        RulePlan(
            Action.RESTART_MEMBER,
            member="a",
            causes=(Cause.HOST_LOST, Cause.AGENT_LOST, Cause.DRAINED),
            max_restarts=3,
            count_machine_losses=True,
        ),
        RulePlan(Action.FAIL_GROUP, member="a"),
        # … and of a replica set: 5 an hour, then down to its minimum.
        RulePlan(Action.RESTART_MEMBER, member="r", max_restarts=5, floor=2, then=Action.TOLERATE),
    )


@pytest.mark.parametrize(
    ("group", "path", "nearest"),
    [
        (CoStartGroup("g", {"a": Job(["x"])}, placement=Placement(pack=Pack("swich"))), "placement.pack.level", "switch"),
        (CoStartGroup("g", {"a": Job(["x"], pack=Pack("blok"))}), "members.a.job.pack.level", "block"),
        (CoStartGroup("g", {"a": ReplicaSet(["x"], pack_slot=Pack("nvlink"))}), "members.a.replica_set.pack_slot.level", ""),
        (CoStartGroup("g", {"a": Job(["x"], resreq="rusage[license=1]")}), "members.a.job.resreq", "licence"),
        (
            CoStartGroup("g", {"a": Job(["x"], resources={"counters": {"lcence": 1}})}),
            "members.a.job.resources.counters.lcence",
            "licence",
        ),
    ],
)
def test_names_that_the_cluster_does_not_have_are_refused(group: CoStartGroup, path: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        admit(group, CLUSTER)
    assert [(problem.path, problem.nearest) for problem in caught.value.problems] == [(path, nearest)]


def test_counters_are_not_checked_where_the_cluster_is_not_described() -> None:
    assert admit(CoStartGroup("g", {"a": Job(["x"], resreq="rusage[license=1]")})).members[0].terms[0].uses == (
        Use("license", 1),
    )
