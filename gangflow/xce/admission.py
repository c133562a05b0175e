"""From what a user asked for to what the core works on: a spec, checked against its cluster, as a plan of integers.

Pure. What no host could ever satisfy is found by placement (NEVER_FITS); here, only names are checked: levels and counters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.document import plain
from gangflow.specs.failure import Backoff, FailureRule
from gangflow.specs.faults import Fault, Loc, fault_error, nearest
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, Pack, ReplicaSet
from gangflow.specs.probes import AnyProbe, ExecProbe, FileProbe, HttpProbe
from gangflow.specs.resreq import Compound, Res, Simple, parse, render_select, terms_of
from gangflow.specs.resreq_resolve import from_resources, resolved
from gangflow.xce.core import plan

Member = Job | ReplicaSet
BUILT_IN = ("cpu", "mem", "gpus")
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class ClusterDefaults:
    """What admission must know of a cluster, where no full description of it is at hand."""

    levels: tuple[str, ...] = ()
    """Topology levels, outermost first."""
    counters: tuple[str, ...] | None = None
    """Counters of its own; None: not known, not checked."""
    reserve_per: Literal["task", "host"] = "task"
    unit_for_limits: str = "MB"


def defaults_of(cluster: ClusterSpec) -> ClusterDefaults:
    """The part of a description that admission looks at."""
    counters = dict.fromkeys(name for host in cluster.hosts for name in host.counters)
    return ClusterDefaults(cluster.levels, tuple(counters), cluster.reserve_per, cluster.unit_for_limits)


def admit(group: CoStartGroup, cluster: ClusterSpec | ClusterDefaults | None = None) -> plan.GroupPlan:
    """The plan of a group: integers, terms of tasks, and the rules that hold where the user's own do not match.

    Raises SpecError for a topology level or counter that the cluster does not have, with the nearest that it has.
    """
    known = defaults_of(cluster) if isinstance(cluster, ClusterSpec) else cluster or ClusterDefaults()
    faults = [*_level_faults(group, known), *_counter_faults(group, known)]
    if faults:
        raise fault_error(faults)
    barrier = group.barrier
    return plan.GroupPlan(
        name=group.name,
        members=tuple(_member(name, member, known) for name, member in group.members.items()),
        claims=tuple(_claims(group)),
        rules=tuple(_rules(group)),
        barrier=plan.BarrierPlan(barrier.timeout, barrier.start_timeout, barrier.max_attempts, _backoff(barrier.backoff)),
        pack=_pack(group.placement.pack),
        priority=group.priority,
        environment=tuple(group.environment.items()),
        termination_delay_ms=group.termination_delay,
        recovery_timeout_ms=group.recovery.timeout,
        document=json.dumps(plain(group), ensure_ascii=False, separators=(",", ":")),
    )


def _member(name: str, member: Member, cluster: ClusterDefaults) -> plan.MemberPlan:
    replicas, least, most, primary = 1, 1, 1, True
    if isinstance(member, ReplicaSet):
        replicas, least, most, primary = member.replicas, member.least, member.most, False
    else:
        primary = member.primary
    return plan.MemberPlan(
        name=name,
        kind=plan.MemberKind.REPLICA_SET if isinstance(member, ReplicaSet) else plan.MemberKind.JOB,
        command=member.command,
        environment=tuple(member.environment.items()),
        cwd=member.cwd,
        terms=task_terms(member, cluster),
        ports=member.ports,
        ready=_probe(member.ready),
        live=_probe(member.live),
        replicas=replicas,
        min_replicas=least,
        max_replicas=most,
        primary=primary,
        ready_timeout_ms=member.ready_timeout,
        grace_ms=member.termination_grace,
        pack=_pack(member.pack),
        pack_slot=_pack(member.pack_slot),
    )


def requirement(member: Member, cluster: ClusterDefaults) -> Compound | Simple:
    """What one slot asks for, with every `per` and unit written out: `render` shows it as XCE understands it."""
    resreq = from_resources(member.resources) if member.resreq is None else parse(member.resreq)
    assert isinstance(resreq, (Compound, Simple)), "specs refuse alternatives"
    return resolved(resreq, cluster.reserve_per, cluster.unit_for_limits)


def task_terms(member: Member, cluster: ClusterDefaults) -> tuple[plan.TaskTerm, ...]:
    """The tasks of one slot, in order."""
    return tuple(_term(count, body) for count, body in terms_of(requirement(member, cluster), member.tasks))


def _term(count: int, body: Simple) -> plan.TaskTerm:
    span = body.span
    return plan.TaskTerm(
        count=count,
        uses=tuple(_use(res) for res in _reserved(body) if res.value),
        select=render_select(body.select),
        order=body.order.keys if body.order else (),
        one_host=span is not None and span.kind == "hosts" and span.value == 1,
        ptile=span.value or 0 if span is not None and span.kind == "ptile" else 0,
    )


def _reserved(body: Simple) -> Iterator[Res]:
    for usage in body.rusage.alternatives[0] if body.rusage else ():
        yield from usage.resources


def _use(res: Res) -> plan.Use:
    # The parser let through only what is whole in these units.
    scale = 1000 if res.name in ("cpu", "gpus") else 1
    return plan.Use(res.name, int(res.value * scale), plan.Per(res.per))


def _probe(probe: AnyProbe | None) -> plan.ProbePlan | None:
    if probe is None:
        return None
    port, target = "", ""
    command: tuple[str, ...] = ()
    if isinstance(probe, HttpProbe):
        port, target = probe.port, probe.path
    elif isinstance(probe, ExecProbe):
        command = probe.command
    elif isinstance(probe, FileProbe):
        target = probe.path
    else:
        port = probe.port
    kind = plan.ProbeKind(probe.tag)
    return plan.ProbePlan(
        kind, port, target, command, probe.delay, probe.period, probe.timeout, probe.failures, probe.successes
    )


def _pack(pack: Pack | None) -> plan.Pack | None:
    return plan.Pack(pack.level, pack.required) if pack else None


def _backoff(backoff: Backoff) -> plan.BackoffPlan:
    return plan.BackoffPlan(backoff.initial, round(backoff.factor * 1000), backoff.max)


def _claims(group: CoStartGroup) -> Iterator[plan.ClaimPlan]:
    for claim in group.claims:
        yield _claim(claim, "")
    for name, member in group.members.items():
        for claim in member.claims:
            yield _claim(claim, name)


def _claim(claim: Claim, scope: str) -> plan.ClaimPlan:
    parameters = tuple(claim.parameters.items())
    return plan.ClaimPlan(claim.name, claim.provider, scope, claim.retain, claim.timeout, parameters)


def _rules(group: CoStartGroup) -> Iterator[plan.RulePlan]:
    for name, member in group.members.items():
        for rule in member.on_failure:
            yield _rule(rule, name)
    for rule in group.failure:
        yield _rule(rule, rule.match.member or "")
    for name, member in group.members.items():
        yield from default_rules(name, member)


def _rule(rule: FailureRule, member: str) -> plan.RulePlan:
    match = rule.match
    return plan.RulePlan(
        action=plan.Action(rule.action),
        member=member,
        slot=-1 if match.slot is None else match.slot,
        causes=tuple(plan.Cause(cause) for cause in match.cause),
        exit_codes=match.exit_codes,
        max_restarts=-1 if rule.max_restarts is None else rule.max_restarts,
        window_ms=rule.window,
        max_elapsed_ms=rule.max_elapsed or 0,
        backoff=_backoff(rule.backoff),
        floor=-1 if rule.floor is None else rule.floor,
        floor_grace_ms=rule.floor_grace,
        count_machine_losses=rule.count_machine_losses,
        then=plan.Action(rule.then),
    )


def default_rules(name: str, member: Member) -> tuple[plan.RulePlan, ...]:
    """What holds where no rule of the user's matches (design 3.5)."""
    if isinstance(member, ReplicaSet):
        # 5 restarts an hour; then a replica is given up as long as `min_replicas` remain, else the group fails.
        return (
            plan.RulePlan(
                plan.Action.RESTART_MEMBER,
                member=name,
                max_restarts=5,
                window_ms=HOUR_MS,
                floor=member.least,
                then=plan.Action.TOLERATE,
            ),
        )
    # "3 an hour" speaks of losses by the machines, so here they do count.
    lost = (plan.Cause.HOST_LOST, plan.Cause.AGENT_LOST, plan.Cause.DRAINED)
    return (
        plan.RulePlan(
            plan.Action.RESTART_MEMBER, member=name, causes=lost, max_restarts=3, window_ms=HOUR_MS, count_machine_losses=True
        ),
        plan.RulePlan(plan.Action.FAIL_GROUP, member=name),
    )


