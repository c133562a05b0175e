"""The `-l` forms, as `bjobs -l` and `bhosts -l` tell them: everything about one thing, in paragraphs. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from gangflow.cli.lsf_columns import SLOTS, hosts_text, slot_name, when
from gangflow.cli.lsf_table import Layout
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.schema import ClaimView, GroupView, HostView
from gangflow.xce.rest.words import amount_text

RULE = "-" * 78


def group_lines(group: GroupView) -> Iterator[str]:
    """A group, its slots, its claims, and the last lines of whoever died."""
    owner = f", User <{group.owner}>" if group.owner else ""
    status = f"Status <{group.lsf}>, State <{group.state}>, Priority <{group.priority}>"
    yield f"Job <{group.id}>, Job Name <{group.name}>{owner}, {status}"
    yield f"{when(group.submitted_ms)}: Submitted;"
    if group.first_running_ms:
        yield f"{when(group.first_running_ms)}: First time running; epoch {group.epoch};"
    hosts = hosts_text([slot for member in group.members for slot in member.slots])
    if hosts:
        yield f" Execution hosts: {hosts};"
    satisfied = "now" if group.satisfied_now else "not now, but once" if group.satisfied_once else "never yet"
    yield f" Satisfied: {satisfied};" + (f" tries since it last ran: {group.attempt};" if group.attempt else "")
    if group.coordinator_term:
        yield f" Coordinator's term: {group.coordinator_term};"
    if group.reason is not None:
        yield f" PENDING REASON: {group.reason.code}: {group.reason.text};"
    if group.goal and not group.terminal:
        yield f" On its way to {group.goal};"
    if group.excluded:
        yield f" Excluded hosts: {' '.join(group.excluded)};"
    if group.ended_ms:
        because = ": ".join(part for part in (group.cause, group.message) if part)
        yield f"{when(group.ended_ms)}: {group.state}" + (f"; {because};" if because else ";")
    if group.tolerated:
        yield " Tolerated exits: " + " ".join(slot_name(name.member, name.index) for name in group.tolerated) + ";"
    yield ""
    slots = [(group, slot) for member in group.members for slot in member.slots]
    yield from (" " + line for line in SLOTS.text(slots, Layout(SLOTS.default[1:])).splitlines())
    for _, slot in slots:
        if slot.exit is not None and slot.exit.stderr_tail:
            yield ""
            yield f" Last lines of stderr of {slot_name(slot.member, slot.index)}, incarnation {slot.exit.incarnation}:"
            yield from (f"   {line}" for line in slot.exit.stderr_tail.splitlines())
    if group.claims:
        yield ""
        yield from (line for claim in group.claims for line in claim_lines(claim))


def claim_lines(claim: ClaimView) -> Iterator[str]:
    """A claim."""
    owner = slot_name(claim.member, claim.index) or "the group"
    text = f" Claim <{claim.name}> of {owner}, Provider <{claim.provider}>, State <{claim.state}>, attempt {claim.attempt}"
    yield text + (", retained" if claim.retain else "")
    if claim.path:
        yield f"   {claim.path}" + (f" on {claim.host}" if claim.host else "")
    if claim.message:
        yield f"   {claim.message}"


def host_lines(host: HostView) -> Iterator[str]:
    """A host: what it has, who uses it, what is still to be stopped there."""
    yield f"HOST  {host.name}"
    yield f" STATUS {host.lsf} (state {host.state}, node {host.node}, address {host.address})"
    if host.domains:
        yield " DOMAINS " + " ".join(f"{level}={domain}" for level, domain in host.domains.items())
    if host.attributes:
        yield " ATTRIBUTES " + " ".join(f"{name}={value}" for name, value in host.attributes.items())
    for name, quantity in host.counters.items():
        yield f" {name}: {amount_text(name, quantity.used)} of {amount_text(name, quantity.total)} in use"
    for held in host.slots:
        yield f" {held.group} {slot_name(held.member, held.index)}: {held.tasks} tasks, {held.running} running"
    for task in host.superseded:
        yield f" superseded, to be stopped: {task}"
    for stray in host.strays:
        yield f" not of this journal: {stray}"


def event_line(event: EventView) -> str:
    """One record: seq, time, group, type, and its fields that are neither empty nor told already."""
    words = record_words(event.data)
    return f"{event.seq:>8}  {moment(event.at_ms)}  {event.group or '-':<6} {event.type:<18} {words}".rstrip()


def moment(ms: int) -> str:
    """`Nov 29 15:11:02.123`."""
    return time.strftime("%b %d %H:%M:%S", time.localtime(ms / 1_000)) + f".{ms % 1_000:03d}"


def record_words(data: Mapping[str, Any]) -> str:
    """What a record says, its group left out: the slot first, then its fields that are not empty."""
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
        if name not in told and value not in ("", None, 0, False, [], {}, -1):
            words.append(f"{name}={_short(value)}")
    return " ".join(words)


def _short(value: object) -> str:
    text = str(value).replace("\n", "\\n")
    return text if len(text) <= 120 else text[:119] + "…"
