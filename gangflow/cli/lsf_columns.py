"""What groups, members, slots, hosts, claims, changes, owners, events have for columns, with LSF's headers. Pure."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from gangflow import durations
from gangflow.cli.lsf_table import Fields, Table
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.schema import (
    ChangeView,
    ClaimView,
    ExitView,
    GroupView,
    HostView,
    MemberView,
    OwnerView,
    QueueItem,
    SlotName,
    SlotView,
)
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


def closed_word(host: HostView) -> str:
    """`closed_Adm` as `bhosts -l` tells of an operator's close, `closed_Adm (draining)` while it is emptied; else empty."""
    if not host.closed and host.state != "CLOSED":
        return ""
    return "closed_Adm (draining)" if host.draining else "closed_Adm"


def stands(slot: SlotView) -> bool:
    """Whether a slot is in its member's target, or still holds something."""
    return not slot.out or bool(slot.tasks)


def standing(member: MemberView) -> list[SlotView]:
    """A member's slots but those that were scaled away and are gone."""
    return [slot for slot in member.slots if stands(slot)]


def _slots(group: GroupView) -> list[SlotView]:
    return [slot for member in group.members for slot in standing(member)]


def _word(word: str) -> Callable[[tuple[GroupView, MemberView]], str]:
    return lambda row: str(sum(slot.lsf == word for slot in standing(row[1])))


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
    "type": ("TYPE", lambda g: "job" if g.plain else "group"),
    "members": ("MEMBERS", lambda g: ",".join(member.name for member in g.members)),
    "slots": ("SLOTS", lambda g: f"{sum(member.ready for member in g.members)}/{sum(member.target for member in g.members)}"),
    "excluded": ("EXCLUDED", lambda g: ",".join(g.excluded)),
    "changes": ("CHANGES", lambda g: ",".join(f"{change.id}={change.state}" for change in g.changes)),
}
_JOB = ("jobid", "user", "stat", "queue", "from_host", "exec_host", "job_name", "submit_time")
_LONG = ("exec_host", "job_name")
GROUPS = Table("xcecli groups", "JOBS", _GROUP, (*_JOB, "state"), _LONG)
JOBS = Table("xcecli jobs", "JOBS", _GROUP, _JOB, _LONG)

_MEMBER: Fields[tuple[GroupView, MemberView]] = {
    "jobid": ("JOBID", lambda row: row[0].id),
    "array_spec": ("ARRAY_SPEC", lambda row: _array_spec(row[1])),
    "owner": ("OWNER", lambda row: row[1].owner or row[0].owner),
    "njobs": ("NJOBS", lambda row: str(len(standing(row[1])))),
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
    "exec_host": ("EXEC_HOST", lambda row: hosts_text(standing(row[1]))),
    "job_name": ("JOB_NAME", lambda row: row[0].name),
    "member": ("MEMBER", lambda row: row[1].id or f"{row[0].id}.{row[1].name}"),
    "profile": ("PROFILE", lambda row: row[1].profile),
    "container": ("CONTAINER", lambda row: row[1].container),
    "stopped": ("STOPPED", lambda row: "yes" if row[1].stopped else "no"),
    "runlimit": ("RUNLIMIT", lambda row: lasting(row[1].runtime_limit_ms)),
    "drain": ("DRAIN", lambda row: lasting(row[1].drain_ms)),
}
MEMBERS = Table(
    "xcecli members", "ARRAYS", _MEMBER,
    ("jobid", "array_spec", "owner", "njobs", "pend", "done", "run", "exit", "ssusp", "ususp", "psusp", "unkwn", "ready",
     "restarts"),
    ("array_spec",), ("restarts", "done"),
)  # fmt: skip

