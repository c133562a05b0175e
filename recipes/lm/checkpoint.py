"""Checkpoints by `torch.distributed.checkpoint`: model, optimizer and progress, each rank its part, in one folder.

A folder that was written by so many ranks can be read by another number of them. What a program keeps beside the tensors (steps
done, position in the data) is `progress`, a mapping with text keys; each rank's random generator is saved anyway.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict, set_state_dict

from gangflow.recipes.services.disk import is_full

LAYOUT: Final = 1
"""Version of what is in a folder."""


def save(folder: Path, model: Any, optimizer: Any, progress: Mapping[str, Any]) -> None:
    """Write a checkpoint that was not there before: whole, or not at all. On all ranks together.

    OSError on every rank when the disk is full for one of them; what was written is removed.
    """
    part = folder.with_name(f".{folder.name}")
    several = _several()
    _leader_does(lambda: _begin(part))
    weights, moments = get_state_dict(model, optimizer)
    state = {"layout": LAYOUT, "model": weights, "optimizer": moments, "progress": dict(progress), **_random()}
    try:
        with _alone_is_meant():
            dcp.save(state, checkpoint_id=str(part), no_dist=not several)
    except CheckpointException as broken:
        _leader_does(lambda: shutil.rmtree(part, ignore_errors=True))
        for failure in broken.failures.values():
            error = failure[0] if isinstance(failure, tuple) else failure
            if is_full(error) or "No space left" in str(error):
                raise OSError(28, f"no room for {folder}") from broken
        raise
    _leader_does(lambda: part.rename(folder))


def load(folder: Path, model: Any, optimizer: Any, progress: Mapping[str, Any]) -> dict[str, Any]:
    """Put a checkpoint into model and optimizer; returns its progress, which has the keys of the one that is given.

    On all ranks together. ValueError for a folder of another layout.
    """
    weights, moments = get_state_dict(model, optimizer)
    state = {"layout": 0, "model": weights, "optimizer": moments, "progress": dict(progress), **_random()}
    known = dcp.FileSystemReader(str(folder)).read_metadata().state_dict_metadata
    for name in [name for name in state if name.startswith("random.") and name not in known]:
        del state[name]  # It was saved by fewer ranks.
    with _alone_is_meant():
        dcp.load(state, checkpoint_id=str(folder), no_dist=not _several())
    if state["layout"] != LAYOUT:
        raise ValueError(f"{folder}: checkpoint layout {state['layout']}, expected {LAYOUT}")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for name, value in state.items():
        if name.startswith("random."):
            torch.set_rng_state(value)
    return dict(state["progress"])


def whole_weights(model: Any) -> dict[str, Any]:
    """All weights of the model on the leading rank, in its memory; on the others nothing. On all ranks together."""
    return dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)))


def _random() -> dict[str, Any]:
    """Each rank's generator, under a name of its own."""
    return {f"random.{dist.get_rank() if _several() else 0}": torch.get_rng_state()}


@contextmanager
def _alone_is_meant() -> Iterator[None]:
    """Torch warns of a single process, even when it is told that there is one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _begin(part: Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)


def _leader_does(act: Callable[[], object]) -> None:
    """What one rank does for all; its OSError is raised on every rank, so that they go on, or do not, together."""
    failed: list[OSError | None] = [None]
    if not _several() or dist.get_rank() == 0:
        try:
            act()
        except OSError as error:
            failed[0] = OSError(error.errno, str(error))
    if _several():
        dist.broadcast_object_list(failed, src=0, device=torch.device("cpu"))
    if failed[0] is not None:
        raise failed[0]


def _several() -> bool:
    return bool(dist.is_initialized())
