"""A picture of a run: the reward model's accuracy, the policy's reward, and the truth, which neither was told.

`python -m gangflow.recipes.rlhf_ppo.plot METRICS.jsonl OUT.png --mark '23:actor killed'` (needs matplotlib: `gangflow[plot]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gangflow.recipes.grpo.plot import command_line

REWARD, TRUTH, KL, MARK = "#1f5fa8", "#2e8b57", "#8a5a00", "#b22222"


def draw(metrics: Sequence[dict[str, Any]], out: Path, marks: Sequence[tuple[int, str]] = (), title: str = "") -> None:
    """Write the picture as PNG. `marks` are (step, label); `metrics` is what `read_metrics` returns."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (judge, rewards, penalty) = pyplot.subplots(
        1, 3, figsize=(13, 4.6), dpi=110, gridspec_kw={"width_ratios": [1, 2.2, 1.3]}
    )
    _draw_judge(judge, next((entry["reward_model"] for entry in metrics if entry.get("reward_model")), {}))
    _draw_rewards(rewards, metrics)
    _draw_penalty(penalty, metrics)
    for number, (step, label) in enumerate(marks):
        rewards.axvline(step, color=MARK, ls="--", lw=1.2)
        top = rewards.get_ylim()[0] + (rewards.get_ylim()[1] - rewards.get_ylim()[0]) * (0.62 - 0.06 * (number % 6))
        rewards.annotate(label, (step, top), xytext=(3, 0), textcoords="offset points", color=MARK, va="top", fontsize=8)
    figure.suptitle(title or "RLHF with PPO: orders at a counter")
    figure.tight_layout()
    figure.savefig(out)
    pyplot.close(figure)


def _draw_judge(axes: Any, report: dict[str, Any]) -> None:
    """Phase one: what the reward model has learned, on held-out pairs."""
    if not report:
        axes.set_axis_off()
        return
    values = [report["accuracy_before"], report["accuracy"]]
    bars = axes.bar(["before", "after"], values, color=["#b7c9de", REWARD], width=0.6)
    axes.bar_label(bars, labels=[f"{value:.2f}" for value in values], padding=2)
    axes.axhline(0.5, color="#777777", lw=0.9, ls=":")
    if report.get("ceiling"):
        axes.axhline(report["ceiling"], color=TRUTH, lw=1.1, ls="--")
        axes.annotate("annotators with the truth", (-0.45, report["ceiling"] + 0.008), fontsize=8, color=TRUTH)
    axes.set_ylim(0, 1.05)
    axes.set_title("reward model", fontsize=10)
    axes.set_ylabel(f"agreement with {report['held_out_pairs']} held-out preference pairs")


def _draw_rewards(axes: Any, metrics: Sequence[dict[str, Any]]) -> None:
    """Phase two: what the policy is trained on, and what was wanted."""
    told = [entry for entry in metrics if entry.get("reward") is not None]
    steps = [entry["step"] for entry in told]
    axes.plot(steps, [entry["reward"] for entry in told], color=REWARD, lw=1.4, label="score of the reward model")
    _dots(axes, metrics, "held_out_reward", REWARD, "the same, held-out prompts")
    axes.set_xlabel("step of policy and critic")
    axes.set_ylabel("mean score (0 ± 1 over the pairs' replies)", color=REWARD)
    axes.grid(alpha=0.25)
    axes.set_title("policy", fontsize=10)
    truth = axes.twinx()
    known = [entry for entry in told if entry.get("quality") is not None]
    if known:
        truth.plot(
            [entry["step"] for entry in known], [entry["quality"] for entry in known], color=TRUTH, lw=1.4, label="true quality"
        )
        _dots(truth, metrics, "held_out_quality", TRUTH, "the same, held-out prompts")
    truth.set_ylim(0, 1.02)
    truth.set_ylabel("true quality of replies, which nobody is told (0 – 1)", color=TRUTH)
    lines = [line for each in (axes, truth) for line in each.get_legend_handles_labels()[0]]
    axes.legend(lines, [line.get_label() for line in lines], loc="lower right", fontsize=8)


def _draw_penalty(axes: Any, metrics: Sequence[dict[str, Any]]) -> None:
    told = [entry for entry in metrics if entry.get("kl") is not None]
    steps = [entry["step"] for entry in told]
    axes.plot(steps, [entry["kl"] for entry in told], color=KL, lw=1.4)
    axes.set_xlabel("step of policy and critic")
    axes.set_ylabel("KL to the reference, nats per reply", color=KL)
    axes.grid(alpha=0.25)
    axes.set_title("penalty", fontsize=10)
    weight = axes.twinx()
    weight.plot(steps, [entry["kl_weight"] for entry in told], color="#555555", lw=1.1, ls="--")
    weight.set_ylabel("its weight β (dashed)", color="#555555")
    weight.set_ylim(bottom=0)


def _dots(axes: Any, metrics: Sequence[dict[str, Any]], key: str, color: str, label: str) -> None:
    measured = [(entry["step"], entry[key]) for entry in metrics if entry.get(key) is not None]
    if measured:
        axes.plot(*zip(*measured, strict=True), color=color, marker="o", ms=5, lw=0, label=label)


def main() -> None:
    """The command line."""
    command_line(draw, __doc__)


if __name__ == "__main__":
    main()
