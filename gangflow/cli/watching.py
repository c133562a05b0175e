"""Follow a run until it ends: records, heartbeats and view, drawn live or printed as lines, with faults on their way."""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live

from gangflow.cli import live
from gangflow.cli.faults import Fault
from gangflow.cli.printing import Printing, put, stamped
from gangflow.cli.story import Line, Story
from gangflow.errors import NotFound, Superseded
from gangflow.runs import Run
from gangflow.xce.rest.messages import BeatView, EventView
from gangflow.xce.rest.schema import GroupView

DRAW_S = 0.25
VIEW_S = 1.0
"""A view is fetched when a record says that something changed, and at least this often."""
MAX_WAITING = 10_000
"""Records and heartbeats that wait to be drawn; a stream that is faster waits for us."""


class Watching:
    """Everything that is known about a run while it is watched."""

    def __init__(self, run: Run, faults: Sequence[Fault] = (), behind: Run | None = None) -> None:
        self.run = run
        self.view: GroupView = run.status()
        self.story = Story(run.id, rollout_of(self.view), self.view.document or {})
        self.beats: dict[tuple[str, int], BeatView] = {}
        self.pending = list(faults)
        self.fired: list[tuple[Fault, int, int]] = []
        """(fault, at_ms, step)."""
        self.behind = behind
        self.behind_view: GroupView | None = None
        self.behind_waited: GroupView | None = None
        """The second group as it was while it waited, with its reason."""
        self._inbox: queue.Queue[EventView | BeatView | Exception] = queue.Queue(MAX_WAITING)
        self._printing = Printing(self.story)
        self._over = threading.Event()

    def follow(self, console: Console | None = None) -> GroupView:
        """Returns the group as it ended. KeyboardInterrupt passes through, with the run untouched.

        Raises:
            Unreachable: the controller did not come back.
        """
        console = console or Console()
        for stream in (self._records, self._heartbeats):
            threading.Thread(target=self._pump, args=(stream,), daemon=True, name=f"watch-{self.run.name}").start()
        try:
            with self._display(console) as draw:
                while not self.view.terminal:
                    self._take(draw)
                self._drain(draw)
        finally:
            self._over.set()
        return self.view

    @contextmanager
    def _display(self, console: Console) -> Iterator[Callable[[Sequence[Line]], None]]:
        if not console.is_terminal:
            yield lambda lines: self._print(console, lines)
            return
        with Live(console=console, refresh_per_second=1 / DRAW_S, transient=False) as shown:

            def draw(lines: Sequence[Line]) -> None:
                for line in lines:
                    if line in self.story.lasting:
                        put(shown.console, stamped(self.story, line))  # above the table, for good
                shown.update(live.screen(self.view, self.beats, self.story, "", _now_ms(), self.behind_view))

            draw(())
            yield draw

    def _print(self, console: Console, lines: Sequence[Line]) -> None:
        for line in self._printing.lines(self.view, self.beats, lines, _now_ms()):
            put(console, stamped(self.story, line))

    # --- streams

    def _records(self) -> Iterator[EventView]:
        with self.run.cluster.client() as client:
            yield from client.events(after=client.healthz().horizon, group=self.run.id)

    def _heartbeats(self) -> Iterator[BeatView]:
        with self.run.cluster.client() as client:
            yield from client.follow_beats(self.run.id)

    def _pump(self, stream: Callable[[], Iterator[EventView | BeatView]]) -> None:
        try:
            for item in stream():
                if self._over.is_set():
                    return
                self._inbox.put(item)
        except Exception as error:  # Whatever it is, a stream that ended unseen would be waited for.
            if not self._over.is_set():
                self._inbox.put(error)

    # --- what arrives

    def _take(self, draw: Callable[[Sequence[Line]], None]) -> None:
        deadline = time.monotonic() + DRAW_S
        lines: list[Line] = []
        changed = False
        while (left := deadline - time.monotonic()) > 0:
            try:
                item = self._inbox.get(timeout=left)
            except queue.Empty:
                break
            if isinstance(item, Exception):
                raise item
            if isinstance(item, BeatView):
                self.beats[(item.member, item.index)] = item
                lines += self._inject()
            else:
                added = [(item.at_ms, text) for text in self.story.feed(item)]
                lines += added
                changed = changed or bool(added) or item.type.startswith(("Slot", "Group"))
                if item.type == "GroupChanged":
                    break
        lines += self._inject()
        self._look(changed)
        draw(lines)

    def _drain(self, draw: Callable[[Sequence[Line]], None]) -> None:
        """The last records may come after the view that says it is over."""
        lines: list[Line] = []
        while self.story.ended_ms == 0:
            try:
                item = self._inbox.get(timeout=2)
            except queue.Empty:
                break
            if isinstance(item, EventView):
                lines += [(item.at_ms, text) for text in self.story.feed(item)]
        self._look(True)
        draw(lines)

    def _look(self, changed: bool) -> None:
        now = time.monotonic()
        if not changed and now - getattr(self, "_looked_at", 0.0) < VIEW_S:
            return
        self._looked_at = now
        self.view = self.run.status()
        if self.behind is not None:
            self.behind_view = self.behind.status()
            if self.behind_view.reason is not None and self.behind_view.state == "PENDING":
                self.behind_waited = self.behind_view

    def _inject(self) -> list[Line]:
        """Send the faults whose moment has come; what was done, in words."""
        sent: list[Line] = []
        step = live.newest(self.beats, "step")
        running_s = (time.time() * 1000 - self.story.running_ms) / 1000 if self.story.running_ms else None
        for fault in [fault for fault in self.pending if fault.due(step, running_s)]:
            slot = self.run.status().slot(fault.member, fault.index)
            try:
                self.run.client.signal(self.run.id, fault.member, fault.index, slot.incarnation, fault.signal)
            except (NotFound, Superseded):
                continue  # It has no process at this moment: the fault waits for its next one.
            self.pending.remove(fault)
            at = _now_ms()
            self.fired.append((fault, at, int(step or 0)))
            sent.append((at, f"fault: {fault} (sent to incarnation {slot.incarnation})"))
        for line in sent:
            self.story.add(line, lasting=True)
        return sent


