"""The scheduler: pure, in integers. It answers what waits for a place with grants, or with the reason why not.

    scheduler = Scheduler()
    answers = scheduler.decide(state, asks)

`never_fits` tells at submission what could not be placed even on the empty cluster.
"""

from __future__ import annotations

from gangflow.xce.placement.never import never_fits
from gangflow.xce.placement.scheduler import Scheduler

__all__ = ["Scheduler", "never_fits"]
