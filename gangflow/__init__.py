"""gangflow: co-start groups for RL post-training and LLM serving.

All that a training script imports, loaded on first use: `import gangflow` costs milliseconds, and works where Ray is not
installed (inside an inference container, for example).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangflow import aio, events, testing
    from gangflow.channel import Probe
    from gangflow.errors import (
        ChangeFailed,
        Conflict,
        GangflowError,
        Gone,
        GroupEnded,
        NoQuorum,
        NotFound,
        SpecError,
        Unauthorized,
        Unreachable,
        XceError,
    )
    from gangflow.member.context import Context, context
    from gangflow.runs import Run, attach, launch
    from gangflow.specs.claims import Claim, Needs, StandaloneClaim
    from gangflow.specs.cluster import ClusterSpec, HostSpec
    from gangflow.specs.container import Container, ContainerRuntime, Mount
    from gangflow.specs.coordinator import RLCoordinator
    from gangflow.specs.document import dump, load, load_cluster
    from gangflow.specs.failure import Backoff, FailureMatch, FailureRule
    from gangflow.specs.group import Barrier, CoStartGroup, Placement, Recovery
    from gangflow.specs.member import Job, Pack, ReplicaSet, Resources
    from gangflow.specs.probes import ExecProbe, FileProbe, HttpProbe, TcpProbe
    from gangflow.specs.profiles import Profile
    from gangflow.specs.scale import Ratio, Scale
    from gangflow.specs.warning import RunWarning

_HOMES = {
    "gangflow.channel": ("Probe",),
    "gangflow.errors": (
        "ChangeFailed",
        "Conflict",
        "GangflowError",
        "Gone",
        "GroupEnded",
        "NoQuorum",
        "NotFound",
        "SpecError",
        "Unauthorized",
        "Unreachable",
        "XceError",
    ),
    "gangflow.runs": ("Run", "attach", "launch"),
    "gangflow.member.context": ("Context", "context"),
    "gangflow.specs.claims": ("Claim", "Needs", "StandaloneClaim"),
    "gangflow.specs.cluster": ("ClusterSpec", "HostSpec"),
    "gangflow.specs.container": ("Container", "ContainerRuntime", "Mount"),
    "gangflow.specs.coordinator": ("RLCoordinator",),
    "gangflow.specs.document": ("dump", "load", "load_cluster"),
    "gangflow.specs.failure": ("Backoff", "FailureMatch", "FailureRule"),
    "gangflow.specs.group": ("Barrier", "CoStartGroup", "Placement", "Recovery"),
    "gangflow.specs.member": ("Job", "Pack", "ReplicaSet", "Resources"),
    "gangflow.specs.probes": ("ExecProbe", "FileProbe", "HttpProbe", "TcpProbe"),
    "gangflow.specs.profiles": ("Profile",),
    "gangflow.specs.scale": ("Ratio", "Scale"),
    "gangflow.specs.warning": ("RunWarning",),
}
_ROOMS = ("aio", "events", "testing")
"""Modules that are reached as attributes, too: `gf.events.SlotFailed`."""
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Backoff",
    "Barrier",
    "ChangeFailed",
    "Claim",
    "ClusterSpec",
    "CoStartGroup",
    "Conflict",
    "Container",
    "ContainerRuntime",
    "Context",
    "ExecProbe",
    "FailureMatch",
    "FailureRule",
    "FileProbe",
    "GangflowError",
    "Gone",
    "GroupEnded",
    "HostSpec",
    "HttpProbe",
    "Job",
    "Mount",
    "Needs",
    "NoQuorum",
    "NotFound",
    "Pack",
    "Placement",
    "Probe",
    "Profile",
    "RLCoordinator",
    "Ratio",
    "Recovery",
    "ReplicaSet",
    "Resources",
    "Run",
    "RunWarning",
    "Scale",
    "SpecError",
    "StandaloneClaim",
    "TcpProbe",
    "Unauthorized",
    "Unreachable",
    "XceError",
    "aio",
    "attach",
    "context",
    "dump",
    "events",
    "launch",
    "load",
    "load_cluster",
    "testing",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"gangflow.{name}")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'gangflow' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF, *_ROOMS])
