"""Which recipes there are. Listing them imports none of them.

A recipe's module offers `Config` (frozen pydantic), `PRESETS` (name → overrides of its defaults) and `build(config)`, which
returns the `CoStartGroup`; `cluster(config)`, if it is there, describes a machine of virtual hosts that the group fills.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from gangflow.errors import Problem, SpecError


@dataclass(frozen=True, slots=True)
class Recipe:
    """One entry of the catalog."""

    name: str
    summary: str
    """One line, for `gangflow recipes`."""
    module: str

    def load(self) -> ModuleType:
        """Import the recipe."""
        return import_module(self.module)


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "grpo",
        "GRPO on column addition: an actor, two rollouts, reward and reference; numpy on CPU, learns in half a minute",
        "gangflow.recipes.grpo.build",
    ),
)


def find(name: str) -> Recipe:
    """The recipe of that name. SpecError, with the nearest name, if there is none."""
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    names = [recipe.name for recipe in RECIPES]
    nearest = difflib.get_close_matches(name, names, 1)
    raise SpecError([Problem("recipe", repr(name), "one of " + ", ".join(names), nearest[0] if nearest else "")])
