"""A resource requirement in the terms of one cluster: every `per` and unit written out, aliases gone.

The structured form (`resources`) becomes the same value, so that everything behind admission knows one form only.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from gangflow.specs.resreq import (
    And,
    Arith,
    Compare,
    Compound,
    Expr,
    Name,
    Not,
    Number,
    Or,
    Res,
    Rusage,
    Simple,
    Usage,
)

if TYPE_CHECKING:
    from gangflow.specs.member import Resources

MEMORY = ("mem", "swp", "tmp")
MIB = {
    "KB": Fraction(1, 1024),
    "MB": Fraction(1),
    "GB": Fraction(1024),
    "TB": Fraction(1024**2),
    "PB": Fraction(1024**3),
    "EB": Fraction(1024**4),
}


def from_resources(resources: Resources | None) -> Simple:
    """`{cpu: 8, gpus: 1, mem: 64GiB}` → `rusage[cpu=8/task:gpus=1/task:mem=65536MB/task]`."""
    if resources is None:
        return Simple()
    found = [
        Res("cpu", Fraction(resources.cpu or 0, 1000), "", "task"),
        Res("gpus", Fraction(resources.gpus or 0, 1000), "", "task"),
        Res("mem", Fraction(resources.mem or 0), "MB", "task"),
        *(Res(name, Fraction(amount), "", "task") for name, amount in resources.counters.items()),
    ]
    wanted = tuple(res for res in found if res.value)
    return Simple(rusage=Rusage(((Usage(wanted),),))) if wanted else Simple()


def resolved(resreq: Compound | Simple, reserve_per: Literal["task", "host"], unit: str) -> Compound | Simple:
    """The same with `/task`, `/host` or `/job` and `MB` written out; memory is rounded up to whole MiB.

    `unit` is the cluster's `unit_for_limits`; in `select`, a memory name is scaled so that it compares in that unit.
    """
    if isinstance(resreq, Compound):
        terms = tuple(replace(term, body=_resolved(term.body, reserve_per, unit)) for term in resreq.terms)
        return Compound(terms)
    return _resolved(resreq, reserve_per, unit)


def _resolved(simple: Simple, reserve_per: Literal["task", "host"], unit: str) -> Simple:
    select = simple.select if simple.select is None or unit == "MB" else _scaled(simple.select, MIB[unit])
    rusage = simple.rusage
    if rusage is not None:
        alternatives = tuple(
            tuple(replace(usage, resources=tuple(_res(res, reserve_per, unit) for res in usage.resources)) for usage in usages)
            for usages in rusage.alternatives
        )
        rusage = replace(rusage, alternatives=alternatives)
    return replace(simple, select=select, rusage=rusage)


def _res(res: Res, reserve_per: Literal["task", "host"], unit: str) -> Res:
    per = res.per or reserve_per
    if res.name not in MEMORY:
        return replace(res, per=per)
    mib = math.ceil(res.value * MIB[res.unit or unit])
    return replace(res, value=Fraction(mib), unit="MB", per=per)


def _scaled(expr: Expr, mib: Fraction) -> Expr:
    """Memory names, which stand for MiB behind this, in units of `mib` MiB."""
    if isinstance(expr, Name) and expr.text in (*MEMORY, *(f"max{name}" for name in MEMORY)):
        return Arith(expr, "/", Number(mib)) if mib >= 1 else Arith(expr, "*", Number(1 / mib))
    if isinstance(expr, Arith):
        return Arith(_scaled(expr.left, mib), expr.op, _scaled(expr.right, mib))
    if isinstance(expr, Compare):
        return Compare(_scaled(expr.left, mib), expr.op, _scaled(expr.right, mib))
    if isinstance(expr, Not):
        return Not(_scaled(expr.item, mib))
    if isinstance(expr, (And, Or)):
        return type(expr)(tuple(_scaled(item, mib) for item in expr.items))
    return expr
