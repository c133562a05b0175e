"""GRPO on a language model in a co-start group, against the same loop wired by hand (`by_hand.py`).

    .venv-rl/bin/python tests/benchmarks/rl_overhead.py [--pairs 3] [--steps 40] [key=value …]

Both sides train the recipe's tiny model on the same problems with the same seeds, two plain `vllm serve`, the verifier and the
reference, each a process of its own; a pair is a run of each, and the sides take turns in going first, so that what drifts on
this machine meets both.
A step is what lies between the ends of two steps; the first few, while caches fill, do not count. Overhead is the time of the
steady steps of a group's run against those of the run by hand beside it. `key=value` are settings of the recipe (`prompts=64`).

By hand nothing is synced to the disk, checked, admitted, committed, traced or restarted. Goal: at most 3 % overhead.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from recipe_runs import PHASES, Ran, by_hand, in_group, needs_engines, scratch, tiny_model
from report import Side, publish

from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.specs.overrides import apply

SKIPPED = 5
"""Steps at the beginning that do not count."""
PERCENT_GOAL = 3.0


def overhead(ours: Ran, theirs: Ran) -> float:
    """Percent."""
    return (ours.minutes(SKIPPED) / theirs.minutes(SKIPPED) - 1) * 100


def lines(ours: Sequence[Ran], theirs: Sequence[Ran], samples: int) -> list[str]:
    """What there is to say beside the table: rates, overhead, and where it goes."""
    found = []
    for name, runs in (("gangflow", ours), ("by hand", theirs)):
        rates = [len(run.steps_ms(SKIPPED)) / run.minutes(SKIPPED) for run in runs]
        accuracies = ", ".join(f"{run.result['accuracy']:.3f}" for run in runs)
        found.append(
            f"{name:8}  {statistics.median(rates):6.1f} steps/min ({min(rates):.1f}–{max(rates):.1f}), "
            f"{statistics.median(rates) / 60 * samples:6.1f} samples/s; held-out accuracy at the end {accuracies}"
        )
    each = [overhead(mine, other) for mine, other in zip(ours, theirs, strict=True)]
    extra = statistics.median(_of_all(ours)) - statistics.median(_of_all(theirs))
    found.append(
        f"overhead {statistics.median(each):+.1f} % ({min(each):+.1f} to {max(each):+.1f} of {len(each)} pairs; "
        f"goal: ≤ {PERCENT_GOAL:g} %); the median step takes {extra:+.0f} ms"
    )
    found.append(f"{'ms per step':12}" + "".join(f"{phase:>12}" for phase in PHASES))
    for name, runs in (("gangflow", ours), ("by hand", theirs)):
        found.append(f"{name:12}" + "".join(f"{_phase(runs, phase):12.1f}" for phase in PHASES))
    kinds = sorted({kind for run in (*ours, *theirs) for kind in run.cpu_ms(SKIPPED)})
    found.append(f"{'CPU per step':12}" + "".join(f"{kind:>12}" for kind in (*kinds, "all")))
    for name, runs in (("gangflow", ours), ("by hand", theirs)):
        spent = [_cpu(runs, kind) for kind in kinds]
        found.append(f"{name:12}" + "".join(f"{each:12.1f}" for each in (*spent, sum(spent))))
    found.append(
        "(gangflow's `push` runs into its `generate`, which waits for it; its `publish` saves, syncs, digests, announces)"
    )
    return found


def _phase(runs: Sequence[Ran], name: str) -> float:
    return statistics.median(run.phase_ms(name, SKIPPED) for run in runs)


def _cpu(runs: Sequence[Ran], kind: str) -> float:
    return statistics.median(run.cpu_ms(SKIPPED).get(kind, 0.0) for run in runs)


def _of_all(runs: Sequence[Ran]) -> list[float]:
    return [each for run in runs for each in run.steps_ms(SKIPPED)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=3, help="runs of each side")
    parser.add_argument("--steps", type=int, default=40, help="of each run")
    parser.add_argument("settings", nargs="*", help="key=value of the recipe")
    options = parser.parse_args()
    needs_engines()
    if options.steps < SKIPPED + 2:
        parser.error(f"--steps: at least {SKIPPED + 2}")
    ours: list[Ran] = []
    theirs: list[Ran] = []
    with scratch() as folder:
        never = {"evaluate_every": 1_000_000, "python": sys.executable}  # Both measure the accuracy at the end only.
        base = LmConfig(model=str(tiny_model(folder / "model")), steps=options.steps, **never)
        config = apply(base, options.settings)
        for turn in range(options.pairs):
            # Each side goes first in every other pair: what the first run leaves behind favours neither.
            for group_now in (True, False) if turn % 2 == 0 else (False, True):
                if group_now:
                    ours.append(in_group(config, folder))
                else:
                    theirs.append(by_hand(config, folder / "by-hand"))
            print(f"pair {turn + 1}: overhead {overhead(ours[-1], theirs[-1]):+.1f} %", flush=True)
    sides = [Side("gangflow"), Side("by hand")]
    for side, runs in zip(sides, (ours, theirs), strict=True):
        for each in _of_all(runs):
            side.add(each)
    samples = config.prompts * config.samples
    facts = {
        "settings": options.settings,
        "samples_per_step": samples,
        "overhead_percent": [overhead(mine, other) for mine, other in zip(ours, theirs, strict=True)],
        "phases_ms": {
            name: {phase: _phase(runs, phase) for phase in PHASES} for name, runs in (("gangflow", ours), ("by hand", theirs))
        },
        "cpu_ms": {name: [run.cpu_ms(SKIPPED) for run in runs] for name, runs in (("gangflow", ours), ("by hand", theirs))},
        "accuracy": {
            "gangflow": [run.result["accuracy"] for run in ours],
            "by hand": [run.result["accuracy"] for run in theirs],
        },
    }
    title = f"a step of GRPO, {config.prompts} prompts × {config.samples} samples, {options.steps} steps a run"
    publish("rl_overhead", title, sides, lines(ours, theirs, samples), facts)


if __name__ == "__main__":
    main()
