"""Engines by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from gangflow import engines
from gangflow.errors import SetupError


def _installed(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    points = EntryPoints([EntryPoint("mine", value, engines.GROUP)])
    monkeypatch.setattr(engines, "entry_points", lambda group: points.select(group=group))


@pytest.mark.parametrize("name", sorted(engines.BUILT_IN))
async def test_those_that_come_with_gangflow_have_both_sides(name: str) -> None:
    found = engines.kind(name)
    engine, wire = found.adapter("http://127.0.0.1:1", 1, 1), found.wire()
    for verb in ("health", "generate", "pause", "resume", "abort", "load", "version", "release"):
        assert callable(getattr(engine, verb)), verb
    assert callable(wire.generate)
    await engine.close()
    await wire.close()


def test_another_ones_engine_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, "gangflow.integrations.embedded:KIND")
    assert engines.kind("mine") is engines.kind("embedded")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("no.such.module:KIND", "cannot be loaded: ModuleNotFoundError"),
        ("gangflow.integrations.embedded:EmbeddedEngine", "is a type, not a gangflow.engines.EngineKind"),
    ],
)
def test_one_that_is_broken_says_so(monkeypatch: pytest.MonkeyPatch, value: str, said: str) -> None:
    _installed(monkeypatch, value)
    with pytest.raises(SetupError, match=said):
        engines.kind("mine")


def test_an_unknown_one_names_those_that_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(monkeypatch, "gangflow.integrations.embedded:KIND")
    with pytest.raises(SetupError, match="no adapter for the engine 'sglang'; there are: embedded, mine, vllm"):
        engines.kind("sglang")


def test_the_name_of_a_group_is_the_same_in_spec_and_registry() -> None:
    from gangflow.specs import coordinator

    found: Any = coordinator
    assert (found.ENGINES, set(found.BUILT_IN_ENGINES)) == (engines.GROUP, set(engines.BUILT_IN))