def _level_faults(group: CoStartGroup, cluster: ClusterDefaults) -> Iterator[Fault]:
    packs: list[tuple[Loc, Pack | None]] = [(("placement", "pack"), group.placement.pack)]
    for name, member in group.members.items():
        for key in ("pack", "pack_slot"):
            packs.append((("members", name, member.tag, key), getattr(member, key)))
    for loc, pack in packs:
        if pack is not None and pack.level not in cluster.levels:
            expected = "a level of the cluster: " + (", ".join(cluster.levels) or "it has none")
            yield Fault((*loc, "level"), pack.level, expected, nearest(pack.level, cluster.levels))


def _counter_faults(group: CoStartGroup, cluster: ClusterDefaults) -> Iterator[Fault]:
    if cluster.counters is None:
        return
    known: Mapping[str, None] = dict.fromkeys((*BUILT_IN, *cluster.counters))
    expected = "a resource of the cluster: " + ", ".join(known)
    for name, member in group.members.items():
        loc: Loc = ("members", name, member.tag)
        for counter in member.resources.counters if member.resources else ():
            if counter not in cluster.counters:
                yield Fault((*loc, "resources", "counters", counter), counter, expected, nearest(counter, known))
        if member.resreq is not None:
            for _, body in terms_of(requirement(member, cluster)):
                for res in _reserved(body):
                    if res.name not in known:
                        yield Fault((*loc, "resreq"), member.resreq, f"column {res.at}: {expected}", nearest(res.name, known))
