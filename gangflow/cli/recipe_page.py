"""What a recipe offers, as plain text: its variants, and the presets and settings of the one that is meant.

What a setting means is the docstring below its field, and the sections are comments: `config.py` alone says it.
"""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from pydantic import BaseModel

from gangflow.cli.sources import configured
from gangflow.recipes.catalog import Recipe, Variant, find
from gangflow.specs.document import read
from gangflow.specs.fields import kinds, said

WIDEST = 120
"""Columns: longer lines are hard to read."""
NARROWEST = 40


def page(name: str, settings: Sequence[str], width: int = 0) -> str:
    """The page of a recipe with some settings; `width` in columns, that of the terminal when left out.

    Raises:
        SpecError: no such recipe, setting or preset, or a value that does not fit; names the nearest valid one.
    """
    entry = find(name)
    variant, module, config = configured(entry, settings)
    width = max(NARROWEST, min(width or shutil.get_terminal_size().columns, WIDEST))
    parts = [
        [*_wrapped(f"{entry.name}: {entry.summary}", width, then="  ")],
        [*_variants(entry, variant, width)],
        [*_presets(type(config), module.PRESETS, width)],
        *_settings(config, width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _variants(entry: Recipe, chosen: Variant, width: int) -> Iterator[str]:
    if len(entry.variants) < 2:
        return
    yield from _wrapped(f"Variants, chosen by a setting or by a preset of theirs; else {entry.variants[0].words}:", width)
    for variant in entry.variants:
        by = [f"{key}={value}" for key, values in variant.chosen_by.items() for value in values]
        yield from _wrapped(" or ".join(by) + (" (shown here)" if variant is chosen else ""), width, "  ")


def _presets(model: type[BaseModel], presets: Mapping[str, Mapping[str, Any]], width: int) -> Iterator[str]:
    """Each by its difference from the defaults, or from an earlier one where that is shorter to say."""
    yield from _wrapped("Presets (preset=NAME), by what they change of the defaults; settings beside one change it:", width)
    defaults = shown(model())
    earlier: dict[str, dict[str, str]] = {"": defaults}
    for name, changes in presets.items():
        own = shown(model.model_validate(changes))
        # The first of the nearest: the defaults, where another one is no nearer.
        like = min(earlier, key=lambda other: len(_difference(earlier[other], own)))
        words = [f"{key}={value}" for key, value in _difference(earlier[like], own).items()]
        text = " ".join([*([f"as {like}, and" if words else f"as {like}"] if like else []), *words]) or "the defaults"
        yield from _wrapped(f"{name}: {text}", width, "  ", "      ")
        earlier[name] = own


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in after.items() if before[key] != value}


def _settings(config: BaseModel, width: int) -> Iterator[list[str]]:
    """A part for each section: its settings with the value that they have, the kind of value, and what they mean."""
    model = type(config)
    values, defaults, takes, texts = shown(config), shown(model()), kinds(model), said(model)
    # What is a recipe's own comes before what it has in common with others.
    own = [name for name in inspect.get_annotations(model) if name in values]
    sections = dict.fromkeys(texts[name].section for name in (*own, *values))
    for section in sorted(sections, key=bool):  # Those of no section first; else as they stand there.
        lines = [f"Settings{f': {section}' if section else ''}"]
        for name in values:
            if texts[name].section == section:
                default = f"; {defaults[name] or 'empty'} by default" if values[name] != defaults[name] else ""
                takes_it = takes[name].replace("`", "")
                lines += _wrapped(f"{name}={values[name]}  ({takes_it}{default})", width, "  ", "      ")
                lines += _wrapped(texts[name].text, width, "      ")
        yield lines


def shown(config: BaseModel) -> dict[str, str]:
    """Every setting of a configuration → its value, as it is typed behind `key=`."""
    return {name: _typed(value) for name, value in config.model_dump(mode="json").items()}


def _typed(value: Any) -> str:
    if isinstance(value, str):
        # Text that YAML would take for something else stands in quotes.
        return value if not value or (value == value.strip() and read(value)[0] == value) else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _wrapped(text: str, width: int, first: str = "", then: str = "") -> list[str]:
    """Lines of a text, indented by `first`; all but the first by `then`, if that is given. No word is broken."""
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=then or first,
        break_long_words=False,
        break_on_hyphens=False,
    )
