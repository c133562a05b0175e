"""A profile's requirement behind a member's: `select` is ANDed, each name of `rusage` and each other section is a default."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from gangflow.specs.resreq import And, Compound, Expr, Res, Rusage, Simple, Usage, parse

if TYPE_CHECKING:
    from gangflow.specs.member import Resources

SECTIONS = ("order", "span", "same", "cu", "affinity")


def with_zeros(resources: Resources | None, resreq: str | None) -> Compound | Simple:
    """Either form as a requirement; unlike in `from_resources`, a zero stays: it overrides what a profile says."""
    if resreq is not None:
        found = parse(resreq)
        assert isinstance(found, (Compound, Simple)), "specs refuse alternatives"
        return found
    if resources is None:
        return Simple()
    asked = [
        Res(name, Fraction(amount, scale), unit, "task")
        for name, amount, scale, unit in (
            ("cpu", resources.cpu, 1000, ""),
            ("gpus", resources.gpus, 1000, ""),
            ("mem", resources.mem, 1, "MB"),
        )
        if amount is not None
    ]
    asked += [Res(name, Fraction(amount), "", "task") for name, amount in resources.counters.items()]
    return Simple(rusage=Rusage(((Usage(tuple(asked)),),))) if asked else Simple()


def merged(own: Compound | Simple, default: Compound | Simple) -> Compound | Simple:
    """The member's requirement with the profile's behind it, in every term. The profile's is simple."""
    assert isinstance(default, Simple), "specs refuse another one in a profile"
    if isinstance(own, Compound):
        return Compound(tuple(replace(term, body=_simple(term.body, default)) for term in own.terms))
    return _simple(own, default)


def _simple(own: Simple, default: Simple) -> Simple:
    sections = {name: getattr(own, name) or getattr(default, name) for name in SECTIONS}
    return Simple(select=_both(default.select, own.select), rusage=_rusage(own, default), **sections)


def _both(first: Expr | None, second: Expr | None) -> Expr | None:
    if first is None or second is None or first == second:
        return second if first is None else first
    items = [item for expr in (first, second) for item in (expr.items if isinstance(expr, And) else (expr,))]
    return And(tuple(dict.fromkeys(items)))


def _rusage(own: Simple, default: Simple) -> Rusage | None:
    if own.rusage is None or default.rusage is None:
        return own.rusage or default.rusage
    mine = own.rusage.alternatives[0]
    taken = {res.name for usage in mine for res in usage.resources}
    kept = tuple(res for usage in default.rusage.alternatives[0] for res in usage.resources if res.name not in taken)
    # None of them has a duration: specs refuse those. So they all hold, for as long as the task.
    asked = tuple(res for usage in mine for res in usage.resources)
    return Rusage(((Usage((*kept, *asked)),),))
