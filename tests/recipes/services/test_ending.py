"""What a program's exit code says, and that nothing can hold up or change a bad end."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gangflow.errors import NoQuorum, Problem, SpecError
from gangflow.member.failures import PolicyMismatch
from gangflow.recipes.lm.problems import BadProblems, BadPrompt
from gangflow.recipes.rlhf_ppo.data import BadPreferences
from gangflow.recipes.services.ending import ended

FOR_GOOD = 65
BLOCKED = """
import atexit, threading
from concurrent.futures import ThreadPoolExecutor
from gangflow.recipes.services.ending import leave

begun = threading.Event()
def asks():
    begun.set()
    threading.Event().wait()

ThreadPoolExecutor(1).submit(asks)
assert begun.wait(60)
atexit.register(print, "the last beat")
leave(65)
"""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PolicyMismatch("another reference"), FOR_GOOD),
        (BadProblems("a line that is none"), FOR_GOOD),
        (BadPrompt("prompt 3: 0 tokens"), FOR_GOOD),
        (BadPreferences("pairs: line 7"), FOR_GOOD),
        (SpecError([Problem("prompts", "4", "at most 3")]), FOR_GOOD),
        (NoQuorum("fewer than 1 rollouts"), 1),
        (ConnectionResetError("the leader is gone"), 1),
    ],
)
def test_the_exit_code_says_whether_a_restart_can_help(error: Exception, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def failing() -> None:
        raise error

    assert ended(failing, for_good=FOR_GOOD) == code
    assert str(error).splitlines()[0] in capsys.readouterr().err


def test_a_program_that_has_done_its_work_ends_with_0_and_one_that_exits_is_let_go() -> None:
    def exits() -> None:
        sys.exit(3)

    assert ended(lambda: None, for_good=FOR_GOOD) == 0
    with pytest.raises(SystemExit):
        ended(exits, for_good=FOR_GOOD)


def test_a_thread_that_still_waits_holds_up_no_bad_end_and_what_is_sent_last_is_sent() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (65, "the last beat\n"), done.stderr
