"""Standalone claims in a session: a group takes them with its places, in the same decision, or waits and holds nothing.

Who holds what is derived from the state; what this session grants counts from then on. Asks come in order, so the first in
order has a free claim; one that is refused blocks nobody, since it holds nothing.
"""

from __future__ import annotations

from gangflow.xce.core.asks import Ask
from gangflow.xce.core.claim_ids import holders
from gangflow.xce.core.plan import Access
from gangflow.xce.core.state import ClaimState, PendCode, Reason, State

SHOWN = 4
"""Holders that a reason names."""


class Claimed:
    """The standalone claims of one session."""

    def __init__(self, state: State | None = None) -> None:
        """Without a state there are none."""
        self._state = state if state is not None else State()
        self._held: dict[str, list[tuple[str, Access]]] | None = None
        """Made when the first ask needs it: most sessions have none that does."""

    def refused(self, ask: Ask) -> Reason | None:
        """Why the group cannot have all that it uses now: the claim, and who holds it; None: it can."""
        for name, access in ask.claims:
            claim = self._state.claims.get(name)
            if claim is None or claim.group:
                return Reason(PendCode.WAITING_CLAIMS, f"claim {name} does not exist")
            if claim.state is not ClaimState.READY:
                detail = f" ({claim.message})" if claim.message else ""
                return Reason(PendCode.WAITING_CLAIMS, f"claim {name} is {claim.state.value}{detail}")
            others = [(group, how) for group, how in self._holders().get(name, ()) if group != ask.group]
            if others and (access is Access.EXCLUSIVE or any(how is Access.EXCLUSIVE for _, how in others)):
                return _held(name, access, others)
        return None

    def take(self, ask: Ask) -> None:
        """The group was placed: it holds them from here on."""
        for name, access in ask.claims:
            self._holders().setdefault(name, []).append((ask.group, access))

    def _holders(self) -> dict[str, list[tuple[str, Access]]]:
        if self._held is None:
            self._held = holders(self._state.groups.values())
        return self._held


def _held(name: str, access: Access, others: list[tuple[str, Access]]) -> Reason:
    shown = ", ".join(f"{group} ({how.value})" for group, how in others[:SHOWN])
    more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
    text = f"claim {name} is held by {shown}{more}; this group wants it {access.value}"
    return Reason(PendCode.WAITING_CLAIMS, text, blocker=others[0][0])
