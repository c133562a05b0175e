"""Providers by name: what comes with XCE, what was installed, and one that is broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.ports import Provisioned
from gangflow.xce.providers.registry import NAMES, PlainCatalog, ProviderBroken, Providers, catalog_of, standard_providers
from gangflow.xce.providers.rules import BUILT_IN, Parameter, ProviderRules

MODULE = """
from gangflow.xce.ports import Provisioned
from gangflow.xce.providers.rules import Parameter, ProviderRules

class Nfs:
    rules = ProviderRules((Parameter("export", "host:/path", lambda text: ":/" in text, required=True),))
    def __init__(self, home):
        self.home = home
    async def provision(self, request):
        return Provisioned(f"/net/{request.name}")
    async def release(self, request):
        pass

class Plain(Nfs):
    rules = None

def nothing(home):
    return object()

def fails(home):
    raise RuntimeError("no licence")
"""

Install = Callable[..., Providers]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Providers of a cluster where a package with these entry points is installed."""

    def add(**points: str) -> Providers:
        site = tmp_path / "site"
        info = site / "somebody_else-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: somebody-else\nVersion: 1.0\n")
        lines = "".join(f"{name} = {value}\n" for name, value in points.items())
        (info / "entry_points.txt").write_text(f"[gangflow.claim_providers]\n{lines}")
        (site / "claims_of_somebody_else.py").write_text(MODULE)
        monkeypatch.syspath_prepend(str(site))
        return standard_providers(tmp_path / "home")

    return add


def test_those_that_come_with_xce(tmp_path: Path) -> None:
    providers = standard_providers(tmp_path)
    assert tuple(providers) == NAMES == ("directory", "command", "model")
    for name in NAMES:
        assert providers.rules(name) is BUILT_IN[name]
        assert providers[name] is providers[name]
    with pytest.raises(KeyError):
        providers["nfs"]
    with pytest.raises(KeyError):
        providers.rules("nfs")


async def test_an_installed_one_is_loaded_when_it_is_first_asked_for(install: Install, tmp_path: Path) -> None:
    providers = install(nfs="claims_of_somebody_else:Nfs", plain="claims_of_somebody_else:Plain")
    assert providers.names() == (*NAMES, "nfs", "plain")
    assert "claims_of_somebody_else" not in sys.modules
    (parameter,) = providers.rules("nfs").parameters
    assert (parameter.name, parameter.required) == ("export", True)
    assert providers.rules("plain") == ProviderRules(others=True)
    provider = providers["nfs"]
    assert provider.home == tmp_path / "home" / "providers" / "nfs"  # type: ignore[attr-defined]
    assert (await provider.provision(Provision("g1/d", 1, "g1", "d", "nfs", ()))).path == "/net/d"
    del sys.modules["claims_of_somebody_else"]


def test_a_broken_one_says_so_and_concerns_nobody_else(install: Install) -> None:
    providers = install(
        gone="no_such_module:Provider",
        lacking="claims_of_somebody_else:Missing",
        nothing="claims_of_somebody_else:nothing",
        fails="claims_of_somebody_else:fails",
        directory="claims_of_somebody_else:Nfs",
    )
    for name, why in (
        ("gone", "No module named 'no_such_module'"),
        ("lacking", "AttributeError"),
        ("nothing", "made a object, which has no provision()"),
        ("fails", "RuntimeError: no licence"),
    ):
        with pytest.raises(ProviderBroken) as caught:
            providers[name]
        assert f"claim provider {name!r} cannot be loaded" in str(caught.value)
        assert why in str(caught.value)
        with pytest.raises(ProviderBroken):
            providers.rules(name)
    assert type(providers["directory"]).__name__ == "DirectoryProvider", "nobody takes the name of one that comes with XCE"
    sys.modules.pop("claims_of_somebody_else", None)


class Own:
    rules = ProviderRules((Parameter("x", "an x", bool),))

    async def provision(self, request: Provision) -> Provisioned:
        return Provisioned("/own")

    async def release(self, request: Release) -> None: ...


def test_a_plain_mapping_is_a_catalogue_too(tmp_path: Path) -> None:
    catalog = catalog_of({"own": Own()})
    assert isinstance(catalog, PlainCatalog)
    assert catalog.names() == ("own",)
    assert catalog.rules("own") is Own.rules
    providers = standard_providers(tmp_path)
    assert catalog_of(providers) is providers
