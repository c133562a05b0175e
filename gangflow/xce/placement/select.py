"""`select[…]`: which hosts an expression chooses, evaluated over whole columns of hosts at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gangflow.specs.resreq import And, Arith, Compare, Expr, Name, Not, Number, Or, String, parse_select
from gangflow.xce.placement.attributes import THOUSAND, Attributes
from gangflow.xce.placement.snapshot import ClusterView
from gangflow.xce.placement.topology import Bools, Ints

ANY = "any"
"""`type==any` is true on every host, whatever it is."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The hosts of one evaluation, and their free amounts."""

    rows: Any
    free: Ints
    gpus: npt.NDArray[np.int32]

    @property
    def count(self) -> int:
        return len(self.free)


@dataclass(frozen=True, slots=True)
class _Value:
    """An operand: a number where `numeric`, a text where `known`."""

    number: Ints
    numeric: Bools
    text: npt.NDArray[np.str_]
    known: Bools


class Selection:
    """One expression against one view. `fixed` is its mask over all hosts, unless it speaks of free amounts (`moving`)."""

    def __init__(self, view: ClusterView, text: str) -> None:
        self.text = text
        self.expr = parse_select(text)
        self.attributes = Attributes(view)
        names = list(_names(self.expr)) if self.expr is not None else []
        self.moving = any(self.attributes.moving(name) for name in names)
        self.unknown = tuple(dict.fromkeys(_unknown(self.expr, self.attributes)))
        """Names that no host has and that do not stand for themselves beside a comparison."""
        size = view.topology.size
        if self.expr is None or self.moving:
            self.fixed: Bools = np.ones(size, dtype=np.bool_)
        else:
            self.fixed = self.mask(slice(None), view.capacity, view.gpu_capacity)

    def mask(self, rows: Any, free: Ints, gpus: npt.NDArray[np.int32]) -> Bools:
        """The chosen ones of some hosts, by their rows of free counters and devices."""
        if self.expr is None:
            return np.ones(len(free), dtype=np.bool_)
        return self._true(self.expr, _Rows(rows, free, gpus))

    def _true(self, expr: Expr, hosts: _Rows) -> Bools:
        if isinstance(expr, And):
            every: Bools = np.logical_and.reduce([self._true(item, hosts) for item in expr.items])
            return every
        if isinstance(expr, Or):
            some: Bools = np.logical_or.reduce([self._true(item, hosts) for item in expr.items])
            return some
        if isinstance(expr, Not):
            return ~self._true(expr.item, hosts)
        if isinstance(expr, Compare):
            return self._compare(expr, hosts)
        value = self._value(expr, hosts)
        words: Bools = value.known & (value.text != "") & (np.char.lower(value.text) != "false")
        return np.where(value.numeric, value.number != 0, words)

    def _compare(self, expr: Compare, hosts: _Rows) -> Bools:
        if expr.op == "==" and ANY in (self._word(expr.left), self._word(expr.right)):
            return np.ones(hosts.count, dtype=np.bool_)
        left, right = self._operand(expr.left, expr.right, hosts), self._operand(expr.right, None, hosts)
        numeric = left.numeric & right.numeric
        by_number = _COMPARE[expr.op](left.number, right.number)
        by_text = _COMPARE[expr.op](left.text, right.text)
        # What a host does not have equals nothing, and differs from everything.
        missing = np.full(hosts.count, expr.op == "!=", dtype=np.bool_)
        return np.where(numeric, by_number, np.where(left.known & right.known, by_text, missing))

    def _word(self, expr: Expr) -> str | None:
        """What an operand says if it stands for itself: a quoted word, or a bare one that no host knows."""
        if isinstance(expr, String):
            return expr.text
        if isinstance(expr, Name) and not self.attributes.known(expr.text):
            return expr.text
        return None

    def _operand(self, expr: Expr, other: Expr | None, hosts: _Rows) -> _Value:
        """One side of a comparison. On the left a word that no host knows is a resource that none has, unless the right side
        is known: `A100==gpu_model`."""
        word = self._word(expr)
        stands = other is None or (isinstance(other, Name) and self.attributes.known(other.text))
        if word is not None and (stands or isinstance(expr, String)):
            return _text(np.full(hosts.count, word), np.ones(hosts.count, dtype=np.bool_))
        return self._value(expr, hosts)

    def _value(self, expr: Expr, hosts: _Rows) -> _Value:
        count = hosts.count
        if isinstance(expr, Number):
            return _number(np.full(count, int(expr.value * THOUSAND), dtype=np.int64), np.ones(count, dtype=np.bool_))
        if isinstance(expr, String):
            return _text(np.full(count, expr.text), np.ones(count, dtype=np.bool_))
        if isinstance(expr, Name):
            return self._named(expr.text, hosts)
        if isinstance(expr, Arith):
            left, right = self._value(expr.left, hosts), self._value(expr.right, hosts)
            return _arith(expr.op, left, right)
        truth = self._true(expr, hosts)
        return _number(truth.astype(np.int64) * THOUSAND, np.ones(count, dtype=np.bool_))

    def _named(self, name: str, hosts: _Rows) -> _Value:
        if self.attributes.moving(name):
            number = self.attributes.free(name, hosts.free, hosts.gpus)
            return _number(number, np.ones(hosts.count, dtype=np.bool_))
        column = self.attributes.fixed(name)
        rows = hosts.rows
        return _Value(column.number[rows], column.numeric[rows], column.text[rows], column.known[rows])


