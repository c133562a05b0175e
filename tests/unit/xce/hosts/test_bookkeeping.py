"""What an agent keeps: reports until confirmed, a position in a journal, records, old logs, ports."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gangflow.xce.core.inputs import TaskExited, TaskPrepared, TaskReady, TaskStarted, TaskUnready
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import HostFacts, TaskKey
from gangflow.xce.hosts import records
from gangflow.xce.hosts.outbox import Outbox, TaskReport
from gangflow.xce.hosts.portpool import BLOCK, NoPorts, PortPool, candidate_blocks
from gangflow.xce.hosts.records import Record, Retention
from gangflow.xce.hosts.standing import StandingFile
from gangflow.xce.hosts.watchdog import Silence

KEY = TaskKey("g1", 1, "m", 0, 1, 0)
OTHER = TaskKey("g1", 1, "m", 1, 1, 0)


async def test_reports_wait_in_order_until_confirmed() -> None:
    """Scenario 13: nothing is forgotten before it was confirmed."""
    confirmed: list[TaskReport] = []
    box = Outbox(confirmed.append)
    reports = [TaskPrepared(KEY, "h", "t"), TaskStarted(KEY, "h", 1), TaskExited(KEY, "h")]
    for report in reports:
        box.add(report)
    assert box.after(0, 2) == [(1, reports[0]), (2, reports[1])]
    assert box.after(1, 9) == [(2, reports[1]), (3, reports[2])]
    box.acknowledge(2)
    assert confirmed == reports[:2]
    assert box.after(0, 9) == [(3, reports[2])]
    box.add(TaskPrepared(OTHER, "h", "t"))
    assert [number for number, _ in box.after(0, 9)] == [3, 4]


async def test_of_a_flapping_probe_only_the_newest_edge_waits() -> None:
    box = Outbox()
    for number in range(1000):
        box.add(TaskReady(KEY, "h") if number % 2 else TaskUnready(KEY, "h", str(number)))
        box.add(TaskReady(OTHER, "h"))
    assert [report for _, report in box.after(0, 9)] == [TaskReady(OTHER, "h"), TaskReady(KEY, "h")]


async def test_after_a_long_absence_a_report_is_added_without_looking_at_all_that_wait() -> None:
    """Thousands of exits wait: what one more costs must not grow with them, nor what overtaken edges leave behind."""

    class Counted(TaskKey):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return TaskKey.__eq__(self, other)

        __hash__ = TaskKey.__hash__

    box = Outbox()
    for number in range(5_000):
        box.add(TaskExited(Counted("g1", 1, "m", number, 1, 0), "h"))
        box.add(TaskReady(KEY, "h", edge=2 * number + 1))
        box.add(TaskUnready(KEY, "h", "503", edge=2 * number + 2))
    assert Counted.compared <= 3 * 5_000
    assert len(box) == 5_001
    found = box.after(0, 6_000)
    assert len(found) == 5_001
    assert [number for number, _ in found] == sorted(number for number, _ in found)
    assert found[-1] == (box.last, TaskUnready(KEY, "h", "503", edge=10_000))
    box.acknowledge(found[2_499][0])
    assert box.after(0, 1) == [found[2_500]]
    assert box.after(found[3_000][0], 2) == found[3_001:3_003]
    box.acknowledge(box.last)
    assert (len(box), box.after(0, 9)) == (0, [])


async def test_a_repetition_of_what_waits_is_dropped() -> None:
    box = Outbox()
    box.add(TaskExited(KEY, "h", code=1))
    box.add(TaskExited(KEY, "h", code=1))
    assert len(box) == 1
    box.acknowledge(1)
    box.add(TaskExited(KEY, "h", code=1))
    assert len(box) == 1


async def test_the_sender_wakes_up_for_what_is_new() -> None:
    box = Outbox()
    waiting = asyncio.ensure_future(box.next_after(0, 9))
    await asyncio.sleep(0)
    assert not waiting.done()
    box.add(TaskReady(KEY, "h"))
    assert await waiting == [(1, TaskReady(KEY, "h"))]


def test_standing_survives_and_objects(tmp_path: Path) -> None:
    """Scenario 80: whom an agent obeys is on its disk."""
    file = StandingFile(tmp_path / "s")
    assert file.value.objection("c1", 1, 0) == ""
    file.advance("c1", 3, 10)
    file.advance("c1", 3, 7)  # a reconnect says no less than it said
    assert file.value.seq == 10
    again = StandingFile(tmp_path / "s").value
    assert again == file.value
    assert "c2" in again.objection("c2", 9, 99)
    assert "term 2" in again.objection("c1", 2, 99)
    assert "older copy" in again.objection("c1", 4, 9)
    assert again.objection("c1", 3, 10) == again.objection("c1", 4, 11) == ""


def test_records_come_back(tmp_path: Path) -> None:
    folder = tmp_path / "g1" / "m-0" / "1" / "0"
    folder.mkdir(parents=True)
    exit_ = TaskExited(KEY, "h", Cause.OOM, None, 9, "message", "tail")
    for record in (Record(KEY, "h", 12), Record(KEY, "h", 12, exit_)):
        records.write(folder, record)
        assert list(records.left_behind(tmp_path)) == [(folder, record)]
    (folder / "task.json").write_text("{")
    assert list(records.left_behind(tmp_path)) == []
    records.forget(folder)
    records.forget(folder)


def test_old_logs_are_removed_oldest_first(tmp_path: Path) -> None:
    folders = []
    for number in range(6):
        folder = tmp_path / "g1" / "m-0" / str(number) / "0"
        folder.mkdir(parents=True)
        (folder / "stdout").write_bytes(b"x" * 100_000)
        os.utime(folder, (number, number))
        folders.append(folder)
    records.write(folders[0], Record(KEY, "h", 1))  # not confirmed
    os.utime(folders[0], (0, 0))
    swept = Retention(tmp_path, 3, 1 << 30).sweep(frozenset({folders[1]}))
    assert swept == 1
    assert [folder.exists() for folder in folders] == [True, True, False, True, True, True]
    assert Retention(tmp_path, 3, 150_000).sweep(frozenset()) >= 2
    assert folders[0].exists()
    assert folders[5].exists()


@given(st.integers(1024, 65_000), st.integers(1024, 65_000))
def test_blocks_lie_outside_the_ephemeral_range(low: int, high: int) -> None:
    low, high = min(low, high), max(low, high)
    blocks = list(candidate_blocks((low, high)))
    assert len(blocks) == len(set(blocks))
    for block in blocks:
        assert block > high or block + BLOCK <= low
        assert 1024 <= block <= 65_536 - BLOCK


def test_pools_of_two_processes_are_disjoint_and_remembered(tmp_path: Path) -> None:
    hosts = [HostFacts("h0", port_count=BLOCK + 1), HostFacts("h1", port_count=1), HostFacts("h2")]
    one, two = PortPool(), PortPool()
    try:
        first = one.assign(hosts, tmp_path / "one")
        second = two.assign(hosts, tmp_path / "two")
        ports = [set(range(each.port_first, each.port_first + each.port_count)) for each in (*first, *second)]
        assert len(set().union(*ports)) == 2 * (BLOCK + 2)
        assert first[2].port_first == 0
        one.release()
        assert one.assign(hosts, tmp_path / "one") == first
        with pytest.raises(NoPorts):
            two.assign([HostFacts("big", port_count=60_000)], tmp_path / "big")
    finally:
        one.release()
        two.release()


def test_silence_counts_real_time_with_a_lease_and_only_what_it_saw_without() -> None:
    leased, local = Silence(0.0, 1.0, boottime=True), Silence(0.0, 1.0, boottime=False)
    for silence in (leased, local):
        assert silence.look(1.0, True) == 0.0
        assert silence.look(2.0, False) == 1.0
    assert leased.look(3600.0, False) == 3599.0
    assert local.look(3600.0, False) == 3.0  # the machine slept
    assert local.look(3601.0, True) == 0.0


def test_a_disk_that_takes_only_a_part_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that ends early is no error to the kernel; the next one is. Half a file would keep the agent from starting."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:7]))
    standing = StandingFile(tmp_path / "standing.json")
    standing.advance("cluster", 3, 4711)
    assert StandingFile(tmp_path / "standing.json").value == standing.value

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        standing.advance("cluster", 3, 4712)
    assert StandingFile(tmp_path / "standing.json").value.seq == 4711
