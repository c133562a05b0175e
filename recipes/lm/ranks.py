"""The trainer's processes: one alone, or those that torchrun started. Rank 0 leads and alone knows of gangflow.

What all ranks must do together are methods of one object (a learner). The leader calls them through `Team.all`, which tells the
others what is called with what; they wait in `Team.follow`. When a rank dies, torchrun ends the others, and the job restarts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from gangflow.recipes.services.disk import is_full

PATIENCE: Final = timedelta(days=1)
"""How long a follower waits for the leader's next call: it may be waiting for rollouts. A dead leader is seen at once."""
_END: Final = "end"


class OnAllRanks(Exception):
    """What every rank finds in the same moment, since all have computed the same.

    The leader says so to the group and ends; the others wait for that, or torchrun would end the leader before it was heard.
    """


@dataclass(frozen=True, slots=True)
class Team:
    """This process among the trainer's."""

    rank: int = 0
    size: int = 1
    device: str = "cpu"
    mesh: Any = None
    """Of all ranks; None when there is one."""

    @classmethod
    def join(cls, device: str, environment: Mapping[str, str] = os.environ) -> Team:
        """By RANK, LOCAL_RANK and WORLD_SIZE, which torchrun sets. `device`: cpu, or gpu for one GPU of its own per rank."""
        size, rank = int(environment.get("WORLD_SIZE", "1")), int(environment.get("RANK", "0"))
        kind = "cuda" if device == "gpu" else "cpu"
        if kind == "cuda":
            torch.cuda.set_device(int(environment.get("LOCAL_RANK", "0")))
        if size == 1:
            return cls(device=kind)
        backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PATIENCE)
        from torch.distributed.device_mesh import init_device_mesh

        return cls(rank, size, kind, init_device_mesh(kind, (size,)))

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def all(self, work: Any, name: str, *arguments: Any) -> Any:
        """The leader's: call `work.name(*arguments)` on every rank; what it returns here."""
        self._tell((name, arguments))
        return getattr(work, name)(*arguments)

    def follow(self, work: Any) -> None:
        """The others': do what the leader calls, to the end.

        A full disk is the leader's to deal with, which will call again; so is what all ranks find alike. Every other error ends
        this rank, and so the job.
        """
        while True:
            name, arguments = self._hear()
            if name == _END:
                return
            try:
                getattr(work, name)(*arguments)
            except Exception as error:
                if not isinstance(error, OnAllRanks) and not is_full(error):
                    raise

    def end(self) -> None:
        """The leader's: let the others end."""
        self._tell((_END, ()))

    def leave(self) -> None:
        """Close the connections between ranks. A follower's process ends here: there is nothing that it still has to do.

        Threads of torch (split weights over gloo) now and then abort the interpreter's own teardown, and torchrun would count
        that as a rank that failed, and end a leader that is about to tell the result.
        """
        if self.size > 1:
            dist.destroy_process_group()
        if not self.leads:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def sum(self, values: Any) -> Any:
        """The elementwise sum of a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def largest(self, values: Any) -> Any:
        """The elementwise maximum of a tensor over all ranks, in place."""
        if self.size > 1:
            dist.all_reduce(values, dist.ReduceOp.MAX)
        return values

    def _tell(self, call: tuple[str, tuple[Any, ...]]) -> None:
        if self.size > 1:
            dist.broadcast_object_list([call], src=0, device=torch.device("cpu"))

    def _hear(self) -> tuple[str, tuple[Any, ...]]:
        heard: list[Any] = [None]
        dist.broadcast_object_list(heard, src=0, device=torch.device("cpu"))
        name, arguments = heard[0]
        return name, arguments
