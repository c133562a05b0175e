"""The specs of docs/frameworks: each renders, stands on two hosts with 8 GPUs, and its commands use what its tasks are told."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import gangflow.testing
from gangflow.cli import main as command
from gangflow.recipes.lm.machines import machine
from gangflow.specs.document import dump, load
from gangflow.specs.group import CoStartGroup
from gangflow.testing import FakeCluster
from gangflow.xce.core.state import Task

DOCS = Path(__file__).parents[2] / "docs"
SPECS = sorted((DOCS / "frameworks").glob("*.yaml"))
SHELLS = ("sh", "bash")


def _tasks(cluster: FakeCluster) -> list[Task]:
    return cluster.do(lambda: [t for slot in next(iter(cluster.xce.state.groups.values())).slots.values() for t in slot.tasks])


def test_the_page_names_each_spec() -> None:
    text = (DOCS / "frameworks.md").read_text()
    assert {path.name for path in SPECS} == set(re.findall(r"\(frameworks/([a-z-]+\.yaml)\)", text))
    assert len(SPECS) == 6


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_renders_and_comes_back(path: Path) -> None:
    group = load(path)
    assert load(dump(group), CoStartGroup) == group
    done = CliRunner().invoke(command.app, ["render", str(path)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_a_spec_fills_two_hosts_and_does_not_fit_on_less(path: Path) -> None:
    group = load(path)
    wanted = sum(
        (member.resources.gpus or 0) // 1_000 * getattr(member, "replicas", 1)
        for member in group.members.values()
        if member.resources
    )
    assert 14 < wanted <= 16
    with gangflow.testing.cluster(machine(2, 8)) as made:
        made.launch(group)
        assert made.group().state == "RUNNING"
        assert sum(len(task.gpus) for task in _tasks(made)) == wanted
        # One member lost is one start more for all: the budget of its rule is the group's.
        made.fail(next(iter(group.members)), cause="app_exit")
        made.until(lambda view: view.epoch == 2 and view.state == "RUNNING")
    with gangflow.testing.cluster(machine(1, 8)) as made:
        made.launch(group)
        view = made.group()
    assert view.state == "PENDING"
    assert view.reason is not None
    assert view.reason.shortfall.get("gpus")


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_commands_are_sound_and_use_only_what_their_task_is_told(path: Path) -> None:
    group = load(path)
    with gangflow.testing.cluster(machine(2, 8)) as made:
        made.launch(group)
        for name, member in group.members.items():
            assert member.command[0] in SHELLS
            shell, script = member.command[0], member.command[-1]
            checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, check=False, timeout=30)
            assert checked.returncode == 0, checked.stderr
            told = made.environment(name)
            assert {each for each in re.findall(r"\$\{?([A-Z_]+)", script) if each.startswith("XCE_")} <= set(told)
