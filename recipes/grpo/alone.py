"""The same run in one process, without a group: what distributing it must not change.

`OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m gangflow.recipes.grpo.alone seed=3` prints a line of JSON for each
measurement of the held-out accuracy, the last one with the fingerprint of the policy. A group with the same settings ends with
the same one on the same machine. (With more threads sums are rounded in another order.)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from gangflow.errors import SpecError
from gangflow.recipes.grpo import task
from gangflow.recipes.grpo.config import Config
from gangflow.recipes.grpo.learner import Learner, accuracy, sample_batch
from gangflow.recipes.grpo.policy import Policy
from gangflow.specs.overrides import apply


def train(config: Config) -> Iterator[dict[str, Any]]:
    """{step, reward, accuracy} at each measurement; the last one has the policy's fingerprint too."""
    policy = Policy.fresh(config.seed)
    reference = policy.copy()
    learner = Learner(policy, config.hyperparameters, seed=config.seed)
    trained, held_out = task.split(config.split_seed)
    while learner.step < config.steps:
        problems, seeds = learner.draw(trained)
        report = learner.train(sample_batch(policy, reference, problems, seeds, config.samples))
        last = learner.step == config.steps
        if last or learner.step % config.evaluate_every == 0:
            found = {"step": learner.step, "reward": round(report.reward, 5), "accuracy": accuracy(policy, held_out)}
            yield {**found, "policy": policy.fingerprint()} if last else found


def main(arguments: Sequence[str]) -> int:
    """Train with the given `key=value` settings."""
    try:
        config = apply(Config(), arguments)
    except SpecError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for line in train(config):
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
