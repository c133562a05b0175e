"""What groups, members, slots, hosts, claims and the queue have for columns, with the headers of `bjobs` and `bhosts`. Pure."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence

from pydantic import BaseModel

from gangflow.cli.lsf_table import Fields, Table
from gangflow.xce.rest.schema import ClaimView, GroupView, HostView, MemberView, QueueItem, SlotView
from gangflow.xce.rest.words import amount_text


def when(ms: int) -> str:
    """`Nov 29 15:11`, as bjobs prints times; empty for never."""
    return time.strftime("%b %d %H:%M", time.localtime(ms / 1_000)) if ms else ""


def hosts_text(slots: Sequence[SlotView]) -> str:
    """`2*h0:h1`: how many tasks on which host, in order."""
    tasks = Counter(task.host for slot in slots for task in slot.tasks)
    return ":".join(f"{count}*{host}" if count > 1 else host for host, count in tasks.items())


def slot_name(member: str, index: int) -> str:
    """`rollout[1]`; empty for a group's own."""
    return f"{member}[{index}]" if member else ""


def _slots(group: GroupView) -> list[SlotView]:
    return [slot for member in group.members for slot in member.slots]


def _word(word: str) -> Callable[[tuple[GroupView, MemberView]], str]:
    return lambda row: str(sum(slot.lsf == word for slot in row[1].slots))


_GROUP: Fields[GroupView] = {
    "jobid": ("JOBID", lambda g: g.id),
    "user": ("USER", lambda g: g.owner),
    "stat": ("STAT", lambda g: g.lsf),
    "queue": ("QUEUE", lambda g: ""),
    "from_host": ("FROM_HOST", lambda g: ""),
    "exec_host": ("EXEC_HOST", lambda g: hosts_text(_slots(g))),
    "job_name": ("JOB_NAME", lambda g: g.name),
    "submit_time": ("SUBMIT_TIME", lambda g: when(g.submitted_ms)),
    "state": ("STATE", lambda g: g.state),
    "priority": ("PRIORITY", lambda g: str(g.priority)),
    "epoch": ("EPOCH", lambda g: str(g.epoch)),
    "attempt": ("ATTEMPT", lambda g: str(g.attempt)),
    "satisfied": ("SATISFIED", lambda g: "now" if g.satisfied_now else "once" if g.satisfied_once else "never"),
    "restarts": ("RESTARTS", lambda g: str(sum(member.restarts for member in g.members))),
    "start_time": ("START_TIME", lambda g: when(g.first_running_ms)),
    "finish_time": ("FINISH_TIME", lambda g: when(g.ended_ms)),
    "pend_reason": ("PEND_REASON", lambda g: f"{g.reason.code}: {g.reason.text}" if g.reason else ""),
    "exit_reason": ("EXIT_REASON", lambda g: ": ".join(part for part in (g.cause, g.message) if part)),
}
GROUPS = Table(
    "xcecli groups", "JOBS", _GROUP,
    ("jobid", "user", "stat", "queue", "from_host", "exec_host", "job_name", "submit_time", "state"),
)  # fmt: skip

_MEMBER: Fields[tuple[GroupView, MemberView]] = {
    "jobid": ("JOBID", lambda row: row[0].id),
    "array_spec": ("ARRAY_SPEC", lambda row: _array_spec(row[1])),
    "owner": ("OWNER", lambda row: row[0].owner),
    "njobs": ("NJOBS", lambda row: str(len(row[1].slots))),
    "pend": ("PEND", _word("PEND")),
    "done": ("DONE", _word("DONE")),
    "run": ("RUN", _word("RUN")),
    "exit": ("EXIT", _word("EXIT")),
    "ssusp": ("SSUSP", _word("SSUSP")),
    "ususp": ("USUSP", _word("USUSP")),
    "psusp": ("PSUSP", _word("PSUSP")),
    "unkwn": ("UNKWN", _word("UNKWN")),
    "ready": ("READY", lambda row: f"{row[1].ready}/{row[1].target}"),
    "restarts": ("RESTARTS", lambda row: str(row[1].restarts)),
    "kind": ("KIND", lambda row: row[1].kind),
    "target": ("TARGET", lambda row: str(row[1].target)),
    "min": ("MIN", lambda row: str(row[1].min)),
    "max": ("MAX", lambda row: str(row[1].max)),
    "primary": ("PRIMARY", lambda row: "yes" if row[1].primary else "no"),
    "exec_host": ("EXEC_HOST", lambda row: hosts_text(row[1].slots)),
    "job_name": ("JOB_NAME", lambda row: row[0].name),
}
MEMBERS = Table(
    "xcecli members", "ARRAYS", _MEMBER,
    ("jobid", "array_spec", "owner", "njobs", "pend", "done", "run", "exit", "ssusp", "ususp", "psusp", "unkwn", "ready",
     "restarts"),
)  # fmt: skip

