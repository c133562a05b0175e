"""How much of its history a cluster keeps."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gangflow.specs.base import Spec
from gangflow.specs.quantity import Duration, Memory


class JournalSpec(Spec):
    """When records of the journal are forgotten. What the state needs is kept whatever is said here: a state image covers what
    goes, and watchers that ask for older events are told so (410)."""

    keep: Annotated[Duration, Field(ge=60_000)] = 7 * 86_400_000
    """Records stay so long."""
    keep_size: Annotated[Memory, Field(ge=0)] = 4_096
    """And at most so much of them, the newest; 0: as much as `keep` says."""
