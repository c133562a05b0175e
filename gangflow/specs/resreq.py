"""Resource requirement strings in LSF's language (design 8.1), as frozen values.

`parse` and `render` are inverse: `parse(render(x)) == x`. The whole language parses; what this version does not enforce is
refused by `refusals` with its column. Nothing here is a float: numbers are exact fractions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from gangflow.specs.faults import Fault, Found, fault_error

# --- expressions of select -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    """A resource or attribute of the host; beside `==`, a word that no host knows stands for itself (`type==any`)."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """Units as in `rusage`'s bare values: memory in the cluster's `unit_for_limits`, CPUs and GPUs in whole ones."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class String:
    """A quoted word."""

    text: str


@dataclass(frozen=True, slots=True)
class Arith:
    """`left op right`."""

    left: Expr
    op: Literal["+", "-", "*", "/"]
    right: Expr


@dataclass(frozen=True, slots=True)
class Compare:
    """`left op right`."""

    left: Expr
    op: Literal["==", "!=", "<", "<=", ">", ">="]
    right: Expr


@dataclass(frozen=True, slots=True)
class Not:
    """`!item`."""

    item: Expr


@dataclass(frozen=True, slots=True)
class And:
    """All of at least two."""

    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Any of at least two."""

    items: tuple[Expr, ...]


Expr = Name | Number | String | Arith | Compare | Not | And | Or
"""As a condition, a bare name or number is true when it is not zero (a Boolean resource is 1 where it is)."""

# --- sections --------------------------------------------------------------------------------------------------------

Column = int
"""From 1, in the whole string; not part of a value's identity."""


