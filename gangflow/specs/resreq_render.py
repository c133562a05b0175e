"""Values of resource requirement strings → canonical text."""

from __future__ import annotations

import re
from fractions import Fraction

from gangflow.specs.resreq import (
    Alternative,
    And,
    Arith,
    Compare,
    Compound,
    Cu,
    Expr,
    Name,
    Not,
    Number,
    Or,
    Order,
    Resreq,
    Rusage,
    Same,
    Simple,
    Span,
    String,
    Usage,
)

_POWER = {Or: 1, And: 2, Not: 3, Compare: 4}
_TIGHTEST = 7
_PLAIN = re.compile(r"[^'\r\n]*")


def resreq_text(resreq: Resreq) -> str:
    """The canonical text."""
    if isinstance(resreq, Simple):
        return _simple(resreq)
    if isinstance(resreq, Compound):
        parts = ("" if term.count is None else f"{term.count}*" for term in resreq.terms)
        return "+".join(f"{count}{{{_simple(term.body)}}}" for count, term in zip(parts, resreq.terms, strict=True))
    assert isinstance(resreq, Alternative)
    return "||".join(f"{{{resreq_text(alt.body)}}}" + ("" if alt.delay is None else f"@{alt.delay}") for alt in resreq.alts)


def expr_text(expr: Expr) -> str:
    """The canonical text of an expression."""
    if isinstance(expr, Name):
        return expr.text
    if isinstance(expr, Number):
        return number_text(expr.value)
    if isinstance(expr, String):
        return f"'{expr.text}'" if _PLAIN.fullmatch(expr.text) else f'"{expr.text}"'
    if isinstance(expr, Not):
        # `!` takes a comparison or what stands in parentheses.
        return "!" + _inner(expr.item, _POWER[Compare])
    if isinstance(expr, (And, Or)):
        power = _POWER[type(expr)]
        return ("||" if isinstance(expr, Or) else "&&").join(_inner(item, power + 1) for item in expr.items)
    if isinstance(expr, Compare):
        return _inner(expr.left, _POWER[Compare] + 1) + expr.op + _inner(expr.right, _POWER[Compare] + 1)
    power = _power(expr)
    return _inner(expr.left, power) + expr.op + _inner(expr.right, power + 1)


def _inner(expr: Expr, least: int) -> str:
    text = expr_text(expr)
    return text if _power(expr) >= least else f"({text})"


def _power(expr: Expr) -> int:
    if isinstance(expr, Arith):
        return 5 if expr.op in "+-" else 6
    return _POWER.get(type(expr), _TIGHTEST)


def number_text(value: Fraction) -> str:
    """A decimal, exactly: denominators are powers of ten's factors, since values come from decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = value * 10**9
    if scaled.denominator != 1:
        raise ValueError(f"{value} is no decimal of nine places")
    whole, rest = divmod(int(scaled), 10**9)
    return f"{whole}.{rest:09d}".rstrip("0")


def _simple(simple: Simple) -> str:
    parts = []
    if simple.select is not None:
        parts.append(f"select[{expr_text(simple.select)}]")
    if simple.order:
        parts.append(_order(simple.order))
    if simple.rusage:
        parts.append(_rusage(simple.rusage))
    if simple.span:
        parts.append(_span(simple.span))
    if simple.same:
        parts.append(_same(simple.same))
    if simple.cu:
        parts.append(_cu(simple.cu))
    if simple.affinity:
        parts.append(f"affinity[{simple.affinity.text}]")
    return " ".join(parts)


def _order(order: Order) -> str:
    return f"order[{'!' if order.now else ''}{':'.join(order.keys)}]"


def _rusage(rusage: Rusage) -> str:
    return "rusage[" + "||".join(",".join(_usage(usage) for usage in usages) for usages in rusage.alternatives) + "]"


def _usage(usage: Usage) -> str:
    parts = [f"{r.name}={number_text(r.value)}{r.unit}{'/' + r.per if r.per else ''}" for r in usage.resources]
    if usage.duration_s is not None:
        parts.append(f"duration={usage.duration_s}s")
    if usage.decay is not None:
        parts.append(f"decay={int(usage.decay)}")
    return ":".join(parts)


def _span(span: Span) -> str:
    if span.kind == "ptile" and span.value is None:
        return "span[ptile='!'" + "".join(f",{name}:{count}" for name, count in span.types) + "]"
    return f"span[{span.kind}{'' if span.value is None else f'={span.value}'}]"


def _same(same: Same) -> str:
    return f"same[{':'.join(same.names)}]"


def _cu(cu: Cu) -> str:
    parts = [f"{key}={value}" for key, value in (("type", cu.type), ("pref", cu.pref)) if value]
    parts += [f"{key}={getattr(cu, key)}" for key in ("maxcus", "usablecuslots") if getattr(cu, key) is not None]
    parts += [key for key in ("balance", "excl") if getattr(cu, key)]
    return f"cu[{':'.join(parts)}]"
