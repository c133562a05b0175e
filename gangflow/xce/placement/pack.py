"""Packing: the fewest domains, then the tightest, then the least stranded capacity, then the lowest index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from itertools import islice

import numpy as np
import numpy.typing as npt

from gangflow.xce.placement.draft import Draft
from gangflow.xce.placement.feasible import Fit, Fits
from gangflow.xce.placement.fill import Fill, pieces_for
from gangflow.xce.placement.grant import Placed
from gangflow.xce.placement.need import Mode
from gangflow.xce.placement.request import Part, TermPart
from gangflow.xce.placement.topology import HOST_LEVEL, Ints

Scope = tuple[int, int]
"""(level, domain)."""
Blocked = tuple[Part, int, Scope]
"""A part that must stand in one domain of a level, the level, and the scope in which no such domain had room."""
CLUSTER: Scope = (0, 0)
TRIES = 32
"""Domains in which one part is tried. A domain is only tried when each need alone, and all amounts together, would fit."""
FEW_TRIES = 4
"""The same where one domain is only preferred: there is another way to place the part."""


class Heed(Enum):
    """Which packings an attempt heeds."""

    ALL = "all"
    REQUIRED = "required"
    NONE = "none"
    """To tell a lack of capacity from a lack of one domain."""


class UnknownLevel(ValueError):
    """A packing names a topology level that the cluster does not have."""


class Placer:
    """One attempt to place a request. What it took stays taken; `try_whole` gives it back after a failure."""

    def __init__(self, fits: Fits, heed: Heed = Heed.ALL) -> None:
        self.fits = fits
        self.view = fits.view
        self.topology = fits.view.topology
        self.draft = Draft(fits.view)
        self.heed = heed
        self.done = False
        self.placed: list[Placed] = []
        self.blocked: Blocked | None = None
        """The part whose required packing failed last, the level, and where it was tried."""
        self.short: tuple[Part, Fit, int] | None = None
        """The need that ran out last, and how many bundles were missing."""

    def try_whole(self, request: Part) -> bool:
        """Place all of a request, or leave the view as it was."""
        self.done = self.place(request)
        if not self.done:
            self.draft.rollback(0)
            self.placed.clear()
        return self.done

    def place(self, part: Part, scope: Scope = CLUSTER) -> bool:
        """Place a part within a scope, all of it; on False the draft holds an unfinished attempt."""
        if part.pack is not None and (self.heed is Heed.ALL or (self.heed is Heed.REQUIRED and part.pack.required)):
            level = self.topology.level(part.pack.level)
            if level is None:
                self.draft.rollback(0)
                levels = ", ".join((*self.topology.levels, HOST_LEVEL))
                raise UnknownLevel(f"no topology level {part.pack.level!r}: the cluster has {levels}")
            if level > scope[0]:
                return self._together(part, level, scope)
            if part.pack.required and self._stands_elsewhere(part, level, scope):
                self.blocked = (part, level, CLUSTER)
                return False
        return self.inside(part, scope)

    def _stands_elsewhere(self, part: Part, level: int, scope: Scope) -> bool:
        """Whether some of it is outside the domain of `level` around a scope, which a wider packing has chosen."""
        around = self.topology.domain_of(self.topology.hosts(*scope)[0], level)
        return any(self.topology.domain_of(host, level) != around for host in part.held)

    def _together(self, part: Part, level: int, scope: Scope) -> bool:
        """In one domain of `level`; if that is only preferred, then in few."""
        assert part.pack is not None
        if self._one_domain(part, level, scope, part.pack.required):
            return True
        if part.pack.required:
            self.blocked = (part, level, scope)
            return False
        return self._few_domains(part, level, scope)

    def _one_domain(self, part: Part, level: int, scope: Scope, required: bool, near: Sequence[int] = ()) -> bool:
        mark, placed = self.draft.mark(), len(self.placed)
        for domain in islice(self.candidates(part, level, scope, required, near), TRIES if required else FEW_TRIES):
            if self.inside(part, (level, domain)):
                return True
            self.draft.rollback(mark)
            del self.placed[placed:]
        return False

    def _few_domains(self, part: Part, level: int, scope: Scope) -> bool:
        """Child by child, each in one domain if it fits there, and rather in one that a sibling stands in."""
        if not part.children:
            return self._leaf(part, scope)
        used: dict[int, None] = dict.fromkeys(self.topology.domain_of(host, level) for host in part.held)
        for child in _hardest_first(part.children):
            placed = len(self.placed)
            if not self._near(child, level, scope, tuple(used)):
                return False
            used.update(dict.fromkeys(self.topology.domain_of(row.chunk.host, level) for row in self.placed[placed:]))
        return True

    def _near(self, child: Part, level: int, scope: Scope, used: Sequence[int]) -> bool:
        """A child by its own packing; without one, in one domain of `level` if that is possible, else in few."""
        if child.pack is not None:
            return self.place(child, scope)
        return self._one_domain(child, level, scope, False, used) or self._few_domains(child, level, scope)

    def candidates(self, part: Part, level: int, scope: Scope, required: bool, near: Sequence[int] = ()) -> Iterator[int]:
        """Domains in which the part may fit, best first. What it already stands in binds a required packing."""
        low, high = self.topology.within(scope[0], scope[1], level)
        ok: npt.NDArray[np.bool_] | None = None
        keys: list[Ints] = []
        for fit, count in sorted(part.demands, key=lambda row: row[0].best) if len(part.demands) > 1 else part.demands:
            fit.refresh()
            values = fit.level(level)[low:high]
            ok = values >= count if ok is None else ok & (values >= count)
            keys.append(values)
        if ok is None:
            ok = np.ones(high - low, dtype=np.bool_)
        held = dict.fromkeys(self.topology.domain_of(host, level) - low for host in part.held)
        if held and required:
            stand: npt.NDArray[np.bool_] = np.zeros_like(ok)
            stand[[domain for domain in held if 0 <= domain < high - low]] = True
            ok &= stand
        found = ok.nonzero()[0]
        if len(found) and len(part.demands) > 1:
            # Enough in sum for all needs together: each alone may fit where both do not.
            row = self.fits.sums.row(part.amounts)
            room = self.fits.sums.level(level)[low:high].take(found, axis=0)
            found = found[(room >= row).all(axis=1)] if row is not None else found[:0]
        if len(found) > 1 and self.view.gpu_free.shape[1] and not any(fit.need.uses_gpus for fit, _ in part.demands):
            # Of equals, the domain whose GPUs are least: they stay free for those who need them.
            keys.append(self.fits.sums.level(level)[low:high, self.view.gpu_row])
        first = dict.fromkeys((*near, *(domain + low for domain in held)))
        return self._best_first(part, found, keys, low, first)

    def _best_first(
        self, part: Part, found: npt.NDArray[np.intp], keys: Sequence[Ints], low: int, first: Mapping[int, None]
    ) -> Iterator[int]:
        """The found domains, numbered from `low`, by the keys in turn, then by number; those of `first` before all others."""
        best = -1
        if len(found) and not first:
            # Mostly the best one is it: the others are not sorted before it has failed.
            least = found
            for key in keys:
                if len(least) == 1:
                    break
                values = key.take(least)
                least = least[values == values.min()]
            best = int(least[0]) + low
            yield best
        if len(found) < 2 and not first:
            return
        # What was taken to try the best one is given back: the keys are to show that.
        self.fits.refresh([fit for fit, _ in part.demands], sums=True)
        order = found[np.lexsort([key.take(found) for key in reversed(keys)])] if keys else found
        ordered: list[int] = (order + low).tolist()
        yield from [domain for domain in ordered if domain in first]
        yield from [domain for domain in ordered if domain not in first and domain != best]

    def inside(self, part: Part, scope: Scope) -> bool:
        """Place a part in a scope that satisfies its own packing."""
        if not part.children:
            return self._leaf(part, scope)
        return all(self.place(child, scope) for child in _hardest_first(part.children))

    def _leaf(self, part: Part, scope: Scope) -> bool:
        if part.terms:
            return all(self._term(part, term, scope) for term in part.terms)
        fit, _ = part.demands[0]
        waiting = part.slots
        while waiting:
            fit.refresh()
            chunks = self.draft.take(fit.need, pieces_for(self.view, fit, len(waiting), scope, Fill.FRAGMENTS))
            if not chunks:
                self.short = (part, fit, len(waiting))
                return False
            done = 0
            for chunk in chunks:
                self.placed.append(Placed(waiting[done : done + chunk.bundles], True, 0, chunk))
                done += chunk.bundles
            waiting = waiting[done:]
        return True

    def _term(self, part: Part, term: TermPart, scope: Scope) -> bool:
        """One term of a slot: the lead bundle (it pays what is used per job), the bundles, the remainder."""
        used: dict[int, None] = {}
        paid = -1
        for fit, count in ((term.lead, 1), (term.fit, term.count), (term.remainder, 1)):
            left = count if fit is not None else 0
            while fit is not None and left:
                fit.refresh()
                apart = tuple(used) if term.fit.need.mode is Mode.TILE else ()
                fill = Fill.TILES if fit.need.mode is Mode.TILE else Fill.FEW_HOSTS
                chunks = self.draft.take(fit.need, pieces_for(self.view, fit, left, scope, fill, apart), paid)
                if not chunks:
                    self.short = (part, fit, left)
                    return False
                for chunk in chunks:
                    self.placed.append(Placed(part.slots, False, term.position, chunk))
                    used[chunk.host] = None
                    left -= chunk.bundles
            if fit is term.lead and fit is not None:
                paid = next(iter(used))
        return True


def _hardest_first(parts: Sequence[Part]) -> list[Part]:
    return sorted(parts, key=lambda part: part.hardness) if len(parts) > 1 else list(parts)
