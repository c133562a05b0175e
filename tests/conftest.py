"""For all tests."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something about the machine, not about the program: no test asserts on time.
settings.register_profile("gangflow", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("gangflow")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell's background job ignores SIGINT, and so would every program that a test starts and then interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Of `tests/conformance`, whose docstring says what they are for; here, where pytest looks for options."""
    group = parser.getgroup("conformance")
    group.addoption("--xce-url", default=os.environ.get("XCE_CONFORMANCE_URL", ""), help="hold this XCE to the contract")
    group.addoption("--xce-token", default=os.environ.get("XCE_CONFORMANCE_TOKEN", ""), help="its admin's bearer token")
