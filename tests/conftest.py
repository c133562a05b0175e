"""For all tests."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores SIGINT, and so would every program that a test starts and then interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
