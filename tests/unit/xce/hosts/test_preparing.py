"""What an agent puts into a container's command line: the task's own folder, and only where the core asked for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gangflow.xce.core.containers import FOLDER
from gangflow.xce.core.effects import Launch
from gangflow.xce.hosts.preparing import Prepared, Refusal, prepare


def prepared(folder: Path, *argv: str, words: tuple[int, ...]) -> Prepared:
    found = prepare(folder, Launch(argv, (), folder_words=words), "127.0.0.1", "mark", dict(os.environ))
    found.close()
    return found


def test_the_folder_stands_where_the_core_asked_for_it(tmp_path: Path) -> None:
    """A word of the user's own that looks the same is left alone."""
    found = prepared(tmp_path, "echo", f"{FOLDER}:{FOLDER}", FOLDER, words=(1,))
    assert found.argv == ("echo", f"{tmp_path}:{tmp_path}", FOLDER)
    assert prepared(tmp_path, "echo", FOLDER, words=()).argv == ("echo", FOLDER)


@pytest.mark.parametrize("name", ["a:b", "a,b"])
def test_a_folder_that_no_runtime_can_mount_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refusal, match="cannot be mounted") as refused:
        prepared(tmp_path / name, "echo", FOLDER, words=(1,))
    assert refused.value.permanent


@pytest.mark.parametrize(
    "launch", [Launch(("a\0",), ()), Launch(("echo",), (("A\0", "b"),)), Launch(("echo",), (), cwd="/a\0")]
)
def test_what_no_process_can_be_given_is_refused_and_ends_no_agent(tmp_path: Path, launch: Launch) -> None:
    with pytest.raises(Refusal, match="NUL") as refused:
        prepare(tmp_path, launch, "127.0.0.1", "mark", dict(os.environ))
    assert refused.value.permanent