def _now_ms() -> int:
    return int(time.time() * 1000)


QUESTION = "\nd to detach (the run goes on), c or Enter to cancel it? "


def rollout_of(view: GroupView) -> str:
    """The member that serves weights in a group with an RL coordinator; empty in any other."""
    coordinator = (view.document or {}).get("coordinator") or {}
    return str(coordinator.get("rollout", "rollout")) if coordinator.get("kind") == "rl" else ""


def ask_detach_or_cancel(console: Console) -> bool:
    """After Ctrl-C: True to detach (the run goes on), False to cancel it. Without a terminal to ask: cancel."""
    if not (sys.stdin.isatty() and console.is_terminal):
        return False
    while True:
        try:
            console.print(QUESTION, end="", markup=False, highlight=False)
            answer = input().strip().lower()
        except (KeyboardInterrupt, EOFError):
            return False  # Asked twice to end: it ends.
        if answer in {"", "c", "cancel"}:
            return False
        if answer in {"d", "detach"}:
            return True


def final_words(view: GroupView, story: Story, *, printed: bool = False) -> list[str]:
    """What the end of a run says: the result, its cause, and the last lines of whoever died.

    `printed`: the story was printed line by line, with those.
    """
    because = ": ".join(part for part in (view.cause, view.message) if part)
    lines = [f"{view.name} {view.state}" + (f" ({because})" if because else "")]
    if view.tolerated:
        lines.append("tolerated: " + ", ".join(f"{name.member}[{name.index}]" for name in view.tolerated))
    # Where every line of the story was printed, theirs were among them.
    if view.state == "FAILED" and story.last_stderr and not printed:
        lines += ["the last lines of stderr of the last member that died:", story.last_stderr.rstrip()]
    return lines
