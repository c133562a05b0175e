"""What a task is started with: its command, and the whole environment of design 3.10, as the picture at its start.

`XCE_URL`, `XCE_TOKEN` and `TRACEPARENT` are added on delivery by the controller's shell; `XCE_GROUP_FILE` is set by the host
agent, which writes the document that goes with the launch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gangflow.xce.core.claim_ids import claims_for
from gangflow.xce.core.containers import cleanup_of, contained, container_name, probe_inside
from gangflow.xce.core.counts import slots_of, target
from gangflow.xce.core.effects import Launch
from gangflow.xce.core.evolve_group import number
from gangflow.xce.core.plan import ContainerPlan, MemberPlan
from gangflow.xce.core.state import Group, Host, Next, Slot, State, Task

RENDEZVOUS_PORTS = ("rendezvous", "rdzv", "master")
"""Names of a port that torchrun's rendezvous is pointed at; without one of them, the member's first port."""
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Picture:
    """What is the same for all tasks of a group at one moment: where every member is."""

    addresses: tuple[tuple[str, str], ...]
    """`XCE_HOSTS_…` and `XCE_ADDRS_…` of every member."""
    members: str
    """The same as a JSON document."""


def picture(state: State, group: Group) -> Picture:
    """The group as it is placed in this state."""
    env: dict[str, str] = {}
    document: dict[str, Any] = {}
    for member in group.plan.members:
        slots = [slot for slot in slots_of(group, member) if slot.tasks and slot.next is not Next.SCALE]
        name = shout(member.name)
        env[f"XCE_HOSTS_{name}"] = ",".join(task.host for slot in slots for task in slot.tasks)
        places: dict[str, list[list[str]]] = {}
        for port in member.ports:
            places[port] = [[address(state.hosts, task, port) for task in slot.tasks] for slot in slots]
            env[f"XCE_ADDRS_{name}_{shout(port)}"] = ",".join(one for of_slot in places[port] for one in of_slot)
        document[member.name] = {
            "kind": member.kind.value,
            "slots": [
                {
                    "index": slot.index,
                    "incarnation": slot.incarnation,
                    "hosts": [task.host for task in slot.tasks],
                    "addresses": {port: places[port][number] for port in member.ports},
                }
                for number, slot in enumerate(slots)
            ],
        }
    return Picture(tuple(env.items()), _json(document))


def _json(document: object) -> str:
    return _ENCODE(document)


def launch(state: State, group: Group, slot: Slot, task: Task, seen: Picture) -> Launch:
    """All that the agent needs to prepare and run the task. The slot's claims are READY; `seen` is the group's picture."""
    member = group.plan.member(slot.member)
    own = _json(identity(state, group, member, slot, task))
    whole = Launch(
        argv=member.command,
        environment=tuple(environment(state, group, member, slot, task, seen).items()),
        cwd=member.cwd,
        ports=task.ports,
        ready=member.ready,
        live=member.live,
        grace_ms=member.grace_ms,
        group_file=f'{own[:-1]},"members":{seen.members}}}',
    )
    return whole if member.container is None else _inside(state, group, slot, task, member.container, whole)


def _inside(state: State, group: Group, slot: Slot, task: Task, container: ContainerPlan, plain: Launch) -> Launch:
    """The same in a container."""
    name = container_name(state.cluster_id, group.id, slot.member, slot.index, slot.incarnation, task.index)
    command = contained(
        container,
        plain.argv,
        name=name,
        cwd=plain.cwd,
        variables=(variable for variable, _ in plain.environment),
        paths=[claim.path for _, claim in claims_for(state.claims, group, slot) if claim is not None],
    )
    return replace(
        plain,
        argv=command.argv,
        folder_words=command.folder_words,
        ready=probe_inside(container, plain.ready, name),
        live=probe_inside(container, plain.live, name),
        cleanup=cleanup_of(container, name),
    )


def environment(state: State, group: Group, member: MemberPlan, slot: Slot, task: Task, seen: Picture) -> dict[str, str]:
    """The environment in order: the group's own, the member's own, then XCE's, which nobody overrides."""
    env = dict(group.plan.environment)
    env.update(member.environment)
    env.update(
        XCE_GROUP=group.id,
        XCE_GROUP_NAME=group.plan.name,
        XCE_GROUP_EPOCH=str(slot.epoch),
        XCE_MEMBER=member.name,
        XCE_SLOT=str(slot.index),
        XCE_SLOTS=str(target(group, member.name)),
        XCE_TASK=str(task.index),
        XCE_TASKS=str(len(slot.tasks)),
        XCE_INCARNATION=str(slot.incarnation),
    )
    env.update(seen.addresses)
    for name, port_number in task.ports:
        env[f"XCE_PORT_{shout(name)}"] = str(port_number)
    for plan, claim in claims_for(state.claims, group, slot):
        if claim is not None:
            env[f"XCE_CLAIM_{shout(plan.name)}"] = claim.path
    host = state.hosts.get(task.host)
    if task.gpus or (host is not None and host.facts.gpus):
        # Also where it has none: it must not see what others were given.
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(device) for device, _ in task.gpus)
    env.update(_lsf(group, slot))
    if len(slot.tasks) > 1:
        env.update(_torchrun(state.hosts, member, slot, task))
    return env


