"""The preference that is learned, and the data that shows it."""

import random

import pytest

from gangflow.recipes.rlhf_ppo import task
from gangflow.recipes.rlhf_ppo.task import Pair


def test_the_split_is_disjoint_whole_and_the_same_for_the_same_seed() -> None:
    trained, held_out = task.split(3)
    assert not set(trained) & set(held_out)
    assert sorted((*trained, *held_out)) == sorted(task.PROMPTS)
    assert len(held_out) == round(0.2 * len(task.PROMPTS))
    assert task.split(3) == (trained, held_out)
    assert task.split(4) != (trained, held_out)


def test_every_name_and_every_good_is_trained_on() -> None:
    trained, _ = task.split()
    assert {prompt.split()[0] for prompt in trained} == set(task.NAMES)
    assert {prompt.split()[2].rstrip(":") for prompt in trained} == set(task.GOODS)


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("tea for ann, enjoy.", 1.0),
        ("tea for ann.", 0.9),
        ("tea for ann, hurry.", 0.8),
        ("tea for you, enjoy.", 0.8),
        ("tea for bob, enjoy.", 0.8),
        ("jam for ann, enjoy.", 0.6),
        ("tea for ann, enjoy!!", 0.8),
        ("tea for ann, enjoy", 0.8),
        ("jam for you, hurry!!", 0.0),
        ("", 0.0),
        ("tea for ann, enjoy. tea for ann, enjoy.", 0.0),
        ("tea tea for ann.", 0.0),
        ("gold for ann, enjoy.", 0.0),
        ("tea for xxx, enjoy.", 0.0),
        ("tea for ann, love.", 0.0),
        ("TEA for ann.", 0.0),
    ],
)
def test_quality_is_what_the_module_says(reply: str, wanted: float) -> None:
    assert task.quality("ann wants tea:", reply) == pytest.approx(wanted)


def test_what_is_no_order_has_no_quality() -> None:
    with pytest.raises(ValueError, match="ann wants tea"):
        task.quality("give me tea", "tea for you.")
    with pytest.raises(ValueError, match="ann wants tea"):
        task.reply("give me tea", random.Random(0))


def test_clerks_are_of_all_kinds() -> None:
    found = [task.quality(prompt, reply) for prompt, reply in task.corpus(task.PROMPTS, 2_000, seed=1)]
    assert min(found) <= 0.0
    assert max(found) >= 1.0
    assert 0.4 < sum(found) / len(found) < 0.6


def test_annotators_mostly_prefer_the_better_reply() -> None:
    pairs = task.pairs(task.PROMPTS, 1_000, seed=2)
    assert 0.9 < task.ceiling(pairs) < 0.99
    assert task.ceiling(task.pairs(task.PROMPTS, 300, seed=2, sharpness=1_000.0)) == 1.0
    blind = task.ceiling(task.pairs(task.PROMPTS, 1_000, seed=2, sharpness=1e-9))
    assert 0.4 < blind < 0.6


def test_pairs_are_the_same_for_the_same_seed_and_never_equally_good() -> None:
    pairs = task.pairs(task.PROMPTS, 200, seed=5)
    assert pairs == task.pairs(task.PROMPTS, 200, seed=5)
    assert pairs != task.pairs(task.PROMPTS, 200, seed=6)
    for pair in pairs:
        assert isinstance(pair, Pair)
        assert task.quality(pair.prompt, pair.chosen) != task.quality(pair.prompt, pair.rejected)


def test_replies_fit() -> None:
    longest = max(len(reply) for _, reply in task.corpus(task.PROMPTS, 3_000, seed=0))
    assert longest < task.LONGEST_REPLY
