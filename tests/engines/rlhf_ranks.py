"""What `test_rlhf_learners` runs by torchrun: all three models of RLHF with PPO on some ranks. MODEL OUT replicate|full."""

import json
import sys
from pathlib import Path

import torch

from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.rlhf_ppo.policy import PolicyLearner
from gangflow.recipes.rlhf_ppo.preferences import RewardModel, TokenPair
from gangflow.recipes.rlhf_ppo.scalar import Scalar
from gangflow.recipes.rlhf_ppo.values import ValueLearner
from tests.engines.rlhf_parts import settings

model, out, sharding = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
team = Team.join("cpu")
config = settings(sharding=sharding, minibatches=2, micro_batch=3, learning_rate=1e-3, reward_learning_rate=1e-3)
chance = torch.Generator().manual_seed(0)
prompts = torch.randint(5, 60, (11, 4), generator=chance).tolist()
# Replies of different lengths, and rows that do not divide by the ranks.
replies = [[*row[: 1 + n % 4], 1] for n, row in enumerate(torch.randint(5, 60, (11, 5), generator=chance).tolist())]
batch = pack(prompts, replies, [[-2.0] * len(reply) for reply in replies])
signal = torch.where(batch.answer, torch.randn(batch.sampled.shape, generator=chance), 0.0)

if sharding == "full" and not team.leads:
    del models.load  # 70B in float32 are 280 GB: nobody but the leader, in its CPU memory, may hold the policy whole.
policy, critic = PolicyLearner.start(model, config, team), ValueLearner.start(model, config, team)
found: dict[str, object] = {}
for step in range(2):
    old, values = policy.survey(batch), critic.values(batch)
    found[f"logprobs {step}"] = old[batch.answer].tolist()
    found[f"values {step}"] = values[batch.answer].tolist()
    report, criticism = policy.train(batch, old, signal), critic.train(batch, values, signal)
    found[f"policy {step}"] = [report.clipped, report.moved, report.norm]
    found[f"critic {step}"] = [criticism.loss, criticism.clipped, criticism.norm]
found["logprobs"] = policy.survey(batch)[batch.answer].tolist()
found["values"] = critic.values(batch)[batch.answer].tolist()
found["probe"] = list(policy.probe([5, 6, 7]).logprobs)

pairs = [TokenPair(prompt, reply, other) for prompt, reply, other in zip(prompts, replies, replies[1:], strict=False)]
judge = RewardModel(Scalar.load(model, fresh_head=0), config, team)
found["losses"] = judge.fit(pairs)
found["scores"] = judge.scores(batch).tolist()
found["accuracy"] = judge.accuracy(pairs)

policy.save(out / "policy")
critic.save(out / "critic")
policy.export(out / "exported")
judge.save(out / "reward")
if team.leads:
    again = RewardModel(Scalar.load(out / "reward"), config, Team(), judge.scale)
    found["scores of the saved"] = again.scores(batch).tolist()
    (out / "found.json").write_text(json.dumps(found))
team.sum(torch.zeros(1))
team.leave()
