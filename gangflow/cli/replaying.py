"""`gangflow replay`: decide a journal's inputs again, and say whether the same came out."""

from __future__ import annotations

import difflib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gangflow.cli.lsf_columns import HOSTS, moment, record_words
from gangflow.cli.lsf_long import claim_lines, group_lines
from gangflow.cli.lsf_table import Layout
from gangflow.errors import Problem, ReplayDiverged, UsageError
from gangflow.xce.core.events import Event
from gangflow.xce.core.inputs import Input
from gangflow.xce.core.state import Group, State
from gangflow.xce.journal.divergence import ABSENT, Divergence, Kind, about
from gangflow.xce.journal.record import plain_events
from gangflow.xce.journal.replay import Replayed, replay
from gangflow.xce.journal.sqlite_records import SqliteRecords
from gangflow.xce.rest.host_views import host_views
from gangflow.xce.rest.views import claim_view, group_view

SHOWN = 12
"""Fields, inputs and events of a divergence that are printed at most, of each; `--json` has all."""
PROGRESS_S = 1.0
SECRET = frozenset({"token", "boot", "environment", "parameters", "document"})
"""Not printed: an explanation is made to be passed on."""


def journal_file(place: Path) -> Path:
    """The journal that a path means: the file itself, or a cluster's home. SpecError if there is none."""
    place = place.expanduser()
    file = place / "journal.db" if place.is_dir() else place
    if not file.is_file():
        raise UsageError([Problem("journal", repr(str(place)), "a journal.db, or the home of a cluster that has one")])
    return file


def run_replay(place: Path, begin: int, until: int, show: str, *, force: bool, as_json: bool) -> None:
    """Replay and print what was found.

    Raises:
        ReplayDiverged: something else came out; the explanation was printed.
        OtherVersion, JournalCorrupt, JournalError: it could not be replayed.
    """
    if until and begin > until:
        raise UsageError([Problem("--until", str(until), f"a seq that is not before --from {begin}")])
    journal = SqliteRecords(journal_file(place))
    try:
        for name, seq in (("--from", begin), ("--until", until)):
            if seq > journal.seq:
                raise UsageError([Problem(name, str(seq), f"a seq up to {journal.seq}, where the journal ends")])
        found = replay(journal, after=max(begin - 1, 0), until=until, force=force, watch=_progress(until or journal.seq))
        shown = _group(found.state, show, found.seq) if show else None
        if as_json:
            print(json.dumps(document(found, shown), indent=2))
        else:
            print("\n".join(lines(found)))
            if shown is not None:
                print()
                print("\n".join(group_text(found.state, shown, found.seq)))
    finally:
        journal.close()
    if found.divergence is not None:
        what = found.divergence
        raise ReplayDiverged(
            f"the replay diverged in the batch at seq {what.first_seq}" + (f", about {what.about}" if what.about else "")
        )


def _progress(end: int) -> Callable[[int], None]:
    """Says on a terminal how far it is, now and then: a long journal takes minutes."""
    said = time.monotonic()

    def watch(seq: int) -> None:
        nonlocal said
        now = time.monotonic()
        if now - said >= PROGRESS_S:
            said = now
            print(f"\rseq {seq:,} of {end:,}", end="" if seq < end else "\n", file=sys.stderr, flush=True)

    return watch if sys.stderr.isatty() else lambda seq: None


# --- what was found ---------------------------------------------------------------------------------------------------


def lines(found: Replayed) -> Iterator[str]:
    """What a replay found, for people."""
    for note in found.notes:
        yield f"note: {note}"
    if found.batches:
        counted = f"{_many(found.batches, 'batch')} with {_many(found.events, 'event')}"
        seqs = f"seq {found.began_after + 1} to {found.seq}"
        same = "the same" if found.reworded else "the same, byte for byte"
        yield f"replayed {counted}, {seqs}, decided by gangflow {', '.join(found.versions)}: {same}"
    elif found.divergence is None:
        yield "nothing to compare: the state was taken as it was decided"
    if found.reworded:
        # A field that another build did not know yet takes its default: that is no other decision.
        yield f"note: {_many(found.reworded, 'batch')} stand there in the form of another build; what they say was compared"
    yield f"the chain of digests holds up to seq {found.seq}: {found.digest[:16]}…"
    if found.images:
        yield f"state images at seq {', '.join(map(str, found.images))}: the same state"
    if found.divergence is not None:
        yield ""
        yield from explained(found.divergence)


def explained(what: Divergence) -> Iterator[str]:
    """The first divergence, for people."""
    seqs = f"{what.first_seq} to {what.last_seq}" if what.last_seq > what.first_seq else str(what.first_seq)
    yield f"DIVERGED in the batch of seq {seqs}, {moment(what.at_ms)}, term {what.term}, decided by gangflow {what.code}"
    yield f" Its {_many(len(what.inputs), 'input')}:"
    yield from _short_list([f"   {input_line(each)}" for each in what.inputs])
    if what.kind is Kind.FAULT:
        yield " The machine cannot take them:"
        yield from (f"   {line}" for line in what.fault.splitlines())
        return
    if what.kind is Kind.EVENTS:
        yield " What was decided (= the same; - in the journal; + in the replay):"
        yield from _event_lines(what)
        yield f" The first event that differs is seq {what.seq}, about {what.about}:"
    elif what.kind is Kind.IMAGE:
        yield f" The decisions agree, but the state image at seq {what.last_seq} says:"
    else:
        yield " The decisions agree, but not their time or term:"
    yield from _short_list(list(_fields(what)))


