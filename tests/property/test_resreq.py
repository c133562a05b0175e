"""Property 3. Resource requirement strings: what renders parses to the same, and no text crashes the parser."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from gangflow.errors import SpecError
from gangflow.specs import resreq as rr

SECTION_WORDS = ("select", "order", "rusage", "span", "same", "cu", "affinity")
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
counter_names = names.filter(
    lambda name: name not in ("duration", "decay", "ngpus_physical", "cpu", "gpus", "mem", "swp", "tmp")
)
whole = st.integers(1, 9_999)
decimals = st.builds(Fraction, st.integers(0, 10**9), st.sampled_from([1, 2, 10, 1000, 10**6]))
words = st.text(st.characters(exclude_characters="\r\n'\"", exclude_categories=["Cs"]), max_size=12)


def arithmetic(operands: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.builds(rr.Arith, operands, st.sampled_from("+-*/"), operands)


values = st.recursive(st.builds(rr.Name, names) | st.builds(rr.Number, decimals), arithmetic, max_leaves=5)
comparisons = st.builds(
    rr.Compare, values, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), values | st.builds(rr.String, words)
)


def conditions_of(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    several = st.lists(inner, min_size=2, max_size=3).map(tuple)
    return st.builds(rr.Not, inner) | st.builds(rr.And, several) | st.builds(rr.Or, several)


conditions = st.recursive(comparisons | values, conditions_of, max_leaves=6)
orders = st.builds(
    rr.Order,
    st.lists(st.builds("{}{}".format, st.sampled_from(["", "-"]), names), min_size=1, max_size=3).map(tuple),
    st.booleans(),
)
pers = st.sampled_from(["", "task", "host", "job"])
resources = st.one_of(
    st.builds(rr.Res, st.just("cpu"), st.builds(Fraction, st.integers(0, 10**7), st.just(1000)), st.just(""), pers),
    st.builds(rr.Res, st.just("gpus"), st.builds(Fraction, st.integers(0, 999), st.just(1000)), st.just(""), pers),
    st.builds(
        rr.Res, st.sampled_from(["mem", "swp", "tmp"]), decimals, st.sampled_from(["", "KB", "MB", "GB", "TB", "EB"]), pers
    ),
    st.builds(rr.Res, counter_names, st.builds(Fraction, whole), st.just(""), pers),
)


@st.composite
def rusages(draw: st.DrawFn) -> rr.Rusage:
    alternatives = []
    for _ in range(draw(st.integers(1, 2))):
        found = draw(st.lists(resources, min_size=1, max_size=5, unique_by=lambda res: res.name))
        cut = draw(st.integers(1, len(found)))
        usages = []
        for part in (found[:cut], found[cut:]):
            if part:
                duration = draw(st.none() | whole)
                decay = draw(st.none() | st.booleans()) if duration is not None else None
                usages.append(rr.Usage(tuple(part), duration, decay))
        alternatives.append(tuple(usages))
    return rr.Rusage(tuple(alternatives))


spans = st.one_of(
    st.builds(rr.Span, st.just("hosts"), st.sampled_from([1, -1])),
    st.builds(rr.Span, st.sampled_from(["ptile", "block", "stripe"]), whole),
    st.just(rr.Span("stripe")),
    st.builds(rr.Span, st.just("ptile"), st.none(), st.lists(st.tuples(names, whole), max_size=2).map(tuple)),
)
sames = st.builds(rr.Same, st.lists(names, min_size=1, max_size=3).map(tuple))
plain_cus = st.builds(
    rr.Cu,
    type=st.just("") | names,
    pref=st.sampled_from(["", "bestfit", "maxavail", "minavail", "config"]),
    maxcus=st.none() | whole,
    usablecuslots=whole,
)
lonely_cus = st.builds(rr.Cu, type=names, maxcus=st.none() | whole, balance=st.booleans(), excl=st.booleans())
affinities = st.builds(rr.Affinity, st.text(st.characters(exclude_characters="]{}()\x00", codec="utf-8"), max_size=12))


def simples(cus: SearchStrategy[rr.Cu]) -> SearchStrategy[rr.Simple]:
    sections = (conditions, orders, rusages(), spans, sames, cus, affinities)
    return st.builds(rr.Simple, *(st.none() | section for section in sections))


@st.composite
def compounds(draw: st.DrawFn) -> rr.Compound:
    bodies = draw(st.lists(simples(plain_cus), min_size=1, max_size=3))
    terms = [rr.Term(draw(whole), body) for body in bodies]
    if draw(st.booleans()):
        terms[-1] = rr.Term(None, terms[-1].body)
    return rr.Compound(tuple(terms))


alternatives = st.builds(
    rr.Alternative,
    st.lists(st.builds(rr.Alt, compounds() | simples(plain_cus), st.none() | whole), min_size=2, max_size=3).map(tuple),
)
resreqs = simples(plain_cus | lonely_cus) | compounds() | alternatives


@given(resreqs)
@settings(deadline=None, max_examples=200)
def test_a_rendered_resreq_parses_to_itself(value: rr.Resreq) -> None:
    assert rr.parse(rr.render(value)) == value


@given(conditions)
@settings(deadline=None)
def test_a_rendered_select_parses_to_itself(value: rr.Expr) -> None:
    assert rr.parse_select(rr.render_select(value)) == value


PIECES = [
    *(f"{word}[" for word in SECTION_WORDS),
    *"]{}()+-*/:=!<>,@|& '\"\n\0é٣",
    *("||", "&&", "==", "!=", "<=", "2*", "4", "0", "1.5", "/task", "'!'", "duration", "decay"),
    *("mem", "GB", "cpu", "gpus", "hosts", "ptile", "type", "pref", "bestfit", "excl"),
]
tokens = st.sampled_from(PIECES)


def outcome(text: str) -> rr.Resreq | SpecError:
    try:
        return rr.parse(text)
    except SpecError as error:
        return error


@given(st.text(max_size=60) | st.lists(tokens, max_size=25).map("".join))
@settings(deadline=None, max_examples=500)
def test_no_text_crashes_the_resreq_parser(text: str) -> None:
    found = outcome(text)
    if isinstance(found, SpecError):
        assert all(problem.path == "resreq" and "column" in problem.expected for problem in found.problems)
    else:
        assert rr.parse(rr.render(found)) == found
        assert all(1 <= column <= len(text) for column, _ in rr.refusals(found))
