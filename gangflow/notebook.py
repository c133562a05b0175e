"""A run in a notebook: as a table, and as one that renews itself. Needs only the notebook's own IPython, if there is one."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from html import escape
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol

from gangflow.errors import XceError

if TYPE_CHECKING:
    from gangflow.aio.runs import AsyncRun
    from gangflow.events import Event
    from gangflow.runs import Run
    from gangflow.xce.rest.schema import ChangeView, GroupView, MemberView, SlotView

DRAW_S = 0.5
"""A table is drawn again at most this often, however much happens."""
SLOTS_SHOWN = 64
"""Of one member; the others are counted."""
_COLOURS = {
    "RUNNING": "#1a7f37",
    "READY": "#1a7f37",
    "SUCCEEDED": "#1a7f37",
    "DONE": "#1a7f37",
    "FAILED": "#cf222e",
    "EXIT": "#cf222e",
    "LOST": "#cf222e",
    "DEGRADED": "#cf222e",
    "CANCELLED": "#9a6700",
}


def group_html(view: GroupView, note: str = "") -> str:
    """A group as an HTML table: states, members, slots, reasons. Whatever a user or a program has named is escaped."""
    rows = [row for member in view.members for row in _rows(member)]
    head = f"<b>{escape(view.name)}</b> ({escape(view.id)}) {_state(view.state)} epoch {view.epoch}, {_age(view)}"
    lines = [head, *(_small(line) for line in _why(view)), *(_small(line) for line in _changes(view))]
    if note:
        lines.append(_small(note))
    columns = "".join(f"<th style='text-align:left'>{name}</th>" for name in ("member", "state", "host", "incarnation", ""))
    return f"<div>{'<br>'.join(lines)}<table><thead><tr>{columns}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"


def shown(run: Run) -> str:
    """`Run._repr_html_`: what can be said now; an XCE that does not answer is not an error of the cell."""
    try:
        return group_html(run.status())
    except XceError as error:
        return f"<div><b>{escape(run.name)}</b> ({escape(run.id)}): {escape(error.message)}</div>"


# --- the live view ---------------------------------------------------------------------------------------------------


class Display(Protocol):
    """Where a live view goes."""

    def show(self, view: GroupView, happened: Event | None) -> None: ...


class Notebook:
    """One output of a cell, renewed in place."""

    def __init__(self, ipython: Any) -> None:
        self._html = ipython.HTML
        self._handle = ipython.display(ipython.HTML(""), display_id=True)
        self._last = ""

    def show(self, view: GroupView, happened: Event | None) -> None:
        if happened is not None:
            self._last = str(happened)
        self._handle.update(self._html(group_html(view, self._last)))


class Lines:
    """A line for each event."""

    def __init__(self, write: Callable[[str], object] = sys.stdout.write) -> None:
        self._write = write

    def show(self, view: GroupView, happened: Event | None) -> None:
        if happened is not None:
            self._write(f"{happened}\n")


def display_here() -> Display:
    """The notebook's, where there is one; else the standard output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or "IPKernelApp" not in shell.config:
        return Lines(sys.stdout.write)
    from importlib import import_module

    return Notebook(import_module("IPython.display"))


def watch(run: Run, timeout: float | None = None, display: Display | None = None) -> GroupView:
    """Show the run until it ends; see `Run.watch`."""
    from gangflow.member.io import IoThread

    mail: SimpleQueue[Event | Exception | None] = SimpleQueue()

    async def pump(after: int) -> None:
        from gangflow.aio.runs import AsyncRun

        watched = AsyncRun(run.id, run.name, run.cluster, owns=False)
        try:
            async for event in watched.events(after):
                mail.put(event)
            mail.put(None)
        except Exception as error:  # What ended the stream is the watcher's to know.
            mail.put(error)
        finally:
            await watched.close()

    view = run.status()
    io = IoThread()
    pumping = io.submit(pump(view.seq))
    try:
        return _draw(run, view, mail, display or display_here(), None if timeout is None else time.monotonic() + timeout)
    finally:
        pumping.cancel()
        io.close()


