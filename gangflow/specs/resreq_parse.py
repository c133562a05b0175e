"""Resource requirement strings → values, by lark. Every fault has its column and says what was expected there."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import cache
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedInput, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedEOF, UnexpectedToken, VisitError

from gangflow.specs.faults import Fault, Found, listed, nearest
from gangflow.specs.resreq import (
    Affinity,
    Alt,
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
    Res,
    Resreq,
    Rusage,
    Same,
    Simple,
    Span,
    String,
    Term,
    Usage,
)

MAX_LENGTH = 16_384
MAX_DEPTH = 32
"""Parentheses inside each other."""
MAX_CHAIN = 64
"""Operators of one sum or product: they nest to the left."""
SECTIONS = ("select", "order", "rusage", "span", "same", "cu", "affinity")
MEMORY_UNITS = ("K", "M", "G", "T", "P", "E")
MEMORY = ("mem", "swp", "tmp")
ALIASES = {"ngpus_physical": "gpus"}

_SPOKEN = {
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a quoted word",
    "COMPARE": "a comparison",
    "COUNT": "count*{",
    "OR": "||",
    "_AND": "&&",
    "BANG": "!",
    "PLUS": "+",
    "MINUS": "-",
    "TIMES": "*",
    "DIVIDE": "/",
    "SLASH": "/",
    "LBRACE": "{",
    "RBRACE": "}",
    "LPAR": "(",
    "RPAR": ")",
    "RSQB": "]",
    "COMMA": ",",
    "COLON": ":",
    "EQUAL": "=",
    "AT": "@",
    "$END": "the end",
} | {section.upper(): f"{section}[" for section in SECTIONS}
_WORD = re.compile(r"[A-Za-z_]\w*")


def parse_text(text: str) -> Resreq:
    """The value; raises Found with faults at the empty path whose `expected` begins with the column."""
    if len(text) > MAX_LENGTH:
        raise _fault(MAX_LENGTH, text, f"at most {MAX_LENGTH} characters")
    _check_depth(text)
    try:
        tree = _parser().parse(text)
        return _Build(text).transform(tree)  # type: ignore[no-any-return]
    except VisitError as error:
        if isinstance(error.orig_exc, Found):
            raise error.orig_exc from None
        raise
    except UnexpectedInput as error:
        raise _syntax(text, error) from None


@cache
def _parser() -> Lark:
    return Lark.open("resreq.lark", rel_to=__file__, parser="lalr", maybe_placeholders=True, propagate_positions=False)


def _fault(column: int, value: object, expected: str, near: str = "") -> Found:
    return Found([Fault((), value, f"column {column}: {expected}", near)])


def _check_depth(text: str) -> None:
    depth = 0
    for column, char in enumerate(text, 1):
        depth += (char in "({") - (char in ")}")
        if depth > MAX_DEPTH:
            raise _fault(column, text, f"at most {MAX_DEPTH} parentheses inside each other")


def _syntax(text: str, error: UnexpectedInput) -> Found:
    at = len(text) if isinstance(error, UnexpectedEOF) or error.pos_in_stream is None else error.pos_in_stream
    if isinstance(error, UnexpectedToken):
        if error.token.type == "$END":
            at = len(text)
        wanted = error.accepts or error.expected
    else:
        wanted = error.allowed if isinstance(error, UnexpectedCharacters) else error.expected
    # The parser stops after a section's unknown name, at its bracket: the name is what is wrong.
    word = next(
        (m for m in _WORD.finditer(text) if text[m.end() :].lstrip().startswith("[") and m.start() <= at <= m.end() + 1), None
    )
    if word and word[0] not in SECTIONS:
        return _fault(word.start() + 1, text, "a section: " + listed(SECTIONS), nearest(word[0], SECTIONS))
    if word and word[0] == "select" and word.start() == at:
        return _fault(word.start() + 1, text, "select[ first, before the other sections, and once")
    spoken = sorted({_SPOKEN.get(name, name.lower()) for name in wanted or ()})
    return _fault(at + 1, text, listed(spoken) if len(spoken) > 1 else "".join(spoken) or "something else")


@v_args(inline=True)
class _Build(Transformer[Token, Any]):  # type: ignore[misc]
    """Bottom-up: tree → values. A fault carries the column of the token that is wrong."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def fault(self, token: Token, expected: str, near: str = "") -> Found:
        """At a token's column."""
        return _fault((token.start_pos or 0) + 1, self.text, expected, near)

    def integer(self, token: Token, least: int) -> int:
        """A whole number of at least `least`."""
        if not token.isdecimal() or int(token) < least:
            raise self.fault(token, f"a whole number, at least {least}")
        return int(token)

    # --- expressions: each rule gives (value, token of its start), so that a wrong operand has a column

    def name(self, token: Token) -> tuple[Expr, Token]:
        """A bare word."""
        return Name(str(token)), token

    def number(self, token: Token) -> tuple[Expr, Token]:
        """A decimal."""
        return Number(Fraction(str(token))), token

    def string(self, token: Token) -> tuple[Expr, Token]:
        """A quoted word."""
        return String(str(token)[1:-1]), token

    def group(self, inner: tuple[Expr, Token]) -> tuple[Expr, Token]:
        """Parentheses."""
        return inner

    def _chain(self, parts: tuple[Any, ...]) -> tuple[Expr, Token]:
        if len(parts) > 2 * MAX_CHAIN:
            raise self.fault(parts[1], f"at most {MAX_CHAIN} operators in a row")
        value, start = self._arithmetic(parts[0])
        for op, operand in zip(parts[1::2], parts[2::2], strict=True):
            value = Arith(value, str(op), self._arithmetic(operand)[0])  # type: ignore[arg-type]
        return value, start

    def sum(self, *parts: Any) -> tuple[Expr, Token]:
        """`a + b - c`."""
        return self._chain(parts)

    def product(self, *parts: Any) -> tuple[Expr, Token]:
        """`a * b / c`."""
        return self._chain(parts)

    def _arithmetic(self, part: tuple[Expr, Token]) -> tuple[Expr, Token]:
        if not isinstance(part[0], (Name, Number, Arith)):
            raise self.fault(part[1], "a number or a name: a condition has no value to reckon with")
        return part

    def cmp(
        self, left: tuple[Expr, Token], op: Token | None = None, right: tuple[Expr, Token] | None = None
    ) -> tuple[Expr, Token]:
        """`left op right`, or a bare value."""
        if op is None or right is None:
            return left
        value = right[0] if isinstance(right[0], String) else self._arithmetic(right)[0]
        return Compare(self._arithmetic(left)[0], str(op), value), left[1]  # type: ignore[arg-type]

    def negation(self, bang: Token, item: tuple[Expr, Token]) -> tuple[Expr, Token]:
        """`!item`."""
        return Not(item[0]), bang

    def and_expr(self, *items: tuple[Expr, Token]) -> tuple[Expr, Token]:
        """`a && b`."""
        return And(tuple(item for item, _ in items)), items[0][1]

    def or_expr(self, *parts: Any) -> tuple[Expr, Token]:
        """`a || b`."""
        items: tuple[tuple[Expr, Token], ...] = parts[::2]
        return Or(tuple(item for item, _ in items)), items[0][1]

    def select(self, _open: Token, expr: tuple[Expr, Token]) -> Expr:
        """`select[…]`."""
        return expr[0]

    def bare(self, expr: tuple[Expr, Token]) -> Expr:
        """The same without the word."""
        return expr[0]

    # --- sections

    def key(self, minus: Token | None, name: Token) -> str:
        """`-name`."""
        return f"{'-' if minus else ''}{name}"

    def order(self, start: Token, bang: Token | None, *keys: str) -> tuple[str, Order, Token]:
        """`order[…]`."""
        return "order", Order(keys, bang is not None, self._column(start)), start

    def res(
        self, name: Token, number: Token, unit: Token | None, per: Token | None
    ) -> tuple[Token, Token, Token | None, Token | None]:
        """`name=value unit/per`, not yet looked at."""
        return name, number, unit, per

    def usage(self, *items: tuple[Token, Token, Token | None, Token | None]) -> Usage:
        """Resources, and how long."""
        resources: list[Res] = []
        duration: int | None = None
        decay: bool | None = None
        for name, number, unit, per in items:
            if name == "duration":
                duration = self._duration(name, number, unit, per, duration)
            elif name == "decay":
                if decay is not None or duration is None or number not in ("0", "1") or unit or per:
                    raise self.fault(name, "decay=0 or decay=1, once, after a duration")
                decay = number == "1"
            elif duration is not None:
                raise self.fault(name, "the resources before the duration")
            else:
                resources.append(self._res(name, number, unit, per))
        if not resources:
            raise self.fault(items[0][0], "a resource before the duration")
        return Usage(tuple(resources), duration, decay, self._column(items[0][0]))

    def _duration(self, name: Token, number: Token, unit: Token | None, per: Token | None, before: int | None) -> int:
        if before is not None or per or (unit or "m") not in ("h", "m", "s"):
            raise self.fault(name, "duration=n, once, with m, h or s after the number")
        return self.integer(number, 0) * {"h": 3600, "m": 60, "s": 1}[unit or "m"]

    def _res(self, name: Token, number: Token, unit: Token | None, per: Token | None) -> Res:
        if per is not None and per not in ("task", "host", "job"):
            raise self.fault(per, "/task, /host or /job", nearest(str(per), ("task", "host", "job")))
        canonical = ALIASES.get(str(name), str(name))
        letter = ""
        if unit is not None:
            letter = str(unit).upper().removesuffix("B")
            if canonical not in MEMORY:
                raise self.fault(unit, f"no unit: only {', '.join(MEMORY)} have one")
            if letter not in MEMORY_UNITS:
                raise self.fault(unit, "a unit: " + listed(f"{one}B" for one in MEMORY_UNITS))
            letter += "B"
        value = Fraction(str(number))
        self._check_amount(canonical, value, number)
        return Res(canonical, value, letter, str(per) if per else "", self._column(name))  # type: ignore[arg-type]

    def _check_amount(self, name: str, value: Fraction, token: Token) -> None:
        if name in ("cpu", "gpus"):
            if (value * 1000).denominator != 1 or (name == "gpus" and value > 1 and value.denominator != 1):
                kind = (
                    "thousandths of a CPU" if name == "cpu" else "a whole number of GPUs, or a fraction below 1 in thousandths"
                )
                raise self.fault(token, kind)
        elif name not in MEMORY and value.denominator != 1:
            raise self.fault(token, "a whole number: counters are not divided")

    def usages(self, *items: Usage) -> tuple[Usage, ...]:
        """Usages that all hold; a resource occurs once."""
        seen: set[str] = set()
        for res in (res for usage in items for res in usage.resources):
            if res.name in seen:
                raise _fault(res.at, self.text, f"each resource once: {res.name} was given before")
            seen.add(res.name)
        return items

    def rusage(self, start: Token, *parts: Any) -> tuple[str, Rusage, Token]:
        """`rusage[…]`; its column is that of the first `||`."""
        return "rusage", Rusage(parts[::2], self._column(parts[1] if len(parts) > 1 else start)), start

    def span_value(self, *parts: Token) -> tuple[Token, ...]:
        """What stands after `=`."""
        return parts

    def span(self, start: Token, kind: Token, value: tuple[Token, ...] | None = None) -> tuple[str, Span, Token]:
        """`span[…]`."""
        at = self._column(start)
        kinds = ("hosts", "ptile", "block", "stripe")
        if kind not in kinds:
            raise self.fault(kind, listed(kinds), nearest(str(kind), kinds))
        if kind == "hosts":
            if not value or "".join(value) not in ("1", "-1"):
                raise self.fault(value[0] if value else kind, "hosts=1 or hosts=-1")
            return "span", Span("hosts", int("".join(value)), at=at), start
        if value is None:
            if kind != "stripe":
                raise self.fault(kind, f"{kind}=n")
            return "span", Span("stripe", at=at), start
        if kind == "ptile" and value[0].type == "STRING":
            if value[0][1:-1] != "!":
                raise self.fault(value[0], "ptile=n or ptile='!'")
            types = tuple((str(name), self.integer(number, 1)) for name, number in zip(value[1::2], value[2::2], strict=True))
            return "span", Span("ptile", None, types, at), start
        if len(value) > 1 or value[0].type != "NUMBER":
            raise self.fault(value[0], f"{kind}=n")
        return "span", Span(str(kind), self.integer(value[0], 1), at=at), start  # type: ignore[arg-type]

    def same(self, start: Token, *names: Token) -> tuple[str, Same, Token]:
        """`same[…]`."""
        return "same", Same(tuple(str(name) for name in names), self._column(start)), start

    def pair(self, key: Token, value: Token | None = None) -> tuple[Token, Token | None]:
        """`key` or `key=value`."""
        return key, value

    def cu(self, start: Token, *pairs: tuple[Token, Token | None]) -> tuple[str, Cu, Token]:
        """`cu[…]`."""
        fields: dict[str, Any] = {}
        keys = ("type", "pref", "maxcus", "usablecuslots", "balance", "excl")
        prefs = ("bestfit", "maxavail", "minavail", "config")
        for key, value in pairs:
            if key not in keys:
                raise self.fault(key, listed(keys), nearest(str(key), keys))
            if key in fields:
                raise self.fault(key, f"each key once: {key} was given before")
            if (value is None) != (key in ("balance", "excl")):
                raise self.fault(key, f"{key} without a value" if value else f"{key}=…")
            if key == "type" and (value is None or value.type != "NAME"):
                raise self.fault(value or key, "type=NAME")
            if key == "pref" and value not in prefs:
                raise self.fault(value or key, listed(prefs), nearest(str(value), prefs))
            number = key in ("maxcus", "usablecuslots")
            fields[str(key)] = True if value is None else self.integer(value, 1) if number else str(value)
        if fields.get("balance") and "usablecuslots" in fields:
            raise self.fault(start, "balance or usablecuslots, not both")
        if fields.get("balance") and fields.get("pref") == "bestfit":
            raise self.fault(start, "balance or pref=bestfit, not both")
        return "cu", Cu(**fields, at=self._column(start)), start

    def affinity(self, token: Token) -> tuple[str, Affinity, Token]:
        """`affinity[…]`."""
        text = str(token)
        return "affinity", Affinity(text[text.index("[") + 1 : -1], self._column(token)), token

    def simple(self, select: Expr | None, *sections: tuple[str, Any, Token]) -> Simple:
        """One shape; each section once."""
        fields: dict[str, Any] = {}
        for name, value, start in sections:
            if name in fields:
                raise self.fault(start, f"each section once: {name}[ was given before")
            fields[name] = value
        return Simple(select, **fields)

    # --- compounds and alternatives

    def term(self, count: Token | None, body: Simple) -> tuple[Term, Token | None]:
        """`count*{…}`."""
        if count is None:
            return Term(None, body), None
        number = int(str(count).rstrip().rstrip("*"))
        if number < 1:
            raise self.fault(count, "a count of at least 1")
        return Term(number, body), count

    def compound(self, *terms: tuple[Term, Token | None]) -> Compound:
        """Terms with `+` between them."""
        if any(term.count is None for term, _ in terms[:-1]):
            raise _fault(self._missing_count(terms), self.text, "a count: only the last one may be left out")
        value = Compound(tuple(term for term, _ in terms))
        self._no_lonely_cu(value)
        return value

    def _missing_count(self, terms: tuple[tuple[Term, Token | None], ...]) -> int:
        """The column of the term without a count: after the `+` that follows the terms before it."""
        index = next(index for index, (term, _) in enumerate(terms) if term.count is None)
        brace, depth, seen = 0, 0, -1
        for at, char in enumerate(self.text):
            if char == "{":
                depth += 1
                seen += depth == 1
                if seen == index:
                    brace = at
                    break
            depth -= char == "}"
        return brace + 1

    def _no_lonely_cu(self, body: Compound | Simple) -> None:
        for simple in [term.body for term in body.terms] if isinstance(body, Compound) else [body]:
            if simple.cu and (simple.cu.balance or simple.cu.excl):
                raise _fault(
                    simple.cu.at, self.text, "no excl or balance: they are not allowed in compound or alternative strings"
                )

    def delay(self, number: Token) -> Token:
        """`@n`."""
        return number

    def alt(self, body: Compound | Simple, delay: Token | None) -> Alt:
        """`{…}@delay`."""
        self._no_lonely_cu(body)
        return Alt(body, None if delay is None else self.integer(delay, 0), 0 if delay is None else self._column(delay))

    def alternative(self, *parts: Any) -> Alternative:
        """Alternatives with `||` between them; its column is that of the first one."""
        return Alternative(parts[::2], self._column(parts[1]))

    def _column(self, token: Token) -> int:
        return (token.start_pos or 0) + 1
