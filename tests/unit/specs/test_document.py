"""Documents: YAML 1.2 scalars, one value a key, and the line of every problem."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangflow.errors import NotYetError, Problem, SpecError
from gangflow.specs import ClusterSpec, CoStartGroup, Job, dump, load, load_cluster
from gangflow.specs.document import MAX_BYTES, located, read

GROUP = """\
name: g
members:
  actor:
    job:
      command: [sleep, 1.10, 007, no, 0x10, 12:30]
"""


def faults(text: str) -> list[tuple[int, str]]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return [(problem.line, problem.path) for problem in caught.value.problems]


def test_words_of_a_command_are_what_was_written() -> None:
    assert load(GROUP).members["actor"].command == ("sleep", "1.10", "007", "no", "0x10", "12:30")


def test_a_path_is_a_file_and_text_is_the_document(tmp_path: Path) -> None:
    path = tmp_path / "g.yaml"
    path.write_text(GROUP)
    assert load(path) == load(GROUP)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.yaml")
    path.write_bytes(b"name: \xff")
    with pytest.raises(SpecError, match="UTF-8"):
        load(path)


def test_json_is_a_document() -> None:
    assert load('{"name": "g", "members": {"a": {"job": {"command": ["x"]}}}}') == CoStartGroup("g", {"a": Job(["x"])})


def test_a_problem_has_its_line() -> None:
    text = GROUP + "      comand: x\n  rollout:\n    replica_set:\n      command: [x]\n      replicas: many\nbarier: {}\n"
    assert faults(text) == [
        (6, "members.actor.job.comand"),
        (10, "members.rollout.replica_set.replicas"),
        (11, "barier"),
    ]


def test_a_missing_key_has_the_line_of_what_it_is_missing_in() -> None:
    assert faults("name: g\nmembers:\n  a:\n    job:\n      tasks: 2\n") == [(4, "members.a.job.command")]


@pytest.mark.parametrize(
    ("text", "line", "path"),
    [
        ("name: g\nname: h\n", 1, "name"),
        ("name: g\nmembers: {a: {job: {command: [x], command: [y]}}}\n", 2, "members.a.job.command"),
        ("name: g\n b: c: d\n", 2, "."),
        ("name: *none\n", 1, "."),
        ("name: !!python/object:os.system x\n", 1, "name"),
        ("name: &a [*a]\n", 1, "name[0]"),
        ("1: x\n? [a]\n: y\n", 2, "?"),
        ("<<: {name: g}\n", 1, "?"),
        ("a: b\n---\nc: d\n", 2, "."),
        ("", 0, "."),
        ("- x\n", 1, "."),
    ],
)
def test_what_is_no_document_is_refused(text: str, line: int, path: str) -> None:
    assert (line, path) in faults(text)


def test_a_document_that_grows_by_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join(['*a' + str(n - 1)] * 10)}]" for n in range(1, 9)]
    with pytest.raises(SpecError, match="a smaller document"):
        read("\n".join(lines))
    with pytest.raises(SpecError, match=r"smaller document|nesting"):
        read("[" * 5_000 + "]" * 5_000)
    with pytest.raises(SpecError, match="at most"):
        read("x" * (MAX_BYTES + 1))


def test_scalars_follow_the_core_schema() -> None:
    data, _ = read("{a: no, b: true, c: ~, d: 012, e: 1_000, f: 2001-01-01, g: .inf, h: 1e3, i: 0o17, j: '1', k: on}")
    assert data == {
        "a": "no",
        "b": True,
        "c": None,
        "d": 12,
        "e": "1_000",
        "f": "2001-01-01",
        "g": float("inf"),
        "h": 1000.0,
        "i": 15,
        "j": "1",
        "k": "on",
    }


def test_text_that_looks_like_something_else_stays_text() -> None:
    words = [
        "1",
        "1.0",
        "true",
        "no",
        "null",
        "~",
        "",
        " x ",
        "a: b",
        "# c",
        "0x1",
        "<<",
        "a\nb",
        "\x85",
        "\u2028",
        "1e3",
        "=",
        "012",
    ]
    group = CoStartGroup("g", {"a": Job(["x", *words])})
    assert load(dump(group)) == group


def test_a_cluster_is_a_document() -> None:
    cluster = load_cluster(
        "name: c\nlevels: [switch]\nhosts:\n  - {name: 'h[0-3]', cpu: 2, mem: 4GiB, domains: {switch: s0}}\n"
    )
    assert load(dump(cluster), ClusterSpec) == cluster


def test_an_error_names_the_file_the_line_and_the_path(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: x\njob:\n  command: [a]\n  taks: 2\n")
    with pytest.raises(SpecError) as caught:
        load(file)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.path) == (str(file), 4, "job.taks")
    assert str(caught.value).startswith(f"{file}:4: job.taks: expected a known key")
    file.write_bytes(b"name: \xff")
    with pytest.raises(SpecError, match=r"job\.yaml: \.: expected text in UTF-8"):
        load(file)
    file.write_text("name: [")
    with pytest.raises(SpecError, match=r"job\.yaml:1: \.: expected well-formed YAML"):
        load(file)


def test_what_xce_finds_wrong_is_located_in_the_file(tmp_path: Path) -> None:
    """XCE knows paths only; a path that the document does not have stands at what is around it."""
    file = tmp_path / "job.yaml"
    file.write_text("name: x\nmembers:\n  a:\n    job:\n      command: [a]\n      on_failure:\n        - {action: tolerate}\n")
    found = SpecError([Problem("members.a.job.on_failure[0].action", "", "y"), Problem("members.a.job.pack.level", "", "y")])
    located_ = located(found, file)
    assert [(problem.file, problem.line) for problem in located_.problems] == [(str(file), 4), (str(file), 7)]
    assert type(located(NotYetError(found.problems), file)) is NotYetError
    assert located(found, tmp_path / "gone.yaml") is found


def test_faults_are_told_in_the_order_of_the_document_with_values_as_it_writes_them() -> None:
    text = "name: g\nmembers:\n  a: {replica_set: {command: [x], replicas: true, tasks: null}}\npriority: [yes, {a: false}]\n"
    with pytest.raises(SpecError) as caught:
        load(text + "owner: ''\n")
    assert [(problem.line, problem.value) for problem in caught.value.problems] == [
        (3, "true"),
        (4, "['yes', {a: false}]"),
        (5, "''"),
    ]
