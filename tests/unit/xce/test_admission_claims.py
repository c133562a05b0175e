"""Claims at admission: what providers accept, what this controller has, and which claims become one for each slot."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.errors import Problem, SpecError
from gangflow.specs.claims import Claim, StandaloneClaim
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, ReplicaSet
from gangflow.xce.admission import admit
from gangflow.xce.admission_claims import standalone_plan
from gangflow.xce.core.plan import Access, ClaimPlan
from gangflow.xce.providers.registry import ProviderBroken
from gangflow.xce.providers.rules import BuiltIn, Parameter, ProviderRules

MODEL = {"source": "/models/m", "sha256": "0" * 64}


def group(*claims: Claim, own: tuple[Claim, ...] = ()) -> CoStartGroup:
    return CoStartGroup("g", {"actor": Job(["a"]), "rollout": ReplicaSet(["r"], claims=own)}, claims=claims)


def problem(*claims: Claim, **more: Any) -> Problem:
    with pytest.raises(SpecError) as caught:
        admit(group(*claims), **more)
    (one,) = caught.value.problems
    return one


@pytest.mark.parametrize(
    ("claim", "path", "value", "expected", "nearest"),
    [
        (Claim("a", provider="directry"), "provider", "'directry'", "directory, command, model", "directory"),
        (Claim("a", parameters={"pth": "/x"}), "parameters.pth", "'/x'", "a parameter of directory: path", "path"),
        (Claim("a", parameters={"path": "x"}), "parameters.path", "'x'", "an absolute path", ""),
        (Claim("a", provider="command"), "parameters.script", "", "command needs it", ""),
        (Claim("a", provider="command", parameters={"script": "make.sh"}), "parameters.script", "'make.sh'", "absolute", ""),
        (Claim("a", provider="model", parameters={"source": "/m"}), "parameters.sha256", "", "64 hexadecimal", ""),
        (
            Claim("a", provider="model", parameters={**MODEL, "source": "hf://x"}),
            "parameters.source",
            "'hf://x'",
            "file://",
            "",
        ),
        (
            Claim("a", provider="model", parameters={**MODEL, "sha256": "0" * 63}),
            "parameters.sha256",
            "'0",
            "64 hexadecimal",
            "",
        ),
        (Claim("a", provider="model", parameters={**MODEL, "size": "much"}), "parameters.size", "'much'", "14GiB", ""),
        (Claim("a", provider="model", parameters=MODEL, retain=True), "retain", "true", "hosts of the slots only", ""),
    ],
)
def test_what_a_provider_does_not_accept_is_refused_by_path(
    claim: Claim, path: str, value: str, expected: str, nearest: str
) -> None:
    found = problem(claim)
    assert found.path == f"claims[0].{path}"
    assert found.value.startswith(value)
    assert expected in found.expected
    assert found.nearest == nearest


def test_what_a_provider_accepts_passes() -> None:
    plan = admit(
        group(
            Claim("a", provider="command", parameters={"script": "/opt/x", "size": "1", "anything": "else"}),
            Claim("b", parameters={"path": "/scratch"}, after="a"),
        )
    )
    assert [(one.name, one.scope, one.after) for one in plan.claims] == [("a", "", ()), ("b", "", ("a",))]


def test_a_groups_model_is_made_for_each_slot_of_every_member() -> None:
    """It exists on the hosts of a slot only."""
    claim = Claim("m", provider="model", parameters={**MODEL, "source": "file:///models/m", "size": "14GiB"}, after="x")
    plan = admit(group(Claim("x"), claim, own=(Claim("own", after="m"),)))
    assert [(one.name, one.scope, one.after) for one in plan.claims] == [
        ("x", "", ()),
        ("m", "actor", ("x",)),
        ("m", "rollout", ("x",)),
        ("own", "rollout", ("m",)),
    ]
    found = problem(Claim("m", provider="model", parameters=MODEL), Claim("late", after="m"))
    assert found.path == "claims[1].after[0]"
    assert "m is made for each slot" in found.expected


def test_standalone_claims_are_used_by_those_who_may_see_them() -> None:
    """An unknown one is refused with the nearest that the submitter may use."""
    uses = Claim("data", uses="dataset", access="exclusive")
    assert admit(group(uses)).claims == (ClaimPlan("data", uses="dataset", access=Access.EXCLUSIVE),)
    assert admit(group(uses), claims=["dataset"]).claims[0].uses == "dataset"
    found = problem(uses, claims=["data-set", "weights"])
    assert (found.path, found.nearest) == ("claims[0].uses", "data-set")
    assert "data-set, weights" in found.expected
    assert "there is none" in problem(uses, claims=[]).expected


def test_a_standalone_claim_needs_a_provider_that_serves_every_host() -> None:
    spec = StandaloneClaim("dataset", parameters={"path": "/x"}, timeout="5s")
    assert standalone_plan(spec) == ClaimPlan("dataset", timeout_ms=5_000, parameters=(("path", "/x"),))
    for bad, path in (
        (StandaloneClaim("d", provider="model", parameters=MODEL), "provider"),
        (StandaloneClaim("d", provider="nfs"), "provider"),
        (StandaloneClaim("d", parameters={"path": "x"}), "parameters.path"),
    ):
        with pytest.raises(SpecError) as caught:
            standalone_plan(bad)
        assert [one.path for one in caught.value.problems] == [path]


class More(BuiltIn):
    """A controller with two providers more, of which one cannot be loaded."""

    def names(self) -> tuple[str, ...]:
        return (*super().names(), "nfs", "broken")

    def rules(self, name: str) -> ProviderRules:
        if name == "broken":
            raise ProviderBroken("broken", "ImportError: no module")
        if name == "nfs":
            return ProviderRules((Parameter("export", "an export", lambda text: ":" in text, required=True),))
        return super().rules(name)


def test_providers_of_the_controllers_own_are_known_with_their_rules() -> None:
    assert admit(group(Claim("a", provider="nfs", parameters={"export": "h:/x"})), providers=More()).claims[0].provider == "nfs"
    found = problem(Claim("a", provider="nfs", parameters={"export": "x"}), providers=More())
    assert (found.path, found.expected) == ("claims[0].parameters.export", "an export")
    assert problem(Claim("a", provider="nfz"), providers=More()).nearest == "nfs"
    found = problem(Claim("a", provider="broken"), providers=More())
    assert found.path == "claims[0].provider"
    assert "ImportError: no module" in found.expected
