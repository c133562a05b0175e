"""What a run reads from its hosts' file systems, looked at before anything is submitted. No torch.

Only for a run that stays on this machine: a path may be right on other hosts, and not be there on this one.
"""

from __future__ import annotations

import difflib
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gangflow.errors import GangflowError
from gangflow.recipes.lm import problems
from gangflow.specs.faults import Fault, listed

CONFIG: Final = "config.json"
"""What makes a folder one of a model."""
ENGINES: Final = "in a checkout `make engines` makes the environments of vLLM and of the trainers"


def shipped() -> list[str]:
    """The names of the problem sets that the recipes ship."""
    return sorted(file.stem for file in problems.SHIPPED.glob("*.jsonl"))


def unknown_problems(key: str, name: str) -> Iterator[Fault]:
    """The fault of a problem set that is neither shipped nor an absolute path; on whatever host."""
    there = shipped()
    if not name.startswith("/") and name not in there:
        yield Fault((key,), name, f"{listed(there)}; or an absolute path of a file of problems", _nearest(name))


def missing_problems(key: str, name: str, seed: int) -> Iterator[Fault]:
    """The fault of a problem file that is not there, or has something else in it, which is told with its line."""
    if name.startswith("/") and not Path(name).is_file():
        expected = f"a file of problems on this machine, or {listed(shipped())}, which the recipe ships"
        yield Fault((key,), name, expected, _nearest(name))
        return
    yield from unreadable(key, name, lambda: problems.split(problems.load(name), seed))


def unreadable(key: str, name: str, read: Callable[[], object]) -> Iterator[Fault]:
    """The fault of a file that its reader does not take."""
    try:
        read()
    except GangflowError as error:
        yield Fault((key,), name, f"a file that can be read: {error.message}")


def missing_model(key: str, folder: str) -> Iterator[Fault]:
    """The fault of a path that is no model folder."""
    path = Path(folder)
    if not folder.startswith("/") or (path / CONFIG).is_file():
        return  # Empty, or made on the spot.
    if path.is_dir():
        inside = [str(each.parent) for each in sorted(path.glob(f"*/{CONFIG}"))]
        yield Fault((key,), folder, f"a model folder, which has a {CONFIG}: this one has none", next(iter(inside), ""))
        return
    there = "a file" if path.exists() else "nothing"
    siblings = [str(each) for each in sorted(path.parent.glob("*")) if each.is_dir()] if path.parent.is_dir() else []
    close = difflib.get_close_matches(folder, siblings, 1, cutoff=0.8)
    yield Fault((key,), folder, f"a model folder on this machine: there is {there} at this path", next(iter(close), ""))


def missing_program(key: str, program: str, remedy: str) -> Iterator[Fault]:
    """The fault of a command (a path, or a name to look for) that is not on this machine."""
    if shutil.which(program) is None:
        yield Fault((key,), program, f"a program on this machine: there is none; {remedy}")


def missing_torch(key: str, python: str) -> Iterator[Fault]:
    """The fault of the trainers' interpreter: it is not there, or is this one, and has no torch (others are not asked)."""
    yield from missing_program(key, python, ENGINES)
    if python == sys.executable and find_spec("torch") is None:
        yield Fault((key,), python, f"an interpreter with torch (gangflow[rl]), which this one has not; {ENGINES}")


def _nearest(name: str) -> str:
    """The shipped set whose name a name or a path ends with, or nearly so."""
    return next(iter(difflib.get_close_matches(Path(name).stem, shipped(), 1, cutoff=0.4)), "")
