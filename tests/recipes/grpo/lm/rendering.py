"""Every preset of GRPO on a language model as `gangflow render` prints it, without what differs from machine to machine.

`python -m tests.recipes.grpo.lm.rendering` writes the files that test_render.py compares with: look at the difference
before you commit it.
"""

from __future__ import annotations

from pathlib import Path

from gangflow.recipes.grpo.lm.config import VARIABLE
from gangflow.recipes.grpo.lm.presets import MACHINES, PRESETS
from gangflow.recipes.lm.machines import machine
from tests.recipes.lm.rendering import preset_text

FOLDER = Path(__file__).parent / "rendered"


def text_of(preset: str) -> str:
    """`gangflow render grpo preset=…`; for a preset with a machine, as it would run there (`--cluster`)."""
    return preset_text("grpo", preset, VARIABLE, machine(*MACHINES[preset]) if preset in MACHINES else None)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PRESETS:
        (FOLDER / f"{name}.yaml").write_text(text_of(name))
