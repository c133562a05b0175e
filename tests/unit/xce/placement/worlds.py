"""Small clusters and asks for the tests of placement."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from gangflow.xce.core.asks import Ask, AskKind, Grant, Refusal, SlotAsk
from gangflow.xce.core.plan import GroupPlan, Pack, Per, TaskTerm, Use
from gangflow.xce.core.state import Group, Host, HostFacts, HostState, Slot, SlotState, State, Task

CPU = 1_000


def host(
    name: str,
    *path: str,
    cpu: int = 8,
    mem: int = 64,
    gpus: int = 0,
    node: str = "",
    ports: tuple[int, int] = (20_000, 16),
    state: HostState = HostState.UP,
    gpu_first: int = 0,
    counters: tuple[tuple[str, int], ...] = (),
    **attributes: str,
) -> Host:
    """A host; cpu in whole CPUs, mem in GiB."""
    facts = HostFacts(
        name=name,
        node=node or name,
        path=path,
        counters=(("cpu", cpu * CPU), ("mem", mem * 1_024), *counters),
        gpus=gpus,
        gpu_first=gpu_first,
        port_first=ports[0],
        port_count=ports[1],
        attributes=tuple(attributes.items()),
    )
    return Host(facts, state)


def cluster(*hosts: Host, levels: Sequence[str] = ()) -> State:
    return State(levels=tuple(levels), hosts={host.facts.name: host for host in hosts})


def term(count: int = 1, *, cpu: int = 0, gpus: int = 0, mem: int = 0, per: Per = Per.TASK, **more: object) -> TaskTerm:
    """A term; cpu in whole CPUs, gpus in thousandths, mem in GiB."""
    amounts = (("cpu", cpu * CPU), ("gpus", gpus), ("mem", mem * 1_024))
    uses = tuple(Use(name, amount, per) for name, amount in amounts if amount)
    return TaskTerm(count, uses, **more)  # type: ignore[arg-type]


def slots(member: str, count: int, *terms: TaskTerm, ports: Sequence[str] = (), pack_slot: Pack | None = None) -> list[SlotAsk]:
    return [SlotAsk(member, index, terms, tuple(ports), pack_slot) for index in range(count)]


def ask(group: str, wanted: Iterable[SlotAsk], kind: AskKind = AskKind.MINIMUM, **fields: object) -> Ask:
    number = int(group[1:])
    return Ask(group, kind, fields.pop("priority", 50), fields.pop("submitted_ms", number), tuple(wanted), **fields)  # type: ignore[arg-type]


def adopt(state: State, answers: Iterable[Grant | Refusal]) -> State:
    """The state after its grants were taken over."""
    groups = dict(state.groups)
    for answer in answers:
        if isinstance(answer, Grant):
            group = groups.get(answer.group) or Group(answer.group, GroupPlan(answer.group, ()))
            placed = {(m, i): Slot(m, i, SlotState.PLACED, incarnation=1, tasks=tasks) for m, i, tasks in answer.slots}
            groups[answer.group] = dataclasses.replace(group, slots={**group.slots, **placed})
    return dataclasses.replace(state, groups=groups)


def without(state: State, *groups: str) -> State:
    """The state when these groups are over."""
    return dataclasses.replace(state, groups={gid: group for gid, group in state.groups.items() if gid not in groups})


def with_hosts(state: State, *hosts: Host) -> State:
    return dataclasses.replace(state, hosts={**state.hosts, **{host.facts.name: host for host in hosts}})


def tasks_of(answer: Grant | Refusal, member: str = "") -> list[Task]:
    assert isinstance(answer, Grant), answer
    return [task for name, _, tasks in answer.slots if not member or name == member for task in tasks]


def hosts_of(answer: Grant | Refusal, member: str = "") -> list[str]:
    return [task.host for task in tasks_of(answer, member)]
