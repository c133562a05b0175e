"""docs/sdk.md says what is there: its snippets run, in their order, and its names exist."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gangflow as gf
from gangflow import clusters, events, testing

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/sdk.md").read_text()
SNIPPET = re.compile(r"(?:<!-- before: (?P<before>.*?) -->\n)?```python\n(?P<code>.*?)```", re.S)
DEADLINE_S = 120.0


def run(code: str, names: dict[str, Any], where: str) -> Any:
    """Execute a snippet; the coroutine that is left when it awaits something."""
    compiled = compile(code, where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    made = eval(compiled, names)
    return made if inspect.iscoroutine(made) else None


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[testing.FakeCluster]:
    """What a cluster of one's own, and one at an address, are while the page is read."""
    with testing.cluster(hosts=1, gpus=5) as made:
        monkeypatch.setattr(clusters, "own_cluster", lambda *_, **__: made)
        joined = clusters.join_cluster
        monkeypatch.setattr(clusters, "join_cluster", lambda at, **_: joined(at) if at in clusters.IN_PROCESS else made)
        yield made


async def test_every_snippet_runs(cluster: testing.FakeCluster, capsys: pytest.CaptureFixture[str]) -> None:
    launcher: dict[str, Any] = {"cluster": cluster}
    member: dict[str, Any] = {"gf": gf}
    found = list(SNIPPET.finditer(PAGE))
    assert len(found) == PAGE.count("```python") >= 12
    with testing.FakeContext(lambda ask: ask.prompt) as trainer:
        for number, snippet in enumerate(found):
            names = member if snippet["code"].startswith("# member") else launcher
            try:
                if snippet["before"]:
                    exec(snippet["before"], {"cluster": cluster, "gf": gf, **launcher})
                async with asyncio.timeout(DEADLINE_S):
                    waits = run(snippet["code"], names, f"docs/sdk.md, snippet {number}")
                    if waits is not None:
                        await waits
            except Exception as error:
                error.add_note(f"in this snippet of docs/sdk.md:\n{snippet['code']}")
                raise
            names.pop("ctx") if names is launcher and "ctx" in names else None
        assert [saved.step for saved in trainer.saved] == [0, 1, 2, 3]
    said = capsys.readouterr().out
    for part in ("RUNNING", "step 1", "no_fit", "rollout[0] oom", "scaled to", "ended SUCCEEDED"):
        assert part in said


def test_the_table_of_events_has_all_of_them() -> None:
    table = PAGE[PAGE.index("| of | events |") : PAGE.index("## asyncio")]
    named = set(re.findall(r"`(\w+)`", table))
    general = {"Event", "SlotEvent", "SlotEnded", "Unknown"}
    assert named == {name for name in events.__all__ if name[0].isupper() and name.isidentifier()} - {"LEFT_OUT"} - general


def test_every_name_that_it_gives_exists() -> None:
    for name in set(re.findall(r"`gf\.(\w+)", PAGE)):
        assert hasattr(gf, name), name
    for name in set(re.findall(r"`run\.(\w+)\(", PAGE)):
        assert hasattr(gf.Run, name), name
    for name in set(re.findall(r"`ctx\.(\w+)", PAGE)):
        assert hasattr(gf.Context, name) or name in {"client", "cluster"}, name


def test_every_link_leads_somewhere() -> None:
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
    headings = {
        re.sub(r"[^a-z -]", "", line[3:].lower()).replace(" ", "-") for line in PAGE.splitlines() if line.startswith("## ")
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
    assert "](docs/sdk.md)" in (ROOT / "README.md").read_text()
