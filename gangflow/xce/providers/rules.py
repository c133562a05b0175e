"""What claim providers accept: their parameters and rules, as admission checks them. Pure: no provider is asked.

A provider from outside says it by an attribute `rules`; without one, every parameter goes to it unchecked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from gangflow.specs.faults import MISSING, Fault, nearest
from gangflow.specs.quantity import memory_mib

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DECIMAL = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: what is expected of its text."""

    name: str
    expected: str
    accepts: Callable[[str], bool]
    required: bool = False


@dataclass(frozen=True, slots=True)
class ProviderRules:
    """What one provider accepts."""

    parameters: tuple[Parameter, ...] = ()
    others: bool = False
    """Parameters of other names are the provider's own business."""
    per_slot: bool = False
    """What it makes exists on the hosts of a slot only: a group's claim is made for each slot of every member. It can neither
    be retained nor stand alone."""


class Catalog(Protocol):
    """The providers that a controller has. May read files (once): not for the event loop."""

    def names(self) -> tuple[str, ...]:
        """All of them."""
        ...

    def rules(self, name: str) -> ProviderRules:
        """What it accepts. KeyError when there is none of that name; ProviderBroken when it cannot be loaded."""
        ...


def absolute(text: str) -> bool:
    """Whether it is an absolute path."""
    return os.path.isabs(text)


def source_path(text: str) -> str:
    """The path of a model's source: an absolute path, or `file://` and one. Empty when it is neither."""
    path = text.removeprefix("file://")
    return path if absolute(path) else ""


def _is_size(text: str) -> bool:
    try:
        return memory_mib(int(text) if _DECIMAL.fullmatch(text) else text) > 0
    except Exception:
        return False


DIRECTORY = ProviderRules((Parameter("path", "an absolute path", absolute),))
COMMAND = ProviderRules((Parameter("script", "the absolute path of an executable", absolute, required=True),), others=True)
MODEL = ProviderRules(
    (
        Parameter(
            "source", "the absolute path of a file or folder, or file:// and one", lambda text: bool(source_path(text)), True
        ),
        Parameter("sha256", "64 hexadecimal digits, lower case", lambda text: bool(_SHA256.fullmatch(text)), required=True),
        Parameter("size", "its largest size: 14GiB, 512MiB, or a number of MiB", _is_size),
    ),
    per_slot=True,
)
BUILT_IN: Mapping[str, ProviderRules] = {"directory": DIRECTORY, "command": COMMAND, "model": MODEL}


class BuiltIn:
    """The catalogue of a controller to which nothing was added."""

    def names(self) -> tuple[str, ...]:
        return tuple(BUILT_IN)

    def rules(self, name: str) -> ProviderRules:
        return BUILT_IN[name]


def parameter_faults(provider: str, rules: ProviderRules, parameters: Mapping[str, str]) -> Iterator[Fault]:
    """What is wrong with the parameters of one claim; paths are relative to the claim."""
    known = {parameter.name: parameter for parameter in rules.parameters}
    for key, value in parameters.items():
        parameter = known.get(key)
        if parameter is not None:
            if not parameter.accepts(value):
                yield Fault(("parameters", key), value, parameter.expected)
        elif not rules.others:
            expected = f"a parameter of {provider}: " + (", ".join(known) or "it has none")
            yield Fault(("parameters", key), value, expected, nearest(key, known))
    for parameter in rules.parameters:
        if parameter.required and parameter.name not in parameters:
            yield Fault(("parameters", parameter.name), MISSING, f"{parameter.expected}: {provider} needs it")
