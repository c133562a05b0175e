"""The group as this member sees it: who is READY, and which rollouts are eligible. Pure; `follow` keeps it fresh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gangflow.channel import ELIGIBLE, Eligible, WeightsId
from gangflow.xce.rest.messages import ValueView
from gangflow.xce.rest.schema import GroupView


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One incarnation of one slot, and where it answers."""

    member: str
    index: int
    incarnation: int
    addresses: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)
    """Port name → `ip:number` of each task. Of an eligible rollout: the engine's port only."""
    url: str = ""
    """`http://ip:number` of the first task on the member's only (or the engine's) port."""
    weights: WeightsId | None = None
    """Of an eligible rollout: what it serves."""

    @property
    def key(self) -> tuple[int, int]:
        return (self.index, self.incarnation)


@dataclass(frozen=True, slots=True)
class CoordinatorFacts:
    """What the SDK must know of the coordinator's spec."""

    rollout: str = "rollout"
    min_rollouts: int = 1
    max_staleness: int = 0
    quorum_timeout_s: float = 60.0
    engine: str = "embedded"


@dataclass(frozen=True, slots=True)
class Picture:
    """The newest that is known, at position `seq`. Replaced as a whole, so a reader never sees half an update."""

    seq: int = -1
    group_state: str = ""
    ready: tuple[Endpoint, ...] = ()
    live: frozenset[tuple[str, int, int]] = frozenset()
    """(member, index, incarnation) of slots that may still run."""
    coordinator: CoordinatorFacts | None = None
    eligible: Eligible | None = None
    eligible_version: int = 0
    """Of the key-value that `eligible` was read from: an older write never replaces a newer one."""
    stale_view: bool = False
    """A slot became READY and its addresses are not known yet: list again."""

    def endpoints(self, member: str) -> tuple[Endpoint, ...]:
        """The eligible rollouts; of any other member (or with no coordinator) the READY slots. In slot order."""
        facts = self.coordinator
        if facts is None or member != facts.rollout:
            return tuple(endpoint for endpoint in self.ready if endpoint.member == member)
        if self.eligible is None:
            return ()
        return tuple(
            Endpoint(member, serving.index, serving.incarnation, {}, serving.url, serving.weights)
            for serving in self.eligible.rollouts
            if (member, serving.index, serving.incarnation) in self.live
        )

    def holds(self, member: str, key: tuple[int, int]) -> bool:
        """Whether an incarnation may still finish what it was sent: alive, though perhaps not admitting new work."""
        return (member, *key) in self.live


RUNNING_STATES = frozenset({"STARTING", "RUNNING", "READY", "DRAINING", "STOPPING"})
"""Of a slot: its processes may still answer. LOST is not among them: nobody can reach it."""


def listed(view: GroupView, facts: CoordinatorFacts | None, value: ValueView | None) -> Picture:
    """The picture of a group's view and of its `rollouts/eligible`, which was read after the view."""
    slots = [slot for member in view.members for slot in member.slots]
    live = frozenset((slot.member, slot.index, slot.incarnation) for slot in slots if slot.state in RUNNING_STATES)
    ready = tuple(
        Endpoint(slot.member, slot.index, slot.incarnation, dict(slot.addresses), _url(slot.addresses))
        for slot in slots
        if slot.state == "READY"
    )
    eligible = _parse_eligible(value.value) if value is not None and value.value is not None else None
    return Picture(
        seq=view.seq,
        group_state=view.state,
        ready=ready,
        live=live,
        coordinator=facts,
        eligible=eligible,
        eligible_version=value.version if value is not None else 0,
    )


def changed(picture: Picture, seq: int, kind: str, data: Mapping[str, Any]) -> Picture:
    """The picture after one event of the group's stream; events at or below `picture.seq` change nothing."""
    if seq <= picture.seq:
        return picture
    picture = replace(picture, seq=seq)
    if kind == "ValueWritten" and data["name"] == ELIGIBLE:
        version = int(data["version"])
        if version <= picture.eligible_version:
            return picture
        return replace(picture, eligible=_parse_eligible(data["value"]), eligible_version=version)
    if kind == "GroupChanged":
        return replace(picture, group_state=data["state"])
    if kind in {"SlotChanged", "SlotExited"}:
        return _slot_changed(picture, (data["member"], int(data["index"]), int(data["incarnation"])), str(data["state"]))
    return picture


def _slot_changed(picture: Picture, slot: tuple[str, int, int], state: str) -> Picture:
    member, index, _ = slot
    ready = tuple(endpoint for endpoint in picture.ready if (endpoint.member, endpoint.index) != (member, index))
    live = picture.live | {slot} if state in RUNNING_STATES else picture.live - {slot}
    known = next((e for e in picture.ready if (e.member, e.index, e.incarnation) == slot), None)
    if state == "READY" and known is not None:
        return replace(picture, live=live)
    return replace(picture, ready=ready, live=live, stale_view=picture.stale_view or state == "READY")


def _parse_eligible(text: str) -> Eligible | None:
    # Whoever wrote nonsense there, nobody is eligible by it; the coordinator's next write heals it.
    try:
        return Eligible.parse(text)
    except ValueError:
        return None


def _url(addresses: Mapping[str, Sequence[str]]) -> str:
    ports = list(addresses.values())
    return f"http://{ports[0][0]}" if len(ports) == 1 and ports[0] else ""


def coordinator_facts(document: Mapping[str, Any] | None) -> CoordinatorFacts | None:
    """From a group's spec; None when it has no coordinator (then READY slots are the endpoints)."""
    given = (document or {}).get("coordinator")
    if given is None:
        return None
    from gangflow.specs.coordinator import RLCoordinator

    spec = RLCoordinator.model_validate(given)
    return CoordinatorFacts(spec.rollout, spec.min_rollouts, spec.max_staleness, spec.quorum_timeout / 1_000, spec.engine)
