"""Bounds of a group's life: runtime limits with their warning, targets, owners, exclusion of hosts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.specs import (
    Backoff,
    Cache,
    Claim,
    CoStartGroup,
    FailureRule,
    Job,
    Ratio,
    Recovery,
    ReplicaSet,
    RunWarning,
    Scale,
    dump,
    load,
    validate,
)
from gangflow.specs.document import plain
from gangflow.specs.failure import FailureMatch
from gangflow.specs.journal import JournalSpec
from gangflow.specs.overrides import apply
from gangflow.specs.scale import proportion, render_proportion

GROUP = CoStartGroup(
    "pd",
    {"prefill": ReplicaSet(["p"], replicas=2, max_replicas=8), "decode": ReplicaSet(["d"], replicas=4, max_replicas=16)},
    owner="ann",
    scale=Scale(max_gpus=64, timeout="5m"),
    ratio=Ratio("prefill", "decode", min="1/4", max="1/2"),
    recovery={"exclude_host_after": 3, "exclude_hosts_at_most": 2, "exclude_window": "2h"},
)


def test_a_ratio_is_written_as_in_the_design() -> None:
    document = {**plain(GROUP), "ratio": {"prefill": "decode", "min": "1/4", "max": 0.5}}
    assert validate(CoStartGroup, document) == GROUP
    assert plain(GROUP)["ratio"] == [{"member": "prefill", "to": "decode", "min": "1/4", "max": "1/2"}]
    assert load(dump(GROUP)) == GROUP
    several = {**document, "ratio": [document["ratio"], {"member": "decode", "to": "prefill", "max": 4}]}
    assert len(validate(CoStartGroup, several).ratio) == 2


def test_a_proportion_is_an_exact_reduced_fraction() -> None:
    assert [proportion(value) for value in ("2/8", 0.1, 3, "1.5", (2, 4))] == [(1, 4), (1, 10), (3, 1), (3, 2), (1, 2)]
    assert [render_proportion(value) for value in ((1, 4), (3, 1), (0, 1))] == ["1/4", 3, 0]
    for wrong in ("1/0", "-1/2", "x", True, None, 2_000_000, "1/2000000", float("nan"), "1" * 40):
        with pytest.raises(ValueError, match="a proportion"):
            proportion(wrong)


def test_a_ratio_holds_exactly_at_its_ends() -> None:
    ratio = Ratio("a", "b", min="1/4", max="1/2")
    assert [ratio.holds(a, 4) for a in (0, 1, 2, 3)] == [False, True, True, False]
    assert [ratio.holds(0, 0), ratio.holds(1, 0)] == [True, False]
    assert Ratio("a", "b", min=1).holds(5, 0)


@pytest.mark.parametrize(
    ("change", "path", "expected", "nearest"),
    [
        ({"ratio": {"prefill": "decode"}}, "ratio[0].min", "a `min` or a `max`", ""),
        ({"ratio": {"prefil": "decode", "min": 0}}, "ratio[0].member", "a replica set of the group", "prefill"),
        ({"ratio": {"prefill": "prefill", "min": 1}}, "ratio[0].to", "another member", ""),
        ({"ratio": {"prefill": "decode", "min": "1/2", "max": "1/4"}}, "ratio[0].max", "at least `min`, 1/2", ""),
        ({"ratio": {"prefill": "decode", "max": 0}}, "ratio[0].max", "more than 0", ""),
        ({"ratio": {"prefill": "decode", "min": "a"}}, "ratio[0].min", "a proportion", ""),
        ({"ratio": {"prefill": "decode", "mn": "1/4", "max": 1}}, "ratio[0].mn", "a known key", "min"),
        ({"ratio": {"prefill": "decode", "min": 1}}, "ratio[0]", "1 ≤ prefill/decode", ""),
        ({"ratio": [{"prefill": "decode", "other": "x", "min": 0}]}, "ratio[0].member", "required", ""),
        ({"scale": {"max_gpus": 0}}, "scale.max_gpus", "at least 1", ""),
        ({"scale": {"max_gpu": 1}}, "scale.max_gpu", "a known key", "max_gpus"),
        ({"owner": "an n"}, "owner", "an owner's name", ""),
        ({"recovery": {"exclude_hosts_at_most": 2}}, "recovery.exclude_hosts_at_most", "`exclude_host_after` beside it", ""),
        ({"recovery": {"exclude_host_after": 0}}, "recovery.exclude_host_after", "at least 1", ""),
        ({"exclude_host_after": 2}, "exclude_host_after", "into `recovery`", ""),
        ({"runtime_limit": "1h"}, "runtime_limit", "into a member", ""),
        ({"failure": [{"action": "tolerate", "exclude_host_after": 2}]}, "failure[0].exclude_host_after", "`recovery`", ""),
    ],
)
def test_a_mistake_is_named(change: dict[str, Any], path: str, expected: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        validate(CoStartGroup, plain(GROUP) | change)
    problem = caught.value.problems[0]
    assert (problem.path, problem.nearest) == (path, nearest)
    assert expected in problem.expected


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        ({"warning": {"before": "1m"}}, "warning", "a `runtime_limit` beside it"),
        ({"warning": {"before": "1h"}, "runtime_limit": "1h"}, "warning.before", "less than `runtime_limit`, 1h"),
        ({"warning": {"before": "1m", "signal": "KILL"}, "runtime_limit": "1h"}, "warning.signal", "a signal"),
        ({"warning": {"before": "1m", "signal": 9}, "runtime_limit": "1h"}, "warning.signal", "a signal"),
        ({"warning": {"signal": "USR1"}, "runtime_limit": "1h"}, "warning.before", "required"),
        ({"runtime_limit": 0}, "runtime_limit", "at least 1ms"),
        ({"ready": {"file": {"path": "x", "period": "5ms"}}}, "ready.file.period", "at least 10ms"),
        ({"drain": "-1s"}, "drain", "a duration"),
        ({"owner": ""}, "owner", "an owner's name"),
        ({"ratio": {}}, "ratio", "as a key of the group"),
    ],
)
def test_a_mistake_in_a_member_is_named(fields: dict[str, Any], path: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        Job(["x"], **fields)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert expected in problem.expected


def test_a_signal_is_kept_under_its_whole_name() -> None:
    assert RunWarning("1m", "usr1") == RunWarning("1m", "SIGUSR1")
    assert RunWarning("1m").signal == "SIGURG"
    job = Job(["x"], runtime_limit="1h", warning={"before": "1m", "signal": "USR2"})
    assert validate(Job, plain(job)) == job


def test_a_warning_may_wait_for_its_profiles_limit() -> None:
    assert Job(["x"], profile="p", warning={"before": "1m"}).runtime_limit is None


def test_overrides_reach_the_new_keys() -> None:
    changes = ("owner=bob", "scale.max_gpus=8", "ratio[0].max=1", "recovery.exclude_host_after=5", "scale.timeout=1h")
    members = (
        "members.decode.replica_set.runtime_limit=2h",
        "members.decode.replica_set.warning.before=1m",
        "members.decode.replica_set.container=i",
        "members.decode.replica_set.container.mounts=[/a]",
        "members.decode.replica_set.profile=p",
        "members.decode.replica_set.drain=30s",
        "members.decode.replica_set.owner=eve",
    )
    group = apply(GROUP, [*changes, *members])
    decode = group.members["decode"]
    assert (group.owner, group.scale, group.ratio[0].max) == ("bob", Scale(max_gpus=8, timeout="1h"), (1, 1))
    assert group.recovery.exclude_host_after == 5
    assert (decode.runtime_limit, decode.warning, decode.drain) == (7_200_000, RunWarning("1m"), 30_000)
    assert (decode.container.image, decode.profile, decode.owner) == ("i", "p", "eve")
    with pytest.raises(SpecError, match="did you mean 'max_gpus'"):
        apply(GROUP, ["scale.max_gpu=1"])


def test_causes_of_limits_and_drains_have_rules() -> None:
    rule = FailureRule("restart_member", match=FailureMatch(cause=["run_limit", "drained"]), max_restarts=1)
    assert rule.match.cause == ("run_limit", "drained")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Backoff(initial="2m", max="90s"), r"max: expected at least `initial`, 2m \(got '90s'\)"),
        (lambda: FailureRule("fail_group", window="90s"), r"window: .* \(got '90s'\)"),
        (lambda: FailureRule("fail_group", floor_grace="90s"), r"floor_grace: .* \(got '90s'\)"),
        (lambda: Recovery(exclude_window="90s"), r"exclude_window: .* \(got '90s'\)"),
        (lambda: Claim("d", uses="e", timeout="90s"), r"timeout: .* \(got '90s'\)"),
        (lambda: JournalSpec(keep="30s"), r"keep: expected at least 1m \(got '30s'\)"),
        (lambda: Cache(size=0), r"size: expected at least 1MiB \(got 0\)"),
        (lambda: RunWarning("1m", "KILL"), r"signal: expected a signal: [^?]*\(got 'KILL'\)$"),
    ],
)
def test_a_quantity_in_a_fault_is_written_as_in_a_document(make: Callable[[], object], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    (problem,) = caught.value.problems
    assert re.search(told, str(problem))
