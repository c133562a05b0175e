"""docs/operations.md has every error code, exit code and REST code, with its remedy, and no other; its commands exist."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
import typer.main

import gangflow
from gangflow.cli import main as gangflow_command
from gangflow.cli import running, xcecli
from gangflow.errors import GangflowError
from gangflow.xce.rest.problems import TITLES

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/operations.md").read_text()
ELSEWHERE = ("gangflow.ray", "gangflow.recipes", "gangflow.integrations")
"""What imports Ray or an engine's libraries is looked at as text; what recipes add has a table of its own."""
ROW = re.compile(r"^\| (?P<number>\d*) \|(?P<codes>[^|]*)\|(?P<what>[^|]+)\|(?P<remedy>[^|]*)\|$")


def rows(section: str) -> list[tuple[int, tuple[str, ...], str, str]]:
    """The rows of a section's table: number, codes, what happened, what to do."""
    part = PAGE.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    found = []
    for line in part.splitlines():
        row = ROW.match(line)
        if row and row["number"]:
            found.append((int(row["number"]), tuple(re.findall(r"`([a-z_]+)`", row["codes"])), row["what"], row["remedy"]))
    assert found, section
    return found


@cache
def kinds() -> tuple[type[GangflowError], ...]:
    """Every exception of the package's own tree."""
    for module in pkgutil.walk_packages(gangflow.__path__, "gangflow.", onerror=lambda name: None):
        if not module.name.startswith(ELSEWHERE) and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found: list[type[GangflowError]] = [GangflowError]
    for kind in found:
        found += [each for each in kind.__subclasses__() if each not in found]
    # Other tests of the same process may have imported those: `gangflow.recipes` looks into `recipes/`.
    return tuple(
        kind for kind in found if f"{kind.__module__}.".startswith("gangflow.") and not kind.__module__.startswith(ELSEWHERE)
    )


def test_one_code_has_one_exit_code() -> None:
    codes: dict[str, set[int]] = {}
    for kind in kinds():
        codes.setdefault(kind.code, set()).add(kind.exit_code)
    assert not {code: numbers for code, numbers in codes.items() if len(numbers) > 1}


def test_the_page_has_every_error_with_its_exit_code_and_no_other() -> None:
    documented = {(number, code) for number, codes, _, _ in rows("Exit codes") for code in codes}
    assert documented == {(kind.exit_code, kind.code) for kind in kinds()}


def test_the_page_has_every_exit_code_and_no_other() -> None:
    documented = [number for number, _, _, _ in rows("Exit codes")]
    results = {*running.EXIT_OF_STATE.values(), gangflow_command.EXIT_CANCELLED}
    assert {*documented} == {kind.exit_code for kind in kinds()} | results
    assert documented == sorted(documented)
    assert "| 128 + n |" in PAGE


def test_every_error_of_the_page_has_a_remedy() -> None:
    results = {0, gangflow_command.EXIT_CANCELLED}
    assert not [row for row in rows("Exit codes") if not row[3].strip() and row[0] not in results]
    assert not [row for row in rows("Problem documents") if not row[3].strip()]


def test_the_page_has_every_code_and_no_other() -> None:
    """Of problem documents."""
    assert {code for _, codes, _, _ in rows("Problem documents") for code in codes} == {*TITLES}


def said() -> set[tuple[int, str]]:
    """(status, code) of every refusal that the machine or the server spells out."""
    found = set()
    for path in sorted((ROOT / "gangflow/xce").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"Reply", "Refusal"}:
                values = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
                if len(values) == 2 and isinstance(values[0], int) and isinstance(values[1], str) and values[0] >= 400:
                    found.add((values[0], values[1]))
    return found


def test_refusals_have_the_status_that_the_page_says() -> None:
    documented = {(number, code) for number, codes, _, _ in rows("Problem documents") for code in codes}
    assert len(said()) > 10
    assert not said() - documented


def codes_of_recipes() -> dict[str, set[str]]:
    """Code → the files of recipes and integrations with a class that has it."""
    found: dict[str, set[str]] = {}
    for folder in ("recipes", "integrations"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for part in node.body if isinstance(node, ast.ClassDef) else ():
                    targets = part.targets if isinstance(part, ast.Assign) else [getattr(part, "target", None)]
                    value = getattr(part, "value", None)
                    named = any(isinstance(each, ast.Name) and each.id == "code" for each in targets)
                    if named and isinstance(value, ast.Constant) and value.value:
                        found.setdefault(str(value.value), set()).add(str(path.relative_to(ROOT)))
    return found


def rows_of_recipes() -> dict[str, tuple[str, str, str]]:
    """Code → program, what it means, what to do; as the page has them."""
    part = PAGE.split("## Codes of recipes\n", 1)[1].split("\n## ", 1)[0]
    found = re.findall(r"^\| `(\w+)` \|([^|]+)\|([^|]+)\|([^|]+)\|$", part, re.M)
    assert len({code for code, *_ in found}) == len(found) == part.count("\n| `")
    return {code: (program.strip(), what.strip(), remedy.strip()) for code, program, what, remedy in found}


def test_the_page_has_every_code_of_recipes_and_no_other() -> None:
    assert len(codes_of_recipes()) > 8
    assert set(rows_of_recipes()) == set(codes_of_recipes())


def test_a_code_of_recipes_says_which_program_prints_it_and_what_to_do() -> None:
    programs = {path.stem for folder in ("recipes", "integrations") for path in (ROOT / folder).rglob("*.py")}
    for code, cells in rows_of_recipes().items():
        assert all(cells), code
        named = {*re.findall(r"`(\w+)`", cells[0])} - {kind.code for kind in kinds()}
        assert named <= programs, code
        assert named or cells[0] == "any", code


def test_a_code_stands_in_one_table() -> None:
    assert not {code for _, codes, _, _ in rows("Exit codes") for code in codes} & set(rows_of_recipes())


def test_no_error_hides_where_it_is_not_looked_for() -> None:
    own = []
    for folder in ("gangflow/ray", "integrations"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                for part in node.body if isinstance(node, ast.ClassDef) else ():
                    targets = part.targets if isinstance(part, ast.Assign) else ()
                    own += [path.name for each in targets if isinstance(each, ast.Name) and each.id in {"exit_code", "remedy"}]
    assert not own


@pytest.mark.parametrize("program", ["gangflow", "xcecli"])
def test_every_command_on_the_page_exists(program: str) -> None:
    app = {"gangflow": gangflow_command.app, "xcecli": xcecli.app}[program]
    known = {name for name, command in typer.main.get_group(app).commands.items() if not command.hidden}
    for text in (PAGE, (ROOT / "README.md").read_text()):
        named = {*re.findall(rf"(?:^|[`/]){program} ([a-z]+[a-z-]*)\b", "\n".join(_code(text)), re.M)}
        assert not named - known


def _code(text: str) -> list[str]:
    """What stands in backticks and in fenced blocks."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    inline = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    return [*blocks, *(f"`{each}" for each in inline)]
