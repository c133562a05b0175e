"""The reference server: log-probabilities under the frozen first policy. Run as `python -m gangflow.recipes.grpo.ref`.

`POST /logprobs` {prompts, answers} → {logprobs, policy}; `policy` is the fingerprint of what it computed them with, so that
the actor can tell a reference that is not its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gangflow.recipes.grpo import task
from gangflow.recipes.grpo.config import Config
from gangflow.recipes.grpo.policy import Policy
from gangflow.recipes.grpo.wire import pack, unpack
from gangflow.recipes.services.serving import Answer, serve


def judge(policy: Policy) -> Answer:
    """The answer to /logprobs under that policy."""
    fingerprint = policy.fingerprint()

    def logprobs(request: dict[str, Any]) -> dict[str, Any]:
        prompts = unpack(request["prompts"], np.int8, task.PROMPT_DIGITS)
        answers = unpack(request["answers"], np.int8, task.ANSWER_DIGITS)
        if len(prompts) != len(answers):
            raise ValueError(f"{len(prompts)} prompts, but {len(answers)} answers")
        return {"logprobs": pack(policy.logprobs(prompts, answers)), "policy": fingerprint}

    return logprobs


def main() -> None:
    """Serve on the port that XCE gave."""
    policy = Policy.fresh(Config.from_environment().seed)
    serve({"/logprobs": judge(policy)})


if __name__ == "__main__":
    main()