@dataclass(frozen=True, slots=True)
class Order:
    """`order[-a:b]`: keys in order, each perhaps with a leading `-`. `now` (`!`) sorts by what is left after each task."""

    keys: tuple[str, ...]
    now: bool = False
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Res:
    """`name=value unit/per`. `unit` is one of K, M, G, … or empty; `per` is empty where the cluster's `reserve_per` holds."""

    name: str
    value: Fraction
    unit: str = ""
    per: Literal["", "task", "host", "job"] = ""
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that are reserved together, for the whole life of a task or for a duration."""

    resources: tuple[Res, ...]
    duration_s: int | None = None
    decay: bool | None = None
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rusage:
    """Alternatives (`||`), each of usages that all hold (`,`)."""

    alternatives: tuple[tuple[Usage, ...], ...]
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Span:
    """`hosts` 1 or -1, `ptile` n (0: `'!'`, with n per host type), `block` n, `stripe` n or nothing."""

    kind: Literal["hosts", "ptile", "block", "stripe"]
    value: int | None = None
    types: tuple[tuple[str, int], ...] = ()
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Same:
    """All hosts have the same value of each."""

    names: tuple[str, ...]
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Cu:
    """Compute units."""

    type: str = ""
    pref: Literal["", "bestfit", "maxavail", "minavail", "config"] = ""
    maxcus: int | None = None
    usablecuslots: int | None = None
    balance: bool = False
    excl: bool = False
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Affinity:
    """Kept as it is."""

    text: str
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Simple:
    """One shape of task."""

    select: Expr | None = None
    order: Order | None = None
    rusage: Rusage | None = None
    span: Span | None = None
    same: Same | None = None
    cu: Cu | None = None
    affinity: Affinity | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """`count*{body}`; only the last count of a compound string may be left out."""

    count: int | None
    body: Simple


@dataclass(frozen=True, slots=True)
class Compound:
    """Terms are placed in order, each on its own hosts' tasks; the first one holds the first host."""

    terms: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class Alt:
    """One alternative, tried after `delay` seconds."""

    body: Compound | Simple
    delay: int | None = None
    at: Column = field(default=0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Alternative:
    """At least two, in order of preference."""

    alts: tuple[Alt, ...]
    at: Column = field(default=0, compare=False, repr=False)


Resreq = Alternative | Compound | Simple

# --- the language ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=512)
def _parsed(text: str) -> Resreq | Found:
    from gangflow.specs.resreq_parse import parse_text  # lark only where a string is really parsed

    try:
        return parse_text(text)
    except Found as found:  # kept, so that a wrong string is not parsed again for every message about it
        return found


def parse(text: str) -> Resreq:
    """The value of a resource requirement string.

    Raises SpecError with the column of what is wrong; what is merely not enforced parses.
    """
    found = _parsed(text)
    if isinstance(found, Found):
        raise fault_error([replace(fault, loc=("resreq",)) for fault in found.faults])
    return found


def parse_select(text: str) -> Expr | None:
    """The select expression of a canonical text (`TaskTerm.select`); None for the empty one, which selects every host."""
    resreq = parse(f"select[{text}]" if text else "")
    assert isinstance(resreq, Simple)
    return resreq.select


def render(resreq: Resreq) -> str:
    """The canonical text: select first, then order, rusage, span, same, cu, affinity; no needless blanks or parentheses."""
    from gangflow.specs.resreq_render import resreq_text

    return resreq_text(resreq)


def render_select(expr: Expr | None) -> str:
    """The canonical text of an expression, without `select[]`; empty for None."""
    from gangflow.specs.resreq_render import expr_text

    return "" if expr is None else expr_text(expr)


def check_resreq(text: str) -> str:
    """The text itself, if it parses and all of it is enforced; else its faults, each with its column."""
    found = _parsed(text)
    if isinstance(found, Found):
        raise Found(found.faults)
    later = [
        Fault((), text, f"column {at}: {what} is not enforced by this version", later=True) for at, what in refusals(found)
    ]
    if later:
        raise Found(later)
    return text


def count_fault(text: str, tasks: int | None) -> str:
    """What an explicit task count must be to agree with a compound string; empty when it agrees."""
    found = _parsed(text)
    if tasks is None or not isinstance(found, Compound):
        return ""
    if found.terms[-1].count is None:
        return "no `tasks`, or a count before the last term of the resreq"
    total = sum(term.count or 1 for term in found.terms)
    return "" if total == tasks else f"{total}, the sum of the resreq's counts"


def terms_of(resreq: Compound | Simple, tasks: int | None = None) -> tuple[tuple[int, Simple], ...]:
    """(count, shape) in order. A simple string means `tasks` (or 1) of one shape; a count left out means 1."""
    if isinstance(resreq, Simple):
        return ((tasks or 1, resreq),)
    return tuple((1 if term.count is None else term.count, term.body) for term in resreq.terms)


def refusals(resreq: Resreq) -> Iterator[tuple[Column, str]]:
    """(column, what) of everything that parses but is not enforced."""
    if isinstance(resreq, Alternative):
        yield resreq.at, "an alternative (`||`)"
        for alt in resreq.alts:
            if alt.delay is not None:
                yield alt.at, "`@delay`"
            yield from refusals(alt.body)
    elif isinstance(resreq, Compound):
        for term in resreq.terms:
            yield from refusals(term.body)
    else:
        yield from _section_refusals(resreq)


def _section_refusals(simple: Simple) -> Iterator[tuple[Column, str]]:
    if simple.order and simple.order.now:
        yield simple.order.at, "`order[!…]`"
    if simple.rusage:
        if len(simple.rusage.alternatives) > 1:
            yield simple.rusage.at, "an alternative (`||`) in rusage"
        for usage in (usage for usages in simple.rusage.alternatives for usage in usages):
            if usage.duration_s is not None:
                yield usage.at, "`duration`"
            if usage.decay is not None:
                yield usage.at, "`decay`"
    span = simple.span
    if span and (span.kind in ("block", "stripe") or (span.kind == "ptile" and not span.value)):
        yield span.at, "`span[ptile='!']`" if span.kind == "ptile" else f"`span[{span.kind}]`"
    for section, name in ((simple.same, "same"), (simple.cu, "cu"), (simple.affinity, "affinity")):
        if section:
            yield section.at, f"`{name}[…]`"
