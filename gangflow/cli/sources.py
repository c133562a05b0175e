"""What to run: a recipe by name with `key=value` settings, or a spec in a YAML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from gangflow.errors import Problem, SpecError, UsageError
from gangflow.recipes.catalog import RECIPES, Recipe, Variant, find
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.document import load, located
from gangflow.specs.faults import fault_error
from gangflow.specs.group import CoStartGroup


@dataclass(frozen=True, slots=True)
class Source:
    """A group to run, and what its recipe knows beside it."""

    group: CoStartGroup
    cluster: ClusterSpec | None = None
    """The machine that the recipe suggests; None: this machine as it is."""
    recipe: ModuleType | None = None
    config: Any = None
    file: Path | None = None
    """Where the group was read from."""

    def check_here(self) -> None:
        """SpecError for what the recipe would read or start and this machine, which is all of its hosts, does not have."""
        faults = self.recipe.missing(self.config) if self.recipe is not None and hasattr(self.recipe, "missing") else []
        if faults:
            raise fault_error(faults)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Whatever a cluster finds wrong in the group is told with the file and the line where it stands."""
        try:
            yield
        except SpecError as error:
            raise (located(error, self.file) if self.file else error) from None


def read(what: str, settings: Sequence[str]) -> Source:
    """The group that a recipe's name or a file stands for.

    Raises:
        SpecError: no such recipe or file, or something in it is wrong; names the path and the nearest valid name.
    """
    path = Path(what)
    if path.suffix in {".yaml", ".yml", ".json"} or path.is_file():
        if not path.is_file():
            raise UsageError([Problem("file", repr(what), "a file that exists")])
        return Source(_override(load(path), settings), file=path)
    if path.name != what:
        raise UsageError([Problem("file", repr(what), "a YAML file that exists")])
    return _from_recipe(find(what), settings)


def _from_recipe(entry: Recipe, settings: Sequence[str]) -> Source:
    recipe, config = configured(entry, settings)[1:]
    cluster = recipe.cluster(config) if hasattr(recipe, "cluster") else None
    return Source(recipe.build(config), cluster, recipe, config)


def configured(entry: Recipe, settings: Sequence[str]) -> tuple[Variant, ModuleType, Any]:
    """The variant that settings (`preset` among them) mean, its module, and its configuration with them.

    Raises:
        SpecError: no such setting or preset, or a value that does not fit; names the nearest valid one.
    """
    from gangflow.specs.overrides import apply

    pairs = [(key.strip(), value.strip()) for key, _, value in (setting.partition("=") for setting in settings)]
    preset = next((value for key, value in reversed(pairs) if key == "preset"), "")
    variant = entry.choose(pairs, preset)
    recipe = variant.load()
    # What only chose the variant is no setting of it.
    chose = {key for key in variant.chosen_by if key not in recipe.Config.model_fields} | {"preset"}
    rest = [setting for setting, (key, _) in zip(settings, pairs, strict=True) if key not in chose]
    given = {key.split(".")[0].split("[")[0]: value for key, value in pairs if key not in chose}
    _of_another(entry, variant, given)
    with _by_preset(preset, set(recipe.PRESETS.get(preset, {})) - set(given)):
        return variant, recipe, apply(recipe.Config.model_validate(recipe.PRESETS.get(preset, {})), rest)


def _of_another(entry: Recipe, variant: Variant, given: Mapping[str, str]) -> None:
    """UsageError, with the variant that has it, for settings that the chosen one lacks."""
    problems = [
        Problem(
            key,
            repr(given[key]),
            f"a setting of {variant.words}, which is meant here; {meant!r} is one of {other.words}",
            meant if meant != key else "",
        )
        for key, meant, other in entry.elsewhere(variant, given)
    ]
    if problems:
        others = dict.fromkeys(other.words for _, _, other in entry.elsewhere(variant, given))
        raise UsageError(problems, remedy=f"give {' or '.join(others)} (or a preset of it), or leave the setting out")


@contextmanager
def _by_preset(preset: str, keys: AbstractSet[str]) -> Iterator[None]:
    """Where a preset, not the user, gave the value that does not go with the settings, that is told."""
    try:
        yield
    except SpecError as error:
        told = [
            replace(problem, expected=f"{problem.expected} (not so by preset={preset}: give `{problem.path}=` as well)")
            if problem.path in keys
            else problem
            for problem in error.problems
        ]
        raise type(error)(told, remedy=error.advice) from None


def _override(group: CoStartGroup, settings: Sequence[str]) -> CoStartGroup:
    from gangflow.specs.overrides import apply

    return apply(group, settings) if settings else group


def read_cluster(path: Path | None) -> ClusterSpec | None:
    """A cluster description from a YAML file."""
    if path is None:
        return None
    if not path.is_file():
        raise UsageError([Problem("cluster", repr(str(path)), "a file that exists")])
    from gangflow.specs.document import load_cluster

    return load_cluster(path)


def rendered(source: Source, cluster: ClusterSpec | None) -> str:
    """The group as YAML; for a cluster as it would run there, with the profiles that are merged in.

    Raises SpecError for what that cluster would refuse.
    """
    if cluster is None:
        from gangflow.specs.document import dump

        return dump(source.group)
    from gangflow.xce.rendered import rendered as as_it_runs

    with source.blamed():
        return as_it_runs(source.group, cluster)


def recipes() -> list[tuple[str, str]]:
    """(name, summary) of every recipe."""
    return [(recipe.name, recipe.summary) for recipe in RECIPES]
