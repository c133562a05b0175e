"""The mark that every process of a task carries in its environment, and by which strays are found.

`GANGFLOW_TASK=<agent>.<life>:<cluster id>:<task key>`. `agent` names the agent's folder for good, `life` one process of it:
a watchdog kills what its own agent started and never what the next one did. A cluster inside a task (a test, say) appends its
mark to the one that it inherited, so that the outer task's end takes the inner one's processes too.

Standard library only: the watchdog imports this, and it should be small.
"""

from __future__ import annotations

VARIABLE = "GANGFLOW_TASK"
_PREFIX = VARIABLE.encode() + b"="


def mark(agent: str, life: str, cluster: str, key: str) -> str:
    """The mark of one task."""
    return f"{agent}.{life}:{cluster}:{key}"


def life_prefix(agent: str, life: str = "") -> str:
    """What the marks of one life of an agent begin with; of every life, without `life`."""
    return f"{agent}.{life}:" if life else f"{agent}."


def nested(value: str, inherited: str) -> str:
    """The variable's value for a task whose agent itself runs inside a task."""
    return f"{value} {inherited}" if inherited else value


def in_environment(raw: bytes) -> tuple[str, ...]:
    """The marks in a `/proc/<pid>/environ`; empty if there are none."""
    if not raw.startswith(_PREFIX):
        at = raw.find(b"\0" + _PREFIX)
        if at < 0:
            return ()
        raw = raw[at + 1 :]
    value = raw[len(_PREFIX) :].split(b"\0", 1)[0]
    return tuple(value.decode("utf-8", "replace").split())
