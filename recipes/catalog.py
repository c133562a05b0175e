"""Which recipes there are, and in which variants. Listing them imports none of them.

A variant's module offers `Config` (frozen pydantic), `PRESETS` (name → overrides of its defaults) and `build(config)`, which
returns the `CoStartGroup`; `cluster(config)`, if it is there, describes a machine of virtual hosts that the group fills, or is
None where the configuration is one for real machines.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

from gangflow.errors import Problem, SpecError, UsageError


@dataclass(frozen=True, slots=True)
class Variant:
    """One way in which a recipe is built."""

    module: str
    chosen_by: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Setting → its values with which this variant is meant: `engine` → (`vllm`,)."""

    def load(self) -> ModuleType:
        """Import it."""
        return import_module(self.module)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One entry of the catalog."""

    name: str
    summary: str
    """One line, for `gangflow recipes`."""
    variants: tuple[Variant, ...]
    """The first is what is meant when nothing says otherwise."""

    def choose(self, settings: Iterable[tuple[str, str]] = (), preset: str = "") -> Variant:
        """The variant that some settings mean (others are ignored), and that has the preset, if one is named.

        UsageError, with the nearest, for a value or preset of no variant, and for settings of which no variant has all.
        """
        left, said = list(self.variants), list[str]()
        for key, value in settings:
            known = [each for variant in self.variants for each in variant.chosen_by.get(key, ())]
            if not known:
                continue
            if value not in known:
                raise UsageError([Problem(key, repr(value), "one of " + ", ".join(known), _nearest(value, known))])
            left = [variant for variant in left if value in variant.chosen_by.get(key, ())]
            if not left:
                expected = f"none beside {' '.join(said)}: no variant of {self.name} has both"
                raise UsageError([Problem(key, repr(value), expected)])
            said.append(f"{key}={value}")
        if preset:
            having = [variant for variant in left if preset in variant.load().PRESETS]
            if not having:
                names = [name for variant in left for name in variant.load().PRESETS]
                beside = f" (with {' '.join(said)})" if said else ""
                expected = "one of " + ", ".join(names) + beside
                raise UsageError([Problem("preset", repr(preset), expected, _nearest(preset, names))])
            left = having
        return left[0]


RECIPES: tuple[Recipe, ...] = (
    Recipe(
        "grpo",
        "GRPO: actor, rollouts, reward, reference; a numpy model learns in half a minute, with engine=vllm a language model",
        (
            Variant("gangflow.recipes.grpo.build", {"engine": ("embedded",)}),
            Variant("gangflow.recipes.grpo.lm.build", {"engine": ("vllm",), "trainer": ("torch", "trl")}),
        ),
    ),
    Recipe(
        "rlhf_ppo",
        "RLHF with PPO: a reward model is trained on preferences, then a policy on it, with a critic and vLLM rollouts",
        (Variant("gangflow.recipes.rlhf_ppo.build"),),
    ),
)


def find(name: str) -> Recipe:
    """The recipe of that name. SpecError, with the nearest name, if there is none."""
    for recipe in RECIPES:
        if recipe.name == name:
            return recipe
    names = [recipe.name for recipe in RECIPES]
    raise SpecError([Problem("recipe", repr(name), "one of " + ", ".join(names), _nearest(name, names))])


def _nearest(name: str, names: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(names), 1)), "")
