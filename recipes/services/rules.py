"""What the members of recipes have in common: how they are restarted, and how a service is seen to be ready."""

from __future__ import annotations

from typing import Any, Final

from gangflow.specs.failure import Backoff, FailureMatch, FailureRule
from gangflow.specs.probes import HttpProbe

PORT: Final = "http"
"""Of every service: the name of its port."""
CKPT: Final = "ckpt"
"""The claim of the shared folder: checkpoints, weights, metrics, result."""
FLOOR_AFTER_QUORUM_MS: Final = 30_000
TORCHRUN: Final = "gangflow.recipes.lm.torchrun"
"""Starts ranks, and ends with their exit code: by torchrun's own, which is always 1, no rule could tell what happened."""
WRONG_POLICY: Final = 65
"""Exit code of an actor that must not go on: its engines or its reference are not what it thinks, or what it was given cannot
be used. A restart would not help."""

WRONG_INPUT: Final = 66
"""Exit code of a service that cannot use what it was given: a file of problems, a tokenizer. A restart would read it again."""


def ranked(python: str, program: str, procs: int, tasks: int = 1) -> list[str]:
    """The command of a module that runs as one process, or as so many on each of so many hosts.

    Where there are several hosts, XCE injects PET_NNODES, PET_NODE_RANK and PET_RDZV_ENDPOINT: rank 0 is task 0's first.
    """
    if procs * tasks == 1:
        return [python, "-m", program]
    alone = ["--standalone"] if tasks == 1 else []
    return [python, "-m", TORCHRUN, *alone, f"--nproc-per-node={procs}", "-m", program]


def ms(duration: int) -> Any:
    """A number of milliseconds as specs read it: a bare number would mean seconds."""
    return f"{duration}ms"


def restart(max_restarts: int, *, then: str, **floor: Any) -> FailureRule:
    """Restart what failed by itself, soon: nothing of a program's start is worth a long wait."""
    return FailureRule(
        "restart_member",
        max_restarts=max_restarts,
        window="1h",
        backoff=Backoff(initial=ms(200), factor=2, max=ms(10_000)),
        then=then,
        **floor,
    )


def actor_rules(max_restarts: int) -> list[FailureRule]:
    """Of a trainer: from its newest checkpoint, unless it says that a restart would not help."""
    wrong = FailureMatch(cause=("app_exit",), exit_codes=(WRONG_POLICY,))
    return [FailureRule("fail_group", match=wrong), restart(max_restarts, then="fail_group")]


def reader_rules(max_restarts: int) -> list[FailureRule]:
    """Of a service that begins by reading what a user has given: what is wrong with that ends the group at once."""
    wrong = FailureMatch(cause=("app_exit",), exit_codes=(WRONG_INPUT,))
    return [FailureRule("fail_group", match=wrong), restart(max_restarts, then="fail_group")]


def rollout_rules(max_restarts: int, floor: int, quorum_timeout: int) -> list[FailureRule]:
    """Of generators. `floor`: `min_rollouts`; `quorum_timeout` in milliseconds.

    Too few of them is the coordinator's to judge, which knows who is eligible; XCE's floor is behind it.
    """
    grace = ms(quorum_timeout + FLOOR_AFTER_QUORUM_MS)
    return [restart(max_restarts, then="tolerate", floor=floor, floor_grace=grace)]


def served() -> dict[str, Any]:
    """Of a service: its port, and that it is ready once `/health` answers."""
    return {
        "ports": [PORT],
        "ready": HttpProbe(PORT, "/health", period="200ms", timeout="2s", successes=1),
        "termination_grace": "3s",
    }


def watched() -> HttpProbe:
    """Of a service that no coordinator watches: silent for 15 seconds, it is restarted."""
    return HttpProbe(PORT, "/health", period="2s", timeout="5s", failures=3)
