"""A rollout program for tests: its policy is a number in a file; it can be held in the middle of a generation.

Run with the member's environment and HOLD, a folder: while `HOLD/hold` exists, a generation says that it began and waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangflow.integrations.embedded.server import EmbeddedRollout, Failed, serve

HOLD = Path(os.environ["HOLD"])


class Program(EmbeddedRollout[int]):
    """Answers each prompt with [prompt, policy, pid]."""

    def load(self, path: str) -> int:
        return int(Path(path).read_text())

    def generate(self, policy: int, prompts: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
        if (HOLD / "hold").exists():
            (HOLD / f"began-{os.getpid()}").touch()
            while (HOLD / "hold").exists():
                time.sleep(0.005)
        if "crash" in prompts:
            raise ZeroDivisionError("a bad prompt")
        return [Failed("too long") if prompt == "long" else [prompt, policy, os.getpid()] for prompt in prompts]


if __name__ == "__main__":
    serve(Program())
