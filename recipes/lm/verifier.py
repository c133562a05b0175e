"""The reward server: verifies answers. Run as `python -m gangflow.recipes.lm.verifier`; needs no torch.

`POST /score` {"problems": [number, …], "texts": [text, …]} → {"rewards": [0 … 2, …], "exact": [bool, …]}; a number is a
problem's line in the run's set. A request that cannot be judged as a whole is refused: a failure is never a reward of 0.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from gangflow.recipes.lm import problems
from gangflow.recipes.lm.problems import Problem
from gangflow.recipes.services.ending import ended, leave
from gangflow.recipes.services.rules import WRONG_INPUT
from gangflow.recipes.services.serving import Answer, serve


def judge(known: Sequence[Problem]) -> Answer:
    """The answer to /score about these problems."""
    answers = {problem.number: problem.answer for problem in known}

    def score(request: dict[str, Any]) -> dict[str, Any]:
        numbers, texts = request["problems"], request["texts"]
        if not isinstance(numbers, list) or not isinstance(texts, list) or len(numbers) != len(texts):
            raise ValueError("expected as many texts as problems, in two lists")
        for number, text in zip(numbers, texts, strict=True):
            if not isinstance(number, int) or number not in answers:
                raise ValueError(f"problems: expected a number below {len(answers)}, got {number!r}")
            if not isinstance(text, str):
                raise ValueError(f"texts: expected a text, got {text!r}")
        judged = [(answers[number], text) for number, text in zip(numbers, texts, strict=True)]
        return {
            "rewards": [problems.reward(answer, text) for answer, text in judged],
            "exact": [problems.exact(answer, text) for answer, text in judged],
        }

    return score


def main() -> int:
    """Serve on the port that XCE gave, the configuration's `problems`. The exit code says whether a restart can help."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="GRPO_CONFIG", help="environment variable with the recipe's configuration")
    config = json.loads(os.environ[parser.parse_args().config])
    return ended(lambda: serve({"/score": judge(problems.load(config["problems"]))}), for_good=WRONG_INPUT)


if __name__ == "__main__":
    leave(main())
