"""What a run leaves behind, named by its paths."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from gangflow.cli.results import result_lines
from gangflow.recipes.catalog import RECIPES, Variant
from gangflow.xce.rest.schema import ClaimView, GroupView
from tests.unit.cli.test_running import view_of


def ended(*claims: ClaimView) -> GroupView:
    return view_of("SUCCEEDED").model_copy(update={"claims": claims})


def claim(path: Path, *, retain: bool = True, member: str = "") -> ClaimView:
    return ClaimView(
        id="g1/ckpt", group="g1", name="ckpt", provider="directory", state="GONE", path=str(path), retain=retain, member=member
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("metrics.jsonl", "result.json", ".part"):
        (tmp_path / name).write_text("{}")
    for name in ("checkpoints", "weights", ".making"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_each_file_of_a_kept_folder_is_named_by_its_path(folder: Path) -> None:
    assert list(result_lines(ended(claim(folder)))) == [
        f"result: {folder}/metrics.jsonl",
        f"result: {folder}/result.json",
        f"result: checkpoints, weights in {folder}",
    ]


def test_a_recipes_picture_is_made_by_the_command_that_is_told(folder: Path) -> None:
    recipe = ModuleType("recipe")
    recipe.PLOT = "gangflow.recipes.grpo.plot"  # type: ignore[attr-defined]
    *_, told = result_lines(ended(claim(folder)), recipe)
    assert told == f"a picture of it: {sys.executable} -m gangflow.recipes.grpo.plot {folder}/metrics.jsonl grpo.png"
    (folder / "metrics.jsonl").unlink()
    assert not any(line.startswith("a picture") for line in result_lines(ended(claim(folder)), recipe))


def test_what_is_not_kept_or_not_here_is_not_promised(folder: Path, tmp_path: Path) -> None:
    assert list(result_lines(ended(claim(folder, retain=False), claim(folder, member="rollout")))) == []
    away = tmp_path / "on" / "another" / "machine"
    assert list(result_lines(ended(claim(away)))) == [f"result: {away} (claim ckpt, as the cluster's hosts see it)"]


VARIANTS = [variant for recipe in RECIPES for variant in recipe.variants]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.module)
def test_a_recipes_plot_is_there_and_is_a_command(variant: Variant) -> None:
    __import__(variant.load().PLOT)
    assert callable(sys.modules[variant.load().PLOT].main)
