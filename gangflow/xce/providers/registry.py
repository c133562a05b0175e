"""Claim providers by name: those that come with XCE, and those of the entry point group `gangflow.claim_providers`.

An entry point names something that is called with a folder of the provider's own (not made yet) and returns the provider. It is
loaded when it is first asked for; one that cannot be loaded says so to whoever claims something of it, and to nobody else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from gangflow.errors import SetupError
from gangflow.xce.ports import Provider
from gangflow.xce.providers.command import CommandProvider
from gangflow.xce.providers.directory import DirectoryProvider
from gangflow.xce.providers.model import ModelProvider, Models
from gangflow.xce.providers.rules import BUILT_IN, Catalog, ProviderRules

_log = logging.getLogger(__name__)
GROUP = "gangflow.claim_providers"
NAMES = tuple(BUILT_IN)
"""Those that come with XCE."""
UNCHECKED = ProviderRules(others=True)
"""Of a provider that says nothing about its parameters."""


class ProviderBroken(SetupError):
    """A provider is installed and cannot be loaded."""

    remedy = "repair or remove the package that provides it; other providers are not concerned"

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"claim provider {name!r} cannot be loaded: {why}")
        self.name = name


class Providers(Mapping[str, Provider]):
    """All providers of a controller; each is made when it is first asked for. Also the catalogue that admission reads."""

    def __init__(self, makers: Mapping[str, Callable[[], Provider]], home: Path, *, group: str = GROUP) -> None:
        """`makers`: of those that come with XCE; no entry point takes such a name."""
        self._makers = dict(makers)
        self._home = home
        self._group = group
        self._made: dict[str, Provider] = {}
        self._making = threading.Lock()

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for point in sorted(entry_points(group=self._group), key=lambda point: (point.name, point.value)):
            if point.name in self._makers or point.name in found:
                _log.warning("claim provider %s of %s is not used: there is another of this name", point.name, point.value)
            else:
                found[point.name] = point
        return found

    def __getitem__(self, name: str) -> Provider:
        """The provider. KeyError when there is none of that name; ProviderBroken when it cannot be loaded."""
        with self._making:
            if name not in self._made:
                maker = self._makers.get(name)
                self._made[name] = maker() if maker is not None else self._load(self._points[name])
            return self._made[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._makers
        yield from self._points

    def __len__(self) -> int:
        return len(self._makers) + len(self._points)

    def names(self) -> tuple[str, ...]:
        return tuple(self)

    def rules(self, name: str) -> ProviderRules:
        known = BUILT_IN.get(name) if name in self._makers else None
        return known or rules_of(self[name])

    def _load(self, point: EntryPoint) -> Provider:
        try:
            provider: Any = point.load()(self._home / "providers" / point.name)
            for needed in ("provision", "release"):
                if not callable(getattr(provider, needed, None)):
                    raise TypeError(f"{point.value} made a {type(provider).__name__}, which has no {needed}()")
        except Exception as error:
            # Not kept: whoever repairs it need not restart the controller, unless its module is loaded already.
            raise ProviderBroken(point.name, f"{type(error).__name__}: {error}") from error
        made: Provider = provider
        return made


def rules_of(provider: Provider) -> ProviderRules:
    """What a provider says about its parameters."""
    rules = getattr(provider, "rules", UNCHECKED)
    return rules if isinstance(rules, ProviderRules) else UNCHECKED


class PlainCatalog:
    """The catalogue of providers that were given as a plain mapping."""

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self._providers = providers

    def names(self) -> tuple[str, ...]:
        return tuple(self._providers)

    def rules(self, name: str) -> ProviderRules:
        return rules_of(self._providers[name])


def catalog_of(providers: Mapping[str, Provider]) -> Catalog:
    """What admission reads of these providers."""
    return providers if isinstance(providers, Providers) else PlainCatalog(providers)


def standard_providers(home: Path, models: Models | None = None) -> Providers:
    """The providers of a cluster whose home is this folder. `models`: the way to its nodes' caches; without it, a claim of the
    `model` provider fails and says so."""
    makers: dict[str, Callable[[], Provider]] = {
        "directory": lambda: DirectoryProvider(home),
        "command": CommandProvider,
        "model": lambda: ModelProvider(models),
    }
    return Providers(makers, home)
