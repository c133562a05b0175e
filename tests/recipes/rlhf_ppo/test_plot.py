"""The picture of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gangflow.recipes.rlhf_ppo.plot import draw


def _metrics(*, truth: bool = True) -> list[dict[str, Any]]:
    quality = {"held_out_quality": 0.5} if truth else {}
    first = {"step": 0, "held_out_reward": 0.1, **quality}
    report = {"accuracy_before": 0.5, "accuracy": 0.9, "held_out_pairs": 400, "ceiling": 0.95 if truth else None}
    steps = [
        {"step": step, "reward": step / 20, "quality": step / 40 if truth else None, "kl": step / 10, "kl_weight": 0.1}
        for step in range(1, 31)
    ]
    steps[9] |= {"held_out_reward": 0.5, **quality}
    return [{**first, "reward_model": report}, *steps]


def test_draws_all_three_parts_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    draw(_metrics(), tmp_path / "run.png", [(8, "critic killed"), (23, "actor killed")])
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    judge, rewards, penalty, truth, weight = kept[0].axes
    assert [bar.get_height() for bar in judge.patches] == [0.5, 0.9]
    assert "400 held-out preference pairs" in judge.get_ylabel()
    scores, held_out = rewards.lines[:2]
    assert (len(scores.get_xdata()), list(held_out.get_xdata())) == (30, [0, 10])
    assert [text.get_text() for text in rewards.texts] == ["critic killed", "actor killed"]
    assert [line.get_xdata()[0] for line in rewards.lines[2:]] == [8, 23]
    assert "which nobody is told" in truth.get_ylabel()
    assert (len(truth.lines[0].get_xdata()), list(truth.lines[1].get_xdata())) == (30, [0, 10])
    assert (len(penalty.lines[0].get_xdata()), len(weight.lines[0].get_xdata())) == (30, 30)
    monkeypatch.undo()
    pyplot.close(kept[0])


def test_draws_what_there_is_where_the_truth_is_not_known(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib.pyplot")
    draw(_metrics(truth=False)[1:], tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
