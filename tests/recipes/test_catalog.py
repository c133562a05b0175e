"""The list of recipes."""

import subprocess
import sys

import pytest

from gangflow.errors import SpecError
from gangflow.recipes.catalog import RECIPES, find


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_a_recipe_has_what_the_command_line_needs(recipe) -> None:  # type: ignore[no-untyped-def]
    module = recipe.load()
    assert recipe.summary
    assert callable(module.build)
    assert module.Config.model_config["frozen"]
    assert module.PRESETS


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean 'grpo'"):
        find("grop")


def test_listing_imports_no_recipe() -> None:
    code = "import sys, gangflow.recipes.catalog; sys.exit(bool({'numpy', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
