"""What is known of samples in one trainer, whichever form of `rollouts` asks for them: numbers, ledger, counters, streaks.

Thread-safe: the blocking form and the asynchronous form of one process keep the same books.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from gangflow.member.dispatch import Dispatch, Flight
from gangflow.member.endpoints import Endpoint, Picture
from gangflow.member.failures import FailureClass
from gangflow.member.ledger import Ledger
from gangflow.member.samples import Counters, PromptSamples, Published, Sample, SampleId, Verdict
from gangflow.member.wire import RequestFailed


class Books:
    """The books of one trainer's life."""

    def __init__(self, published: Published, ledger: Ledger) -> None:
        self.counters = Counters()
        self.ledger = ledger
        self.published = published
        self._lock = threading.Lock()
        self._issued: dict[int, int] = {}
        """Step → prompts numbered so far."""
        self._unledgered = 0
        self._streaks: dict[tuple[int, int], int] = {}
        """(index, incarnation) → requests in a row that failed without a refusal."""
        self._open_steps: list[int] = []
        self._listeners: list[Callable[[], None]] = []

    def number(self, step: int | None, count: int) -> tuple[str, int]:
        """The scope of `count` new prompts, and the first one's number. ValueError for a step that is finished."""
        with self._lock:
            if step is None:
                self._unledgered += count
                return "look", self._unledgered - count
            if step < 0:
                raise ValueError(f"step: from 0, not {step}")
            if self.ledger.finished(step):
                raise ValueError(f"step {step} is in the checkpoint already: go on with the step after `resume().step`")
            first = self._issued.get(step, 0)
            self._issued[step] = first + count
            return str(step), first

    def sample_ids(self, scope: str, first: int, prompts: int, samples: int) -> list[list[str]]:
        """The identities of all samples, by prompt."""
        return [[str(SampleId(self.ledger.run, f"{scope}/{first + n}", i)) for i in range(samples)] for n in range(prompts)]

    def collect(self, dispatch: Dispatch, n: int, prompt: Any, step: int | None, scope: str, first: int) -> PromptSamples:
        """Commit a prompt's samples, once; or say why it has none."""
        committed = dispatch.results.get(n)
        if committed is None:
            return PromptSamples(n, prompt, (), dispatch.skipped[n])
        with self._lock:
            if step is not None:
                if not self.ledger.commit(step, first + n):
                    self.counters.add("duplicates", len(committed.outputs))
                    return PromptSamples(n, prompt, (), "committed before")
                self.counters.add("committed", len(committed.outputs))
        return PromptSamples(
            n,
            prompt,
            tuple(
                Sample(
                    SampleId(self.ledger.run, f"{scope}/{first + n}", i),
                    output,
                    weights,
                    committed.target.index,
                    committed.target.incarnation,
                    committed.attempt,
                )
                for i, (output, weights) in enumerate(zip(committed.outputs, committed.weights, strict=True))
            ),
        )

    def usable(self, picture: Picture, member: str, oldest: int = 0) -> list[Endpoint]:
        """Eligible by the coordinator's word, and by this actor's own newest weights, which it may not have seen yet.

        Not those with a version before `oldest`: what they make could not be used.
        """
        endpoints = picture.endpoints(member)
        if picture.coordinator is None:
            return [endpoint for endpoint in endpoints if endpoint.url]
        return [endpoint for endpoint in endpoints if self.published.judge(endpoint.weights, oldest) == Verdict.USABLE]

    def note(self, flight: Flight, error: RequestFailed | None) -> None:
        """How a request ended, for the streaks."""
        with self._lock:
            key = flight.target.key
            if error is None or error.failure is not FailureClass.INFRA:
                self._streaks.pop(key, None)
            elif not error.refused:
                self._streaks[key] = self._streaks.get(key, 0) + 1
            # An incarnation that was replaced says nothing about the present one.
            for old in [k for k in self._streaks if k[0] == key[0] and k[1] < key[1]]:
                del self._streaks[old]

    def streaks(self) -> dict[str, list[int]]:
        """Slot → [incarnation, failed requests in a row]."""
        with self._lock:
            return {str(index): [incarnation, count] for (index, incarnation), count in self._streaks.items() if count}

    def through(self, step: int) -> Ledger:
        """What belongs into the checkpoint of `step`; samples of later steps may be committed at the same time."""
        with self._lock:
            return self.ledger.through(step)

    def reset(self, ledger: Ledger) -> None:
        """Go on from a checkpoint: its ledger, and nothing of what was numbered since."""
        with self._lock:
            self.ledger = ledger
            self._issued.clear()

    # --- the admission bound: steps whose samples are being made at once, at most `max_staleness + 1`

    def enter(self, step: int, bound: int) -> bool:
        """Begin with samples of a step; False: too many other steps are under way, `listen` for the end of one."""
        with self._lock:
            if step not in self._open_steps and len(set(self._open_steps)) >= bound:
                return False
            self._open_steps.append(step)
            return True

    def leave(self, step: int) -> None:
        """The end of what `enter` began."""
        with self._lock:
            self._open_steps.remove(step)
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` (from any thread) whenever a step is left; returns what ends that."""
        with self._lock:
            self._listeners.append(listener)

        def stop() -> None:
            with self._lock:
                self._listeners.remove(listener)

        return stop
