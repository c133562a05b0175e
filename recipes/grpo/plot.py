"""A picture of a run: reward over steps, held-out accuracy, and what was done to it.

`python -m gangflow.recipes.grpo.plot METRICS.jsonl OUT.png --mark '60:rollout[0] killed'` (needs matplotlib: `gangflow[plot]`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gangflow.recipes.grpo.task import BEST_REWARD

Draw = Callable[[list[dict[str, Any]], Path, list[tuple[int, str]], str], None]
"""Draws metrics into a file, with marks (step, label) and a title."""


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The run's steps in order, one each: what a restarted actor repeated counts as it was at last.

    A line that a kill cut short is left out.
    """
    steps: dict[int, dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            continue
        steps[entry["step"]] = entry
    return [steps[step] for step in sorted(steps)]


def draw(metrics: Sequence[dict[str, Any]], out: Path, marks: Sequence[tuple[int, str]] = (), title: str = "") -> None:
    """Write the picture as PNG. `marks` are (step, label); `metrics` is what `read_metrics` returns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, rewards = pyplot.subplots(figsize=(9, 4.8), dpi=120)
    steps = [entry["step"] for entry in metrics]
    trained = [entry for entry in metrics if "reward" in entry]  # before the first step there is only an accuracy
    rewards.plot(
        [entry["step"] for entry in trained],
        [entry["reward"] for entry in trained],
        color="#1f5fa8",
        lw=1.4,
        label="mean reward of the step",
    )
    rewards.set_xlabel("training step")
    rewards.set_ylabel(f"mean reward of a step's samples (0 – {BEST_REWARD:g})", color="#1f5fa8")
    rewards.set_ylim(0, BEST_REWARD)
    rewards.set_xlim(0, max(steps, default=1))
    rewards.grid(alpha=0.25)
    accuracies = rewards.twinx()
    measured = [(entry["step"], entry["accuracy"]) for entry in metrics if entry.get("accuracy") is not None]
    if measured:
        accuracies.plot(*zip(*measured, strict=True), color="#2e8b57", marker="o", ms=4, lw=1.2, label="held-out accuracy")
    accuracies.set_ylabel("accuracy on held-out problems, greedy (0 – 1)", color="#2e8b57")
    accuracies.set_ylim(0, 1.02)
    for number, (step, label) in enumerate(marks):
        rewards.axvline(step, color="#b22222", ls="--", lw=1.3)
        rewards.annotate(
            label,
            (step, BEST_REWARD * (0.97 - 0.06 * (number % 4))),  # neighbours do not write over each other
            xytext=(4, 0),
            textcoords="offset points",
            color="#b22222",
            va="top",
            fontsize=9,
        )
    rewards.set_title(title or "GRPO on two-digit addition")
    lines = rewards.get_legend_handles_labels()[0] + accuracies.get_legend_handles_labels()[0]
    rewards.legend(lines, [line.get_label() for line in lines], loc="lower right")
    figure.tight_layout()
    figure.savefig(out)
    pyplot.close(figure)


def command_line(draw: Draw, about: str | None) -> None:
    """The command line of a module that draws: its metrics, the picture, marks and a title."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("metrics", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mark", action="append", default=[], metavar="STEP:LABEL")
    parser.add_argument("--title", default="")
    arguments = parser.parse_args()
    marks = [(int(step), label) for step, _, label in (mark.partition(":") for mark in arguments.mark)]
    try:
        draw(read_metrics(arguments.metrics), arguments.out, marks, arguments.title)
    except ModuleNotFoundError as missing:
        if missing.name != "matplotlib":
            raise
        sys.exit("matplotlib, which draws the picture, is not installed: pip install 'gangflow[plot]'")


def main() -> None:
    """The command line."""
    command_line(draw, __doc__)


if __name__ == "__main__":
    main()
