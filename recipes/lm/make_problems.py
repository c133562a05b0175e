"""How `data/spell_backward.jsonl` was made: `python -m gangflow.recipes.lm.make_problems` (needs reasoning-gym 0.1.25).

Words of 3 to 6 lower-case letters from its task `spell_backward`, each once; the first 5,000 are for training, the
next 500 are held out.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Final

SOURCE: Final = "reasoning_gym"
WANTED: Final = "reasoning-gym==0.1.25"
TRAINED: Final = 5_000
HELD_OUT: Final = 500
SHORTEST: Final = 3
LONGEST: Final = 6


def main() -> None:
    """Print the file."""
    try:
        reasoning_gym = import_module(SOURCE)  # Nobody needs it who does not make the file anew.
    except ModuleNotFoundError as missing:
        if missing.name != SOURCE:
            raise
        sys.exit(f"{WANTED} is not installed, and no extra of gangflow has it: pip install {WANTED}")
    dataset = reasoning_gym.create_dataset("spell_backward", seed=0, size=50_000, min_word_len=SHORTEST, max_word_len=LONGEST)
    words: set[str] = set()
    for entry in dataset:
        word = entry["metadata"]["word"]
        if not (word.isascii() and word.isalpha() and word.islower()) or word in words:
            continue
        if not words:
            question = entry["question"].replace(f": {word}", ": {word}")
            print(json.dumps({"templates": {"prompt": "{word}>", "question": question}}))
        part = "train" if len(words) < TRAINED else "held_out"
        words.add(word)
        print(json.dumps({"word": word, "answer": entry["answer"], "split": part}))
        if len(words) == TRAINED + HELD_OUT:
            return
    sys.exit(f"only {len(words)} words")


if __name__ == "__main__":
    main()
