"""README says what is there: its example is the tested one, and what it points to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", ["my.yaml", "train.py"])
def test_the_example_is_the_tested_one(name: str) -> None:
    assert (ROOT / "docs/example" / name).read_text().rstrip() in README


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#]+)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]


@pytest.mark.parametrize("target", ["demo", "test", "bench", "check"])
def test_commands_exist(target: str) -> None:
    assert f"make {target}" in README
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()
