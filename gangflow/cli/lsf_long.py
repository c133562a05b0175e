"""The `-l` forms, as `bjobs -l` and `bhosts -l` tell them: everything about one thing, in paragraphs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from gangflow.cli.lsf_columns import (
    SLOTS,
    closed_word,
    exit_text,
    hosts_text,
    lasting,
    moment,
    moved_text,
    names_text,
    record_words,
    slot_name,
    slots_of,
    standing,
    when,
)
from gangflow.cli.lsf_table import Layout
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.schema import (
    ChangeView,
    ClaimView,
    GroupView,
    HostView,
    MemberView,
    OwnerView,
    QueueItem,
    SlotView,
)
from gangflow.xce.rest.words import amount_text

RULE = "-" * 78


def group_lines(group: GroupView, width: int = 0) -> Iterator[str]:
    """A group, its members and slots, its changes and claims, and the last lines of whoever died. `width`: of the terminal."""
    owner = f", User <{group.owner}>" if group.owner else ""
    status = f"Status <{group.lsf}>, State <{group.state}>, Priority <{group.priority}>"
    yield f"Job <{group.id}>, Job Name <{group.name}>{owner}, {status}"
    yield f"{when(group.submitted_ms)}: Submitted;"
    if group.first_running_ms:
        yield f"{when(group.first_running_ms)}: First time running; epoch {group.epoch};"
    hosts = hosts_text([slot for _, slot in slots_of([group])])
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
    if group.stopped:
        yield f" Stopped members: {' '.join(group.stopped)};"
    if group.ended_ms:
        because = ": ".join(part for part in (group.cause, group.message) if part)
        yield f"{when(group.ended_ms)}: {group.state}" + (f"; {because};" if because else ";")
    if group.tolerated:
        yield " Tolerated exits: " + names_text(group.tolerated) + ";"
    for change in group.changes:
        yield from change_lines(change)
    yield ""
    yield from (line for member in group.members if (line := _member_line(group, member)))
    slots = slots_of([group])
    text = SLOTS.text(slots, Layout(SLOTS.default[1:]), width=max(width - 1, 0))
    yield from (" " + line for line in text.splitlines())
    for _, slot in slots:
        yield from _last_words(slot)
    if group.claims:
        yield ""
        yield from (line for claim in group.claims for line in claim_lines(claim))


def _member_line(group: GroupView, member: MemberView) -> str:
    """What is particular about a member; empty when nothing is."""
    parts = []
    if member.owner and member.owner != group.owner:
        parts.append(f"User <{member.owner}>")
    if member.profile:
        parts.append(f"Application Profile <{member.profile}>")
    if member.container:
        parts.append(f"Image <{member.container}>")
    if member.runtime_limit_ms:
        warned = f" (warned {lasting(member.warn_before_ms)} before)" if member.warn_before_ms else ""
        parts.append(f"RUNLIMIT {lasting(member.runtime_limit_ms)}{warned}")
    if member.drain_ms:
        parts.append(f"drains {lasting(member.drain_ms)}")
    if member.stopped:
        parts.append("stopped")
    return f" {member.name}: {', '.join(parts)};" if parts else ""


def _last_words(slot: SlotView) -> Iterator[str]:
    # Of one that was stopped as asked they are nobody's question.
    if slot.exit is not None and slot.exit.cause and slot.exit.stderr_tail:
        yield ""
        yield f" Last lines of stderr of {slot_name(slot.member, slot.index)}, incarnation {slot.exit.incarnation}:"
        yield from (f"   {line}" for line in slot.exit.stderr_tail.splitlines())


def member_lines(group: GroupView, member: MemberView, width: int = 0) -> Iterator[str]:
    """A member and its slots."""
    kind = f"{'primary' if member.primary else 'auxiliary'} {member.kind.replace('_', ' ')}"
    yield f"Member <{group.id}.{member.name}>, Job Name <{group.name}>, {kind}"
    yield f" Slots: {member.ready} of {member.target} ready, at least {member.min}, at most {member.max};"
    if line := _member_line(group, member):
        yield line
    yield f" Restarts: {member.restarts};"
    text = SLOTS.text([(group, slot) for slot in standing(member)], Layout(SLOTS.default[1:]), width=max(width - 1, 0))
    yield from (" " + line for line in text.splitlines())


def slot_lines(group: GroupView, slot: SlotView) -> Iterator[str]:
    """A slot: where each of its tasks is, what it was given, how its last incarnation ended."""
    yield f"Slot <{group.id}.{slot_name(slot.member, slot.index)}>, Status <{slot.lsf}>, State <{slot.state}>"
    yield f" Since {when(slot.since_ms)}; incarnation {slot.incarnation}, epoch {slot.epoch}, {slot.restarts} restarts;"
    if slot.out:
        yield " Scaled away;"
    if slot.run_until_ms:
        yield f" Runs until {when(slot.run_until_ms)} at most;" + (" it was warned;" if slot.warned else "")
    if slot.reason is not None:
        yield f" PENDING REASON: {slot.reason.code}: {slot.reason.text};"
    for task in slot.tasks:
        parts = [f"{name} {amount_text(name, amount)}" for name, amount in task.counters.items()]
        parts += [f"GPU {gpu.device}" + (f" ({gpu.milli / 1000:g})" if gpu.milli != 1_000 else "") for gpu in task.gpus]
        parts += [f"port {name} {task.address}:{number}" for name, number in task.ports.items()]
        pid = f", pid {task.pid}" if task.pid else ""
        yield f" Task {task.index} on {task.host}: {task.phase}{pid}; {', '.join(parts)};"
    if slot.exit is not None:
        yield f" Incarnation {slot.exit.incarnation} ended {when(slot.exit.at_ms)}: {exit_text(slot.exit) or 'as asked'};"
    yield from _last_words(slot)


def change_lines(change: ChangeView) -> Iterator[str]:
    """A change of targets."""
    ended = f", {when(change.ended_ms)} {change.state}" if change.ended_ms else f", State <{change.state}>"
    because = f": {change.message}" if change.message else ""
    yield f" Change <{change.id}> of {when(change.accepted_ms)}: {moved_text(change) or 'nothing'}{ended}{because};"
    for word, names in (("to be placed", change.ups), ("still there", change.downs)):
        if names and not change.over:
            yield f"   {word}: {names_text(names)};"


def claim_lines(claim: ClaimView) -> Iterator[str]:
    """A claim."""
    made_for = "standalone" if claim.standalone else f"of {slot_name(claim.member, claim.index) or 'the group'}"
    known = f"<{claim.id}>" if claim.id == claim.name else f"<{claim.id}>, Name <{claim.name}>,"
    text = f" Claim {known} {made_for}, Provider <{claim.provider}>, State <{claim.state}>, attempt {claim.attempt}"
    if claim.owner and claim.standalone:
        text += f", User <{claim.owner}>"
    yield text + (", retained" if claim.retain else "") + (f", {claim.access}" if claim.access else "")
    if claim.path:
        yield f"   {claim.path}" + (f" on {claim.host}" if claim.host else "")
    if claim.holders:
        yield f"   held by {', '.join(claim.holders)}"
    if claim.losses:
        yield f"   lost {claim.losses} times"
    if claim.message:
        yield f"   {claim.message}"


def queue_lines(item: QueueItem) -> Iterator[str]:
    """A group that waits."""
    owner = f", User <{item.owner}>" if item.owner else ""
    yield f"Job <{item.id}>, Job Name <{item.name}>{owner}, Priority <{item.priority}>"
    yield f"{when(item.submitted_ms)}: Submitted; place in the queue: {item.position};"
    if item.reason is not None:
        yield f" PENDING REASON: {item.reason.code}: {item.reason.text};"
        missing = ", ".join(f"{name} {amount_text(name, amount)}" for name, amount in item.reason.shortfall.items())
        if missing:
            yield f"  missing{f' in {item.reason.domain}' if item.reason.domain else ''}: {missing};"
        if item.reason.blocker:
            yield f"  blocked by: {item.reason.blocker};"


def owner_lines(owner: OwnerView) -> Iterator[str]:
    """An owner, and everything that his members hold."""
    yield f"USER  {owner.owner}"
    yield f" {owner.groups} groups, {owner.members} members, {owner.slots} slots that hold something, {owner.claims} claims"
    yield from (f" {name}: {amount_text(name, amount)}" for name, amount in owner.held.items())


def host_lines(host: HostView) -> Iterator[str]:
    """A host: what it has, who uses it, what is still to be stopped there."""
    yield f"HOST  {host.name}"
    yield f" STATUS {closed_word(host) or host.lsf} (state {host.state}, node {host.node}, address {host.address})"
    if host.closed:
        yield f" ADMIN ACTION COMMENT: {host.closed}"
    if host.domains:
        yield " DOMAINS " + " ".join(f"{level}={domain}" for level, domain in host.domains.items())
    if host.attributes:
        yield " ATTRIBUTES " + " ".join(f"{name}={value}" for name, value in host.attributes.items())
    for name, quantity in host.counters.items():
        yield f" {name}: {amount_text(name, quantity.used)} of {amount_text(name, quantity.total)} in use"
    for held in host.slots:
        yield f" {held.group}.{slot_name(held.member, held.index)}: {held.tasks} tasks, {held.running} running"
    for task in host.superseded:
        yield f" superseded, to be stopped: {task}"
    for stray in host.strays:
        yield f" not of this journal: {stray}"


EVENT_HEADER = f"{'SEQ':>8}  {'TIME':<19}  {'JOBID':<6} {'EVENT':<18} WHAT"


def event_line(event: EventView, longest: int = 120) -> str:
    """One record: seq, time, group, type, and its fields that are neither empty nor told already."""
    words = record_words(event.data, longest)
    return f"{event.seq:>8}  {moment(event.at_ms)}  {event.group or '-':<6} {event.type:<18} {words}".rstrip()
