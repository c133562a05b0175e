"""TRL's `GRPOTrainer` as the actor of a co-start group: README.md beside this file has the lines. Imports torch.

`Actor` has what the trainer is given: `rollout_func`, `callback`, and `resume()`.
"""

from __future__ import annotations

from gangflow.integrations.trl.actor import Actor
from gangflow.integrations.trl.callback import GroupCallback
from gangflow.integrations.trl.publishing import Publisher
from gangflow.integrations.trl.rollouts import SkippedPrompts

__all__ = ["Actor", "GroupCallback", "Publisher", "SkippedPrompts"]
