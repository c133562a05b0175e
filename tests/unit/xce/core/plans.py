"""Plans and hosts for the tests of the core, in few words."""

from __future__ import annotations

from typing import Any

from gangflow.xce.core.plan import (
    Action,
    Cause,
    GroupPlan,
    MemberKind,
    MemberPlan,
    ProbeKind,
    ProbePlan,
    RulePlan,
    TaskTerm,
    Use,
)
from gangflow.xce.core.state import HostFacts

READY = ProbePlan(ProbeKind.HTTP, "http", "/health")
MACHINES = (Cause.HOST_LOST, Cause.AGENT_LOST, Cause.DRAINED)


def job(name: str = "actor", *, tasks: int = 1, cpu: int = 1_000, **more: Any) -> MemberPlan:
    """A primary job of so many tasks."""
    terms = (TaskTerm(count=tasks, uses=(Use("cpu", cpu),)),)
    return MemberPlan(name, MemberKind.JOB, ("run", name), terms=terms, **more)


def replicas(name: str = "rollout", count: int = 2, least: int | None = None, *, cpu: int = 1_000, **more: Any) -> MemberPlan:
    """A replica set with a port and a ready probe."""
    fields: dict[str, Any] = {"ports": ("http",), "ready": READY, **more}
    return MemberPlan(
        name,
        MemberKind.REPLICA_SET,
        ("serve", name),
        terms=(TaskTerm(uses=(Use("cpu", cpu),)),),
        replicas=count,
        min_replicas=count if least is None else least,
        max_replicas=count,
        primary=False,
        **fields,
    )


def defaults(members: tuple[MemberPlan, ...]) -> tuple[RulePlan, ...]:
    """The default rules of design 3.5, as admission appends them."""
    rules: list[RulePlan] = []
    for member in members:
        if member.kind is MemberKind.JOB:
            rules.append(
                RulePlan(Action.RESTART_MEMBER, member.name, causes=MACHINES, max_restarts=3, count_machine_losses=True)
            )
            rules.append(RulePlan(Action.FAIL_GROUP, member.name))
        else:
            rules.append(
                RulePlan(Action.RESTART_MEMBER, member.name, max_restarts=5, floor=member.min_replicas, then=Action.TOLERATE)
            )
    return tuple(rules)


def plan(*members: MemberPlan, name: str = "demo", rules: tuple[RulePlan, ...] = (), **more: Any) -> GroupPlan:
    """A group of these members; `rules` come before the defaults."""
    return GroupPlan(name, members, rules=(*rules, *defaults(members)), **more)


def hosts(count: int = 2, *, cpu: int = 4_000, node: str = "") -> tuple[HostFacts, ...]:
    """Hosts `h0`, `h1`, …, each on a node of its own, or all on one."""
    return tuple(
        HostFacts(
            f"h{n}",
            node=node or f"n{n}",
            address=f"10.0.0.{n}",
            counters=(("cpu", cpu), ("mem", 8_192)),
            port_first=20_000 + 100 * n,
            port_count=32,
        )
        for n in range(count)
    )
