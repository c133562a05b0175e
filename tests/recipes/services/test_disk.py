"""Waiting for room on a full disk."""

import errno

import pytest

from gangflow.recipes.services.disk import DiskFull, is_full, with_room


class Disk:
    """Full for so many attempts."""

    def __init__(self, full: int, number: int = errno.ENOSPC) -> None:
        self.left = full
        self.number = number
        self.freed = 0
        self.said: list[str] = []

    def write(self) -> str:
        if self.left:
            self.left -= 1
            raise OSError(self.number, "No space left on device")
        return "written"

    def free(self) -> None:
        self.freed += 1

    def run(self, patience_s: float) -> str:
        return with_room("weights", self.write, free=self.free, waiting=self.said.append, patience_s=patience_s, pause_s=0.001)


def test_what_was_freed_may_be_enough() -> None:
    disk = Disk(1)
    assert disk.run(10.0) == "written"
    assert disk.freed == 1
    assert disk.said == ["weights: the disk is full ([Errno 28] No space left on device)"]


def test_it_waits_for_room_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    disk = Disk(4, errno.EDQUOT)
    assert disk.run(10.0) == "written"
    assert len(disk.said) == 4
    assert capsys.readouterr().err.count("freeing") == 1


def test_patience_ends_with_a_clear_message() -> None:
    with pytest.raises(DiskFull, match=r"weights: the disk is full .* for 0.05 s") as error:
        Disk(1_000_000).run(0.05)
    assert "make room" in error.value.advice


def test_every_other_error_is_none_of_its_business() -> None:
    disk = Disk(1, errno.EACCES)
    with pytest.raises(OSError, match="13"):
        disk.run(10.0)
    assert not disk.freed


def test_a_full_disk_is_recognised_under_what_it_led_to() -> None:
    wrapped = RuntimeError("cannot save")
    wrapped.__cause__ = OSError(errno.ENOSPC, "full")
    assert is_full(wrapped)
    assert not is_full(RuntimeError("something else"))
