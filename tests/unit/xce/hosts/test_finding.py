"""Marks, and which processes belong to a task: pure parts of `marks` and `proctree`."""

from __future__ import annotations

import os
import signal
import subprocess

from hypothesis import given
from hypothesis import strategies as st

from gangflow.xce.hosts import marks, proctree
from gangflow.xce.hosts.proctree import Process, belonging

MARK = marks.mark("a1", "b2", "c1", "g1/1/m/0/1/0")


def process(pid: int, parent: int = 1, group: int = 0, session: int = 0, state: str = "S", *own: str) -> Process:
    return Process(pid, 100, parent, group or pid, session or pid, state, own)


def found(*processes: Process, **more: object) -> set[int]:
    return set(belonging({each.pid: each for each in processes}, MARK.__eq__, **more))  # type: ignore[arg-type]


def test_a_mark_is_found_wherever_it_stands_in_the_environment() -> None:
    for raw in (b"GANGFLOW_TASK=x\0A=1\0", b"A=1\0GANGFLOW_TASK=x\0B=2\0", b"A=1\0GANGFLOW_TASK=x"):
        assert marks.in_environment(raw) == ("x",)
    for raw in (b"", b"A=GANGFLOW_TASK=x\0", b"NO_GANGFLOW_TASK=x\0", b"A=\0"):
        assert marks.in_environment(raw) == ()


def test_a_nested_task_carries_both_marks() -> None:
    value = marks.nested("inner", "outer")
    assert marks.in_environment(b"GANGFLOW_TASK=" + value.encode() + b"\0") == ("inner", "outer")
    assert marks.nested("inner", "") == "inner"


@given(st.binary(max_size=60))
def test_no_environment_breaks_the_reader(raw: bytes) -> None:
    assert isinstance(marks.in_environment(b"GANGFLOW_TASK=" + raw), tuple)


def test_prefixes_tell_lives_apart() -> None:
    assert MARK.startswith(marks.life_prefix("a1", "b2"))
    assert MARK.startswith(marks.life_prefix("a1"))
    assert not MARK.startswith(marks.life_prefix("a1", "b"))
    assert not MARK.startswith(marks.life_prefix("a"))


def test_by_mark_group_session_descent_memory_and_control_group() -> None:
    """Scenario 82: every way in which a process of a killed server can still be told to be its own."""
    tree = [
        process(10, 1, 10, 10, "S", MARK),
        process(11, 10, 11, 11),  # a child in a session of its own
        process(12, 11, 12, 12),  # a grandchild
        process(13, 1, 10, 10),  # re-parented, in the group
        process(14, 1, 14, 10),  # re-parented, in the session
        process(15, 1, 15, 15, "S", MARK),  # re-parented, marked
        process(16, 15, 16, 16),  # a child of that one
        process(17),  # seen before
        process(18),  # in the control group
    ]
    strangers = [process(2), process(20, 2, 2, 2), process(21, 1, 21, 21, "S", MARK.replace("m/0", "m/1"))]
    got = found(*tree, *strangers, leader=10, known=[(17, 100)], members=[18])
    assert got == {each.pid for each in tree}


def test_a_reused_pid_is_no_old_acquaintance() -> None:
    assert found(process(17), known=[(17, 99)]) == set()


def test_zombies_hold_nothing_but_their_children_count() -> None:
    assert found(process(10, 1, 10, 10, "Z", MARK), process(11, 10)) == {11}


def test_a_kill_does_not_hit_a_process_that_started_later() -> None:
    victim = subprocess.Popen(["sleep", "60"])
    try:
        stat = proctree.read_stat(victim.pid)
        assert stat is not None
        proctree.kill(Process(victim.pid, stat[4] - 1, 1, 1, 1, "S"))
        assert victim.poll() is None
        proctree.kill(Process(victim.pid, stat[4], 1, 1, 1, "S"))
        assert victim.wait(30) == -signal.SIGKILL
    finally:
        victim.kill()
        victim.wait()


def test_what_a_process_was_is_remembered_when_it_drops_its_environment() -> None:
    environment = {**os.environ, marks.VARIABLE: MARK}
    victim = subprocess.Popen(
        ["sh", "-c", "read _; exec env -i sleep 60"], env=environment, stdin=subprocess.PIPE, start_new_session=True
    )
    try:
        scanner = proctree.Scanner()
        while not scanner.scan()[victim.pid].marks:
            pass
        assert victim.stdin is not None
        victim.stdin.write(b"\n")
        victim.stdin.flush()
        while proctree.read_marks(victim.pid):
            pass
        assert scanner.scan()[victim.pid].marks == (MARK,)
    finally:
        victim.kill()
        victim.communicate()
