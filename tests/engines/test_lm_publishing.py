"""What engines are asked of new weights."""

from __future__ import annotations

from gangflow.recipes.lm.publishing import PROBED, probe_text


def test_a_probe_is_a_text_that_the_engines_take() -> None:
    """One more token, which scoring makes, has to fit too: a longer one would keep every engine out for good."""
    prompts = [[1, 2, 3], [4, 5], [6] * 100]
    assert probe_text(prompts, 128) == [1, 2, 3, 4, 5, *[6] * 43]
    assert len(probe_text(prompts, 128)) == PROBED
    assert probe_text(prompts, 5) == [1, 2, 3, 4]
    assert probe_text(prompts[:2], 128) == [1, 2, 3, 4, 5]
