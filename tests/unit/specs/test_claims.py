"""Claims in specs: standalone ones, those that use them, the order in which they are made; nothing waits for itself."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.errors import Problem, SpecError
from gangflow.specs.claims import Claim, Needs, StandaloneClaim
from gangflow.specs.document import dump, load, load_claim, load_cluster, validate
from gangflow.specs.group import CoStartGroup


def group(
    claims: list[dict[str, Any]] | None = None, own: list[dict[str, Any]] | None = None, **rollout: Any
) -> dict[str, Any]:
    """A group with claims of its own, and some of its rollout's slots."""
    return {
        "name": "g",
        "claims": claims or [],
        "members": {
            "actor": {"job": {"command": ["a"]}},
            "rollout": {"replica_set": {"command": ["r"], "claims": own or [], **rollout}},
        },
    }


def faults(document: dict[str, Any]) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        validate(CoStartGroup, document)
    return list(caught.value.problems)


def only(document: dict[str, Any]) -> tuple[str, str, str, str]:
    """The one problem: path, value, expected, nearest."""
    (one,) = faults(document)
    return one.path, one.value, one.expected, one.nearest


@pytest.mark.parametrize(("when", "step"), [("started", "member rollout running"), ("completed", "member rollout finished")])
def test_a_claim_that_waits_for_a_start_names_the_cycle(when: str, step: str) -> None:
    """Scenario 72, Scenario 63: the barrier waits for the claim, so neither "started" nor "completed" can come before it."""
    path, value, expected, _ = only(group([{"name": "ckpt", "needs": {"member": "rollout", "when": when}}]))
    assert (path, value) == ("claims[0].needs[0].when", f"'{when}'")
    assert expected.endswith(f": claim ckpt → {step} → the barrier → claim ckpt")


def test_a_claim_that_needs_members_placed_is_satisfied_by_placement() -> None:
    """Scenario 72: "needs all members placed" is no circular wait: claims are made after the placement anyway."""
    needs = [{"member": "rollout"}, {"member": "actor", "when": "placed"}]
    made = validate(CoStartGroup, group([{"name": "ckpt", "needs": needs}], [{"name": "cache", "needs": {"member": "actor"}}]))
    assert made.claims[0].needs == (Needs("rollout"), Needs("actor"))


def test_only_what_must_be_placed_before_the_start_can_be_needed() -> None:
    document = group([{"name": "ckpt", "needs": {"member": "rollout"}}], replicas=2, min_replicas=0)
    assert only(document)[0] == "claims[0].needs[0].member"
    path, _, expected, near = only(group([{"name": "ckpt", "needs": {"member": "rolout"}}]))
    assert (path, expected, near) == ("claims[0].needs[0].member", "a member of the group: actor, rollout", "rollout")


def test_claims_after_one_another_may_not_form_a_cycle() -> None:
    """Scenario 72: the whole cycle is named, once."""
    claims = [
        {"name": "a", "after": ["b"]},
        {"name": "b", "after": ["c", "d"]},
        {"name": "c", "after": "a"},
        {"name": "d"},
    ]
    assert only(group(claims))[:3] == ("claims[0].after", "'b'", "no cycle: claim a → claim b → claim c → claim a")
    assert only(group([{"name": "a", "after": "a"}]))[2] == "no cycle: claim a → claim a"
    found = faults(group([{"name": "x"}], [{"name": "p", "after": ["q", "x"]}, {"name": "q", "after": ["p"]}]))
    assert [one.path for one in found] == ["members.rollout.replica_set.claims[0].after"]
    assert found[0].expected == "no cycle: claim p → claim q → claim p"


def test_after_names_a_claim_that_is_there() -> None:
    path, _, expected, near = only(group([{"name": "weights"}, {"name": "cache", "after": ["wieghts"]}]))
    assert (path, expected, near) == ("claims[1].after[0]", "a claim that it can be made after: weights", "weights")
    # A slot's claim may come after the group's; a group's after a slot's would be after which slot's?
    validate(CoStartGroup, group([{"name": "weights"}], [{"name": "cache", "after": "weights"}]))
    assert only(group([{"name": "weights", "after": "cache"}], [{"name": "cache"}]))[0] == "claims[0].after[0]"