_SLOT: Fields[tuple[GroupView, SlotView]] = {
    "jobid": ("JOBID", lambda row: row[0].id),
    "slot": ("SLOT", lambda row: slot_name(row[1].member, row[1].index)),
    "stat": ("STAT", lambda row: row[1].lsf),
    "state": ("STATE", lambda row: row[1].state),
    "incarnation": ("INC", lambda row: str(row[1].incarnation)),
    "exec_host": ("EXEC_HOST", lambda row: hosts_text([row[1]])),
    "address": ("ADDRESS", lambda row: ",".join(f"{name}={','.join(all_)}" for name, all_ in row[1].addresses.items())),
    "restarts": ("RESTARTS", lambda row: str(row[1].restarts)),
    "since": ("SINCE", lambda row: when(row[1].since_ms)),
    "reason": ("REASON", lambda row: slot_reason(row[1])),
    "id": ("ID", lambda row: row[1].id),
    "epoch": ("EPOCH", lambda row: str(row[1].epoch)),
    "pids": ("PIDS", lambda row: ",".join(str(task.pid) for task in row[1].tasks if task.pid)),
    "gpus": ("GPUS", lambda row: ",".join(str(gpu.device) for task in row[1].tasks for gpu in task.gpus)),
    "run_until": ("RUN_UNTIL", lambda row: when(row[1].run_until_ms)),
    "in_target": ("IN_TARGET", lambda row: "no" if row[1].out else "yes"),
}
SLOTS = Table(
    "xcecli slots", "JOBS", _SLOT,
    ("jobid", "slot", "stat", "state", "incarnation", "exec_host", "address", "restarts", "since", "reason"),
    ("exec_host", "address", "reason"), ("restarts", "since", "stat"),
)  # fmt: skip

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
    "closed": ("CLOSED", closed_word),
    "reason": ("REASON", lambda h: h.closed),
    "node": ("NODE", lambda h: h.node),
    "address": ("ADDRESS", lambda h: h.address),
    "domains": ("DOMAINS", lambda h: ",".join(f"{level}={domain}" for level, domain in h.domains.items())),
    "cpu": ("CPU", lambda h: _used(h, "cpu")),
    "mem": ("MEM", lambda h: _used(h, "mem")),
    "gpus": ("GPUS", lambda h: _used(h, "gpus")),
    "ports": ("PORTS", lambda h: _used(h, "ports")),
}
HOSTS = Table("xcecli hosts", "HOSTS", _HOST, ("host_name", "status", "jl_u", "max", "njobs", "run", "ssusp", "ususp", "rsv"))
HOSTS_WITH_GPUS = replace(HOSTS, default=(*HOSTS.default, "gpus"))

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
    "owner": ("OWNER", lambda c: c.owner),
    "access": ("ACCESS", lambda c: c.access),
    "holders": ("HOLDERS", lambda c: ",".join(c.holders)),
    "losses": ("LOSSES", lambda c: str(c.losses)),
    "attempt": ("ATTEMPT", lambda c: str(c.attempt)),
    "since": ("SINCE", lambda c: when(c.since_ms)),
}
CLAIMS = Table(
    "xcecli claims", "CLAIMS", _CLAIM, ("claim", "name", "state", "jobid", "slot", "provider", "host", "path"),
    ("claim", "host", "path"), ("name",),
)  # fmt: skip

_QUEUE: Fields[QueueItem] = {
    "position": ("POSITION", lambda q: str(q.position)),
    "jobid": ("JOBID", lambda q: q.id),
    "user": ("USER", lambda q: q.owner),
    "priority": ("PRIORITY", lambda q: str(q.priority)),
    "job_name": ("JOB_NAME", lambda q: q.name),
    "submit_time": ("SUBMIT_TIME", lambda q: when(q.submitted_ms)),
    "pend_reason": ("PEND_REASON", lambda q: f"{q.reason.code}: {q.reason.text}" if q.reason else ""),
}
QUEUE = Table("xcecli queue", "JOBS", _QUEUE, tuple(_QUEUE), ("job_name", "pend_reason"), ("priority", "submit_time"))

