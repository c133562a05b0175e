"""The learner: what a step does to the policy, by hand on a few sequences; checkpoints; one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.learner import Batch, Learner, advantages
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.drift import EngineDrift
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.lm.shares import plan
from gangflow.recipes.lm.spread import TrainingBroken

PROMPTS, SAMPLES = 3, 4
ROWS = PROMPTS * SAMPLES


def config(**more: Any) -> LmConfig:
    given = {"prompts": PROMPTS, "samples": SAMPLES, "steps": 10, "learning_rate": 1e-3, "micro_batch": 64}
    # Not the recipe's defaults, which are tuned to learn: one pass, at a rate that stays.
    given |= {"epochs": 1, "schedule": "constant", "min_learning_rate": 0.0}
    return LmConfig(**{**given, **more})


def learner(model: Path, **more: Any) -> Learner:
    return Learner.start(str(model), config(**more), Team())


def batch(model: Path, *, seed: int = 0, stale: float = 0.0, reference: bool = True) -> Batch:
    """Sequences of several lengths, as the model of that folder would have sampled them; `stale`: how far off its words are."""
    torch.manual_seed(seed)
    prompts = [[3 + row, 4, 5][: 2 + row % 2] for row in range(ROWS)]
    answers = [torch.randint(3, 60, (2 + row % 4,)).tolist() for row in range(ROWS)]
    policy = models.load(model)
    empty = pack(prompts, answers)
    with torch.no_grad():
        said = models.token_logprobs(policy, empty.tokens, empty.attention)
    sampled = torch.where(empty.answer, said + stale * torch.randn_like(said), 0.0)
    current = torch.full((ROWS,), not stale)
    weighed = torch.where(empty.answer, said + 0.1 * torch.randn_like(said), 0.0)
    rewards = torch.rand(ROWS).tolist()
    gains = advantages(rewards, SAMPLES)
    return Batch(replace(empty, sampled=sampled), gains, weighed if reference else None, current)


def weights(one: Learner) -> Any:
    return torch.cat([value.detach().reshape(-1) for value in one.model.parameters()])


def gradients(one: Learner) -> list[Any]:
    """Gets the gradient of each update; the updates themselves are not made any more."""
    seen: list[Any] = []
    one.optimizer.step = lambda: seen.append(torch.cat([value.grad.reshape(-1) for value in one.model.parameters()]))
    return seen


def test_advantages_compare_a_sample_with_those_of_its_prompt() -> None:
    found = advantages([0.0, 2.0, 5.0, 5.0], 2)
    assert found[:2].tolist() == pytest.approx([-1.0, 1.0], abs=1e-3)
    assert found[2:].tolist() == [0.0, 0.0]


def test_a_step_makes_better_answers_likelier(tiny_model: Path) -> None:
    one, made = learner(tiny_model, kl_weight=0.0), batch(tiny_model, reference=False)

    def likelihood() -> Any:
        with torch.no_grad():
            said = models.token_logprobs(one.model, made.sequences.tokens, made.sequences.attention)
        return torch.where(made.sequences.answer, said, 0.0).sum(1)

    before = likelihood()
    report = one.train(made)
    change = likelihood() - before
    assert float((change * made.advantages).sum()) > 0
    assert report.drift is not None
    assert report.drift < 1e-5
    assert report.importance == pytest.approx(1.0, abs=1e-5)
    assert report.kl == 0.0
    assert (one.step, one.position) == (1, PROMPTS)


def test_the_gradient_is_that_of_the_formula(tiny_model: Path) -> None:
    """The first update: ratio 1, so that the slope is −A·w for a token, and that of the KL term; a mean over tokens."""
    made = batch(tiny_model, stale=0.5)
    one = learner(tiny_model, kl_weight=0.3, importance_cap=1.2, grad_clip=1e9)
    plain = models.load(tiny_model)
    mask = made.sequences.answer
    now = models.token_logprobs(plain, made.sequences.tokens, made.sequences.attention)
    correction = (now.detach() - made.sequences.sampled).exp().clamp(max=1.2)
    apart = made.reference - now
    loss = -(made.advantages[:, None] * correction * now - 0.3 * (apart.exp() - apart - 1))[mask].sum() / mask.sum()
    loss.backward()
    expected = torch.cat([value.grad.reshape(-1) for value in plain.parameters()])
    seen = gradients(one)
    report = one.train(made)
    assert torch.allclose(seen[0], expected, atol=1e-6, rtol=1e-4)
    assert report.norm == pytest.approx(float(expected.norm()), rel=1e-4)
    assert report.capped == pytest.approx(float(((now - made.sequences.sampled).exp() > 1.2)[mask].float().mean()))


@pytest.mark.parametrize("micro_batch", [1, 5, ROWS])
def test_accumulating_the_gradient_changes_nothing(tiny_model: Path, micro_batch: int) -> None:
    made = batch(tiny_model)
    whole, parts = learner(tiny_model), learner(tiny_model, micro_batch=micro_batch)
    seen = [gradients(whole), gradients(parts)]
    one, other = whole.train(made), parts.train(made)
    assert torch.allclose(*seen[0], *seen[1], atol=1e-6, rtol=1e-4)
    assert other.kl == pytest.approx(one.kl, rel=1e-5)
    assert other.norm == pytest.approx(one.norm, rel=1e-4)


def test_the_clip_takes_the_gradient_of_what_went_too_far(tiny_model: Path) -> None:
    """After one update at a high rate, a second pass over the same samples finds tokens beyond the clip."""
    made = batch(tiny_model, reference=False)
    once = learner(tiny_model, kl_weight=0.0, learning_rate=0.05).train(made)
    twice = learner(tiny_model, kl_weight=0.0, learning_rate=0.05, epochs=2).train(made)
    assert once.clipped == 0.0
    assert 0.0 < twice.clipped < 0.5


def test_minibatches_are_several_updates_in_an_order_of_the_seed(tiny_model: Path) -> None:
    made = batch(tiny_model)
    one = learner(tiny_model)
    several = [learner(tiny_model, minibatches=3, seed=seed) for seed in (0, 0, 1)]
    for each in (one, *several):
        each.train(made)
    assert not torch.equal(weights(one), weights(several[0]))
    assert torch.equal(weights(several[0]), weights(several[1]))
    assert not torch.equal(weights(several[0]), weights(several[2]))


def test_the_gradients_norm_is_clipped(tiny_model: Path) -> None:
    made = batch(tiny_model)
    one = learner(tiny_model, grad_clip=0.01)
    seen = gradients(one)
    report = one.train(made)
    assert report.norm > 0.01
    assert float(seen[0].norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_learning_rate_follows_the_schedule(tiny_model: Path) -> None:
    one = learner(tiny_model, warmup=2, schedule="linear", steps=4)
    rates = [one.train(batch(tiny_model, stale=0.01)).rate for _ in range(4)]
    assert rates == pytest.approx([0.5e-3, 1e-3, 1e-3, 0.0])


def test_samples_of_another_policy_are_refused_before_anything_is_learned(tiny_model: Path) -> None:
    made = batch(tiny_model)
    off = made.sequences.sampled.clone()
    off[5][made.sequences.answer[5]] += 0.01
    one = learner(tiny_model)
    before = weights(one)
    with pytest.raises(EngineDrift, match=r"differ by 0\.0[01]"):
        one.train(replace(made, sequences=replace(made.sequences, sampled=off)))
    assert torch.equal(weights(one), before)
    assert one.step == 0


def test_the_mean_over_all_tokens_finds_what_no_single_token_shows(tiny_model: Path) -> None:
    """In bfloat16 one token may be far off with the right weights: many that are a little off have other ones."""
    made = batch(tiny_model)
    one, all_of_them = made.sequences.sampled.clone(), made.sequences.sampled.clone()
    one[5, int(made.sequences.answer[5].nonzero()[0])] += 0.6
    all_of_them[made.sequences.answer] += 0.2
    judged = learner(tiny_model, max_drift=5.0, max_mean_drift=0.1)
    report = judged.train(replace(made, sequences=replace(made.sequences, sampled=one)))
    assert report.drift == pytest.approx(0.6, abs=1e-3)
    with pytest.raises(EngineDrift, match=r"differ by 0\.[12]\d* in the mean; rounding is below 0\.1"):
        learner(tiny_model, max_drift=5.0, max_mean_drift=0.1).train(
            replace(made, sequences=replace(made.sequences, sampled=all_of_them))
        )


def test_a_logprob_that_is_not_a_number_is_drift(tiny_model: Path) -> None:
    made = batch(tiny_model)
    off = made.sequences.sampled.clone()
    off[0, 1] = torch.nan
    with pytest.raises(EngineDrift, match="differ by inf"):
        learner(tiny_model).train(replace(made, sequences=replace(made.sequences, sampled=off)))


def test_stale_samples_are_corrected_not_refused(tiny_model: Path) -> None:
    report = learner(tiny_model).train(batch(tiny_model, stale=0.3))
    assert report.drift is None
    assert report.importance == pytest.approx(1.0, abs=0.2)
    assert report.importance != pytest.approx(1.0, abs=1e-4)


def test_a_gradient_that_is_not_finite_changes_nothing(tiny_model: Path) -> None:
    made = batch(tiny_model)
    one = learner(tiny_model)
    before = weights(one)
    with pytest.raises(TrainingBroken, match="step 0: the gradient's norm is nan"):
        one.train(replace(made, advantages=torch.full((ROWS,), torch.nan)))
    assert torch.equal(weights(one), before)
    one.train(made)  # nothing of the broken gradient is left
    other = learner(tiny_model)
    other.train(made)
    assert torch.equal(weights(one), weights(other))


def test_a_resumed_run_is_the_same_to_the_bit(tiny_model: Path, tmp_path: Path) -> None:
    """Model, both moments, steps and position: given the same samples, nothing shows that it was interrupted."""
    batches = [batch(tiny_model, seed=seed, stale=0.01) for seed in range(4)]
    settings = {"warmup": 3, "minibatches": 2, "schedule": "cosine", "weight_decay": 0.01}
    one = learner(tiny_model, **settings)
    for made in batches[:2]:
        one.train(made)
    one.save(tmp_path / "step-000002-i1")
    torch.manual_seed(77)
    two = learner(tiny_model, **settings)
    two.load(tmp_path / "step-000002-i1")
    assert (two.step, two.position) == (2, 2 * PROMPTS)
    for made in batches[2:]:
        assert one.train(made) == two.train(made)
    assert torch.equal(weights(one), weights(two))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002-i1"]


def test_a_checkpoint_has_the_random_generators_state(tiny_model: Path, tmp_path: Path) -> None:
    one = learner(tiny_model)
    torch.manual_seed(123)
    one.save(tmp_path / "saved")
    expected = torch.rand(3)
    torch.manual_seed(5)
    learner(tiny_model).load(tmp_path / "saved")
    assert torch.equal(torch.rand(3), expected)


def test_a_probe_is_what_the_policy_says(tiny_model: Path, tmp_path: Path) -> None:
    one = learner(tiny_model)
    one.train(batch(tiny_model))
    one.export(tmp_path / "i1-v000001")
    assert one.probe([5, 6, 7, 8]) == models.probe_of(models.load(tmp_path / "i1-v000001"), [5, 6, 7, 8])
    assert one.probe([5, 6, 7, 8]) != models.probe_of(models.load(tiny_model), [5, 6, 7, 8])


@pytest.mark.parametrize(("rows", "minibatches", "micro", "ranks"), [(10, 1, 4, 1), (10, 3, 2, 2), (5, 2, 3, 4), (3, 8, 1, 2)])
def test_each_row_is_computed_once_and_all_ranks_pass_as_often(rows: int, minibatches: int, micro: int, ranks: int) -> None:
    plans = [plan(rows, minibatches, micro, Team(rank, ranks)) for rank in range(ranks)]
    assert len({tuple(tuple(len(parts) for parts in m) for m in each.minibatches) for each in plans}) == 1
    for minibatch in plans[0].minibatches:
        assert len({len(parts) for parts in minibatch}) == 1
        assert all(1 <= len(part.rows) <= micro for parts in minibatch for part in parts)
    done = [row for each in plans for part in each.micro_batches() if not part.padding for row in part.rows.tolist()]
    assert sorted(done) == list(range(rows))
    assert sum(len(plans[0].rows_of(minibatch)) for minibatch in plans[0].minibatches) == rows