def test_a_standalone_claim_is_used_by_name_and_made_by_nobody_else() -> None:
    made = validate(CoStartGroup, group([{"name": "data", "uses": "dataset", "access": "exclusive"}]))
    assert (made.claims[0].uses, made.claims[0].access) == ("dataset", "exclusive")
    assert load(dump(made)) == made
    beside = {"provider": "model", "retain": True, "timeout": "5s", "parameters": {"path": "/x"}, "needs": {"member": "actor"}}
    found = faults(group([{"name": "data", "uses": "dataset", **beside}]))
    assert sorted(one.path for one in found) == sorted(f"claims[0].{key}" for key in beside)
    assert only(group([{"name": "data", "access": "exclusive"}]))[:2] == ("claims[0].access", "'exclusive'")
    assert only(group([{"name": "data", "uses": "data set"}]))[0] == "claims[0].uses"
    twice = group([{"name": "data", "uses": "dataset"}], [{"name": "more", "uses": "dataset", "access": "exclusive"}])
    assert only(twice)[:3] == (
        "members.rollout.replica_set.claims[0].uses",
        "'dataset'",
        "another claim: the group uses this one as data",
    )


def test_words_for_the_use_of_a_standalone_claim_that_we_do_not_have_say_where_it_goes() -> None:
    for key in ("standalone", "claim", "exclusive"):
        assert "here: it goes into" in only(group([{"name": "data", key: True}]))[2]


def test_a_standalone_claim_is_a_document() -> None:
    claim = load_claim("name: dataset\nprovider: command\nparameters: {script: /opt/make}\ntimeout: 2m\nowner: ada\n")
    assert claim == StandaloneClaim(
        "dataset", provider="command", parameters={"script": "/opt/make"}, timeout="2m", owner="ada"
    )
    assert load(dump(claim), StandaloneClaim) == claim
    for document, path in (
        ("name: g1-data", "name"),
        ("name: Data", "name"),
        ("name: d\nretain: true", "retain"),
        ("name: d\ntimeout: 0s", "timeout"),
        ("{}", "name"),
    ):
        with pytest.raises(SpecError) as caught:
            load_claim(document)
        assert [problem.path for problem in caught.value.problems] == [path], document


def test_members_that_share_a_standalone_claim_use_it_in_one_way() -> None:
    def both(access: str) -> dict[str, object]:
        document = group([], [{"name": "data", "uses": "dataset", "access": "exclusive"}])
        document["members"]["actor"]["job"]["claims"] = [{"name": "data", "uses": "dataset", "access": access}]
        return document

    validate(CoStartGroup, both("exclusive"))
    path, value, expected, _ = only(both("shared"))
    assert (path, value) == ("members.rollout.replica_set.claims[0].access", "'exclusive'")
    assert expected == "shared, as elsewhere in the group: it holds dataset once"


def test_python_and_documents_mean_the_same() -> None:
    claim = Claim("cache", provider="model", after="weights", needs=Needs("actor"), parameters={"source": "/m"})
    assert validate(Claim, {"name": "cache", "provider": "model", "after": ["weights"], "needs": [{"member": "actor"}],
                            "parameters": {"source": "/m"}}) == claim  # fmt: skip


def test_a_cluster_says_where_models_are_kept_and_how_many() -> None:
    cluster = load_cluster("hosts: [{name: h}]\ncache: {path: /fast/models, size: 500GiB}\n")
    assert (cluster.cache.path, cluster.cache.size) == ("/fast/models", 500 * 1024)
    assert load_cluster("hosts: [{name: h}]").cache.path is None
    for text, path in (("{path: models}", "cache.path"), ("{size: 0}", "cache.size"), ("{sise: 1GiB}", "cache.sise")):
        with pytest.raises(SpecError) as caught:
            load_cluster(f"hosts: [{{name: h}}]\ncache: {text}\n")
        assert [problem.path for problem in caught.value.problems] == [path]