def _draw(
    run: Run, view: GroupView, mail: SimpleQueue[Event | Exception | None], display: Display, deadline: float | None
) -> GroupView:
    display.show(view, None)
    while not view.terminal and (deadline is None or time.monotonic() < deadline):
        for event in _taken(mail, deadline):
            display.show(view, event)
        view = run.status()
        display.show(view, None)
    return view


def _taken(mail: SimpleQueue[Event | Exception | None], deadline: float | None) -> Iterator[Event]:
    """What has come within a drawing's time; waits for the first one as long as it takes."""
    wait = None if deadline is None else max(0.0, deadline - time.monotonic())
    until = None
    while True:
        try:
            item = mail.get(timeout=wait if until is None else max(0.0, until - time.monotonic()))
        except Empty:
            return
        if isinstance(item, Exception):
            raise item
        if item is None:
            return
        yield item
        until = until or time.monotonic() + DRAW_S


async def awatch(run: AsyncRun, timeout: float | None = None, display: Display | None = None) -> GroupView:
    """Show the run until it ends; see `AsyncRun.watch`."""
    display = display or display_here()
    view = await run.status()
    display.show(view, None)
    if view.terminal:
        return view
    drawn = 0.0
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout), aclosing(run.events(view.seq)) as events:
            async for event in events:
                if loop.time() - drawn >= DRAW_S or not isinstance(display, Notebook):
                    view = await run.status()
                    drawn = loop.time()
                display.show(view, event)
    except TimeoutError:
        if timeout is None:
            raise
    view = await run.status()
    display.show(view, None)
    return view


# --- pieces ----------------------------------------------------------------------------------------------------------


def _state(state: str) -> str:
    return f"<span style='color:{_COLOURS.get(state, 'inherit')};font-weight:bold'>{escape(state)}</span>"


def _small(text: str) -> str:
    return f"<small>{escape(text)}</small>"


def _age(view: GroupView) -> str:
    until = view.ended_ms or view.now_ms
    return f"{(until - view.submitted_ms) / 1000:.0f} s" if until and view.submitted_ms else "just now"


def _why(view: GroupView) -> Iterator[str]:
    if view.cause or view.message:
        yield ": ".join(part for part in (view.cause, view.message) if part)
    if view.reason is not None:
        blocked = f" (blocked by {view.reason.blocker})" if view.reason.blocker else ""
        yield f"{view.reason.code}: {view.reason.text}{blocked}"


def _changes(view: GroupView) -> Iterator[str]:
    changes: tuple[ChangeView, ...] = view.changes
    for change in changes[-1:]:
        if not change.over:
            targets = ", ".join(f"{name}={number}" for name, number in change.targets.items())
            yield f"change {change.id} {change.state}: {targets}"


def _rows(member: MemberView) -> Iterator[str]:
    limits = f" ({member.min} to {member.max})" if member.kind == "replica_set" else ""
    yield _row(f"<b>{escape(member.name)}</b>", f"{member.ready} of {member.target} ready{limits}", "", "", "")
    for slot in member.slots[:SLOTS_SHOWN]:
        hosts = escape(", ".join(slot.hosts))
        yield _row(f"&nbsp;{escape(member.name)}[{slot.index}]", _state(slot.state), hosts, str(slot.incarnation), _says(slot))
    if len(member.slots) > SLOTS_SHOWN:
        yield _row(f"&nbsp;and {len(member.slots) - SLOTS_SHOWN} more", "", "", "", "")


def _row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td style='text-align:left'>{cell}</td>" for cell in cells) + "</tr>"


def _says(slot: SlotView) -> str:
    if slot.reason is not None:
        return escape(f"{slot.reason.code}: {slot.reason.text}")
    if slot.exit is not None and slot.exit.cause:
        return escape(f"{slot.exit.cause} {slot.exit.message}".strip())
    return ""
