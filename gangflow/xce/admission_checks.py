"""What a group asks of its cluster that the cluster does not have: profiles, a container runtime, levels, resources.

Pure; all faults are told at once, with the author's own paths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.container import ContainerRuntime, runtime_faults
from gangflow.specs.faults import Fault, Loc, nearest
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, Pack, ReplicaSet
from gangflow.specs.profiles import Merged, Profile, merge, merged_faults
from gangflow.specs.resreq import Compound, Res, Simple, parse, terms_of
from gangflow.specs.resreq_resolve import from_resources, resolved

Member = Job | ReplicaSet
BUILT_IN = ("cpu", "mem", "gpus")


@dataclass(frozen=True, slots=True)
class ClusterDefaults:
    """What admission must know of a cluster, where no full description of it is at hand."""

    levels: tuple[str, ...] = ()
    """Topology levels, outermost first."""
    counters: tuple[str, ...] | None = None
    """Counters of its own; None: not known, not checked."""
    reserve_per: Literal["task", "host"] = "task"
    unit_for_limits: str = "MB"
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    container_runtime: ContainerRuntime | None = None


def defaults_of(cluster: ClusterSpec) -> ClusterDefaults:
    """The part of a description that admission looks at."""
    counters = dict.fromkeys(name for host in cluster.hosts for name in host.counters)
    return ClusterDefaults(
        cluster.levels,
        tuple(counters),
        cluster.reserve_per,
        cluster.unit_for_limits,
        cluster.profiles,
        cluster.container_runtime,
    )


def merged_members(group: CoStartGroup, cluster: ClusterDefaults) -> dict[str, Merged]:
    """Every member with its profile's defaults; one whose profile is not known as it is."""
    found = {}
    for name, member in group.members.items():
        profile = cluster.profiles.get(member.profile) if member.profile else None
        found[name] = Merged(member) if profile is None else merge(member, profile)
    return found


def cluster_faults(group: CoStartGroup, members: Mapping[str, Merged], cluster: ClusterDefaults) -> list[Fault]:
    """Everything that this cluster does not have, or that its profiles make impossible."""
    faults = [*_level_faults(group, cluster)]
    for name, merged in members.items():
        at = ("members", name, merged.member.tag)
        own = [*_profile_faults(merged.member, cluster), *_counter_faults(merged, cluster), *_container_faults(merged, cluster)]
        faults += [replace(fault, loc=(*at, *fault.loc)) for fault in own]
        if merged.member.profile in cluster.profiles:
            faults += [replace(fault, loc=(*at, *fault.loc)) for fault in merged_faults(merged)]
    return group.told(faults)


def requirement(member: Member, cluster: ClusterDefaults) -> Compound | Simple:
    """What one slot asks for, with every `per` and unit written out: `render` shows it as XCE understands it."""
    resreq = from_resources(member.resources) if member.resreq is None else parse(member.resreq)
    assert isinstance(resreq, (Compound, Simple)), "specs refuse alternatives"
    return resolved(resreq, cluster.reserve_per, cluster.unit_for_limits)


def reserved(body: Simple) -> Iterator[Res]:
    """The resources of one shape of task."""
    for usage in body.rusage.alternatives[0] if body.rusage else ():
        yield from usage.resources


def _profile_faults(member: Member, cluster: ClusterDefaults) -> Iterator[Fault]:
    if member.profile is not None and member.profile not in cluster.profiles:
        expected = "a profile of the cluster: " + (", ".join(cluster.profiles) or "it has none")
        yield Fault(("profile",), member.profile, expected, nearest(member.profile, cluster.profiles))


def _container_faults(merged: Merged, cluster: ClusterDefaults) -> Iterator[Fault]:
    member = merged.member
    for fault in runtime_faults(member.container, cluster.container_runtime, (member.ready, member.live)):
        yield merged.told(fault)


def _level_faults(group: CoStartGroup, cluster: ClusterDefaults) -> Iterator[Fault]:
    packs: list[tuple[Loc, Pack | None]] = [(("placement", "pack"), group.placement.pack)]
    for name, member in group.members.items():
        for key in ("pack", "pack_slot"):
            packs.append((("members", name, member.tag, key), getattr(member, key)))
    for loc, pack in packs:
        if pack is not None and pack.level not in cluster.levels:
            expected = "a level of the cluster: " + (", ".join(cluster.levels) or "it has none")
            yield Fault((*loc, "level"), pack.level, expected, nearest(pack.level, cluster.levels))


def _counter_faults(merged: Merged, cluster: ClusterDefaults) -> Iterator[Fault]:
    if cluster.counters is None:
        return
    member = merged.member
    known: Sequence[str] = list(dict.fromkeys((*BUILT_IN, *cluster.counters)))
    expected = "a resource of the cluster: " + ", ".join(known)
    for counter in member.resources.counters if member.resources else ():
        if counter not in cluster.counters:
            loc = merged.loc("resources", ("resources", "counters", counter))
            yield Fault(loc, counter, expected, nearest(counter, known))
    if member.resreq is not None:
        for _, body in terms_of(requirement(member, cluster)):
            for res in reserved(body):
                if res.name not in known:
                    column = f"column {res.at}: " if not merged.origins else ""
                    loc = merged.loc("resreq")
                    yield Fault(
                        loc, res.name if merged.origins else member.resreq, f"{column}{expected}", nearest(res.name, known)
                    )
