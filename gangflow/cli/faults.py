"""Faults on purpose: `--fault 'rollout[0]@step=60:kill'` sends a signal to a slot's process when its moment has come.

It goes the way of any operator, through the contract; XCE and the coordinator learn of it only by what then happens.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gangflow.errors import Problem, UsageError
from gangflow.specs.faults import nearest
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import ReplicaSet

SIGNALS: Mapping[str, int] = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP, "cont": signal.SIGCONT}
_FORM = re.compile(
    r"(?P<member>[a-z][a-z0-9_-]*)(\[(?P<index>\d+)\])?@(?P<when>[a-z]+)=(?P<value>\d+(\.\d+)?)(s)?:(?P<what>\w+)"
)
_MOMENTS = ("step", "after")


@dataclass(frozen=True, slots=True)
class Fault:
    """One planned fault."""

    member: str
    index: int
    signal: int
    step: int | None = None
    """When any heartbeat says this step or a later one."""
    after_s: float | None = None
    """Seconds after the group was first RUNNING."""

    def due(self, step: int | None, running_s: float | None) -> bool:
        """Whether its moment has come."""
        if self.step is not None:
            return step is not None and step >= self.step
        return running_s is not None and self.after_s is not None and running_s >= self.after_s

    def __str__(self) -> str:
        word = next(name for name, number in SIGNALS.items() if number == self.signal)
        moment = f"step {self.step}" if self.step is not None else f"{self.after_s:g} s after the start"
        return f"{word} {self.member}[{self.index}] at {moment}"


def parse(text: str) -> Fault:
    """`member[index]@step=N:kill` or `member[index]@after=SECONDS:kill`; signals are kill, term, stop and cont."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError([Problem("fault", repr(text), "member[index]@step=N:kill or member[index]@after=SECONDS:kill")])
    when, what = found["when"], found["what"]
    if when not in _MOMENTS:
        raise UsageError([Problem("fault", repr(when), "step or after", nearest(when, _MOMENTS))])
    if what not in SIGNALS:
        raise UsageError([Problem("fault", repr(what), "one of " + ", ".join(SIGNALS), nearest(what, list(SIGNALS)))])
    by_step = when == "step"
    if by_step and not found["value"].isdigit():
        raise UsageError([Problem("fault", repr(text), "a whole number of steps")])
    return Fault(
        found["member"],
        int(found["index"] or 0),
        SIGNALS[what],
        step=int(float(found["value"])) if by_step else None,
        after_s=None if by_step else float(found["value"]),
    )


def check_faults(faults: Sequence[Fault], group: CoStartGroup) -> None:
    """SpecError for a fault at a slot that the group has not, before anything is started."""
    slots = {name: member.replicas if isinstance(member, ReplicaSet) else 1 for name, member in group.members.items()}
    for fault in faults:
        if fault.index >= slots.get(fault.member, 0):
            known = ", ".join(
                f"{name}[0]" if count == 1 else f"{name}[0-{count - 1}]" for name, count in slots.items() if count
            )
            near = "" if fault.member in slots else nearest(fault.member, list(slots))
            raise UsageError([Problem("fault", f"{fault.member}[{fault.index}]", f"one of {known}", near)])
