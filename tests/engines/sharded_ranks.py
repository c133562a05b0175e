"""A rank of a model that is split, for test_sharded.py: `torchrun sharded_ranks.py MODEL FOLDER`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.recipes.grpo.lm.learner import Learner
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import sharded
from gangflow.recipes.lm.ranks import Team


def main() -> None:
    folder, out = sys.argv[1], Path(sys.argv[2])
    team = Team.join("cpu")
    config = LmConfig(sharding="full", actor_procs=2, checkpointing=True)
    learner = Learner.start(folder, config, team)
    local = sum(p.to_local().numel() for p in learner.model.parameters())
    plain = models.load(folder)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        apart = float((learner.model(input_ids=ids).logits - plain(input_ids=ids).logits).abs().max())
    optimized = {id(p) for group in learner.optimizer.param_groups for p in group["params"]}
    whole = get_model_state_dict(learner.model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    told = {
        "split": sharded.is_split(learner.model),
        "apart": apart,
        "local": local,
        "all": sum(p.numel() for p in plain.parameters()),
        "optimized": optimized == {id(p) for p in learner.model.parameters()},
        "meta": [name for name, p in learner.model.named_parameters() if p.is_meta],
        "same": team.rank > 0 or all(torch.equal(whole[name], value) for name, value in plain.state_dict().items()),
        "names": team.rank > 0 or set(whole) == set(plain.state_dict()),
        "stops": models.stop_tokens(learner.model, models.tokenizer_of(folder)),
        "checkpointing": bool(learner.model.is_activation_checkpointing),
    }
    (out / f"rank-{team.rank}.json").write_text(json.dumps(told))
    team.leave()


if __name__ == "__main__":
    main()
