"""The description of a cluster: its topology levels, and its hosts with all that they have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gangflow.specs.base import Label, Name, Spec, Text, Whole, Word, check, wrong
from gangflow.specs.container import ContainerRuntime, runtime_faults
from gangflow.specs.faults import Fault, nearest
from gangflow.specs.hostrange import expand_range
from gangflow.specs.journal import JournalSpec
from gangflow.specs.member import RESERVED
from gangflow.specs.profiles import Profile
from gangflow.specs.quantity import Cpu, Memory

MAX_HOSTS = 100_000
MAX_PORTS = 4_096


def _range(value: str) -> str:
    expand_range(value, MAX_HOSTS)
    return value


class HostSpec(Spec):
    """One host, a range of equal hosts (`h[0-3]`), or a machine that is split into `virtual_hosts` equal ones."""

    positional: ClassVar[tuple[str, ...]] = ("name",)

    name: Annotated[str, AfterValidator(_range)]
    """One, or a range: `h[0-3]`, `r[1,3-5]n[01-16]`."""
    node: Text = "local"
    """The machine whose agent serves it; may be a range as long as that of the name."""
    address: Text = "127.0.0.1"
    """Where members reach each other; may be a range, too."""
    virtual_hosts: Annotated[Whole, Field(ge=1, le=1_000)] = 1
    """Split what is given evenly over so many hosts, `name-0`, `name-1`, …"""
    cpu: Cpu | None = None
    """Left out: what the machine has."""
    mem: Memory | None = None
    """Left out: what the machine has."""
    gpus: Annotated[Whole, Field(ge=0, le=1_000)] | None = None
    """Devices. Left out: what the machine has."""
    gpu_model: Text = ""
    """The attribute `gpu_model`."""
    counters: dict[Word, Annotated[Whole, Field(ge=0, le=10**12)]] = Field(default_factory=dict)
    """Resources of the cluster's own that are counted: licences, bandwidth."""
    attributes: dict[Word, Text] = Field(default_factory=dict)
    """For `select[…]`."""
    domains: dict[Word, Label] = Field(default_factory=dict)
    """Topology level → the domain that it stands in."""
    ports: Annotated[Whole, Field(ge=0, le=MAX_PORTS)] = 32
    """How many port numbers it hands out."""

    if TYPE_CHECKING:

        def __init__(self, name: str, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = []
        count = len(expand_range(self.name, MAX_HOSTS))
        for key in ("node", "address"):
            text = getattr(self, key)
            if "[" in text and len(expand_range(text, MAX_HOSTS)) != count:
                faults.append(Fault((key,), text, f"a range of as many as the name's: {count}"))
        for key in ("counters", "attributes"):
            taken = (*RESERVED, "gpu_model") if key == "attributes" else (*RESERVED, *self.attributes)
            for name in getattr(self, key):
                if name in taken:
                    faults.append(Fault((key, name), name, "another name: this one has a meaning of its own"))
        check(faults)
        return self


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise wrong("an absolute path")
    return value


class Cache(Spec):
    """Where hosts keep the models that claims of the provider `model` want, and how much of them."""

    path: Annotated[Text, AfterValidator(_absolute)] | None = None
    """A folder of every host's own, at the same path on all; left out: `cache` in the cluster's home."""
    size: Annotated[Memory, Field(ge=1)] = 102_400
    """Beyond it, what no claim wants any more is removed, least recently used first."""


class ClusterSpec(Spec):
    """What `cluster.yaml` says."""

    positional: ClassVar[tuple[str, ...]] = ("name",)
    not_yet: ClassVar[dict[str, str]] = {
        "owners": "shares and limits of owners",
        "fair_share": "fair share",
        "max_preemptions": "preemption",
    }
    elsewhere: ClassVar[dict[str, str]] = {"claims": "to `POST /v1/claims`: claims are made while the cluster runs"}

    name: Name = "local"
    """Shown."""
    levels: tuple[Word, ...] = ()
    """Topology levels, outermost first."""
    hosts: Annotated[tuple[HostSpec, ...], Field(min_length=1, max_length=MAX_HOSTS)]
    """All that the cluster has."""
    reserve_per: Literal["task", "host"] = "task"
    """What a resreq's value without `/task`, `/host` or `/job` is counted for; LSF's own default is host."""
    unit_for_limits: Literal["KB", "MB", "GB", "TB", "PB", "EB"] = "MB"
    """The unit of a bare `mem`, `swp` or `tmp` in a resreq (1024-based)."""
    profiles: dict[Name, Profile] = Field(default_factory=dict)
    """Application profiles: what members that name one leave out."""
    container_runtime: ContainerRuntime | None = None
    """How members with a `container` are run; without it there are none."""
    cache: Cache = Cache.model_construct()
    """Where the `model` provider keeps what claims want, on every host."""
    journal: JournalSpec = Field(default_factory=JournalSpec)
    """How much of its history is kept."""

    if TYPE_CHECKING:

        def __init__(self, name: str = "local", **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = [
            Fault(("levels", index), level, "a level of another name: this one is taken")
            for index, level in enumerate(self.levels)
            if level in self.levels[:index]
        ]
        seen: set[str] = set()
        for index, host in enumerate(self.hosts):
            for name in expand_range(host.name, MAX_HOSTS):
                if name in seen:
                    faults.append(Fault(("hosts", index, "name"), name, "a host of another name: this one is taken"))
                    break
                seen.add(name)
            for level, domain in host.domains.items():
                if level not in self.levels:
                    expected = "a level of the cluster: " + (", ".join(self.levels) or "it has none")
                    faults.append(Fault(("hosts", index, "domains", level), domain, expected, nearest(level, self.levels)))
            for level in self.levels:
                if level not in host.domains:
                    faults.append(Fault(("hosts", index, "domains"), host.domains, f"a domain for the level {level}"))
        for name, profile in self.profiles.items():
            faults += [
                replace(fault, loc=("profiles", name, *fault.loc))
                for fault in runtime_faults(profile.container, self.container_runtime, (profile.ready, profile.live))
            ]
        check(faults)
        return self
