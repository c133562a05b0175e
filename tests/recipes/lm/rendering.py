"""A preset as `gangflow render` prints it, without what differs from machine to machine: paths, and keys of made models."""

from __future__ import annotations

import re

from gangflow.cli.sources import read, rendered
from gangflow.recipes.lm.claim import SCRIPT
from gangflow.specs.cluster import ClusterSpec


def preset_text(recipe: str, preset: str, variable: str, cluster: ClusterSpec | None) -> str:
    """`gangflow render RECIPE preset=…`; with a cluster, as it would run there (`--cluster`).

    `variable`: by which the programs are told their settings, which is long, and theirs alone: tests of `build` have it.
    """
    source = read(recipe, [f"preset={preset}", "python=python3", "vllm=vllm"])
    group = source.group.model_copy(update={"environment": {**source.group.environment, variable: "{…}"}})
    text = rendered(type(source)(group), cluster or source.cluster)
    # Where these lines are wrapped depends on the path's length.
    text = re.sub(r"parameters: \{[^}]*\}", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)
    return re.sub(r"key: (tiny|clerk)-[0-9a-f]{12}", r"key: \1-…", text.replace(str(SCRIPT), "model.sh"))
