"""The reward server: `POST /score` {prompts, answers} → {rewards}. Run as `python -m gangflow.recipes.grpo.reward`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gangflow.recipes.grpo import task
from gangflow.recipes.grpo.wire import pack, unpack
from gangflow.recipes.services.serving import serve


def score(request: dict[str, Any]) -> dict[str, Any]:
    """Packed int8 prompts (n, 4) and answers (n, 3) → packed float32 rewards (n,)."""
    prompts = unpack(request["prompts"], np.int8, task.PROMPT_DIGITS)
    answers = unpack(request["answers"], np.int8, task.ANSWER_DIGITS)
    if len(prompts) != len(answers):
        raise ValueError(f"{len(prompts)} prompts, but {len(answers)} answers")
    return {"rewards": pack(task.rewards(prompts, answers))}


def main() -> None:
    """Serve on the port that XCE gave."""
    serve({"/score": score})


if __name__ == "__main__":
    main()
