"""Claim providers by name."""

from __future__ import annotations

from pathlib import Path

from gangflow.xce.ports import Provider
from gangflow.xce.providers.directory import DirectoryProvider

NAMES = ("directory",)
"""What a claim's `provider` may say."""


def standard_providers(home: Path) -> dict[str, Provider]:
    """The providers that come with XCE, for a cluster whose home is this folder."""
    return {"directory": DirectoryProvider(home)}
