"""The list of recipes."""

import re
import subprocess
import sys

import pytest

from gangflow.errors import Problem, SpecError, UsageError
from gangflow.recipes.catalog import RECIPES, Recipe, Variant, find
from gangflow.specs.fields import said

VARIANTS = [(recipe, variant) for recipe in RECIPES for variant in recipe.variants]
GRPO = find("grpo")


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=lambda each: getattr(each, "module", ""))
def test_a_recipe_has_what_the_command_line_needs(recipe: Recipe, variant: Variant) -> None:
    module = variant.load()
    assert recipe.summary
    assert callable(module.build)
    assert module.Config.model_config["frozen"]
    assert module.PRESETS


@pytest.mark.parametrize(("recipe", "variant"), VARIANTS, ids=lambda each: getattr(each, "module", ""))
def test_every_setting_says_what_it_means_and_names_settings_that_exist(recipe: Recipe, variant: Variant) -> None:
    config = variant.load().Config
    texts = said(config)
    assert not [name for name, what in texts.items() if not what.text]
    named = {word for what in texts.values() for word in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", what.text)}
    assert named <= set(config.model_fields)
    assert named


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_preset_is_one_variants_only(recipe: Recipe) -> None:
    names = [name for variant in recipe.variants for name in variant.load().PRESETS]
    assert len(names) == len(set(names))


def _chosen(*settings: str, preset: str = "") -> str:
    pairs = [(key, value) for key, _, value in (setting.partition("=") for setting in settings)]
    return GRPO.choose(pairs, preset).module.removeprefix("gangflow.recipes.grpo.")


def test_settings_and_presets_choose_the_variant() -> None:
    assert _chosen() == _chosen("engine=embedded") == _chosen("steps=5") == _chosen(preset="smoke") == "build"
    assert _chosen("engine=vllm") == _chosen("trainer=trl") == _chosen("steps=5", "engine=vllm", "trainer=torch") == "lm.build"
    assert _chosen(preset="tiny") == _chosen("trainer=trl", preset="8b-1-host") == "lm.build"


def _problem(*settings: str, preset: str = "") -> Problem:
    with pytest.raises(UsageError) as refused:
        _chosen(*settings, preset=preset)
    (problem,) = refused.value.problems
    return problem


def test_what_no_variant_has_is_refused_with_the_nearest() -> None:
    wrong = _problem("engine=vlm")
    assert (wrong.path, wrong.value, wrong.expected, wrong.nearest) == ("engine", "'vlm'", "one of embedded, vllm", "vllm")
    wrong = _problem("trainer=tlr")
    assert (wrong.path, wrong.expected, wrong.nearest) == ("trainer", "one of torch, trl", "trl")
    wrong = _problem("engine=embedded", "trainer=trl")
    assert (wrong.path, wrong.value) == ("trainer", "'trl'")
    assert wrong.expected == "none beside engine=embedded: no variant of grpo has both"


def test_a_preset_of_another_variant_is_refused_beside_a_setting_that_excludes_it() -> None:
    wrong = _problem("engine=vllm", preset="smoke")
    assert (wrong.path, wrong.value, wrong.nearest) == ("preset", "'smoke'", "tiny-smoke")
    assert wrong.expected.startswith("one of tiny, ")
    assert wrong.expected.endswith(" (with engine=vllm); it is a preset of engine=embedded")
    assert _problem(preset="tiny-trll").nearest == "tiny-trl"


@pytest.mark.parametrize("settings", [("engine=vllm",), ()])
def test_the_beginning_of_presets_names_them(settings: tuple[str, ...]) -> None:
    wrong = _problem(*settings, preset="8b")
    assert wrong.nearest == "8b-1-host"
    assert wrong.expected.startswith("one of 8b-1-host, 8b-2-hosts, 8b-16-hosts")
    assert "70b-16-hosts" not in wrong.expected


def test_a_setting_of_another_variant_is_found_there_a_slip_of_it_too() -> None:
    embedded, vllm = GRPO.variants
    keys = ["steps", "max_staleness", "max_stalenes", "max_restart", "nothing_like_it"]
    found = [(key, meant, variant.words) for key, meant, variant in GRPO.elsewhere(embedded, keys)]
    assert found == [
        ("max_staleness", "max_staleness", "engine=vllm"),
        ("max_stalenes", "max_staleness", "engine=vllm"),
    ]
    assert [(meant, variant.words) for _, meant, variant in GRPO.elsewhere(vllm, ["gpus"])] == [("gpus", "engine=embedded")]


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean 'grpo'"):
        find("grop")


def test_listing_imports_no_recipe() -> None:
    code = "import sys, gangflow.recipes.catalog; sys.exit(bool({'numpy', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
