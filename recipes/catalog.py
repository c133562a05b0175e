"""Which recipes there are, and in which variants. Listing them imports none of them.

A variant's module offers `Config` (frozen pydantic), `PRESETS` (name → overrides of its defaults) and `build(config)`, which
returns the `CoStartGroup`; `cluster(config)`, if it is there, describes a machine of virtual hosts that the group fills, or is
None where the configuration is one for real machines; `missing(config)`, if it is there, are the faults of what the group would
read on this machine, for a run that stays on it; `PLOT`, if it is there, is the module that draws a picture of its metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
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

    @property
    def words(self) -> str:
        """The setting that chooses it, as it is typed: `engine=vllm`; its module where nothing does."""
        return next((f"{key}={values[0]}" for key, values in self.chosen_by.items()), self.module)

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
                raise UsageError([self._no_preset(preset, left, " ".join(said))])
            left = having
        return left[0]

    def elsewhere(self, chosen: Variant, keys: Iterable[str]) -> Iterator[tuple[str, str, Variant]]:
        """(key, the setting that is meant, its variant) of each key that the chosen variant lacks and another one has.

        A slip of another variant's setting is one, if nothing that the chosen one has is as near.
        """
        own = list(chosen.load().Config.model_fields)
        keys = [key for key in keys if key not in own]
        if not keys:
            return  # Nobody else needs to be imported.
        others = [(variant, variant.load().Config.model_fields) for variant in self.variants if variant is not chosen]
        known = [*own, *(name for _, fields in others for name in fields)]
        for key in keys:
            meant = key if key in known else _nearest(key, known)
            having = [variant for variant, fields in others if meant in fields]
            if meant not in own and having:
                yield key, meant, having[0]

    def _no_preset(self, preset: str, left: Iterable[Variant], said: str) -> Problem:
        names = [name for variant in left for name in variant.load().PRESETS]
        having = next((variant for variant in self.variants if preset in variant.load().PRESETS), None)
        begun = [name for name in names if name.startswith(preset)]
        expected = f"one of {', '.join(begun or names)}" + (f" (with {said})" if said else "")
        if having is not None:
            expected += f"; it is a preset of {having.words}"
        elif begun:
            expected += f"; {len(names) - len(begun)} others begin otherwise"
        return Problem("preset", repr(preset), expected, _nearest(preset, names))


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
    from gangflow.specs.faults import nearest  # only where something is wrong

    return nearest(name, names)
