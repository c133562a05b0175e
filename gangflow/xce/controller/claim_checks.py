"""Looks at claims that are READY: providers that can tell are asked now and then whether what they made is still there.

What they do not find is reported, and the core decides. One that cannot tell now (its disk does not answer) has said nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from gangflow.xce.controller.options import CHECK_LIMIT_S, CHECK_S, CHECKS_AT_ONCE
from gangflow.xce.core.claim_ids import bound_to, made_for
from gangflow.xce.core.inputs import ClaimLost, Report
from gangflow.xce.core.state import Claim, ClaimState
from gangflow.xce.ports import CheckingProvider, Held, Provider

_log = logging.getLogger(__name__)


def held(claim: Claim) -> Held:
    """A READY claim as its provider knows it."""
    group, slot, name = made_for(claim)
    plan = claim.plan
    return Held(claim.made_as or claim.id, group, name, plan.provider, claim.path, plan.parameters, slot, bound_to(claim))


class ClaimChecks:
    """One round of looks after the other, `CHECK_S` between their beginnings at least."""

    def __init__(
        self,
        provider: Callable[[str], Awaitable[Provider]],
        report: Callable[[Report], Awaitable[None]],
        claims: Callable[[], Mapping[str, Claim]],
    ) -> None:
        """`provider`: one by name. `claims`: as they are now."""
        self._provider = provider
        self._report = report
        self._claims = claims
        self._round: asyncio.Task[None] | None = None
        self._next = 0.0

    def look(self) -> None:
        """Begin a round if it is time for one, and the last one is over."""
        now = asyncio.get_running_loop().time()
        if now >= self._next and (self._round is None or self._round.done()):
            self._next = now + CHECK_S
            self._round = asyncio.create_task(self._look_at_all(), name="claim checks")

    async def close(self) -> None:
        if self._round is not None:
            self._round.cancel()
            await asyncio.gather(self._round, return_exceptions=True)

    async def _look_at_all(self) -> None:
        """Every claim that is READY now and whose provider can tell, a few at a time."""
        able: dict[str, CheckingProvider | None] = {}
        waiting: deque[tuple[str, CheckingProvider]] = deque()
        for claim in [claim for claim in self._claims().values() if claim.state is ClaimState.READY]:
            name = claim.plan.provider
            if name not in able:
                able[name] = await self._able(name)
            if (provider := able[name]) is not None:
                waiting.append((claim.id, provider))

        async def some() -> None:
            while waiting:
                await self._look_at(*waiting.popleft())

        await asyncio.gather(*(some() for _ in range(min(CHECKS_AT_ONCE, len(waiting)))))

    async def _able(self, name: str) -> CheckingProvider | None:
        try:
            provider = await self._provider(name)
        except Exception as error:
            _log.warning("claims of provider %s are not looked at: %r", name, error)
            return None
        return provider if isinstance(provider, CheckingProvider) else None

    async def _look_at(self, name: str, provider: CheckingProvider) -> None:
        claim = self._claims().get(name)
        if claim is None or claim.state is not ClaimState.READY:
            return
        try:
            async with asyncio.timeout(CHECK_LIMIT_S):
                wrong = await provider.check(held(claim))
            if wrong:
                await self._report(ClaimLost(claim.id, claim.attempt, wrong))
        except Exception as error:
            _log.info("whether claim %s is whole cannot be told now: %r", name, error)
