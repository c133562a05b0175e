"""`gangflow status` and `gangflow logs`."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from rich.console import Console

from gangflow.cli import live
from gangflow.cli.names import parse
from gangflow.cli.paging import every
from gangflow.cli.story import Story
from gangflow.cli.watching import rollout_of
from gangflow.errors import GangflowError, NotFound, Problem, UsageError
from gangflow.home import given_token, homes
from gangflow.runs import Run, attach
from gangflow.xce.rest.schema import GroupView, SlotView

_SLOT = re.compile(r"([a-z][a-z0-9_-]*)(?:\[(\d+)\])?")


def show_status(console: Console, group: str, address: str) -> None:
    """One group in detail, or a line for each group of each live cluster of this user."""
    if group:
        run = attach(parse(group).group, address=address)
        view = run.status()
        beats = {(beat.member, beat.index): beat for beat in run.client.beats(run.id).heartbeats}
        console.print(live.screen(view, beats, Story(run.id, rollout_of(view)), "", int(time.time() * 1000), None))
        return
    if address:
        from gangflow.clusters import join_cluster

        with join_cluster(address).client() as client:
            _list(console, address, every(lambda cursor: client.groups(cursor=cursor), "groups"))
        return
    shown = 0
    for home in homes():
        if not home.alive:
            if home.left_behind and not home.uses_ray:
                console.print(
                    f"{home.path}: its controller is gone, and members may run on;"
                    f" `gangflow up --home {home.path}` goes on with them, `gangflow down --home {home.path}` ends them",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )
                shown += 1
            continue
        try:
            with home.client(patience=1, token=given_token()) as client:
                _list(console, str(home.path), every(lambda cursor: client.groups(cursor=cursor), "groups"))
                shown += 1
        except GangflowError as error:
            console.print(f"{home.path}: {error.message}", markup=False, soft_wrap=True)
    if not shown:
        console.print("no cluster of this user runs on this machine")


def _list(console: Console, place: str, groups: list[GroupView]) -> None:
    console.print(
        f"{place}: {len(groups)} group{'' if len(groups) == 1 else 's'}", markup=False, highlight=False, soft_wrap=True
    )
    for view in groups:
        console.print("  ", live.headline(view, int(time.time() * 1000)), soft_wrap=True)


def kept_log(group: str, member: str, index: int, stream: str, incarnation: int, task: int) -> Path | None:
    """The log of a slot of a run whose cluster is gone, as its home keeps it: of the newest run of that name."""
    for home in homes():
        if home.alive or not re.fullmatch(rf"\d+-\d+-{re.escape(group[:20])}-[0-9a-f]+", home.path.name):
            continue
        lives = [
            (int(life.name), life / str(task) / stream)
            for slot in home.path.glob(f"nodes/*/tasks/*/{member}-{index}")
            for life in slot.glob("[0-9]*")
            if incarnation in (0, int(life.name))
        ]
        found = [file for _, file in sorted(lives) if file.is_file()]
        if found:
            return found[-1]
    return None


def _slot_of(group: str, slot: str) -> tuple[str, str, int]:
    """(group, member, index) of `GROUP SLOT`, or of `g1.rollout[2]` alone; a slot without its index is the first."""
    whole = parse(f"{group}.{slot}" if slot else group)
    if whole.is_group or (slot and not _SLOT.fullmatch(slot)):
        raise UsageError([Problem("slot", repr(slot), "member or member[index]")])
    return whole.group, whole.member, max(whole.index, 0)


def show_log(group: str, slot: str, *, follow: bool, stream: str, incarnation: int, task: int, address: str) -> None:
    """Print what is there of a slot's log, and go on with `follow`.

    Raises:
        NotFound: no such slot, or no log of that incarnation.
    """
    group, member, index = _slot_of(group, slot)
    try:
        run = attach(group, address=address)
    except NotFound:
        file = None if address else kept_log(group, member, index, stream, incarnation, task)
        if file is None:
            raise
        sys.stdout.write(file.read_text(errors="replace"))
        return
    view = run.status()
    try:
        found = view.slot(member, index)
    except KeyError:
        raise NotFound(f"group {group!r} has no slot {member}[{index}]") from None
    try:
        _print_log(run, found, follow=follow, stream=stream, incarnation=incarnation, task=task)
    except NotFound as error:
        if found.state not in _NOT_STARTED or incarnation not in (0, found.incarnation):
            raise
        reason = found.reason or view.reason
        why = f"{reason.code}: {reason.text}" if reason is not None else "the rest of its group" if found.hosts else "a place"
        remedy = f"`gangflow status {view.name}` shows how far it is"
        raise NotFound(f"{view.name}.{member}[{index}] has not started; it waits for {why}", remedy=remedy) from error


_NOT_STARTED = frozenset({"PENDING", "PLACED", "PREPARED", "BACKOFF", "STARTING"})
"""States of a slot in which there may be no log yet."""


def _print_log(run: Run, slot: SlotView, *, follow: bool, stream: str, incarnation: int, task: int) -> None:
    if follow:
        for piece in run.client.follow_log(run.id, slot.member, slot.index, incarnation, task, stream):
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        return
    offset = 0
    while True:
        piece = run.client.log(run.id, slot.member, slot.index, incarnation, task, stream, offset)
        sys.stdout.write(piece.text)
        if piece.next_offset == offset or not piece.text:
            return
        offset = piece.next_offset
