"""Every preset of RLHF with PPO as `gangflow render` prints it, without what differs from machine to machine.

`python -m tests.recipes.rlhf_ppo.rendering` writes the files that test_presets.py compares with: look at the difference before
you commit it.
"""

from __future__ import annotations

from pathlib import Path

from gangflow.recipes.lm.machines import machine
from gangflow.recipes.rlhf_ppo.config import VARIABLE
from gangflow.recipes.rlhf_ppo.presets import MACHINES, PRESETS
from tests.recipes.lm.rendering import preset_text

FOLDER = Path(__file__).parent / "rendered"


def text_of(preset: str) -> str:
    """`gangflow render rlhf_ppo preset=…`; for a preset with a machine, as it would run there (`--cluster`)."""
    return preset_text("rlhf_ppo", preset, VARIABLE, machine(MACHINES[preset]) if preset in MACHINES else None)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PRESETS:
        (FOLDER / f"{name}.yaml").write_text(text_of(name))
