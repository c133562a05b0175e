"""The picture of a run."""

import json
from pathlib import Path

import pytest

from gangflow.recipes.grpo.plot import draw, read_metrics


def test_metrics_keep_what_a_restarted_actor_did_last_and_skip_a_cut_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [{"step": step, "reward": 0.1} for step in (1, 2, 3)] + [{"step": step, "reward": 0.2} for step in (2, 3, 4)]
    path.write_text("\n".join(map(json.dumps, lines)) + '\n{"step": 5, "rew')
    assert [(entry["step"], entry["reward"]) for entry in read_metrics(path)] == [(1, 0.1), (2, 0.2), (3, 0.2), (4, 0.2)]


def test_draws_a_png_with_labelled_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    metrics = [
        {"step": step, "reward": step / 200, "accuracy": step / 100 if step % 10 == 0 else None} for step in range(1, 90)
    ]
    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    draw(metrics, tmp_path / "run.png", [(60, "rollout[0] killed")])
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    rewards, accuracies = kept[0].axes
    assert rewards.get_xlabel() == "training step"
    assert "reward" in rewards.get_ylabel()
    assert "accuracy" in accuracies.get_ylabel()
    assert [text.get_text() for text in rewards.texts] == ["rollout[0] killed"]
    assert rewards.lines[1].get_xdata()[0] == 60
    assert len(accuracies.lines[0].get_xdata()) == 8
    monkeypatch.undo()
    pyplot.close(kept[0])


def test_the_accuracy_before_the_first_step_is_drawn_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    kept = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    draw([{"step": 0, "accuracy": 0.3}, {"step": 1, "reward": 1.0, "accuracy": None}], tmp_path / "run.png")
    rewards, accuracies = kept[0].axes
    assert list(rewards.lines[0].get_xdata()) == [1]
    assert list(accuracies.lines[0].get_xdata()) == [0]
    monkeypatch.undo()
    pyplot.close(kept[0])
