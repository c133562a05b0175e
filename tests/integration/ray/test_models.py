"""Models in a Ray cluster: the agents of its nodes make them, through Ray's actors."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangflow.xce.hosts.checksums import checksum
from gangflow.xce.rest.client import Client
from tests.integration.ray.world import Kept, until

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]


def test_a_model_is_made_by_the_agents_of_the_nodes(kept: Kept, client: Client, place: Path) -> None:
    """The same as without Ray: verified, seen by the tasks, unpinned when the group is over."""
    source = place / "model.bin"
    source.write_bytes(b"m" * 50_000)
    claim = {"name": "m", "provider": "model", "parameters": {"source": str(source), "sha256": checksum(source)}}
    command = ["sh", "-c", f'cmp "$XCE_CLAIM_M" {source}']
    member = {"job": {"command": command, "resources": {"cpu": "100m", "mem": "16MiB"}}}
    group = client.submit({"name": "models", "claims": [claim], "members": {"a": member, "b": member}}).id
    until(lambda: client.group(group).terminal, "the group's end")
    view = client.group(group)
    assert view.state == "SUCCEEDED", view
    assert {entry.host for entry in view.claims} <= {"h-0", "h-1", ""}
    pins = kept.home.path / "cache" / "pins" / checksum(source)
    until(lambda: not any(pins.iterdir()), "its pins to go")
