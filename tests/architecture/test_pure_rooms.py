"""Pure rooms decide from (state, input, now) alone: what would let anything else in is banned there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PURE = [
    *sorted((ROOT / "gangflow/xce/core").rglob("*.py")),
    *sorted((ROOT / "gangflow/xce/placement").rglob("*.py")),
    ROOT / "gangflow/xce/machine.py",
    *sorted((ROOT / "gangflow/coordinators").glob("rl_*.py")),
    ROOT / "gangflow/channel.py",
    *(FOLDS := [ROOT / "gangflow/telemetry/spans.py", ROOT / "gangflow/cli/story.py"]),
]
BANNED_MODULES = {
    "time", "datetime", "random", "secrets", "uuid", "os", "socket", "threading", "asyncio", "subprocess", "logging", "pathlib",
    "ray", "opentelemetry", "httpx", "requests", "sqlite3", "pydantic", "multiprocessing", "concurrent", "signal", "tempfile",
}  # fmt: skip
BANNED_CALLS = {"open", "input", "print", "exec", "eval", "id", "hash", "__import__"}
BANNED_ATTRIBUTES = {"numpy.random", "np.random"}


def _faults(tree: ast.AST) -> Iterator[tuple[int, str]]:
    sets: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and _is_set(node.value, sets):
            sets.update(target.id for target in node.targets if isinstance(target, ast.Name))
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _names_a_set(node.annotation):
            sets.add(node.target.id)
        if isinstance(node, ast.arg) and node.annotation is not None and _names_a_set(node.annotation):
            sets.add(node.arg)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in BANNED_MODULES:
                    yield node.lineno, f"import {alias.name}"
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in BANNED_MODULES:
            yield node.lineno, f"from {node.module} import …"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in BANNED_CALLS:
            yield node.lineno, f"{node.func.id}()"
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in BANNED_ATTRIBUTES:
            yield node.lineno, ast.unparse(node)
        elif isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter, sets):
            yield getattr(node, "lineno", node.iter.lineno), f"iteration over a set: {ast.unparse(node.iter)}"


def _is_set(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Set | ast.SetComp):
        return True
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in {"set", "frozenset"} or (
            node.func.id in {"list", "tuple", "enumerate", "iter"} and bool(node.args) and _is_set(node.args[0], names)
        )
    return isinstance(node, ast.BinOp) and (_is_set(node.left, names) or _is_set(node.right, names))


def _names_a_set(annotation: ast.AST) -> bool:
    return ast.unparse(annotation).split("[")[0] in {"set", "frozenset", "AbstractSet", "Set", "MutableSet"}


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_pure_room_stays_pure(path: Path) -> None:
    faults = [f"{path.name}:{line}: {what}" for line, what in _faults(ast.parse(path.read_text()))]
    assert not faults


def test_dataclasses_of_pure_rooms_are_frozen_and_slotted() -> None:
    loose = []
    for path in PURE:
        if path in FOLDS:
            continue  # They gather what events say; the gatherer itself grows.
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                if text.startswith("dataclass") and not ("frozen=True" in text and "slots=True" in text):
                    loose.append(f"{path.name}: {node.name}")
    assert not loose


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "from os import path",
        "import numpy as np\nx = np.random",
        "for x in {1, 2}: pass",
        "def f(a: set[int]) -> None:\n    for x in a: pass",
        "names = set()\n[x for x in names]",
        "seen = {1} | set()\nfor x in list(seen): pass",
        "open('f')",
        "hash('a')",
    ],
)
def test_the_check_itself_catches(source: str) -> None:
    assert list(_faults(ast.parse(source)))


def test_sorted_sets_are_allowed() -> None:
    assert not list(_faults(ast.parse("seen = {1}\nfor x in sorted(seen): pass")))