def shout(name: str) -> str:
    """A name as a part of a variable: `log-probs` → `LOG_PROBS`."""
    return re.sub(r"[^A-Z0-9]", "_", name.upper())


def address(hosts: Mapping[str, Host], task: Task, port: str) -> str:
    """`10.0.0.3:30001`: where a task's named port can be reached."""
    host = hosts.get(task.host)
    return f"{host.facts.address if host is not None else task.host}:{dict(task.ports).get(port, 0)}"


def _lsf(group: Group, slot: Slot) -> dict[str, str]:
    """LSF's names for the same things."""
    counts: dict[str, int] = {}
    for task in slot.tasks:
        counts[task.host] = counts.get(task.host, 0) + 1
    return {
        "LSB_JOBID": str(number(group.id)),
        "LSB_JOBNAME": f"{group.plan.name}.{slot.member}[{slot.index}]",
        "LSB_HOSTS": " ".join(task.host for task in slot.tasks),
        "LSB_MCPU_HOSTS": " ".join(f"{host} {count}" for host, count in counts.items()),
    }


def _torchrun(hosts: Mapping[str, Host], member: MemberPlan, slot: Slot, task: Task) -> dict[str, str]:
    """Where the tasks of a slot meet. RANK, LOCAL_RANK and WORLD_SIZE are torchrun's own."""
    first = slot.tasks[0]
    host = hosts.get(first.host)
    env = {
        "MASTER_ADDR": host.facts.address if host is not None else first.host,
        "PET_NNODES": str(len(slot.tasks)),
        "PET_NODE_RANK": str(task.index),
    }
    port = next((name for name in RENDEZVOUS_PORTS if name in member.ports), member.ports[0] if member.ports else "")
    if port:
        env["MASTER_PORT"] = str(dict(first.ports).get(port, 0))
        env["PET_RDZV_ENDPOINT"] = address(hosts, first, port)
    return env


def identity(state: State, group: Group, member: MemberPlan, slot: Slot, task: Task) -> dict[str, Any]:
    """The document behind XCE_GROUP_FILE, but for `members`: who the task is, its claims and ports."""
    return {
        "group": group.id,
        "name": group.plan.name,
        "epoch": slot.epoch,
        "member": slot.member,
        "slot": slot.index,
        "slots": target(group, member.name),
        "task": task.index,
        "tasks": len(slot.tasks),
        "incarnation": slot.incarnation,
        "host": task.host,
        "ports": dict(task.ports),
        "gpus": [device for device, _ in task.gpus],
        "claims": {plan.name: claim.path for plan, claim in claims_for(state.claims, group, slot) if claim is not None},
    }
