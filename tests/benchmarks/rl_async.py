"""Asynchronous GRPO against synchronous on the same work: `max_staleness` 1 with partial rollouts kept, and 0.

    .venv-rl/bin/python tests/benchmarks/rl_async.py [--pairs 3] [--steps 60] [key=value …]

Both are real co-start groups with two vLLM rollouts, the same model, problems, seeds and number of steps, in turns.
Asynchronous, the samples of the next step are made while this one is trained on; a push lets what runs go on with the new
weights (`pause: keep`), and a sample's importance is corrected. What it costs is age: how many versions older than its step the
oldest token of a sample is. `key=value` are settings of the recipe.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recipe_runs import Ran, in_group, needs_engines, scratch, tiny_model
from report import Side, publish

from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.specs.overrides import apply

SKIPPED = 5
MODES: dict[str, dict[str, Any]] = {
    "asynchronous": {"max_staleness": 1, "pause": "keep"},
    "synchronous": {"max_staleness": 0, "pause": "wait"},
}


def rates(runs: Sequence[Ran]) -> list[float]:
    """Steps per minute of each run's steady steps."""
    return [len(run.steps_ms(SKIPPED)) / run.minutes(SKIPPED) for run in runs]


def mean_of(run: Ran, key: str) -> float:
    """Of all steps."""
    return statistics.mean(float(entry[key]) for entry in run.entries if entry["step"] > 0)


def told(name: str, runs: Sequence[Ran], samples: int) -> str:
    found = rates(runs)
    age = statistics.mean(mean_of(run, "lag") for run in runs)
    mixed = statistics.mean(mean_of(run, "mixed") for run in runs) / samples * 100
    accuracies = ", ".join(f"{run.result['accuracy']:.3f}" for run in runs)
    return (
        f"{name:12}  {statistics.median(found):6.1f} steps/min ({min(found):.1f}–{max(found):.1f}), "
        f"{statistics.median(found) / 60 * samples:6.1f} samples/s; age {age:.2f} versions, {mixed:.1f} % of two versions; "
        f"held-out accuracy {accuracies}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each mode")
    parser.add_argument("--steps", type=int, default=60, help="of each run")
    parser.add_argument("settings", nargs="*", help="key=value of the recipe")
    options = parser.parse_args()
    needs_engines()
    if options.steps < SKIPPED + 2:
        parser.error(f"--steps: at least {SKIPPED + 2}")
    runs: dict[str, list[Ran]] = {name: [] for name in MODES}
    with scratch() as folder:
        model = str(tiny_model(folder / "model"))
        for _ in range(options.pairs):
            for name, mode in MODES.items():
                base = LmConfig(model=model, steps=options.steps, evaluate_every=1_000_000, python=sys.executable, **mode)
                config = apply(base, options.settings)
                runs[name].append(in_group(config, folder))
                print(f"{name}: {rates(runs[name])[-1]:.1f} steps/min", flush=True)
    samples = config.prompts * config.samples
    sides = []
    for name, of_mode in runs.items():
        sides.append(Side(name))
        for run in of_mode:
            for each in run.steps_ms(SKIPPED):
                sides[-1].add(each)
    asynchronous, synchronous = (statistics.median(rates(runs[name])) for name in MODES)
    said = [told(name, of_mode, samples) for name, of_mode in runs.items()]
    said.append(f"asynchronous makes {asynchronous / synchronous:.2f} × the steps of synchronous in the same time")
    facts = {
        "settings": options.settings,
        "samples_per_step": samples,
        "steps_per_minute": {name: rates(of_mode) for name, of_mode in runs.items()},
        "age": {name: [mean_of(run, "lag") for run in of_mode] for name, of_mode in runs.items()},
        "importance": {name: [mean_of(run, "importance") for run in of_mode] for name, of_mode in runs.items()},
        "accuracy": {name: [run.result["accuracy"] for run in of_mode] for name, of_mode in runs.items()},
        "first_accuracy": {name: [run.result["first_accuracy"] for run in of_mode] for name, of_mode in runs.items()},
    }
    title = f"a step of GRPO, asynchronous and synchronous, {config.prompts} prompts × {config.samples} samples"
    publish("rl_async", title, sides, said, facts)


if __name__ == "__main__":
    main()
