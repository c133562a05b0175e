"""Habits of the house, as tests: sizes, names, imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("gangflow", "recipes", "integrations", "tests")


def _sources(*folders: str) -> list[Path]:
    found = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            through_link = folder == "gangflow" and path.relative_to(ROOT / folder).parts[0] in {"recipes", "integrations"}
            if not through_link:
                found.append(path)
    return found


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def test_sources_are_found() -> None:
    assert len(_sources("gangflow")) > 30


def test_no_file_is_longer_than_500_lines() -> None:
    long = {str(path.relative_to(ROOT)): n for path in _sources(*ROOMS) if (n := len(path.read_text().splitlines())) > 500}
    assert not long


def test_no_file_has_a_name_that_says_nothing() -> None:
    empty = re.compile(r"(^|_)(utils?|helpers?|common|misc|manager)(_|$)")
    assert not [str(path) for path in _sources(*ROOMS) if empty.search(path.stem) or empty.search(path.parent.name)]


def test_ray_is_imported_in_one_room_only() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in _sources("gangflow", "recipes", "integrations")
        if any(name == "ray" or name.startswith("ray.") for name in _imports(path))
        and not path.is_relative_to(ROOT / "gangflow" / "ray")
    ]
    assert not offenders


def test_nobody_imports_the_top_level_names_of_the_links() -> None:
    offenders = [
        str(path.relative_to(ROOT))
        for path in _sources(*ROOMS)
        if any(name.split(".")[0] in {"recipes", "integrations"} for name in _imports(path))
    ]
    assert not offenders


def test_every_import_is_declared() -> None:
    """What the package imports from outside is in pyproject's dependencies (or its extras)."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(need for extra in project["optional-dependencies"].values() for need in extra)]
    declared = {re.split(r"[\[>=<~! ]", need)[0].lower().replace("-", "_") for need in wanted}
    distribution_of = {"yaml": "pyyaml", "pydantic_core": "pydantic", "starlette": "fastapi", "click": "typer", "attr": "attrs"}
    namespace = {"opentelemetry.exporter": "opentelemetry_exporter_otlp_proto_http", "opentelemetry": "opentelemetry_sdk"}
    undeclared: dict[str, str] = {}
    for path in _sources("gangflow", "recipes", "integrations"):
        for name in _imports(path):
            top = name.split(".")[0]
            if top in sys.stdlib_module_names or top == "gangflow":
                continue
            package = next(
                (dist for prefix, dist in namespace.items() if name.startswith(prefix)), distribution_of.get(top, top)
            )
            if package not in declared:
                undeclared[name] = str(path.relative_to(ROOT))
    assert not undeclared


TRAINERS = ("recipes/lm", "recipes/grpo/lm", "recipes/rlhf_ppo", "integrations/torch", "integrations/trl")
"""Rooms whose programs may need the extra `rl`; what builds and configures their groups may not."""


def test_only_a_trainers_programs_need_the_extra_rl() -> None:
    """A group is built, rendered and submitted where there is no torch."""
    import tomllib

    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["rl"]
    heavy = {re.split(r"[\[>=<~! ]", need)[0].lower().replace("-", "_") for need in extra}
    offenders = [
        str(path.relative_to(ROOT))
        for path in _sources("gangflow", "recipes", "integrations")
        if {name.split(".")[0] for name in _imports(path)} & heavy
        and (
            path.stem in {"__init__", "build", "config", "presets"} or not any(path.is_relative_to(ROOT / r) for r in TRAINERS)
        )
    ]
    assert not offenders


def test_import_contract() -> None:
    """The direction of imports, as `pyproject.toml` states it for import-linter."""
    linter = Path(sys.executable).with_name("lint-imports")
    outcome = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr


@pytest.mark.parametrize("heavy", ["ray", "fastapi", "httpx", "yaml", "numpy", "lark", "msgspec", "opentelemetry"])
def test_the_facade_is_lazy(heavy: str) -> None:
    """`from gangflow import CoStartGroup` pulls nothing heavy (P10 measures it; this says why it is fast)."""
    code = f"import sys, gangflow; from gangflow import CoStartGroup; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_import_gangflow_pulls_nothing_at_all() -> None:
    code = "import sys, gangflow; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_every_name_of_the_facade_exists() -> None:
    import gangflow

    for name in gangflow.__all__:
        assert getattr(gangflow, name) is not None
