"""Asks that were compiled already: groups of one shape share the compiled request, however many of them wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gangflow.xce.core.asks import Ask, SlotAsk
from gangflow.xce.placement.feasible import Fit, Fits
from gangflow.xce.placement.request import Part, compile_ask, prefers, shape_of

ASKS_KEPT = 1 << 15
"""Waiting groups whose ask is recognized at sight: a controller passes the same ones again in each session."""
REQUESTS_KEPT = 1 << 10
"""Shapes of asks."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A compiled ask; two of them are equal only if they are the same."""

    part: Part
    fits: tuple[Fit, ...]
    """Every vector that the placement reads: to be refreshed before it."""
    shape: tuple[object, ...]
    """Equal for requests that are placed, or refused, alike, whatever their slots are called."""
    keys: tuple[tuple[str, int], ...]
    """(member, index) of each slot."""
    prefers: bool
    """Some packing of it is preferred only."""


class Requests:
    """What one set of vectors was compiled for. It makes asks cheap and never shows."""

    def __init__(self, fits: Fits) -> None:
        self.fits = fits
        self._requests: dict[tuple[object, ...], Request] = {}
        self._asks: dict[str, tuple[Ask, Request]] = {}
        """The ask of each group that was compiled last."""
        self._forgotten = fits.forgotten

    def seen(self, ask: Ask) -> Request | None:
        """All slots of an ask, if this very ask was compiled before."""
        known = self._asks.get(ask.group)
        return known[1] if known is not None and known[0] is ask and self._forgotten == self.fits.forgotten else None

    def whole(self, ask: Ask) -> Request:
        """All slots of an ask."""
        known = self.seen(ask)
        if known is not None:
            return known
        request = self.part(ask, ask.slots)
        if ask.group not in self._asks and len(self._asks) >= ASKS_KEPT:
            del self._asks[next(iter(self._asks))]
        self._asks[ask.group] = (ask, request)
        return request

    def placed(self, group: str) -> None:
        """The group does not wait any more."""
        self._asks.pop(group, None)

    def part(self, ask: Ask, slots: Sequence[SlotAsk], granted: Sequence[tuple[str, str]] = ()) -> Request:
        """Some slots of an ask; `granted` are (member, host) of slots that this session placed already."""
        if self._forgotten != self.fits.forgotten:
            self._requests.clear()
            self._asks.clear()
            self._forgotten = self.fits.forgotten
        key = (ask.pack, ask.pack_members, ask.excluded, ask.held, tuple(granted), *_runs(slots))
        found = self._requests.get(key)
        if found is None:
            part = compile_ask(self.fits, ask, slots, granted)
            keys = tuple((slot.member, slot.index) for slot in slots)
            found = Request(part, tuple(dict(part.demands)), shape_of(part), keys, prefers(part))
            if self._forgotten == self.fits.forgotten:
                if len(self._requests) >= REQUESTS_KEPT:
                    del self._requests[next(iter(self._requests))]
                self._requests[key] = found
        return found


def _runs(slots: Sequence[SlotAsk]) -> list[object]:
    """The slots, neighbours of one shape and of following numbers as one."""
    runs: list[object] = []
    start, size = 0, len(slots)
    while start < size:
        slot = slots[start]
        member, terms, ports, pack = slot.member, slot.terms, slot.ports, slot.pack_slot
        first = slot.index - start
        end = start + 1
        while end < size:
            # Slots of one member mostly share these very objects.
            slot = slots[end]
            if slot.terms is not terms or slot.member != member or slot.index - end != first:
                break
            if slot.ports is not ports or slot.pack_slot is not pack:
                break
            end += 1
        runs += (member, terms, ports, pack, first + start, end - start)
        start = end
    return runs
