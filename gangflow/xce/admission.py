"""From what a user asked for to what the core works on: a spec, checked against its cluster, as a plan of integers.

Pure. What no host could ever satisfy is found by placement (NEVER_FITS); here, only names are checked: levels and counters.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.container import Container, ContainerRuntime
from gangflow.specs.document import plain
from gangflow.specs.failure import Backoff, FailureRule
from gangflow.specs.faults import Fault, fault_error
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import GRACE_MS, READY_TIMEOUT_MS, Job, Pack, ReplicaSet
from gangflow.specs.probes import AnyProbe, ExecProbe, FileProbe, HttpProbe
from gangflow.specs.profiles import Merged
from gangflow.specs.resreq import Res, Simple, render_select, terms_of
from gangflow.specs.scale import Ratio
from gangflow.specs.warning import SIGNALS
from gangflow.xce.admission_checks import (
    ClusterDefaults,
    cluster_faults,
    defaults_of,
    merged_members,
    requirement,
    reserved,
)
from gangflow.xce.admission_claims import BUILT_IN, claim_faults, claim_plans
from gangflow.xce.core import plan
from gangflow.xce.core.scale_rules import gpus_of, gpus_text
from gangflow.xce.providers.rules import Catalog

__all__ = ["ClusterDefaults", "admit", "default_rules", "defaults_of", "requirement", "task_terms"]

Member = Job | ReplicaSet
HOUR_MS = 3_600_000


def admit(
    group: CoStartGroup,
    cluster: ClusterSpec | ClusterDefaults | None = None,
    *,
    owner: str = "",
    providers: Catalog = BUILT_IN,
    claims: Collection[str] | None = None,
) -> plan.GroupPlan:
    """The plan of a group: integers, terms of tasks, and the rules that hold where the user's own do not match.

    `owner` owns it where the spec names nobody; members without an owner are the group's owner's. `providers` are those of the
    controller; `claims` the standalone claims that the submitter may use (None: not checked here, but by the core).

    Raises SpecError for what the cluster does not have (a topology level, a resource, a profile, a container runtime), with the
    nearest that it has, and for what does not go together once profiles are merged.
    """
    known = defaults_of(cluster) if isinstance(cluster, ClusterSpec) else cluster or ClusterDefaults()
    merged = merged_members(group, known)
    faults = [*cluster_faults(group, merged, known), *group.told(claim_faults(group, providers, claims))]
    if faults:
        raise fault_error(faults)
    owner = group.owner or owner
    members = tuple(_member(name, one, group, known, owner) for name, one in merged.items())
    if faults := group.told(_budget_faults(group, members)):
        raise fault_error(faults)
    barrier, recovery = group.barrier, group.recovery
    return plan.GroupPlan(
        name=group.name,
        members=members,
        claims=tuple(claim_plans(group, providers)),
        rules=tuple(_rules(group)),
        barrier=plan.BarrierPlan(barrier.timeout, barrier.start_timeout, barrier.max_attempts, _backoff(barrier.backoff)),
        pack=_pack(group.placement.pack),
        priority=group.priority,
        owner=owner,
        environment=tuple(group.environment.items()),
        termination_delay_ms=group.termination_delay,
        recovery_timeout_ms=recovery.timeout,
        document=json.dumps(plain(group), ensure_ascii=False, separators=(",", ":")),
        scale=plan.ScalePlan(
            ratios=tuple(_ratio(ratio) for ratio in group.ratio),
            max_gpus=(group.scale.max_gpus or 0) * 1000,
            timeout_ms=group.scale.timeout,
        ),
        exclusion=plan.ExclusionPlan(recovery.exclude_host_after or 0, recovery.exclude_window, recovery.exclude_hosts_at_most),
        plain=group.plain,
    )


def _member(name: str, merged: Merged, group: CoStartGroup, cluster: ClusterDefaults, owner: str) -> plan.MemberPlan:
    member = merged.member
    replicas, least, most, primary = 1, 1, 1, True
    if isinstance(member, ReplicaSet):
        replicas, least, most, primary = member.replicas, member.least, member.most, False
    else:
        primary = member.primary
    # What a user wrote for the whole group wins over a default of the cluster's, too.
    defaults = {key: value for key, value in merged.defaults if key not in group.environment}
    warning = member.warning
    return plan.MemberPlan(
        name=name,
        kind=plan.MemberKind.REPLICA_SET if isinstance(member, ReplicaSet) else plan.MemberKind.JOB,
        command=member.command,
        environment=tuple({**defaults, **member.environment}.items()),
        cwd=member.cwd,
        terms=task_terms(member, cluster),
        ports=member.ports,
        ready=_probe(member.ready),
        live=_probe(member.live),
        replicas=replicas,
        min_replicas=least,
        max_replicas=most,
        primary=primary,
        ready_timeout_ms=READY_TIMEOUT_MS if member.ready_timeout is None else member.ready_timeout,
        grace_ms=GRACE_MS if member.termination_grace is None else member.termination_grace,
        pack=_pack(member.pack),
        pack_slot=_pack(member.pack_slot),
        owner=member.owner or owner,
        profile=member.profile or "",
        container=_container(member.container, cluster.container_runtime),
        runtime_limit_ms=member.runtime_limit or 0,
        warn_before_ms=warning.before if warning else 0,
        warn_signal=SIGNALS[warning.signal] if warning else 0,
        drain_ms=member.drain or 0,
    )


def _container(container: Container | None, runtime: ContainerRuntime | None) -> plan.ContainerPlan | None:
    if container is None or runtime is None:
        return None
    return plan.ContainerPlan(
        image=container.image,
        runtime=runtime.command,
        variable=runtime.variable,
        mount=runtime.mount,
        mounts=tuple((mount.source, mount.target) for mount in container.mounts),
        probe=runtime.probe,
        cleanup=runtime.cleanup,
    )


def _ratio(ratio: Ratio) -> plan.RatioPlan:
    return plan.RatioPlan(ratio.member, ratio.to, ratio.min or (0, 1), ratio.max or (1, 0))


def _budget_faults(group: CoStartGroup, members: Sequence[plan.MemberPlan]) -> Iterator[Fault]:
    """The targets that a group begins with keep the bounds of its later ones."""
    budget = group.scale.max_gpus
    asked = {member.name: member.replicas * gpus_of(member) for member in members}
    if budget is not None and sum(asked.values()) > budget * 1000:
        parts = ", ".join(f"{name} {gpus_text(gpus)}" for name, gpus in asked.items() if gpus)
        expected = f"at least the {gpus_text(sum(asked.values()))} GPUs that the members begin with: {parts}"
        yield Fault(("scale", "max_gpus"), budget, expected)


def task_terms(member: Member, cluster: ClusterDefaults) -> tuple[plan.TaskTerm, ...]:
    """The tasks of one slot, in order."""
    return tuple(_term(count, body) for count, body in terms_of(requirement(member, cluster), member.tasks))


def _term(count: int, body: Simple) -> plan.TaskTerm:
    span = body.span
    return plan.TaskTerm(
        count=count,
        uses=tuple(_use(res) for res in reserved(body) if res.value),
        select=render_select(body.select),
        order=body.order.keys if body.order else (),
        one_host=span is not None and span.kind == "hosts" and span.value == 1,
        ptile=span.value or 0 if span is not None and span.kind == "ptile" else 0,
    )


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