_CHANGE: Fields[tuple[GroupView, ChangeView]] = {
    "jobid": ("JOBID", lambda row: row[1].group),
    "change": ("CHANGE", lambda row: row[1].id),
    "state": ("STATE", lambda row: row[1].state),
    "targets": ("TARGETS", lambda row: moved_text(row[1])),
    "accepted": ("ACCEPTED", lambda row: when(row[1].accepted_ms)),
    "ended": ("ENDED", lambda row: when(row[1].ended_ms)),
    "message": ("MESSAGE", lambda row: row[1].message),
    "job_name": ("JOB_NAME", lambda row: row[0].name),
    "ups": ("UPS", lambda row: names_text(row[1].ups)),
    "downs": ("DOWNS", lambda row: names_text(row[1].downs)),
    "until": ("UNTIL", lambda row: when(row[1].until_ms)),
}
CHANGES = Table(
    "xcecli changes", "CHANGES", _CHANGE, ("jobid", "change", "state", "targets", "accepted", "ended", "message"),
    ("targets", "message"), ("accepted",),
)  # fmt: skip

_USUAL = ("cpu", "mem", "gpus", "ports")
_OWNER: Fields[OwnerView] = {
    "user": ("USER", lambda o: o.owner),
    "groups": ("GROUPS", lambda o: str(o.groups)),
    "members": ("MEMBERS", lambda o: str(o.members)),
    "slots": ("SLOTS", lambda o: str(o.slots)),
    "cpu": ("CPU", lambda o: amount_text("cpu", o.held.get("cpu", 0))),
    "mem": ("MEM", lambda o: amount_text("mem", o.held.get("mem", 0))),
    "gpus": ("GPUS", lambda o: amount_text("gpus", o.held.get("gpus", 0))),
    "ports": ("PORTS", lambda o: str(o.held.get("ports", 0))),
    "claims": ("CLAIMS", lambda o: str(o.claims)),
    "others": ("OTHERS", lambda o: ",".join(f"{name}={amount}" for name, amount in o.held.items() if name not in _USUAL)),
}
OWNERS = Table(
    "xcecli owners", "USERS", _OWNER, ("user", "groups", "members", "slots", "cpu", "mem", "gpus", "ports", "claims")
)  # fmt: skip


_EVENT: Fields[EventView] = {
    "seq": ("SEQ", lambda e: str(e.seq)),
    "time": ("TIME", lambda e: moment(e.at_ms)),
    "jobid": ("JOBID", lambda e: e.group),
    "event": ("EVENT", lambda e: e.type),
    "what": ("WHAT", lambda e: record_words(e.data, UNCUT)),
}
EVENTS = Table("xcecli events", "EVENTS", _EVENT, tuple(_EVENT))
"""For `-o`; as they come they are told one by one (`lsf_long.event_line`)."""


UNCUT = 1_000_000
"""Characters of a field that no record has."""


def moment(ms: int) -> str:
    """`Nov 29 15:11:02.123`."""
    return time.strftime("%b %d %H:%M:%S", time.localtime(ms / 1_000)) + f".{ms % 1_000:03d}"


def record_words(data: Mapping[str, Any], longest: int = 120) -> str:
    """What a record says, its group left out: the slot first, then its fields that are not empty, cut after `longest`."""
    told = {"group"}
    task = data.get("task")
    words = []
    if isinstance(task, dict):
        words.append(f"{slot_name(str(task['member']), int(task['index']))}/{task['task']} incarnation {task['incarnation']}")
        told.add("task")
    elif data.get("member"):
        words.append(slot_name(str(data["member"]), int(data.get("index", 0))))
        told |= {"member", "index"}
    facts = data.get("facts")
    if isinstance(facts, dict):
        words.append(f"host={facts['name']} node={facts['node']}")
        told.add("facts")
    for name, value in data.items():
        if name not in told:
            words += (f"{key}={_short(text, longest)}" for key, text in _words(name, value))
    return " ".join(words)


