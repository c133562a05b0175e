"""What users install: the wheel, in an empty environment, from an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return next(out.glob("gangflow-*.whl"))


def test_the_sdist_has_the_sources_and_no_environment(tmp_path: Path) -> None:
    """Folders such as .venv-vllm lie beside the sources, and weigh gigabytes."""
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    with tarfile.open(next(tmp_path.glob("gangflow-*.tar.gz"))) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    # Beside the folders that pyproject names: git's list of what is ignored, and the metadata.
    assert {name.split("/")[0] for name in names} == {
        "gangflow", "tests", "docs", "README.md", "LICENSE", "CHANGELOG.md", "Makefile",
        "pyproject.toml", "PKG-INFO", ".gitignore",
    }  # fmt: skip
    assert "gangflow/integrations/vllm/setup_cpu.sh" in names
    assert not [name for name in names if "site-packages" in name]


def test_the_wheel_installs_nothing_called_recipes(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gangflow"}
    for wanted in (
        "gangflow/py.typed",
        "gangflow/specs/resreq.lark",
        "gangflow/recipes/grpo/build.py",
        "gangflow/integrations/vllm/setup_cpu.sh",
    ):
        assert wanted in names
    assert any(name.startswith("gangflow/integrations/embedded/") for name in names)


def test_the_wheel_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """`gangflow recipes` and `gangflow render grpo` in a new environment that has the wheel and this one's libraries."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    site = next((home / "lib").glob("python3*")) / "site-packages"
    install = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], capture_output=True, check=True, timeout=120)
    # The libraries come from the running environment, all but its (editable) gangflow: no download is needed.
    libraries = next(path for path in map(Path, sys.path) if path.name == "site-packages")
    (site / "libraries.pth").write_text(f"{libraries}\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    for arguments, expected in ((["recipes"], "grpo"), (["render", "grpo"], "rollout")):
        outcome = subprocess.run(
            [home / "bin" / "gangflow", *arguments],
            cwd=empty, env=environment, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert outcome.returncode == 0, outcome.stdout + outcome.stderr
        assert expected in outcome.stdout
    where = subprocess.run(
        [home / "bin" / "python", "-c", "import gangflow.recipes.grpo.build as b; print(b.__file__)"],
        cwd=empty, env=environment, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert Path(where.stdout.strip()).is_relative_to(home)
    # A provider runs it: it must have come through with its mode.
    assert os.access(site / "gangflow" / "recipes" / "lm" / "model.sh", os.X_OK)
