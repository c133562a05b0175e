"""A run in a notebook: its table, its live view, and a session with an event loop that runs already."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gangflow as gf
from gangflow import notebook
from gangflow.errors import Unreachable
from gangflow.events import Event
from gangflow.testing import FakeCluster, cluster
from gangflow.xce.rest.schema import GroupView
from tests.unit.testing.groups import job, rl

DEADLINE_S = 30.0


@pytest.fixture
def here() -> Iterator[FakeCluster]:
    with cluster(hosts=1, gpus=4) as made:
        yield made


class Recorded:
    """What a live view showed."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.happened: list[Event] = []
        self.came = threading.Event()

    def show(self, view: GroupView, happened: Event | None) -> None:
        self.states.append(view.state)
        if happened is not None:
            self.happened.append(happened)
        self.came.set()


def test_the_table_has_states_members_and_the_reason(here: FakeCluster) -> None:
    first, second = here.launch(job("first", gpus=4)), here.launch(job("second", gpus=4))
    html = first._repr_html_()
    for part in ("<b>first</b>", "RUNNING", "main[0]", "h0", "1 of 1 ready"):
        assert part in html
    waits = second._repr_html_()
    assert "WAITING_CAPACITY" in waits
    assert "blocked by" in waits


def test_whatever_others_have_named_is_escaped(here: FakeCluster) -> None:
    run = here.launch(job())
    here.fail("main", message="<script>alert(1)</script>", stderr="<img onerror=x>")
    view = run.status().model_copy(update={"name": "<i>name</i>", "message": "<script>alert(2)</script>"})
    html = notebook.group_html(view, "<u>note</u>")
    assert "&lt;i&gt;name&lt;/i&gt;" in html
    assert not [tag for tag in ("<script", "<i>", "<u>", "<img") if tag in html]
    assert "alert(1)" in html, "what a slot said is shown, as text"


def test_many_slots_are_counted_not_shown() -> None:
    with cluster(hosts=4, cpu=64, gpus=0, ports=64) as here:
        group = gf.CoStartGroup("many", {"a": gf.Job(["x"]), "r": gf.ReplicaSet(["y"], replicas=70, min_replicas=1)})
        html = here.launch(group)._repr_html_()
    assert "and 6 more" in html
    assert "(1 to 70)" in html
    assert html.count("<tr>") == 1 + 2 + 1 + 64 + 1


def test_a_change_under_way_is_named(here: FakeCluster) -> None:
    run = here.launch(rl())
    run.scale(rollout=3)
    view = run.status()
    change = view.changes[-1].model_copy(update={"state": "PLACING"})
    html = notebook.group_html(view.model_copy(update={"changes": (change,)}))
    assert "change c1 PLACING: actor=1, rollout=3" in html


