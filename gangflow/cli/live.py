"""The live table: a group's view, heartbeats and story as something that rich can draw. Pure but for the drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gangflow.channel import ROLE_KEY
from gangflow.cli.story import Story
from gangflow.xce.rest.messages import BeatView
from gangflow.xce.rest.schema import GroupView, SlotView

LINES_SHOWN = 8
SLOTS_NAMED = 6
"""Of those that something is said of: the others are counted."""
COUNTED = {"redispatched": "re-dispatched", "lost": "lost", "duplicates": "duplicate"}
"""Counters of samples, and their words."""
_COLOURS = {
    "RUNNING": "green",
    "READY": "green",
    "SUCCEEDED": "green",
    "DONE": "green",
    "FAILED": "red",
    "EXIT": "red",
    "LOST": "red",
    "CANCELLED": "yellow",
    "DEGRADED": "red",
    "PENDING": "dim",
}


def state_text(state: str) -> Text:
    """A state in its colour."""
    return Text(state, style=_COLOURS.get(state, "yellow"))


def newest(beats: Mapping[tuple[str, int], BeatView], key: str) -> Any:
    """The largest value of a heartbeat's field over all slots; None if nobody says it."""
    values = [beat.body[key] for beat in beats.values() if isinstance(beat.body.get(key), int | float)]
    return max(values, default=None)


def _counted(beats: Mapping[tuple[str, int], BeatView], key: str) -> Any:
    """The largest of a counter that the SDK adds to a heartbeat."""
    parts = [beat.body.get(ROLE_KEY, {}).get("samples", {}) for beat in beats.values()]
    return max((part[key] for part in parts if isinstance(part.get(key), int)), default=None)


def progress_line(beats: Mapping[tuple[str, int], BeatView], rollout: str) -> str:
    """Step, reward, rates and (where a `rollout` serves an RL trainer) what became of the samples, as far as members say it."""
    parts = []
    for key, form in (
        ("step", "step {:.0f}"),
        ("reward", "reward {:.3f}"),
        ("samples_per_s", "{:.0f} samples/s"),
        ("accuracy", "held-out accuracy {:.2f}"),
    ):
        value = newest(beats, key)
        if value is not None:
            parts.append(form.format(value))
    for key, word in COUNTED.items() if rollout else ():
        value = _counted(beats, key)
        if value is not None:
            parts.append(f"{value} {word}")
    return " · ".join(parts)


def waited_for(view: GroupView, now_ms: int) -> str:
    """Which replicas are not READY, and for how long: they start (an engine loads its model), or were READY before.

    Empty: none. A replica without a process has a reason of its own.
    """
    if view.terminal or view.state == "STOPPING":
        return ""
    slots = [slot for member in view.members if member.kind == "replica_set" for slot in member.slots]
    alive = [slot for slot in slots if slot.state in {"STARTING", "RUNNING"}]
    parts = [
        _not_ready([slot for slot in alive if not slot.ready_ms], "start: not READY yet", now_ms, limited=True),
        _not_ready([slot for slot in alive if slot.ready_ms], "not READY any more", now_ms),
    ]
    return "; ".join(part for part in parts if part)


def _not_ready(slots: Sequence[SlotView], words: str, now_ms: int, *, limited: bool = False) -> str:
    if not slots:
        return ""
    names = ", ".join(f"{slot.member}[{slot.index}]" for slot in slots[:SLOTS_NAMED])
    more = f" and {len(slots) - SLOTS_NAMED} more" if len(slots) > SLOTS_NAMED else ""
    since = min(slot.since_ms for slot in slots)
    ends = [slot.until_ms for slot in slots if slot.until_ms and limited]
    limit = f" of at most {(min(ends) - since) / 1000:.0f} s" if ends else ""
    return f"{names}{more} {words} ({max(0, now_ms - since) / 1000:.0f} s{limit})"


def headline(view: GroupView, now_ms: int) -> Text:
    """Name, state, how long, and why if it waits."""
    line = Text.assemble((view.name, "bold"), " ", f"({view.id}) ", state_text(view.state))
    line.append(f"  epoch {view.epoch}  {max(0, (view.ended_ms or now_ms) - view.submitted_ms) / 1000:.0f} s")
    if view.reason is not None:
        line.append(f"  {view.reason.code}: {view.reason.text}")
        if view.reason.blocker:
            line.append(f" (blocked by {view.reason.blocker})")
    return line


def table(view: GroupView, beats: Mapping[tuple[str, int], BeatView], story: Story) -> Table:
    """Members and slots, a row each."""
    grid = Table(expand=False, pad_edge=False, box=None, header_style="dim")
    # Weights are an RL group's: nobody else has a word for them.
    weighted = ("WEIGHTS",) if story.rollout else ()
    for name in ("SLOT", "STATE", "HOST", "INC", *weighted, "RESTARTS", "SAYS"):
        grid.add_column(name, no_wrap=name != "SAYS")
    for member in view.members:
        for slot in member.slots:
            if slot.out and not slot.tasks:
                continue  # scaled away
            says = _says(slot, beats.get((slot.member, slot.index)))
            # Only rollouts serve weights: the same index of another replica set has none.
            weights = story.weights.get((slot.index, slot.incarnation), "") if slot.member == story.rollout else ""
            grid.add_row(
                f"{slot.member}[{slot.index}]",
                state_text(slot.state),
                ",".join(slot.hosts),
                str(slot.incarnation),
                *((weights,) if story.rollout else ()),
                str(slot.restarts),
                says,
            )
    return grid


def _says(slot: SlotView, beat: BeatView | None) -> str:
    if slot.reason is not None:
        return f"{slot.reason.code}: {slot.reason.text}"
    if slot.state in {"EXIT", "LOST", "BACKOFF"} and slot.exit is not None:
        return f"{slot.exit.cause or 'ended'} {slot.exit.message}".strip()
    if beat is not None and beat.incarnation == slot.incarnation and "step" in beat.body:
        return f"step {beat.body['step']}"
    return ""


def screen(
    view: GroupView | None,
    beats: Mapping[tuple[str, int], BeatView],
    story: Story,
    phase: str,
    now_ms: int,
    behind: GroupView | None,
) -> RenderableType:
    """All that the live display shows."""
    if view is None:
        return Text(phase, style="bold")
    parts: list[RenderableType] = [headline(view, now_ms), table(view, beats, story)]
    waits = waited_for(view, now_ms)
    if waits:
        parts.append(Text(waits, style="yellow"))
    progress = progress_line(beats, story.rollout)
    if progress:
        parts.append(Text(progress, style="bold"))
    if behind is not None:
        parts.append(Text.assemble(("behind it: ", "dim"), headline(behind, now_ms)))
    begin = story.begin_ms or view.submitted_ms
    # What lasts stands above all of this already, and scrolls up with the terminal.
    passing = [line for line in story.lines if line not in story.lasting][-LINES_SHOWN:]
    parts += [Text(f"{(at - begin) / 1000:7.1f} s  {text.splitlines()[0]}", style="dim") for at, text in passing]
    return Stack(*parts)
