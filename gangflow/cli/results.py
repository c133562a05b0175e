"""What a run leaves behind for its user: the files of its retained claims, by their paths."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from gangflow.xce.rest.schema import GroupView

METRICS = "metrics.jsonl"


def result_lines(view: GroupView, recipe: ModuleType | None = None) -> Iterator[str]:
    """A line for each file in a folder that the group keeps, and one for what else is in it; how a picture is made of them.

    `recipe`: of the run, if it is one's; its `PLOT` is the module that draws its metrics.
    """
    for claim in view.claims:
        if not claim.retain or not claim.path or claim.member:
            continue
        folder = Path(claim.path)
        if not folder.is_dir():
            yield f"result: {folder} (claim {claim.name}, as the cluster's hosts see it)"
            continue
        there = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        files = [path for path in there if path.is_file()]
        for path in files:
            yield f"result: {path}"
        folders = [path.name for path in there if path.is_dir()]
        if folders:
            yield f"result: {', '.join(folders)} in {folder}"
        plot = getattr(recipe, "PLOT", "")
        if plot and folder / METRICS in files:
            words = [sys.executable, "-m", plot, str(folder / METRICS), f"{view.name}.png"]
            yield f"a picture of it: {shlex.join(words)}"
