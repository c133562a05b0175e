"""PPO's arithmetic against values that were computed by hand."""

import math

import pytest
import torch

from gangflow.recipes.rlhf_ppo.advantages import gae, last_column, sequence_kl, token_rewards, whiten
from gangflow.recipes.rlhf_ppo.losses import policy_loss, value_loss
from gangflow.recipes.rlhf_ppo.preferences import bradley_terry

# Two replies: columns 1–3 of the first row, columns 2–3 of the second; what is elsewhere must count for nothing.
ANSWER = torch.tensor([[False, True, True, True, False], [False, False, True, True, False]])
JUNK = torch.where(ANSWER, 0.0, 1e6)


def _near(found: torch.Tensor, wanted: list[list[float]]) -> None:
    torch.testing.assert_close(found, torch.tensor(wanted), rtol=0, atol=1e-6)


def test_the_score_is_earned_by_the_last_token_and_the_kl_penalty_by_each() -> None:
    logprobs = torch.tensor([[0, -1.0, -2.0, -0.5, 0], [0, 0, -3.0, -1.0, 0]]) + JUNK
    reference = torch.tensor([[0, -1.5, -1.0, -0.5, 0], [0, 0, -2.0, -2.0, 0]]) + JUNK
    rewards = token_rewards(torch.tensor([2.0, -1.0]), logprobs, reference, ANSWER, kl_weight=0.1)
    _near(rewards, [[0, -0.05, 0.1, 2.0, 0], [0, 0, 0.1, -1.1, 0]])
    torch.testing.assert_close(sequence_kl(logprobs, reference, ANSWER), torch.tensor([-0.5, 0.0]))
    assert last_column(ANSWER).tolist() == [3, 3]


def test_a_reply_without_a_token_is_refused() -> None:
    with pytest.raises(ValueError, match="without a token"):
        token_rewards(torch.zeros(1), *(torch.zeros(1, 3),) * 2, torch.zeros(1, 3, dtype=torch.bool), 0.1)


def test_gae_by_hand() -> None:
    # Row 0: r = 0, 0, 1; V = 0.5, 0.4, 0.3; γ = 0.9, λ = 0.5.
    # δ₃ = 1 − 0.3 = 0.7;  δ₂ = 0.9·0.3 − 0.4 = −0.13;  δ₁ = 0.9·0.4 − 0.5 = −0.14
    # A₃ = 0.7;  A₂ = −0.13 + 0.45·0.7 = 0.185;  A₁ = −0.14 + 0.45·0.185 = −0.05675
    # Row 1: r = 1, 2; V = 0, 1: δ₃ = 1; δ₂ = 1 + 0.9 − 0 = 1.9; A₃ = 1; A₂ = 1.9 + 0.45 = 2.35
    rewards = torch.tensor([[0, 0, 0, 1.0, 0], [0, 0, 1.0, 2.0, 0]]) + JUNK
    values = torch.tensor([[0, 0.5, 0.4, 0.3, 0], [0, 0, 0, 1.0, 0]]) + JUNK
    advantages, returns = gae(rewards, values, ANSWER, discount=0.9, trace=0.5)
    _near(advantages, [[0, -0.05675, 0.185, 0.7, 0], [0, 0, 2.35, 1.0, 0]])
    _near(returns, [[0, 0.44325, 0.585, 1.0, 0], [0, 0, 2.35, 2.0, 0]])


def test_with_a_trace_of_one_returns_are_the_discounted_rewards_whatever_the_critic_says() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(2, 5, generator=generator), torch.randn(2, 5, generator=generator)
    _, returns = gae(rewards, values, ANSWER, discount=0.9, trace=1.0)
    first = rewards[0, 1] + 0.9 * rewards[0, 2] + 0.81 * rewards[0, 3]
    assert returns[0, 1] == pytest.approx(float(first), abs=1e-6)


def test_whitened_advantages_have_mean_0_and_variance_1_over_the_replies_only() -> None:
    found = whiten(torch.tensor([[0, 1.0, 2.0, 3.0, 0], [0, 0, 4.0, 5.0, 0]]) + JUNK, ANSWER)
    root = math.sqrt(2.0)  # values 1 … 5: mean 3, variance 2
    _near(found, [[0, -2 / root, -1 / root, 0, 0], [0, 0, 1 / root, 2 / root, 0]])


def test_the_policy_loss_is_the_smaller_gain() -> None:
    ratios = torch.tensor([[1, 1.5, 0.5, 1.1, 1], [1, 1, 1.5, 0.5, 1]])
    gains = torch.tensor([[0, 1.0, 1.0, 1.0, 0], [0, 0, -1.0, -1.0, 0]])
    old = torch.full((2, 5), -1.0) + JUNK
    now = (torch.log(ratios) - 1.0 + JUNK).requires_grad_()
    found = policy_loss(now, old, old, gains, ANSWER, clip=0.2, cap=2.0)
    # Gains: min(1.5, 1.2), min(0.5, 0.8), 1.1, min(−1.5, −1.2), min(−0.5, −0.8): 1.2 + 0.5 + 1.1 − 1.5 − 0.8 = 0.5.
    assert float(found.loss.detach()) == pytest.approx(-0.5, abs=1e-6)
    assert found.cut == 2  # the first and the last of these
    found.loss.backward()
    assert now.grad is not None
    _near(now.grad, [[0, 0, -0.5, -1.1, 0], [0, 0, 1.5, 0, 0]])


def test_what_an_engine_samples_a_little_differently_is_corrected_up_to_a_cap() -> None:
    answer = torch.tensor([[True, True, False]])
    old = torch.tensor([[-1.0, -1.0, 7.0]])
    sampled = old - torch.log(torch.tensor([[1.5, 9.0, 1.0]]))  # the trainer is 1.5 and 9 times as sure
    now = old.clone().requires_grad_()
    found = policy_loss(now, old, sampled, torch.ones(1, 3), answer, clip=0.2, cap=2.0)
    assert float(found.loss.detach()) == pytest.approx(-(1.5 + 2.0), abs=1e-5)
    found.loss.backward()
    assert now.grad is not None
    _near(now.grad, [[-1.5, -2.0, 0.0]])


def test_the_value_loss_is_the_larger_error() -> None:
    answer = torch.tensor([[True, True, True, False]])
    before, returns = torch.tensor([[0.0, 0.0, 0.0, 5.0]]), torch.tensor([[1.0, 1.0, -1.0, 9.0]])
    now = torch.tensor([[0.5, 0.1, 0.5, 3.0]], requires_grad=True)
    found = value_loss(now, before, returns, answer, clip=0.2)
    # Clipped to 0.2, 0.1, 0.2: errors² max(0.25, 0.64), 0.81, max(2.25, 1.44).
    assert float(found.loss.detach()) == pytest.approx(0.5 * (0.64 + 0.81 + 2.25), abs=1e-6)
    assert found.cut == 1
    found.loss.backward()
    assert now.grad is not None
    _near(now.grad, [[0.0, -0.9, 1.5, 0.0]])


def test_a_choice_is_worth_its_log_likelihood() -> None:
    # σ(2) and σ(−1): −log of each.
    wanted = math.log(1 + math.exp(-2.0)) + math.log(1 + math.exp(1.0))
    assert float(bradley_terry(torch.tensor([3.0, 0.0]), torch.tensor([1.0, 1.0]))) == pytest.approx(wanted, abs=1e-6)
    assert float(bradley_terry(torch.zeros(1), torch.zeros(1))) == pytest.approx(math.log(2.0))
