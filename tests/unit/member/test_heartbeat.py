"""Beats at the end of a process."""

from __future__ import annotations

import subprocess
import sys


def test_what_a_program_says_last_is_sent_before_it_ends() -> None:
    """The last beat of a run is its result; it comes right before the exit, within the pause between two beats."""
    code = """
import json, sys
from gangflow.member.heartbeat import Heartbeat
beats = Heartbeat(lambda body: print(json.dumps(body["step"]), flush=True), interval_s=60)
beats.beat({"step": 1})
beats.flush()
beats.beat({"step": 2})
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout.split() == ["1", "2"]
