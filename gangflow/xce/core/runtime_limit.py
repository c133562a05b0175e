"""Runtime limits of slots, as moments (design 3.2). What happens then is in `overrun`."""

from __future__ import annotations

from gangflow.xce.core.counts import RUNS
from gangflow.xce.core.plan import MemberPlan
from gangflow.xce.core.state import Slot


def warn_at(member: MemberPlan, slot: Slot) -> int:
    """When the slot's warning is due; 0: none is to come, or it is being delivered already."""
    wants = slot.state in RUNS and slot.run_until_ms and member.warn_before_ms and member.warn_signal
    return max(1, slot.run_until_ms - member.warn_before_ms) if wants and not slot.warned and not slot.to_warn else 0


def limit_of(slot: Slot) -> int:
    """When the slot's runtime limit is over; 0: it has none that counts now."""
    return slot.run_until_ms if slot.state in RUNS else 0
