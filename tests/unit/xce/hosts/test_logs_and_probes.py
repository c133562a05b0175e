"""Pure parts of logs and probes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.xce.core.state import TaskKey
from gangflow.xce.hosts import tasklog
from gangflow.xce.hosts.preparing import Refusal, folder_of
from gangflow.xce.hosts.probes import Hysteresis


def append(folder: Path, text: str) -> None:
    with (folder / "stdout").open("ab") as file:
        file.write(text.encode())


def test_reading_by_offset_over_a_rotation(tmp_path: Path) -> None:
    append(tmp_path, "0123456789" * 10)
    assert not tasklog.rotate(tmp_path, "stdout", 100)
    append(tmp_path, "abcdefghij")
    assert tasklog.rotate(tmp_path, "stdout", 100)
    append(tmp_path, "KLMNO")
    assert tasklog.base_offset(tmp_path, "stdout") == 110
    chunk = tasklog.read(tmp_path, "stdout", 0, 1000, ended=False)
    assert (chunk.offset, chunk.next_offset, chunk.ended) == (10, 115, False)
    assert chunk.text == "0123456789" * 9 + "abcdefghijKLMNO"
    assert tasklog.read(tmp_path, "stdout", 108, 4, ended=True).text == "ijKL"
    assert not tasklog.read(tmp_path, "stdout", 108, 4, ended=True).ended
    assert tasklog.read(tmp_path, "stdout", -3, 100, ended=True).text == "MNO"
    end = tasklog.read(tmp_path, "stdout", 115, 100, ended=True)
    assert (end.text, end.ended) == ("", True)
    beyond = tasklog.read(tmp_path, "stdout", 999, 100, ended=False)
    assert (beyond.text, beyond.offset) == ("", 115)


@given(st.text(max_size=40), st.integers(1, 7))
def test_chunks_never_cut_a_character_and_add_up(tmp_path_factory: pytest.TempPathFactory, text: str, limit: int) -> None:
    text = text.encode("utf-8", "ignore").decode()
    folder = tmp_path_factory.mktemp("log")
    append(folder, text)
    size = len(text.encode())
    at, got = 0, ""
    while True:
        chunk = tasklog.read(folder, "stdout", at, max(limit, 4), ended=True)
        assert chunk.offset == at
        got += chunk.text
        at = chunk.next_offset
        if chunk.ended:
            break
    assert (got, at) == (text, size)


def test_half_a_character_waits_while_the_task_runs(tmp_path: Path) -> None:
    with (tmp_path / "stdout").open("wb") as file:
        file.write("aé".encode()[:-1])
    assert tasklog.read(tmp_path, "stdout", 0, 100, ended=False).text == "a"
    assert tasklog.read(tmp_path, "stdout", 0, 100, ended=True).text == "a\ufffd"


def test_tail(tmp_path: Path) -> None:
    assert tasklog.tail(tmp_path) == ""
    (tmp_path / "stderr").write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert tasklog.tail(tmp_path).splitlines() == [f"line {n}" for n in range(9_980, 10_000)]


def test_there_are_two_streams(tmp_path: Path) -> None:
    for stream in ("task.json", "../x", "stdout"):
        with pytest.raises(FileNotFoundError):
            tasklog.read(tmp_path, stream, 0, 10, ended=True)


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../x", "a\0", ".hidden", "a b", "a\n"])
def test_no_name_leaves_the_folder(name: str) -> None:
    for key in (TaskKey(name, 1, "m", 0, 1, 0), TaskKey("g1", 1, name, 0, 1, 0)):
        with pytest.raises(Refusal) as refused:
            folder_of(Path("/tasks"), key)
        assert refused.value.permanent


def test_hysteresis() -> None:
    edges = Hysteresis(failures=3, successes=2)
    results = [False, True, True, False, False, True, False, False, False, False, True, True]
    seen = [(index, edges.good) for index, result in enumerate(results) if edges.note(result)]
    assert seen == [(2, True), (8, False), (11, True)]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_edges_alternate_and_are_deserved(results: list[bool], failures: int, successes: int) -> None:
    edges = Hysteresis(failures, successes)
    last: bool | None = None
    for index, result in enumerate(results):
        if edges.note(result):
            assert edges.good is result
            assert edges.good is not last
            need = successes if result else failures
            assert results[max(0, index + 1 - need) : index + 1] == [result] * need
            last = edges.good
