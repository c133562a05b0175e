"""The warning before a runtime limit: which signal, and how long before."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from gangflow.specs.base import Spec, wrong
from gangflow.specs.faults import listed, nearest
from gangflow.specs.quantity import Duration

# As Linux numbers them (x86-64 and ARM): a client on another system may write the spec.
SIGNALS = {
    "SIGHUP": 1,
    "SIGINT": 2,
    "SIGQUIT": 3,
    "SIGUSR1": 10,
    "SIGUSR2": 12,
    "SIGALRM": 14,
    "SIGTERM": 15,
    "SIGCONT": 18,
    "SIGTSTP": 20,
    "SIGURG": 23,
    "SIGXCPU": 24,
    "SIGWINCH": 28,
}
"""Signals that a program can take as a warning."""


def _signal(value: object) -> object:
    name = value.upper() if isinstance(value, str) else value
    if isinstance(name, str) and not name.startswith("SIG"):
        name = f"SIG{name}"
    if name not in SIGNALS:
        # No program can take these two: no other one is meant.
        raise wrong("a signal: " + listed(SIGNALS), "" if name in ("SIGKILL", "SIGSTOP") else nearest(name, SIGNALS))
    return name


class RunWarning(Spec):
    """So long before its runtime limit, each running task's main process gets this signal, once per incarnation."""

    positional: ClassVar[tuple[str, ...]] = ("before", "signal")

    before: Annotated[Duration, Field(ge=1)]
    """The end of the runtime limit; less than the limit."""
    signal: Annotated[str, BeforeValidator(_signal)] = "SIGURG"
    """With or without `SIG`. The default is ignored by programs that do not ask for it, but does not reach into containers:
    there name another one. Most others end a program that does not ask for them."""
