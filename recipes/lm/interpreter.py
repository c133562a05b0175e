"""Which Python runs the programs that need torch, where this one has none."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

SIBLING: Final = ".venv-rl"
"""The trainers' environment beside gangflow's own, as `make engines` makes it."""


def trainers_python() -> str:
    """This interpreter, if it has torch (which is not imported); else that of `.venv-rl` beside its environment, if it is.

    Where neither is there it is this one: the programs then say at their start what they lack.
    """
    own = sys.executable or "python3"
    beside = Path(sys.prefix).parent / SIBLING / "bin" / "python"
    return str(beside) if find_spec("torch") is None and beside.is_file() else own
