"""LSF's resource requirement strings: what they mean, what is refused, and at which column."""

from __future__ import annotations

from fractions import Fraction

import pytest

from gangflow.errors import SpecError
from gangflow.specs.member import Resources
from gangflow.specs.resreq import (
    And,
    Arith,
    Compare,
    Compound,
    Name,
    Not,
    Number,
    Or,
    Simple,
    String,
    Term,
    parse,
    parse_select,
    refusals,
    render,
    render_select,
    terms_of,
)
from gangflow.specs.resreq_resolve import from_resources, resolved

A_REAL_ONE = (
    "1*{select[LN&&type==any] order[r15s:pg] span[hosts=1] cu[type=rack:pref=config]}+6048*{select[CN&&type==any]"
    " order[r15s:pg] span[ptile=42] cu[type=rack:maxcus=8]}"
)


def test_a_real_one_parses_and_renders_as_it_was() -> None:
    value = parse(A_REAL_ONE)
    assert isinstance(value, Compound)
    assert render(value) == A_REAL_ONE
    assert [(count, body.span.value if body.span else None) for count, body in terms_of(value)] == [(1, 1), (6048, 42)]


def test_operators_bind_as_in_arithmetic() -> None:
    a, b, c = Name("a"), Name("b"), Name("c")
    assert parse_select("a || b && !c") == Or((a, And((b, Not(c)))))
    assert parse_select("!a == b") == Not(Compare(a, "==", b))
    assert parse_select("a - b - c > 1") == Compare(Arith(Arith(a, "-", b), "-", c), ">", Number(Fraction(1)))
    assert parse_select("a - (b - c)") == Arith(a, "-", Arith(b, "-", c))
    assert parse_select("a + b * c") == Arith(a, "+", Arith(b, "*", c))
    assert parse_select("(a || b) && c") == And((Or((a, b)), c))
    assert parse_select("model == 'A100-SXM4'") == Compare(Name("model"), "==", String("A100-SXM4"))
    assert parse_select("0.1 < mem") == Compare(Number(Fraction(1, 10)), "<", Name("mem"))
    assert parse_select("") is None


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  linux  ", "select[linux]"),
        ("select[ ((a)) ]", "select[a]"),
        ("select[a]rusage[mem=1]span[hosts=1]order[x]", "select[a] order[x] rusage[mem=1] span[hosts=1]"),
        ("rusage[mem=64gb/host,cpu=2]", "rusage[mem=64GB/host,cpu=2]"),
        ("rusage[mem=1.50]", "rusage[mem=1.5]"),
        ("rusage[ngpus_physical=2]", "rusage[gpus=2]"),
        ("rusage[mem=1:duration=10:decay=0]", "rusage[mem=1:duration=600s:decay=0]"),
        ("rusage[mem=1:duration=2h]", "rusage[mem=1:duration=7200s]"),
        ("4 * { a } + { b }", "4*{select[a]}+{select[b]}"),
        ("{ a } || { b } @ 60", "{select[a]}||{select[b]}@60"),
        ("{1*{a}+{b}}||{c}", "{1*{select[a]}+{select[b]}}||{select[c]}"),
        ("span[ptile='!',X86_64:4]", "span[ptile='!',X86_64:4]"),
        ("span[hosts=-1]", "span[hosts=-1]"),
        ("a\n&& b", "select[a&&b]"),
        ('x=="it\'s"', 'select[x=="it\'s"]'),
    ],
)
def test_the_canonical_text(text: str, canonical: str) -> None:
    assert render(parse(text)) == canonical
    assert render(parse(canonical)) == canonical


