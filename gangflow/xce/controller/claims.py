"""Claim providers at work: one task a claim, with a deadline, whose outcome comes back as a report."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from gangflow.xce.controller.options import CANCEL_S, RELEASE_S, RESEND_S
from gangflow.xce.core.effects import ClaimEffect, Provision, Release
from gangflow.xce.core.inputs import ClaimFailed, ClaimReady, ClaimReleased, Report
from gangflow.xce.ports import Provider

_log = logging.getLogger(__name__)
T = TypeVar("T")


class ClaimWork:
    """Runs what is due for claims: a provision until it answers or its time is over, a release until it succeeds."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        report: Callable[[Report], Awaitable[None]],
        time_left_s: Callable[[Provision], float],
    ) -> None:
        self._providers = providers
        self._known: dict[str, Provider] = {}
        """Those that were asked for something; the first time may mean that a package is loaded."""
        self._report = report
        self._time_left_s = time_left_s
        self._work: dict[str, tuple[ClaimEffect, asyncio.Task[None]]] = {}

    def __bool__(self) -> bool:
        return bool(self._work)

    async def learn(self, name: str) -> Provider:
        """A provider. KeyError when there is none of that name; whatever its package raises when that cannot be loaded."""
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = await asyncio.to_thread(self._providers.__getitem__, name)
        return found

    def issue(self, effects: Iterable[ClaimEffect]) -> None:
        """Begin. A new effect for a claim ends the work on an older one first: a provider never sees both at once."""
        for effect in effects:
            before = self._work.get(effect.claim)
            if before is not None and before[0] == effect and not before[1].done():
                continue
            earlier = before[1] if before is not None else None
            if earlier is not None:
                earlier.cancel()
            task = asyncio.create_task(self._run(effect, earlier), name=f"claim {effect.claim}")
            self._work[effect.claim] = (effect, task)

    def reconcile(self, due: Iterable[ClaimEffect]) -> None:
        """Begin again what is due and not under way; stop what is not due any more."""
        present = {effect.claim: effect for effect in due}
        for claim in [claim for claim in self._work if claim not in present]:
            self._work.pop(claim)[1].cancel()
        self.issue(present.values())

    async def close(self) -> None:
        tasks = [task for _, task in self._work.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, effect: ClaimEffect, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await asyncio.wait([earlier])  # bounded: it was cancelled, and `within` waits for no provider for ever
        try:
            outcome = await (self._provision(effect) if isinstance(effect, Provision) else self._release(effect))
            await self._report(outcome)
        except Exception:
            _log.exception("the outcome of claim %s could not be reported; its provider is asked again", effect.claim)

    async def _provision(self, request: Provision) -> Report:
        left = max(self._time_left_s(request), 0.0)
        try:
            provider = await self.learn(request.provider)
        except KeyError:
            known = ", ".join(sorted(self._providers)) or "none"
            return ClaimFailed(request.claim, request.attempt, f"no provider {request.provider!r} here (known: {known})")
        except Exception as error:
            return ClaimFailed(request.claim, request.attempt, str(error) or type(error).__name__)
        try:
            made = await within(left, provider.provision(as_made(request)))
        except Overdue:
            return ClaimFailed(request.claim, request.attempt, f"{request.provider} did not answer within {left:.0f} s")
        except Exception as error:
            return ClaimFailed(request.claim, request.attempt, f"{request.provider}: {error or type(error).__name__}")
        return ClaimReady(request.claim, request.attempt, made.path, made.host, made.hosts)

    async def _release(self, request: Release) -> Report:
        """A release is an obligation: whatever fails, it is tried again."""
        tries = 0
        while True:
            try:
                provider = await self.learn(request.provider)
                await within(RELEASE_S, provider.release(as_made(request)))
                return ClaimReleased(request.claim, request.attempt)
            except Exception as error:
                pause = RESEND_S[min(tries, len(RESEND_S) - 1)]
                _log.warning("claim %s could not be released (%r); again in %g s", request.claim, error, pause)
            tries += 1
            await asyncio.sleep(pause)


E = TypeVar("E", Provision, Release)


def as_made(request: E) -> E:
    """The request with the id that its provider knows the claim by."""
    return replace(request, claim=request.made_as, made_as="") if request.made_as else request


class Overdue(Exception):
    """A provider did not answer in time."""


async def within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """The call's result; Overdue after so many seconds, whether or not it lets itself be cancelled.

    A provider that hangs where no cancellation reaches it must not hold up the obligation: it is left behind, and asked again.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task], timeout=seconds)
        if task.done():
            return task.result()
    finally:
        if not task.done():
            task.cancel()
            _, hangs = await asyncio.wait([task], timeout=CANCEL_S)
            if hangs:
                _log.error("%s does not end although it was cancelled; it is left behind", getattr(call, "__qualname__", call))
            elif not task.cancelled():
                task.exception()
    raise Overdue
