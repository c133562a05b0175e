"""`Scheduler`: sessions over a view that is kept between calls."""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.xce.core.asks import Ask, Grant, Refusal
from gangflow.xce.core.plan import GroupPlan
from gangflow.xce.core.state import Reason, State
from gangflow.xce.placement.claimed import Claimed
from gangflow.xce.placement.compiled import Requests
from gangflow.xce.placement.feasible import Fits
from gangflow.xce.placement.never import never_by
from gangflow.xce.placement.session import PHASES, Session
from gangflow.xce.placement.snapshot import ClusterView


class Scheduler:
    """Answers depend on the state and the asks only; what is kept between calls makes them cheap, never different."""

    def __init__(self) -> None:
        self._fits: Fits | None = None
        self._requests: Requests | None = None

    def decide(self, state: State, asks: Sequence[Ask]) -> tuple[Grant | Refusal, ...]:
        """One session. Grants come first, in the order in which they were made, then refusals.

        Every slot of every ask is in exactly one answer. A MINIMUM ask is granted whole or refused whole; RECOVERY and SURPLUS
        asks may be granted in part. The caller applies all grants to the state that it passes next time, or none of a group's.
        """
        if not asks:
            return ()
        fits = self._for_hosts(state)
        fits.view.refresh(state)
        if self._requests is None or self._requests.fits is not fits:
            self._requests = Requests(fits)
        session = Session(self._requests, asks, claimed=Claimed(state))
        for _, phase in PHASES:
            phase(session)
        return tuple(session.answers)

    def never_fits(self, state: State, plan: GroupPlan) -> Reason | None:
        """As the function of that name, on the hosts of a state, at the cost of a decision."""
        # What runs does not matter here: the view may stay at any state of these hosts.
        return never_by(self._for_hosts(state), plan)

    def _for_hosts(self, state: State) -> Fits:
        """The view that was kept, or one made anew when the hosts' facts differ."""
        fits = self._fits
        if fits is None or not fits.view.fits_hosts(state.hosts, state.levels):
            fits = self._fits = Fits(ClusterView(state.hosts, state.levels))
        return fits