_NOTHING: tuple[object, ...] = ("", None, 0, False, [], {}, -1)


def _words(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """A field as key=value words: what is inside an object each with its path (`exit.code=3`); what is empty is left out."""
    if value in _NOTHING:
        return
    if isinstance(value, Mapping) and set(value) == {"member", "index"}:
        yield name, slot_name(str(value["member"]), int(value["index"]))
    elif isinstance(value, Mapping):
        for inner, one in value.items():
            yield from _words(f"{name}.{inner}", one)
    elif isinstance(value, list | tuple):
        if any(isinstance(one, Mapping | list | tuple) for one in value):
            for index, one in enumerate(value):
                yield from _words(f"{name}[{index}]", one)
        else:
            yield name, ",".join(_plain(one) for one in value)
    else:
        yield name, _plain(value)


def _plain(value: object) -> str:
    """One word: as JSON where it is none."""
    text = "yes" if value is True else str(value)
    return json.dumps(text, ensure_ascii=False) if re.search(r'[\s"]', text) else text


def _short(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def names_text(names: Sequence[SlotName]) -> str:
    """`rollout[1],rollout[2]`."""
    return ",".join(slot_name(name.member, name.index) for name in names)


def moved_text(change: ChangeView) -> str:
    """`rollout 2→4`: the targets that a change moves."""
    moves = [(name, change.before.get(name), count) for name, count in change.targets.items()]
    return ", ".join(f"{name} {before}→{count}" for name, before, count in moves if before != count)


def lasting(ms: int) -> str:
    """`1h30m`, `500ms`; empty for none."""
    return durations.lasting(ms) if ms else ""


def slot_reason(slot: SlotView) -> str:
    """Why a slot waits, or how its last incarnation ended."""
    if slot.reason is not None:
        return f"{slot.reason.code}: {slot.reason.text}"
    if slot.exit is None:
        return ""
    # Of an incarnation before the present one: said of which.
    earlier = f"#{slot.exit.incarnation} " if slot.exit.incarnation != slot.incarnation else ""
    return earlier + exit_text(slot.exit)


def exit_text(exit: ExitView) -> str:
    """How an incarnation ended."""
    how = exit.message
    if not how and exit.code is not None:
        how = f"exited with code {exit.code}"
    elif not how and exit.signal:
        how = f"killed by signal {exit.signal}"
    return ", ".join(part for part in (exit.cause or "", how) if part)


def members_of(groups: Sequence[GroupView]) -> list[tuple[GroupView, MemberView]]:
    """Every member of every group."""
    return [(group, member) for group in groups for member in group.members]


def slots_of(groups: Sequence[GroupView]) -> list[tuple[GroupView, SlotView]]:
    """Every slot of every group, but those that were scaled away and are gone."""
    return [(group, slot) for group in groups for slot in _slots(group)]


def _array_spec(member: MemberView) -> str:
    """`rollout[0-3]`, as a job array is written; a job is just its name."""
    indices = [slot.index for slot in standing(member)]
    if member.kind == "job" or not indices:
        return member.name
    spans: list[list[int]] = []
    for index in indices:
        if spans and index == spans[-1][1] + 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return f"{member.name}[{','.join(f'{a}-{b}' if b > a else str(a) for a, b in spans)}]"


def _total(host: HostView, name: str) -> str:
    quantity = host.counters.get(name)
    return amount_text(name, quantity.total) if quantity else ""


def _used(host: HostView, name: str) -> str:
    quantity = host.counters.get(name)
    return f"{amount_text(name, quantity.used)}/{amount_text(name, quantity.total)}" if quantity else ""


def as_json(value: BaseModel) -> str:
    """A view as it came over the wire."""
    return json.dumps(value.model_dump(mode="json"), indent=2)
