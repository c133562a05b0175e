"""A cluster of several owners: alice's group with a member of bob's, carol's group that waits behind it, claims of each."""

from __future__ import annotations

from dataclasses import replace

from gangflow.xce.core.plan import Access, ClaimPlan
from gangflow.xce.core.state import Change, ChangeState, Claim, ClaimState, GroupState, State, TaskKey
from tests.unit.xce.rest.fake import PLAN, pending, running, state_of

NOW = 7_000
LATER = NOW + 1_000
ACTOR = TaskKey("g1", 1, "actor", 0, 1, 0)
STRANGER = TaskKey("g2", 1, "actor", 0, 1, 0)


def owned() -> State:
    """g1 is alice's (its rollout bob's) and uses alice's claim `data`; g2, called `other`, is carol's and waits behind g1."""
    base = state_of()
    actor, rollout = PLAN.members
    plan = replace(
        PLAN,
        owner="alice",
        members=(replace(actor, owner="alice"), replace(rollout, owner="bob")),
        claims=(*PLAN.claims, ClaimPlan("data", uses="data", access=Access.SHARED), ClaimPlan("cache", scope="rollout")),
    )
    change = Change(
        "c1", ChangeState.DONE, (("actor", 1), ("rollout", 2)), (("actor", 1), ("rollout", 1)), ups=(("rollout", 1),),
        accepted_ms=1_700, ended_ms=1_800,
    )  # fmt: skip
    first = replace(
        running(), plan=plan, changes=(change,), next_change=2, excluded=("h7",), message="actor[0] said so",
        tolerated=(("actor", 0),), stopped=("actor",),
    )  # fmt: skip
    second = pending("g2", "other")
    plan = replace(second.plan, owner="carol", members=(replace(actor, owner="carol"),))
    second = replace(second, plan=plan, slots={("actor", 0): second.slots["actor", 0]})
    ended = replace(second, id="g3", plan=replace(plan, name="grpo"), state=GroupState.CANCELLED, ended_ms=500, reason=None)
    claims = {
        "g1/ckpt": Claim("g1/ckpt", "g1", PLAN.claims[0], ClaimState.READY, path="/claims/1"),
        "g1/rollout[0]/cache": Claim(
            "g1/rollout[0]/cache", "g1", ClaimPlan("cache", scope="rollout"), ClaimState.READY, member="rollout", index=0
        ),
        "data": Claim("data", "", ClaimPlan("data"), ClaimState.READY, owner="alice", path="/claims/data"),
        "secret": Claim("secret", "", ClaimPlan("secret"), ClaimState.READY, owner="carol"),
    }
    return replace(base, groups={"g1": first, "g2": second, "g3": ended}, claims=claims)