def _event_lines(what: Divergence) -> Iterator[str]:
    """Both lists as one, from a little before the first event that differs."""
    old, new = plain_events(what.recorded), plain_events(what.replayed)
    first = max(0, what.position - 2)
    if first:
        yield f"   = {_many(first, 'event')} before"
    rows: list[str] = []
    for kind, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old[first:], new[first:], autojunk=False).get_opcodes():
        sides = (
            [("=", what.recorded, i1, i2)] if kind == "equal" else [("-", what.recorded, i1, i2), ("+", what.replayed, j1, j2)]
        )
        for sign, events, begin, end in sides:
            rows += [f"   {sign} {what.first_seq + first + n:>8}  {event_line(events[first + n])}" for n in range(begin, end)]
    yield from _short_list(rows)


def _fields(what: Divergence) -> Iterator[str]:
    for each in what.differences:
        yield f"   {each.path or 'the event'}: the journal has {_value(each.recorded)}, the replay {_value(each.replayed)}"


def _value(value: Any) -> str:
    text = str(value) if value == ABSENT else json.dumps(_without_secrets(value), ensure_ascii=False)
    return text if len(text) <= 200 else text[:199] + "…"


def _short_list(texts: list[str]) -> Iterator[str]:
    yield from texts[:SHOWN]
    if len(texts) > SHOWN:
        yield f"   … and {len(texts) - SHOWN} more"


def _many(count: int, word: str) -> str:
    if count == 1:
        return f"1 {word}"
    return f"{count:,} {word}es" if word.endswith("ch") else f"{count:,} {word}s"


def event_line(event: Event) -> str:
    """One event in one line: its type, its group, what it says."""
    return _line(event, about(event))


def input_line(one: Input) -> str:
    """One input in one line."""
    return _line(one, "")


def _line(value: Any, subject: str) -> str:
    data = _without_secrets(msgspec.to_builtins(value))
    plan = data.pop("plan", None)
    if isinstance(plan, dict):
        data["name"] = plan.get("name", "")
        data["members"] = ",".join(member["name"] for member in plan.get("members", ()))
    group = data.get("group") or (data.get("task") or {}).get("group") or ""
    return " ".join(part for part in (f"{type(value).__name__:<15}", group, record_words(data)) if part) or subject


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_secrets(part) for name, part in value.items() if name not in SECRET}
    if isinstance(value, list | tuple):
        return [_without_secrets(part) for part in value]
    return value


# --- one group as it was ----------------------------------------------------------------------------------------------


def _group(state: State, name: str, seq: int) -> Group:
    """The group of that id, or the newest of that name; SpecError with those that there were."""
    found = state.groups.get(name) or next((g for g in reversed(list(state.groups.values())) if g.plan.name == name), None)
    if found is None:
        known = ", ".join(f"{group.id} ({group.plan.name})" for group in state.groups.values()) or "none"
        raise UsageError([Problem("--show", repr(name), f"a group of the state at seq {seq}: {known}")])
    return found


def group_text(state: State, group: Group, seq: int) -> Iterator[str]:
    """A group as `xcecli groups -l` would have shown it, with the hosts that it stood on and the claims that it used."""
    view = group_view(state, group, seq)
    yield f"As of seq {seq}, {moment(state.now_ms)}:"
    yield from group_lines(view)
    standing = {task.host for slot in group.slots.values() for task in slot.tasks}
    hosts = [host for host in host_views(state) if host.name in standing]
    if hosts:
        yield ""
        yield from (f" {line}" for line in HOSTS.text(hosts, Layout(HOSTS.default)).splitlines())
    used = [claim for plan in group.plan.claims if plan.uses and (claim := state.claims.get(plan.uses)) is not None]
    for claim in used:
        yield from claim_lines(claim_view(state, claim))


def document(found: Replayed, shown: Group | None) -> Mapping[str, Any]:
    """All that was found, for programs."""
    what = found.divergence
    explained_ = None
    if what is not None:
        explained_ = {
            "kind": what.kind.value,
            "first_seq": what.first_seq,
            "last_seq": what.last_seq,
            "seq": what.seq,
            "at_ms": what.at_ms,
            "term": what.term,
            "code": what.code,
            "about": what.about,
            "fault": what.fault,
            "inputs": [_typed(each) for each in what.inputs],
            "recorded": [_typed(each) for each in what.recorded],
            "replayed": [_typed(each) for each in what.replayed],
            "differences": [
                {"path": each.path, "recorded": _without_secrets(each.recorded), "replayed": _without_secrets(each.replayed)}
                for each in what.differences
            ],
        }
    return {
        "same": what is None,
        "seq": found.seq,
        "from": found.began_after + 1,
        "batches": found.batches,
        "events": found.events,
        "versions": found.versions,
        "digest": found.digest,
        "images": found.images,
        "notes": found.notes,
        "divergence": explained_,
        "group": group_view(found.state, shown, found.seq).model_dump(mode="json") if shown is not None else None,
    }


def _typed(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, "data": _without_secrets(msgspec.to_builtins(value))}
