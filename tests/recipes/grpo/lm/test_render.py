"""`gangflow render` of every preset is what was looked at and kept, and reads back as the same group."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from gangflow.cli import main as command
from gangflow.recipes.grpo.lm.build import Config, build
from gangflow.recipes.grpo.lm.presets import PRESETS
from gangflow.specs.document import dump, load
from gangflow.specs.group import CoStartGroup
from tests.recipes.grpo.lm.rendering import FOLDER, text_of


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_renders_as_it_was_kept(preset: str) -> None:
    assert text_of(preset) == (FOLDER / f"{preset}.yaml").read_text(), (
        "python -m tests.recipes.grpo.lm.rendering writes it anew"
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_comes_back_from_its_yaml(preset: str) -> None:
    group = build(Config(**PRESETS[preset]))
    assert load(dump(group), CoStartGroup) == group


def test_nothing_is_kept_of_a_preset_that_is_gone() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(PRESETS)


def test_the_command_line_renders_the_variant() -> None:
    def printed(*settings: str) -> str:
        done = CliRunner().invoke(command.app, ["render", "grpo", *settings])
        assert done.exit_code == 0, done.output
        return done.output

    assert "engine: vllm" in printed("engine=vllm")
    assert "gangflow.recipes.grpo.lm.trl_actor" in printed("trainer=trl")
    assert "replicas: 44" in printed("preset=8b-16-hosts")
    assert "engine: vllm" not in printed()
