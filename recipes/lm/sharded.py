"""A model split over the trainer's ranks (FSDP2), loaded so that no GPU ever holds more than its share.

The leader reads the whole model into its CPU memory; the others build it without weights. Each part then goes to the rank that
it belongs to. (Loaded whole on each GPU first, a model could be as large as one GPU only: 70B in float32 has 280 GB.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from gangflow.recipes.lm import model as models
from gangflow.recipes.lm.ranks import Team


def split(model: Any, team: Team, *, layers: Iterable[Any] | None = None, half: bool = False) -> Any:
    """Split its weights over the ranks, layer by layer; it may have none yet (`models.empty`). Returns the same model.

    `layers`: its blocks, where they are not those of a causal model. `half`: compute in bfloat16; weights and the sums of
    gradients are float32 everywhere.
    """
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else torch.float32, reduce_dtype=torch.float32)
    for layer in model.model.layers if layers is None else layers:
        fully_shard(layer, mesh=team.mesh, mp_policy=policy)
    fully_shard(model, mesh=team.mesh, mp_policy=policy)
    return model


def is_split(model: Any) -> bool:
    """Whether `split` was called on it."""
    return isinstance(model, FSDPModule)


def load(folder: str, team: Team, *, half: bool = False, checkpointing: bool = False) -> Any:
    """The model of a folder, in float32, split over the ranks. On all ranks together."""
    model = split(models.empty(folder, checkpointing=checkpointing), team, half=half)
    # What is no weight (the frequencies of positions) is there already, and would be emptied, too.
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.to_empty(device=team.device)
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])
    whole = models.load(folder).state_dict() if team.leads else {}
    set_model_state_dict(model, whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    return model
