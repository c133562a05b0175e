"""The first policy: a tiny model that has learned to talk like the clerks of `task`, the bad ones included.

`python -m gangflow.recipes.rlhf_ppo.clerk FOLDER` makes it from random numbers by supervised steps on replies to **training**
prompts: what people call the SFT model. The same settings make the same weights on the same machine.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from gangflow.recipes.lm import tiny
from gangflow.recipes.lm.model import save_for_engines
from gangflow.recipes.lm.tiny import END, Tiny
from gangflow.recipes.rlhf_ppo import task

CLERK: Final = Tiny(problems="", warm_steps=250)
"""Half a minute on one core."""


def make(folder: Path, clerk: Tiny = CLERK) -> float:
    """Write it as a model folder that was not there before, with its tokenizer; returns the last loss, per token of a reply."""
    text = tiny.tokenizer()
    model = tiny.fresh(clerk)
    trained, _ = task.split()
    said = task.corpus(trained, clerk.warm_steps * clerk.warm_batch, clerk.seed)
    loss = tiny.warm(model, [(text.encode(prompt), [*text.encode(reply), END]) for prompt, reply in said], clerk)
    save_for_engines(model, folder, tokenizer=text)
    return loss


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=CLERK.seed)
    parser.add_argument("--steps", type=int, default=CLERK.warm_steps)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # Sums are rounded the same whatever the machine.
    arguments.folder.mkdir(parents=True, exist_ok=True)
    made = arguments.folder / ".clerk"
    loss = make(made, replace(CLERK, seed=arguments.seed, warm_steps=arguments.steps))
    for file in made.iterdir():
        file.replace(arguments.folder / file.name)
    made.rmdir()
    print(f"loss after {arguments.steps} supervised steps: {loss:.3f} nats a token", flush=True)


if __name__ == "__main__":
    main()