_SLOT: Fields[tuple[GroupView, SlotView]] = {
    "jobid": ("JOBID", lambda row: row[0].id),
    "slot": ("SLOT", lambda row: slot_name(row[1].member, row[1].index)),
    "stat": ("STAT", lambda row: row[1].lsf),
    "state": ("STATE", lambda row: row[1].state),
    "incarnation": ("INCARNATION", lambda row: str(row[1].incarnation)),
    "exec_host": ("EXEC_HOST", lambda row: hosts_text([row[1]])),
    "address": ("ADDRESS", lambda row: ",".join(f"{name}={','.join(all_)}" for name, all_ in row[1].addresses.items())),
    "restarts": ("RESTARTS", lambda row: str(row[1].restarts)),
    "since": ("SINCE", lambda row: when(row[1].since_ms)),
    "reason": ("REASON", lambda row: slot_reason(row[1])),
}
SLOTS = Table("xcecli members -l", "JOBS", _SLOT, tuple(_SLOT))

_HOST: Fields[HostView] = {
    "host_name": ("HOST_NAME", lambda h: h.name),
    "status": ("STATUS", lambda h: h.lsf),
    "jl_u": ("JL/U", lambda h: ""),
    "max": ("MAX", lambda h: _total(h, "cpu")),
    "njobs": ("NJOBS", lambda h: str(sum(held.tasks for held in h.slots))),
    "run": ("RUN", lambda h: str(sum(held.running for held in h.slots))),
    "ssusp": ("SSUSP", lambda h: "0"),
    "ususp": ("USUSP", lambda h: "0"),
    "rsv": ("RSV", lambda h: str(sum(held.tasks - held.running for held in h.slots))),
    "state": ("STATE", lambda h: h.state),
    "node": ("NODE", lambda h: h.node),
    "address": ("ADDRESS", lambda h: h.address),
    "domains": ("DOMAINS", lambda h: ",".join(f"{level}={domain}" for level, domain in h.domains.items())),
    "cpu": ("CPU", lambda h: _used(h, "cpu")),
    "mem": ("MEM", lambda h: _used(h, "mem")),
    "gpus": ("GPUS", lambda h: _used(h, "gpus")),
    "ports": ("PORTS", lambda h: _used(h, "ports")),
}
HOSTS = Table("xcecli hosts", "HOSTS", _HOST, ("host_name", "status", "jl_u", "max", "njobs", "run", "ssusp", "ususp", "rsv"))

_CLAIM: Fields[ClaimView] = {
    "claim": ("CLAIM", lambda c: c.id),
    "name": ("NAME", lambda c: c.name),
    "state": ("STATE", lambda c: c.state),
    "jobid": ("JOBID", lambda c: c.group),
    "slot": ("SLOT", lambda c: slot_name(c.member, c.index)),
    "provider": ("PROVIDER", lambda c: c.provider),
    "host": ("HOST", lambda c: c.host),
    "path": ("PATH", lambda c: c.path),
    "retain": ("RETAIN", lambda c: "yes" if c.retain else "no"),
    "message": ("MESSAGE", lambda c: c.message),
}
CLAIMS = Table("xcecli claims", "CLAIMS", _CLAIM, ("claim", "name", "state", "jobid", "slot", "provider", "host", "path"))

_QUEUE: Fields[QueueItem] = {
    "position": ("POSITION", lambda q: str(q.position)),
    "jobid": ("JOBID", lambda q: q.id),
    "user": ("USER", lambda q: q.owner),
    "priority": ("PRIORITY", lambda q: str(q.priority)),
    "job_name": ("JOB_NAME", lambda q: q.name),
    "submit_time": ("SUBMIT_TIME", lambda q: when(q.submitted_ms)),
    "pend_reason": ("PEND_REASON", lambda q: f"{q.reason.code}: {q.reason.text}" if q.reason else ""),
}
QUEUE = Table("xcecli queue", "JOBS", _QUEUE, tuple(_QUEUE))


def slot_reason(slot: SlotView) -> str:
    """Why a slot waits, or how its last incarnation ended."""
    if slot.reason is not None:
        return f"{slot.reason.code}: {slot.reason.text}"
    if slot.exit is None:
        return ""
    how = slot.exit.message
    if not how and slot.exit.code is not None:
        how = f"exited with code {slot.exit.code}"
    elif not how and slot.exit.signal:
        how = f"killed by signal {slot.exit.signal}"
    return ", ".join(part for part in (slot.exit.cause or "", how) if part)


def members_of(groups: Sequence[GroupView]) -> list[tuple[GroupView, MemberView]]:
    """Every member of every group."""
    return [(group, member) for group in groups for member in group.members]


def slots_of(groups: Sequence[GroupView]) -> list[tuple[GroupView, SlotView]]:
    """Every slot of every group."""
    return [(group, slot) for group in groups for slot in _slots(group)]


def _array_spec(member: MemberView) -> str:
    """`rollout[0-3]`, as a job array is written; a job is just its name."""
    if member.kind == "job" or not member.slots:
        return member.name
    indices = [slot.index for slot in member.slots]
    span = f"{indices[0]}-{indices[-1]}" if len(indices) > 1 else str(indices[0])
    return f"{member.name}[{span}]"


def _total(host: HostView, name: str) -> str:
    quantity = host.counters.get(name)
    return amount_text(name, quantity.total) if quantity else ""


def _used(host: HostView, name: str) -> str:
    quantity = host.counters.get(name)
    return f"{amount_text(name, quantity.used)}/{amount_text(name, quantity.total)}" if quantity else ""


def as_json(value: BaseModel) -> str:
    """A view as it came over the wire."""
    return json.dumps(value.model_dump(mode="json"), indent=2)
