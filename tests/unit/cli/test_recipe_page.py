"""The page of a recipe: variants, presets and settings, as they are typed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from gangflow.cli.main import app
from gangflow.cli.recipe_page import NARROWEST, page, shown
from gangflow.cli.sources import configured
from gangflow.errors import Problem, SpecError
from gangflow.recipes.catalog import RECIPES, Recipe, Variant, find
from gangflow.specs.overrides import apply

VARIANTS = [(recipe, variant) for recipe in RECIPES for variant in recipe.variants]


def _by(variant: Variant) -> list[str]:
    return [f"{key}={values[0]}" for key, values in variant.chosen_by.items()][:1]


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=lambda each: getattr(each, "module", ""))
def test_every_preset_and_setting_of_the_chosen_variant_is_there(recipe: Recipe, variant: Variant) -> None:
    text, module = page(recipe.name, _by(variant)), variant.load()
    settings = re.findall(r"^  (\w+)=\S*  \(", text, re.MULTILINE)
    assert sorted(settings) == sorted(module.Config.model_fields)
    assert set(module.PRESETS) <= set(re.findall(r"^  ([\w-]+): ", text, re.MULTILINE))


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=lambda each: getattr(each, "module", ""))
def test_what_is_shown_can_be_typed(recipe: Recipe, variant: Variant) -> None:
    """All settings of each preset, given one by one to the defaults, make that preset."""
    module = variant.load()
    for changes in module.PRESETS.values():
        wanted = module.Config.model_validate(changes)
        typed = [f"{key}={value}" for key, value in shown(wanted).items()]
        assert apply(module.Config(), typed) == wanted


def _typed(text: str, preset: str) -> list[str]:
    """What the page says of a preset, as settings: those of the one that it is like first."""
    said = re.search(rf"^  {re.escape(preset)}: (.*(?:\n      .*)*)", text, re.MULTILINE)
    assert said is not None, preset
    like = re.match(r"as (\S+?)(?:, and|$)", said[1])
    return [*(_typed(text, like[1]) if like else []), *re.findall(r"\w+=\S+", said[1])]


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=lambda each: getattr(each, "module", ""))
def test_a_preset_is_what_the_page_says_of_it(recipe: Recipe, variant: Variant) -> None:
    text, module = page(recipe.name, _by(variant)), variant.load()
    likes = 0
    for name, changes in module.PRESETS.items():
        typed = _typed(text, name)
        wanted = module.Config.model_validate(changes)
        # All at once, as settings of one command: half of a preset need not be a configuration.
        assert shown(apply(module.Config(), typed)) == shown(wanted), name
        likes += len(typed) > len({word.partition("=")[0] for word in typed})
    assert likes or len(module.PRESETS) < 6  # Some say themselves by another, which they change.


def test_the_variant_is_the_one_that_settings_or_a_preset_mean() -> None:
    plain, vllm = page("grpo", []), page("grpo", ["trainer=trl"])
    assert "  engine=embedded (shown here)\n  engine=vllm or trainer=torch or trainer=trl\n" in plain
    assert "  engine=embedded\n  engine=vllm or trainer=torch or trainer=trl (shown here)\n" in vllm
    assert "\n  max_staleness=" not in plain
    assert "\n  max_staleness=" in vllm
    assert "(shown here)" in page("grpo", ["preset=tiny"]).split("engine=vllm or")[1]
    assert "Variants" not in page("rlhf_ppo", [])


def test_a_setting_that_is_given_is_shown_beside_its_default() -> None:
    text = page("grpo", ["preset=smoke", "steps=7"])
    assert "\n  steps=7  (whole number, ≥ 1; 250 by default)\n" in text
    assert "\n  prompts=16  (whole number, ≥ 1, ≤ 8000; 64 by default)\n" in text
    assert "\n  epochs=2  (whole number, ≥ 1)\n" in text
    text = page("rlhf_ppo", ["vllm=7", "reward_mem=3GiB"], 100)
    assert '\n  vllm="7"  (text; empty by default)\n' in text
    assert "\n  reward_mem=3GiB  (memory; 2GiB by default)\n" in text


def test_settings_stand_in_their_sections_with_what_they_mean() -> None:
    parts = page("rlhf_ppo", [], 100).split("\n\n")
    assert "\n  clip=0.2  (number, > 0, < 1)\n      The ratio of new to old probability is clipped to 1 ± this." in next(
        part for part in parts if part.startswith("Settings: the policy\n")
    )
    titles = [part.splitlines()[0] for part in parts if part.startswith("Settings")]
    assert titles[:3] == ["Settings", "Settings: models and data", "Settings: the reward model"]
    assert titles[-1] == "Settings: the group"
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("width", [NARROWEST, 80, 120])
def test_lines_are_no_longer_than_the_terminal_is_wide(width: int) -> None:
    long = [line for line in page("grpo", ["engine=vllm"], width).splitlines() if len(line) > width]
    assert not [line for line in long if " " in line.strip()]  # A word that is longer is not broken.


def test_a_narrower_terminal_than_can_be_read_and_a_wider_one_have_their_limits() -> None:
    assert page("grpo", [], 3) == page("grpo", [], NARROWEST)
    assert max(map(len, page("grpo", ["engine=vllm"], 1000).splitlines())) <= 120


def _problem(name: str, *settings: str) -> Problem:
    with pytest.raises(SpecError) as refused:
        page(name, settings)
    (problem,) = refused.value.problems
    return problem


def test_what_is_unknown_is_refused_with_the_nearest() -> None:
    assert (_problem("grop").path, _problem("grop").nearest) == ("recipe", "grpo")
    assert (_problem("grpo", "stepps=3").path, _problem("grpo", "stepps=3").nearest) == ("stepps", "steps")
    assert _problem("grpo", "preset=smok").nearest == "smoke"
    assert _problem("grpo", "max_staleness=1").expected.endswith("'max_staleness' is one of engine=vllm")
    assert _problem("grpo", "steps=none").expected == "a whole number"
    assert _problem("rlhf_ppo", "clip=1").expected == "less than 1.0"


def test_the_command_lists_or_shows_one() -> None:
    listed = CliRunner().invoke(app, ["recipes"])
    assert listed.output.splitlines() == [f"{recipe.name:12} {recipe.summary}" for recipe in RECIPES]
    one = CliRunner().invoke(app, ["recipes", "grpo", "steps=9"], env={"COLUMNS": "60"})
    assert one.output == page("grpo", ["steps=9"], 60) + "\n"


def test_what_is_piped_has_no_escape_codes() -> None:
    code = "from gangflow.cli.main import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, "recipes", "grpo"], check=True, capture_output=True, text=True, timeout=60
    )
    assert "\x1b" not in ended.stdout
    assert ended.stdout.startswith("grpo: ")


def test_what_is_configured_is_what_would_be_run() -> None:
    variant, module, config = configured(find("grpo"), ["engine=vllm", "steps=3"])
    assert variant.module == module.__name__ == "gangflow.recipes.grpo.lm.build"
    assert (config.steps, config.engine) == (3, "vllm")