def test_an_xce_that_does_not_answer_is_no_error_of_the_cell(here: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    run = here.launch(rl())

    def away(_: str) -> GroupView:
        raise Unreachable("nobody <answers>")

    monkeypatch.setattr(run.client, "group", away)
    assert run._repr_html_() == "<div><b>rl</b> (g1): nobody &lt;answers&gt;</div>"


def test_watching_shows_what_happens_until_the_end(here: FakeCluster) -> None:
    run, shown = here.launch(rl()), Recorded()
    ended: list[GroupView] = []
    thread = threading.Thread(target=lambda: ended.append(notebook.watch(run, display=shown)))
    thread.start()
    assert shown.came.wait(DEADLINE_S)
    here.fail("rollout", 1, cause="oom")
    here.finish("actor")
    thread.join(DEADLINE_S)
    assert ended[0].state == "SUCCEEDED"
    assert (shown.states[0], shown.states[-1]) == ("RUNNING", "SUCCEEDED")
    assert {"SlotFailed", "GroupEnded"} <= {type(event).__name__ for event in shown.happened}


async def test_watching_from_an_event_loop(here: FakeCluster) -> None:
    run, shown = await gf.aio.launch(rl(), address=here.address), Recorded()
    watching = asyncio.create_task(notebook.awatch(run, display=shown))
    while not shown.states:
        await asyncio.sleep(0)
    here.finish("actor")
    assert (await asyncio.wait_for(watching, DEADLINE_S)).state == "SUCCEEDED"
    assert shown.states[-1] == "SUCCEEDED"
    assert (await notebook.awatch(run, display=shown)).state == "SUCCEEDED", "at once, when it is over"
    await run.close()


async def test_watching_ends_after_its_time(here: FakeCluster) -> None:
    run = here.launch(rl())
    assert notebook.watch(run, timeout=0.01, display=Recorded()).state == "RUNNING"
    arun = await gf.aio.attach("rl", address=here.address)
    assert (await notebook.awatch(arun, timeout=0.01, display=Recorded())).state == "RUNNING"
    await arun.close()


def test_without_a_notebook_events_are_lines(
    here: FakeCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = here.launch(rl())
    look = run.status

    def first_look() -> GroupView:
        view = look()
        monkeypatch.setattr(run, "status", look)
        here.finish("actor")
        return view

    monkeypatch.setattr(run, "status", first_look)
    assert run.watch(timeout=DEADLINE_S).state == "SUCCEEDED"
    said = capsys.readouterr().out
    assert "SlotDone actor[0] incarnation=1 state=DONE code=0" in said
    assert said.strip().splitlines()[-1].endswith("GroupEnded before=STOPPING state=SUCCEEDED")


class _Handle:
    def __init__(self) -> None:
        self.updates: list[Any] = []

    def update(self, html: Any) -> None:
        self.updates.append(html)


def test_in_a_notebook_one_output_is_renewed(here: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython as a kernel has it: what is there already is used, nothing is installed for it."""
    handle = _Handle()
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    display = SimpleNamespace(HTML=str, display=lambda _, display_id: handle)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "IPython.display", display)  # type: ignore[arg-type]
    run = here.launch(rl())
    here.finish("actor")
    assert run.watch().state == "SUCCEEDED"
    assert "SUCCEEDED" in handle.updates[-1]
    shell.config.clear()
    assert isinstance(notebook.display_here(), notebook.Lines), "a terminal's IPython is no notebook"


async def test_a_session_in_a_running_event_loop(here: FakeCluster) -> None:
    """As in a notebook's cells: blocking calls and awaited ones, one after the other, in the kernel's own loop."""
    run = gf.launch(rl(), address=here.address)
    assert run.wait.__self__ is run
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.01)
    again = gf.attach("rl", address=here.address)
    assert again.status().state == "RUNNING"
    assert "RUNNING" in again._repr_html_()
    assert next(again.events()).seq > 0
    arun = await gf.aio.attach("rl", address=here.address)
    assert (await arun.scale(rollout=3, wait=True)).state == "DONE"  # type: ignore[union-attr]
    here.finish("actor")
    assert run.wait(timeout=DEADLINE_S).state == "SUCCEEDED"
    assert (await arun.wait(timeout=DEADLINE_S)).state == "SUCCEEDED"
    await arun.close()
    again.close()


KERNEL = """
import nbformat
from nbclient import NotebookClient

CELLS = [
    "import gangflow as gf, gangflow.testing\\nhere = gangflow.testing.cluster(hosts=1)\\ncluster = here.__enter__()",
    "run = gf.launch(gf.CoStartGroup('book', {'a': gf.Job(['x'])}), address=cluster.address)\\nrun",
    "same = await gf.aio.attach('book', address=cluster.address)\\n(await same.status()).state",
    "cluster.finish('a')\\nrun.watch(timeout=60).state",
    "await same.close()\\nrun.wait().state",
]
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
NotebookClient(book, timeout=90, kernel_name="python3").execute()
for cell in book.cells:
    for output in cell.outputs:
        print(output.output_type, output.get("data", output.get("text")))
"""


def test_a_real_kernel(tmp_path: Path) -> None:
    """Cells of a notebook, in a kernel: blocking calls inside its running loop, awaited ones, the table, the live view."""
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    environment = {**os.environ, "JUPYTER_PLATFORM_DIRS": "1", "IPYTHONDIR": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", KERNEL],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3_000:]
    assert "<b>book</b> (g1)" in done.stdout, "the run shows itself as a table"
    assert "'RUNNING'" in done.stdout, "awaited at the top level of a cell"
    assert done.stdout.count("SUCCEEDED") >= 2, done.stdout
    assert "display_data" in done.stdout, "the live view"
