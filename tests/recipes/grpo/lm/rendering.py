"""Every preset of GRPO on a language model as `gangflow render` prints it, without what differs from machine to machine.

`python -m tests.recipes.grpo.lm.rendering` writes the files that test_render.py compares with: look at the difference
before you commit it.
"""

from __future__ import annotations

import re
from pathlib import Path

from gangflow.cli.sources import read, rendered
from gangflow.recipes.grpo.lm.config import VARIABLE
from gangflow.recipes.grpo.lm.presets import MACHINES, PRESETS
from gangflow.recipes.lm.claim import SCRIPT
from gangflow.recipes.lm.machines import machine

FOLDER = Path(__file__).parent / "rendered"


def text_of(preset: str) -> str:
    """`gangflow render grpo preset=…`; for a preset with a machine, as it would run there (`--cluster`)."""
    source = read("grpo", [f"preset={preset}", "python=python3", "vllm=vllm"])
    # What the programs are told is long, and the trainer's alone: test_build.py has it.
    group = source.group.model_copy(update={"environment": {**source.group.environment, VARIABLE: "{…}"}})
    cluster = machine(*MACHINES[preset]) if preset in MACHINES else source.cluster
    text = rendered(type(source)(group), cluster)
    return re.sub(r"key: tiny-[0-9a-f]{12}", "key: tiny-…", text.replace(str(SCRIPT), "model.sh"))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PRESETS:
        (FOLDER / f"{name}.yaml").write_text(text_of(name))