_COMPARE: dict[str, Any] = {
    "==": np.equal,
    "!=": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}


def _number(number: Ints, numeric: Bools) -> _Value:
    return _Value(number, numeric, np.full(len(number), ""), np.zeros(len(number), dtype=np.bool_))


def _text(text: npt.NDArray[np.str_], known: Bools) -> _Value:
    return _Value(np.zeros(len(text), dtype=np.int64), np.zeros(len(text), dtype=np.bool_), text, known)


def _arith(op: str, left: _Value, right: _Value) -> _Value:
    numeric = left.numeric & right.numeric
    a, b = left.number, right.number
    if op == "+":
        return _number(a + b, numeric)
    if op == "-":
        return _number(a - b, numeric)
    if op == "*":
        # In two steps, so that the product of two amounts in thousandths stays within 64 bits.
        return _number((a // THOUSAND) * b + (a % THOUSAND) * b // THOUSAND, numeric)
    divisor = np.where(b == 0, 1, b)
    return _number((a // divisor) * THOUSAND + (a % divisor) * THOUSAND // divisor, numeric & (b != 0))


def _names(expr: Expr) -> Iterator[str]:
    if isinstance(expr, Name):
        yield expr.text
    elif isinstance(expr, (And, Or)):
        for item in expr.items:
            yield from _names(item)
    elif isinstance(expr, Not):
        yield from _names(expr.item)
    elif isinstance(expr, (Arith, Compare)):
        yield from _names(expr.left)
        yield from _names(expr.right)


def _unknown(expr: Expr | None, attributes: Attributes) -> Iterator[str]:
    if isinstance(expr, Compare):
        if ANY in (side.text for side in (expr.left, expr.right) if isinstance(side, (Name, String))):
            return
        left, right = expr.left, expr.right
        if isinstance(left, Name) and not attributes.known(left.text):
            if not (isinstance(right, Name) and attributes.known(right.text)):
                yield left.text
        else:
            yield from _unknown(left, attributes)
        if not isinstance(right, Name):
            yield from _unknown(right, attributes)
    elif expr is not None:
        for name in _names(expr) if isinstance(expr, (Name, Arith)) else ():
            if not attributes.known(name):
                yield name
        for item in expr.items if isinstance(expr, (And, Or)) else (expr.item,) if isinstance(expr, Not) else ():
            yield from _unknown(item, attributes)
