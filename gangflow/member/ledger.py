"""Which prompts' samples were committed: what makes a sample count at most once, also over restarts of the actor.

It is saved with each checkpoint and loaded with it, so that it always says exactly what the restored policy was trained on.
Compact: prompts are numbered within a step, so a step is a few intervals, and a finished step is one number.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any


class Intervals:
    """A set of integers as disjoint half-open intervals, in order."""

    def __init__(self, spans: Iterable[tuple[int, int]] = ()) -> None:
        self._spans: list[tuple[int, int]] = []
        for low, high in spans:
            self._insert(low, high)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self._spans, (number, _BEYOND)) - 1
        return place >= 0 and self._spans[place][0] <= number < self._spans[place][1]

    def __len__(self) -> int:
        return sum(high - low for low, high in self._spans)

    def add(self, number: int) -> bool:
        """False when it was there already."""
        if number in self:
            return False
        self._insert(number, number + 1)
        return True

    def spans(self) -> list[tuple[int, int]]:
        return list(self._spans)

    def _insert(self, low: int, high: int) -> None:
        if low >= high:
            raise ValueError(f"not an interval: [{low}, {high})")
        kept = [span for span in self._spans if span[1] < low or span[0] > high]
        touched = [span for span in self._spans if not (span[1] < low or span[0] > high)]
        merged = (min([low, *(span[0] for span in touched)]), max([high, *(span[1] for span in touched)]))
        self._spans = sorted([*kept, merged])


_BEYOND = 1 << 62


class Ledger:
    """Committed prompts of one run, by step. A prompt is committed once, with its whole group of samples."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._finished = Intervals()
        self._open: dict[int, Intervals] = {}

    def committed(self, step: int, prompt: int) -> bool:
        return step in self._finished or (step in self._open and prompt in self._open[step])

    def finished(self, step: int) -> bool:
        """Every prompt that was asked for in that step was committed or skipped."""
        return step in self._finished

    def commit(self, step: int, prompt: int) -> bool:
        """False when it was committed before: the samples must be dropped."""
        if self.committed(step, prompt):
            return False
        return self._open.setdefault(step, Intervals()).add(prompt)

    def finish(self, step: int) -> None:
        """Nothing of this step is open any more: it shrinks to one number."""
        self._open.pop(step, None)
        self._finished.add(step)

    def through(self, step: int) -> Ledger:
        """What belongs into the checkpoint of `step`: every step up to it is finished, later ones are not trained on yet."""
        for open_step in [number for number in self._open if number <= step]:
            self.finish(open_step)
        saved = Ledger(self.run)
        saved._finished = Intervals((low, min(high, step + 1)) for low, high in self._finished.spans() if low <= step)
        return saved

    def render(self) -> str:
        """As JSON: {"run", "finished": [[first, after last], …], "open": {step: [[first, after last], …]}}."""
        return json.dumps(
            {
                "run": self.run,
                "finished": self._finished.spans(),
                "open": {str(step): spans.spans() for step, spans in sorted(self._open.items())},
            }
        )

    @classmethod
    def parse(cls, text: str) -> Ledger:
        """ValueError when it is not a ledger."""
        try:
            document: dict[str, Any] = json.loads(text)
            ledger = cls(str(document["run"]))
            ledger._finished = Intervals((int(low), int(high)) for low, high in document["finished"])
            ledger._open = {
                int(step): Intervals((int(low), int(high)) for low, high in spans) for step, spans in document["open"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a ledger: {text[:200]}") from error
        return ledger
