"""How `data/spell_backward.jsonl` was made: `python -m gangflow.recipes.lm.make_problems` (needs reasoning-gym 0.1.25).

Words of 3 to 7 lower-case letters from its task `spell_backward`, each once; the first 2,400 are for training, the
next 600 are held out.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Final

TRAINED: Final = 2_400
HELD_OUT: Final = 600
SHORTEST: Final = 3
LONGEST: Final = 7


def main() -> None:
    """Print the file."""
    reasoning_gym = import_module("reasoning_gym")  # Nobody needs it who does not make the file anew.
    dataset = reasoning_gym.create_dataset("spell_backward", seed=0, size=20_000, min_word_len=SHORTEST, max_word_len=LONGEST)
    words: set[str] = set()
    for entry in dataset:
        word = entry["metadata"]["word"]
        if not (word.isascii() and word.isalpha() and word.islower()) or word in words:
            continue
        part = "train" if len(words) < TRAINED else "held_out"
        words.add(word)
        line = {"prompt": f"{word}>", "answer": entry["answer"], "question": entry["question"], "split": part}
        print(json.dumps(line))
        if len(words) == TRAINED + HELD_OUT:
            return
    sys.exit(f"only {len(words)} words")


if __name__ == "__main__":
    main()
