"""What a user asks for: frozen pydantic models without behaviour, their documents, and the errors that name what is wrong."""

from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.document import dump, load, plain, validate
from gangflow.specs.failure import Backoff, FailureMatch, FailureRule
from gangflow.specs.group import Barrier, CoStartGroup, Placement, Recovery
from gangflow.specs.member import Job, Pack, ReplicaSet, Resources
from gangflow.specs.probes import ExecProbe, FileProbe, HttpProbe, TcpProbe

__all__ = [
    "Backoff",
    "Barrier",
    "Claim",
    "ClusterSpec",
    "CoStartGroup",
    "ExecProbe",
    "FailureMatch",
    "FailureRule",
    "FileProbe",
    "HostSpec",
    "HttpProbe",
    "Job",
    "Pack",
    "Placement",
    "RLCoordinator",
    "Recovery",
    "ReplicaSet",
    "Resources",
    "TcpProbe",
    "dump",
    "load",
    "plain",
    "validate",
]