@pytest.mark.parametrize(
    ("text", "column", "expected", "nearest"),
    [
        ("select[", 8, "a name", ""),
        ("select[a==]", 11, "a number", ""),
        ("select[a", 9, "]", ""),
        ("a b", 3, "the end", ""),
        ("!!a", 2, "a name", ""),
        ("a==b==c", 5, "the end", ""),
        ("'x'==a", 1, "a name", ""),
        ("(a&&b)+1>2", 2, "a condition has no value", ""),
        ("é", 1, "a name", ""),
        ("rusge[mem=4]", 1, "a section", "rusage"),
        ("a rusge[mem=4]", 3, "a section", "rusage"),
        ("rusage[mem=1] select[a]", 15, "select[ first", ""),
        ("order[a] order[b]", 10, "each section once", ""),
        ("rusage[mem=4XB]", 13, "a unit", ""),
        ("rusage[cpu=4GB]", 13, "no unit", ""),
        ("rusage[mem=4/tsk]", 14, "/task", "task"),
        ("rusage[mem=1:mem=2]", 14, "each resource once", ""),
        ("rusage[licences=0.5]", 17, "a whole number", ""),
        ("rusage[cpu=0.0001]", 12, "thousandths", ""),
        ("rusage[gpus=1.5]", 13, "a fraction below 1", ""),
        ("rusage[duration=5]", 8, "a resource before", ""),
        ("rusage[mem=1:decay=1]", 14, "after a duration", ""),
        ("rusage[mem=1:duration=5d]", 14, "m, h or s", ""),
        ("rusage[mem=1:duration=5m:cpu=1]", 26, "before the duration", ""),
        ("rusage[mem=99999999999999999]", 27, "]", ""),
        ("span[hosts=2]", 12, "hosts=1 or hosts=-1", ""),
        ("span[hsts=1]", 6, "one of hosts", "hosts"),
        ("span[ptile=0]", 12, "at least 1", ""),
        ("span[ptile]", 6, "ptile=n", ""),
        ("span[ptile='?']", 12, "ptile='!'", ""),
        ("cu[tpe=rack]", 4, "one of type", "type"),
        ("cu[pref=bestft]", 9, "one of bestfit", "bestfit"),
        ("cu[balance:usablecuslots=3]", 1, "not both", ""),
        ("cu[balance:pref=bestfit]", 1, "not both", ""),
        ("2*{cu[excl]}", 4, "not allowed in compound", ""),
        ("{cu[type=rack:balance]}||{a}", 2, "not allowed in compound", ""),
        ("2*{a}+{b}+3*{c}", 7, "only the last one", ""),
        ("0*{a}", 1, "at least 1", ""),
        ("select[a &", 10, "one of &&, ), ", ""),
        ("rusage[cpu", 11, "column 11: =", ""),
        ("{a}@3", 6, "||", ""),
        ("4*{a", 5, "}", ""),
        ("(" * 40 + "a" + ")" * 40, 33, "at most 32", ""),
        ("+".join("a" * 100), 2, "at most 64", ""),
        ("a" * 20_000, 16_384, "at most 16384", ""),
    ],
)
def test_a_fault_has_its_column(text: str, column: int, expected: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    (problem,) = caught.value.problems
    assert problem.expected.startswith(f"column {column}: ")
    assert expected in problem.expected
    assert problem.nearest == nearest


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("select[a] order[-b] rusage[mem=1/job:gpus=1] span[ptile=2]", []),
        ("2*{span[hosts=1]}+{span[hosts=-1]}", []),
        ("{a}||{b}@60", [(4, "an alternative (`||`)"), (10, "`@delay`")]),
        ("rusage[a=1||b=2]", [(11, "an alternative (`||`) in rusage")]),
        ("rusage[a=1:duration=5:decay=1]", [(8, "`duration`"), (8, "`decay`")]),
        ("order[!a]", [(1, "`order[!…]`")]),
        ("span[stripe]", [(1, "`span[stripe]`")]),
        ("span[block=4]", [(1, "`span[block]`")]),
        ("span[ptile='!']", [(1, "`span[ptile='!']`")]),
        ("a same[type] cu[type=rack] affinity[core(1)]", [(3, "`same[…]`"), (14, "`cu[…]`"), (28, "`affinity[…]`")]),
    ],
)
def test_what_parses_but_is_not_enforced(text: str, found: list[tuple[int, str]]) -> None:
    assert list(refusals(parse(text))) == found


def test_terms_are_tasks_in_order() -> None:
    assert terms_of(parse("a"), 3) == ((3, Simple(Name("a"))),)  # type: ignore[arg-type]
    assert terms_of(parse("a")) == ((1, Simple(Name("a"))),)  # type: ignore[arg-type]
    assert terms_of(Compound((Term(2, Simple()), Term(None, Simple())))) == ((2, Simple()), (1, Simple()))


def resolve(text: str, per: str = "task", unit: str = "MB") -> str:
    value = parse(text)
    assert isinstance(value, (Simple, Compound))
    return render(resolved(value, per, unit))  # type: ignore[arg-type]


def test_everything_is_written_out_in_the_terms_of_the_cluster() -> None:
    text = "rusage[mem=2:cpu=1/job:gpus=1:swp=1GB]"
    assert resolve(text) == "rusage[mem=2MB/task:cpu=1/job:gpus=1/task:swp=1024MB/task]"
    assert resolve(text, "host") == "rusage[mem=2MB/host:cpu=1/job:gpus=1/host:swp=1024MB/host]"
    assert resolve(text, "task", "GB") == "rusage[mem=2048MB/task:cpu=1/job:gpus=1/task:swp=1024MB/task]"
    assert resolve("rusage[mem=1.5KB]") == "rusage[mem=1MB/task]"
    assert resolve("2*{rusage[mem=1]}+{a}", "host") == "2*{rusage[mem=1MB/host]}+{select[a]}"


def test_select_compares_memory_in_the_unit_of_the_cluster() -> None:
    assert resolve("mem>4 && !(cpu+swp<2||linux)", unit="GB") == "select[mem/1024>4&&!(cpu+swp/1024<2||linux)]"
    assert resolve("maxmem>4", unit="KB") == "select[maxmem*1024>4]"
    assert resolve("mem>4") == "select[mem>4]"


def test_the_structured_form_is_a_resreq() -> None:
    resources = Resources(cpu=8, gpus=1, mem="64GiB", counters={"licence": 2})
    assert render(from_resources(resources)) == "rusage[cpu=8/task:gpus=1/task:mem=65536MB/task:licence=2/task]"
    assert from_resources(None) == from_resources(Resources()) == Simple()


def test_select_renders_without_its_word() -> None:
    assert render_select(parse_select("a&&b")) == "a&&b"
    assert render_select(None) == ""
