"""`key=value` overrides: what they reach, and how a wrong one is named."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, model_validator

from gangflow.errors import NotYetError, SpecError
from gangflow.specs import Claim, CoStartGroup, FailureRule, HttpProbe, Job, ReplicaSet
from gangflow.specs.overrides import apply, split

GROUP = CoStartGroup(
    "g",
    {
        "actor": Job(["x"], on_failure=[FailureRule("restart_member", max_restarts=2)]),
        "rollout": ReplicaSet(["y"], replicas=2, ports=["http"], ready=HttpProbe("http", "/health", period="2s")),
    },
    claims=[Claim("ckpt", timeout="5s")],
)


class Learning(BaseModel):
    rate: float = 0.1
    steps: int = 5


class Config(BaseModel):
    """A recipe's configuration that ignores unknown keys, as pydantic does by default."""

    model_config = ConfigDict(extra="ignore")

    learning: Learning = Learning(rate=0.7)
    rollouts: int = 2
    hosts: int = 0
    labels: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _derive(cls, data: object) -> object:
        return {"hosts": data.get("rollouts", 2) + 1, **data} if isinstance(data, dict) else data


def test_overrides_reach_into_members_lists_and_unset_parts() -> None:
    group = apply(
        GROUP,
        [
            "members.rollout.replica_set.replicas=6",
            "members.rollout.replica_set.ready.http.failures=9",
            "members.actor.job.on_failure[0].max_restarts=7",
            "members.actor.job.resources.cpu=0.5",
            "barrier.backoff.initial=3s",
            "claims.0.retain=true",
            "environment.MODE='007'",
            "name=other",
        ],
    )
    rollout, actor = group.members["rollout"], group.members["actor"]
    assert isinstance(rollout, ReplicaSet)
    assert (rollout.replicas, rollout.least) == (6, 6)
    assert rollout.ready == HttpProbe("http", "/health", period="2s", failures=9)
    assert actor.on_failure[0].max_restarts == 7
    assert actor.resources is not None
    assert actor.resources.cpu == 500
    assert (group.barrier.backoff.initial, group.barrier.backoff.max) == (3_000, 60_000)
    assert (group.claims[0].retain, group.claims[0].timeout) == (True, 5_000)
    assert group.environment == {"MODE": "007"}
    assert group.name == "other"
    assert GROUP.name == "g"


def test_an_unset_part_keeps_its_own_default() -> None:
    """A nested default that differs from its class's must not be lost by an override beside it."""
    config = apply(Config(), ["learning.steps=9"])
    assert (config.learning.rate, config.learning.steps) == (0.7, 9)


def test_what_is_derived_is_derived_again() -> None:
    assert apply(Config.model_validate({}), ["rollouts=4"]).hosts == 3  # `hosts` was made explicit by the first validation
    assert apply(Config.model_construct(), ["rollouts=4"]).hosts == 5


def test_a_mapping_of_texts_takes_new_keys() -> None:
    assert apply(Config(), ["labels.team=rl"]).labels == {"team": "rl"}


@pytest.mark.parametrize(
    ("override", "path", "nearest"),
    [
        ("barier.timeout=5m", "barier", "barrier"),
        ("barrier.timout=5m", "barrier.timout", "timeout"),
        ("members.rolout.replica_set.replicas=6", "members.rolout", "rollout"),
        ("members.rollout.replica_set.replics=6", "members.rollout.replica_set.replics", "replicas"),
        ("members.rollout.replica_set.replicas=six", "members.rollout.replica_set.replicas", ""),
        ("members.rollout.replicas=6", "members.rollout.replicas", "replica_set.replicas"),
        ("members.rollout.job.tasks=6", "members.rollout.job", ""),
        ("members.actor.jobb.tasks=6", "members.actor.jobb", "job"),
        ("members.rollout.replica_set.ready.port=http", "members.rollout.replica_set.ready.port", "http.port"),
        ("members.rollout.replica_set.live.port=http", "members.rollout.replica_set.live.port", "http.port"),
        ("claims[3].retain=true", "claims[3]", ""),
        ("claims.ckpt.retain=true", "claims.ckpt", ""),
        ("name.first=x", "name", ""),
        ("no-equals", ".", ""),
        ("=5", ".", ""),
        ("a..b=5", ".", ""),
        ("barrier.timeout={", "barrier.timeout", ""),
    ],
)
def test_a_wrong_override_is_named(override: str, path: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        apply(GROUP, [override])
    (problem,) = caught.value.problems
    assert (problem.path, problem.nearest) == (path, nearest)


def test_a_part_of_a_list_is_named_by_its_index() -> None:
    with pytest.raises(SpecError, match=r"claims.ckpt: expected an index below 1 before it, as in claims\[0\] \(got 'ckpt'\)"):
        apply(GROUP, ["claims.ckpt.retain=true"])


def test_a_key_that_the_model_would_ignore_is_refused() -> None:
    with pytest.raises(SpecError, match="did you mean 'rollouts'"):
        apply(Config(), ["rolouts=4"])


def test_what_is_not_enforced_is_refused_as_such() -> None:
    with pytest.raises(NotYetError):
        apply(GROUP, ["members.actor.job.preemptible=true"])


def test_an_override_is_split() -> None:
    assert split("a.b[0].c=5") == (("a", "b", 0, "c"), 5)
    assert split("a=") == (("a",), "")
    assert split("a=x=y") == (("a",), "x=y")
    assert split("a=[1, 2]") == (("a",), [1, 2])
