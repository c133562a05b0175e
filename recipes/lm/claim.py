"""The claim `model`: the folder of the first policy, as members see it in `ctx.claims["model"]`."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from gangflow.specs.claims import Claim

MODEL: Final = "model"
"""The claim's name."""
SCRIPT: Final = Path(__file__).with_name("model.sh")
"""The executable of the provider `command`."""
COPY_TIMEOUT: Final = "1h"
"""For a model of a hundred gigabytes, read from a shared file system and verified."""
MAKE_TIMEOUT: Final = "10m"


def made(module: str, python: str, *others: str) -> Claim:
    """A model that `python -m MODULE FOLDER` makes, once for all groups of this user; a group's claim.

    A cached one is used again as long as the module, the others that it is made with, and all that lies beside this one (the
    pieces of language-model recipes, the problems) are the same. None of them is imported here.
    """
    here = Path(__file__).parent
    pieces = [*map(_file_of, (module, *others)), *sorted(here.glob("*.py")), *sorted(here.glob("data/*"))]
    text = hashlib.sha256("".join(hashlib.sha256(piece.read_bytes()).hexdigest() for piece in pieces).encode()).hexdigest()
    key = f"{module.rpartition('.')[2]}-{text[:12]}"
    parameters = {"script": str(SCRIPT), "python": python, "make": module, "key": key}
    return Claim(MODEL, provider="command", timeout=MAKE_TIMEOUT, parameters=parameters)


def _file_of(module: str) -> Path:
    found = find_spec(module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"no module {module}")
    return Path(found.origin)


def in_place(folder: str) -> Claim:
    """A model folder on a file system that the controller and all hosts see; a group's claim."""
    return Claim(MODEL, provider="command", parameters={"script": str(SCRIPT), "folder": folder})


def copied(folder: str, sha256: str) -> Claim:
    """A model folder that is copied into the cache of each host where a slot runs, and verified; a member's claim."""
    return Claim(MODEL, provider="model", timeout=COPY_TIMEOUT, parameters={"source": folder, "sha256": sha256})
