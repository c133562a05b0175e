"""What a user asks for: frozen pydantic models without behaviour, their documents, and the errors that name what is wrong.

Loaded on first use: the path of `from gangflow import CoStartGroup` must not pay for clusters, documents and resreqs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangflow.specs.claims import Claim, Needs, StandaloneClaim
    from gangflow.specs.cluster import Cache, ClusterSpec, HostSpec
    from gangflow.specs.container import Container, ContainerRuntime, Mount
    from gangflow.specs.coordinator import RLCoordinator
    from gangflow.specs.document import dump, load, load_claim, load_cluster, plain, validate
    from gangflow.specs.failure import Backoff, FailureMatch, FailureRule
    from gangflow.specs.group import Barrier, CoStartGroup, Placement, Recovery
    from gangflow.specs.member import Job, Pack, ReplicaSet, Resources
    from gangflow.specs.probes import ExecProbe, FileProbe, HttpProbe, TcpProbe
    from gangflow.specs.profiles import Profile
    from gangflow.specs.scale import Ratio, Scale
    from gangflow.specs.warning import RunWarning

_HOMES = {
    "claims": ("Claim", "Needs", "StandaloneClaim"),
    "cluster": ("Cache", "ClusterSpec", "HostSpec"),
    "container": ("Container", "ContainerRuntime", "Mount"),
    "coordinator": ("RLCoordinator",),
    "document": ("dump", "load", "load_claim", "load_cluster", "plain", "validate"),
    "failure": ("Backoff", "FailureMatch", "FailureRule"),
    "group": ("Barrier", "CoStartGroup", "Placement", "Recovery"),
    "member": ("Job", "Pack", "ReplicaSet", "Resources"),
    "probes": ("ExecProbe", "FileProbe", "HttpProbe", "TcpProbe"),
    "profiles": ("Profile",),
    "scale": ("Ratio", "Scale"),
    "warning": ("RunWarning",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Backoff",
    "Barrier",
    "Cache",
    "Claim",
    "ClusterSpec",
    "CoStartGroup",
    "Container",
    "ContainerRuntime",
    "ExecProbe",
    "FailureMatch",
    "FailureRule",
    "FileProbe",
    "HostSpec",
    "HttpProbe",
    "Job",
    "Mount",
    "Needs",
    "Pack",
    "Placement",
    "Profile",
    "RLCoordinator",
    "Ratio",
    "Recovery",
    "ReplicaSet",
    "Resources",
    "RunWarning",
    "Scale",
    "StandaloneClaim",
    "TcpProbe",
    "dump",
    "load",
    "load_claim",
    "load_cluster",
    "plain",
    "validate",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'gangflow.specs' has no attribute {name!r}")
    value = getattr(import_module(f"gangflow.specs.{home}"), name)
    globals()[name] = value
    return value
