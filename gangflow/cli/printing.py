"""What a run says where nothing can be redrawn (a pipe, a log): which lines, when. Pure but for the printing.

Every line of the story as it comes; a line for each step, at most one a second; and what is waited for, now and then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from gangflow.cli.live import newest, progress_line, waited_for
from gangflow.cli.story import Line, Story
from gangflow.xce.rest.messages import BeatView
from gangflow.xce.rest.schema import GroupView

STEP_MS = 1_000
"""Between two lines about steps: of faster ones some are left out, never the last."""
FIRST_WAIT_MS = 3_000
"""What starts at once is not told."""
WAIT_MS = 10_000
"""Between two lines about what is waited for."""


@dataclass(slots=True)
class Printing:
    """Remembers what was said."""

    story: Story
    _told: object = None
    """The step (or, of members that count none, the progress) that was told last."""
    _told_ms: int = 0
    _waited_ms: int = 0
    """When what is waited for was told last; before that, since when there is something."""
    _waits: bool = False

    def lines(
        self, view: GroupView, beats: Mapping[tuple[str, int], BeatView], added: Sequence[Line], now_ms: int
    ) -> list[Line]:
        """What to print now, in the order in which it was: `added` are the story's new lines."""
        last = view.terminal or view.state == "STOPPING"
        found = [*self._progress(beats, now_ms, last=last), *added, *self._waiting(view, now_ms)]
        return sorted(found, key=lambda line: line[0])

    def _progress(self, beats: Mapping[tuple[str, int], BeatView], now_ms: int, *, last: bool) -> list[Line]:
        step = newest(beats, "step")
        # Samples are counted all the time: they are told beside a step, and are none by themselves.
        mark = progress_line(beats, "") if step is None else step
        if (not mark and step is None) or mark == self._told or (not last and now_ms - self._told_ms < STEP_MS):
            return []
        self._told, self._told_ms = mark, now_ms
        return [(max(beat.at_ms for beat in beats.values()), progress_line(beats, self.story.rollout))]

    def _waiting(self, view: GroupView, now_ms: int) -> list[Line]:
        text = waited_for(view, now_ms)
        if not text:
            self._waits = False
            return []
        if not self._waits:
            # The first line comes after a while, the others after a longer one.
            self._waits, self._waited_ms = True, now_ms - WAIT_MS + FIRST_WAIT_MS
        if now_ms - self._waited_ms < WAIT_MS:
            return []
        self._waited_ms = now_ms
        return [(now_ms, text)]


def stamped(story: Story, line: Line) -> str:
    """A line with the seconds since the group was submitted."""
    at, text = line
    return f"{(at - (story.begin_ms or at)) / 1000:7.1f} s  {text}"


def put(console: Console, text: str) -> None:
    """Print it as it is: brackets are text, nothing is wrapped, and it is flushed."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
