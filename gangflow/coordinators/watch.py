"""What XCE says, as observations of the reaction: views, events and heartbeats. No IO."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gangflow.channel import FAILURE, HEAD, ROLE_KEY, Eligible, Head
from gangflow.coordinators.rl_messages import (
    BeatMissing,
    BeatSeen,
    BeatsUnknown,
    GroupSeen,
    HeadSeen,
    Listed,
    Observation,
    SlotSeen,
    TrainerFailed,
)
from gangflow.coordinators.rl_state import Limits
from gangflow.specs.coordinator import RLCoordinator
from gangflow.xce.rest.messages import BeatList, EventView
from gangflow.xce.rest.schema import GroupView, SlotView

GROUP_PHASES = {"GroupPlaced": "PREPARING", "BarrierReleased": "STARTING", "TryVoided": "PENDING"}
"""Events that say by their type where the group went."""


def limits(config: RLCoordinator) -> Limits:
    """The reaction's limits of a spec."""
    return Limits(
        actor=config.actor,
        rollout=config.rollout,
        min_rollouts=config.min_rollouts,
        max_staleness=config.max_staleness,
        quorum_ms=config.quorum_timeout,
        hang_ms=config.hang_timeout,
        unhealthy_ms=config.unhealthy_timeout,
        sync_ms=config.sync_timeout,
        no_progress_ms=config.no_progress_timeout,
        pause=config.pause,
        probe_tolerance=config.probe_tolerance,
        probe_mean_tolerance=config.probe_mean_tolerance,
    )


def listed(view: GroupView, port: str, head: str | None = None, published: str | None = None) -> Listed:
    """A view, with the key-values that were read after it."""
    return Listed(
        view.seq,
        view.state,
        tuple(slot_of(slot, view, port) for member in view.members for slot in member.slots),
        _head(head),
        _eligible(published),
    )


def slot_of(slot: SlotView, view: GroupView, port: str) -> SlotSeen:
    """One slot of a view; the address is that of its first task on the engine's port."""
    addresses = slot.addresses.get(port, ())
    url = f"http://{addresses[0]}" if addresses else ""
    broke = slot.state == "RUNNING" and slot.ready_ms > 0
    unready_ms = max(0, view.now_ms - slot.since_ms) if broke else None
    return SlotSeen(slot.member, slot.index, slot.incarnation, slot.state, view.seq, url, unready_ms)


def observations(event: EventView) -> Iterator[Observation]:
    """What an event of the group's stream means; most mean nothing here."""
    data = event.data
    match event.type:
        case "SlotPlaced":
            yield SlotSeen(data["member"], int(data["index"]), int(data["incarnation"]), "PLACED", event.seq)
        case "SlotChanged" | "SlotExited":
            broke = (data.get("before"), data["state"]) == ("READY", "RUNNING")
            place = (data["member"], int(data["index"]), int(data["incarnation"]))
            yield SlotSeen(*place, str(data["state"]), event.seq, unready_ms=0 if broke else None)
        case "GroupChanged":
            yield GroupSeen(str(data["state"]), event.seq)
        case "ValueWritten" if data["name"] == HEAD and (head := _head(data["value"])) is not None:
            yield HeadSeen(head)
        case "ValueWritten" if data["name"] == FAILURE:
            yield from failure(data["value"])
        case kind if kind in GROUP_PHASES:
            yield GroupSeen(GROUP_PHASES[kind], event.seq)


def failure(text: str | None) -> Iterator[TrainerFailed]:
    """What the actor's SDK wrote when it had to stop."""
    try:
        document = json.loads(text or "null")
        yield TrainerFailed(int(document["incarnation"]), str(document["message"]))
    except (ValueError, TypeError, KeyError):
        return


def beat(beats: BeatList, actor: str) -> Observation:
    """What the newest heartbeats say of the actor, by XCE's own clock."""
    if beats.now_ms < beats.unknown_until_ms:
        return BeatsUnknown()
    mine = [view for view in beats.heartbeats if view.member == actor]
    if not mine:
        return BeatMissing(beats.now_ms - beats.unknown_until_ms)
    newest = max(mine, key=lambda view: view.incarnation)
    own = newest.body.get(ROLE_KEY)
    own = own if isinstance(own, dict) else {}
    # What the program says of itself, and how many samples it got: either of them moving is progress.
    progress = json.dumps([newest.body.get("step"), own.get("samples"), own.get("weights")], sort_keys=True)
    return BeatSeen(newest.incarnation, progress, tuple(_failing(own)), max(0, beats.now_ms - newest.at_ms))


def _failing(own: dict[str, object]) -> Iterator[tuple[int, int, int]]:
    given = own.get("failing")
    for index, streak in given.items() if isinstance(given, dict) else ():
        try:
            incarnation, count = streak
            yield int(index), int(incarnation), int(count)
        except (TypeError, ValueError):
            continue


def _head(text: str | None) -> Head | None:
    # Whoever wrote nonsense there published nothing.
    try:
        return Head.parse(text) if text is not None else None
    except ValueError:
        return None


def _eligible(text: str | None) -> Eligible | None:
    try:
        return Eligible.parse(text) if text is not None else None
    except ValueError:
        return None
