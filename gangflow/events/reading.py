"""From a journal's record, as the event stream has it, to a typed event. Total: what it cannot read is `Unknown`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gangflow.events import cluster, groups, slots
from gangflow.events.base import Event, Unknown

Data = Mapping[str, Any]
Stamp = dict[str, Any]
"""`seq`, `at_ms` and `group`."""


class Record(Protocol):
    """`gangflow.xce.rest.messages.EventView`."""

    @property
    def seq(self) -> int: ...
    @property
    def at_ms(self) -> int: ...
    @property
    def type(self) -> str: ...
    @property
    def group(self) -> str: ...
    @property
    def data(self) -> Data: ...


LEFT_OUT: Mapping[str, str] = {
    "CommandAnswered": "book-keeping of idempotency keys; the server does not show it",
    "AnswersForgotten": "book-keeping of idempotency keys; the server does not show it",
    "TaskSuperseded": "an obligation towards an old incarnation; what it means for the slot is told by the slot's own events",
    "SupersededGone": "the end of such an obligation",
    "OfferLeft": "book-keeping of the scheduler's sessions; the server does not show it",
}  # fmt: skip
"""Records that have no event, each with the reason. Everything else has one."""


def read(record: Record) -> Event | None:
    """The typed event of a record; None for one that is left out on purpose."""
    if record.type in LEFT_OUT:
        return None
    stamp: Stamp = {"seq": record.seq, "at_ms": record.at_ms, "group": record.group}
    reader = READERS.get(record.type)
    if reader is not None:
        try:
            return reader(stamp, record.data)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            pass  # A newer server means something else by that name.
    return Unknown(**stamp, type=record.type, data=record.data)


_GROUP_STATES: Mapping[str, type[groups.GroupChanged]] = {
    "RUNNING": groups.GroupRunning,
    "DEGRADED": groups.GroupDegraded,
    "RESTARTING": groups.GroupRestarting,
    "SUSPENDED": groups.GroupSuspended,
    "SUCCEEDED": groups.GroupEnded,
    "FAILED": groups.GroupEnded,
    "CANCELLED": groups.GroupEnded,
}
_SLOT_STATES: Mapping[str, type[slots.SlotChanged]] = {
    "RUNNING": slots.SlotRunning,
    "READY": slots.SlotReady,
    "DRAINING": slots.SlotDraining,
    "LOST": slots.SlotLost,
}
_CHANGE_STATES: Mapping[str, type[groups.ChangeMoved]] = {"DONE": groups.ChangeDone, "FAILED": groups.ChangeFailed}
_CLAIM_STATES: Mapping[str, type[slots.ClaimChanged]] = {
    "READY": slots.ClaimReady,
    "FAILED": slots.ClaimFailed,
    "LOST": slots.ClaimLost,
    "GONE": slots.ClaimReleased,
}


def _slot(data: Data) -> dict[str, Any]:
    return {"member": data["member"], "slot": data["index"], "incarnation": data.get("incarnation", 0)}


def _pairs(value: Any) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(number)) for name, number in value or ())


def _hosts(data: Data) -> tuple[str, ...]:
    return tuple(dict.fromkeys(task["host"] for task in data["tasks"]))


def _group_submitted(stamp: Stamp, data: Data) -> Event:
    return groups.GroupSubmitted(
        **stamp,
        name=data["name"],
        owner=data.get("owner", ""),
        priority=data.get("priority", 0),
        members=tuple(member["name"] for member in data.get("members", ())),
    )


def _group_changed(stamp: Stamp, data: Data) -> Event:
    given = {key: data.get(key, "") for key in ("cause", "message")}
    edge = {"before": data["before"], "state": data["state"]}
    if edge["state"] == "STOPPING":
        return groups.GroupStopping(**stamp, **edge, **given, goal=data.get("goal") or "")
    return _GROUP_STATES.get(edge["state"], groups.GroupChanged)(**stamp, **edge, **given)


def _start_voided(stamp: Stamp, data: Data) -> Event:
    told = {key: data[key] for key in ("attempt", "cause", "message")}
    return groups.StartVoided(**stamp, **told, again_ms=data.get("until_ms", 0))


def _waiting(stamp: Stamp, data: Data) -> Event:
    where = {"member": data.get("member", ""), "slot": data.get("index", -1)}
    reason = data["reason"]
    if reason is None:
        return groups.Waiting(**stamp, **where)
    return groups.Waiting(**stamp, **where, code=reason["code"], text=reason.get("text", ""), blocker=reason.get("blocker", ""))


def _failure_judged(stamp: Stamp, data: Data) -> Event:
    told = {key: data[key] for key in ("cause", "rule", "action")}
    return groups.FailureJudged(**stamp, **_slot(data), **told, message=data.get("message", ""))


def _budget_spent(stamp: Stamp, data: Data) -> Event:
    use = data["use"]
    return groups.BudgetSpent(
        **stamp, rule=use["rule"], member=use["member"], slot=use["index"], spent=len(use.get("spent_ms", ()))
    )


def _floor_crossed(stamp: Stamp, data: Data) -> Event:
    return groups.FloorCrossed(**stamp, member=data["member"], below=data["since_ms"] > 0)


def _host_blamed(stamp: Stamp, data: Data) -> Event:
    blame = data["blame"]
    return groups.HostBlamed(**stamp, host=blame["host"], failures=len(blame["at_ms"]))


def _targets_set(stamp: Stamp, data: Data) -> Event:
    return groups.TargetsSet(
        **stamp, targets=dict(_pairs(data["targets"])), added=_pairs(data.get("added")), removed=_pairs(data.get("removed"))
    )


def _change_moved(stamp: Stamp, data: Data) -> Event:
    change = data["change"]
    return _CHANGE_STATES.get(change["state"], groups.ChangeMoved)(
        **stamp,
        change=change["id"],
        state=change["state"],
        targets=dict(_pairs(change["targets"])),
        before=dict(_pairs(change.get("before"))),
        ups=_pairs(change.get("ups")),
        downs=_pairs(change.get("downs")),
        message=change.get("message", ""),
    )


def _member_stopped(stamp: Stamp, data: Data) -> Event:
    kind = groups.MemberStopped if data.get("stopped", True) else groups.MemberReturned
    return kind(**stamp, member=data["member"])


def _value_written(stamp: Stamp, data: Data) -> Event:
    return groups.ValueWritten(**stamp, name=data["name"], value=data["value"], version=data["version"])


def _slot_placed(stamp: Stamp, data: Data) -> Event:
    return slots.SlotPlaced(**stamp, **_slot(data), hosts=_hosts(data), epoch=data["epoch"])


def _slot_changed(stamp: Stamp, data: Data) -> Event:
    edge = {"before": data["before"], "state": data["state"], "message": data.get("message", "")}
    if edge["state"] == "STOPPING":
        cause = (data.get("exit") or {}).get("cause") or ""
        return slots.SlotStopping(**stamp, **_slot(data), **edge, cause=cause)
    return _SLOT_STATES.get(edge["state"], slots.SlotChanged)(**stamp, **_slot(data), **edge)


def _slot_exited(stamp: Stamp, data: Data) -> Event:
    how = data["exit"]
    given = {**_slot(data), "state": data["state"], **{key: how.get(key) for key in ("code", "signal")}}
    given["message"] = how.get("message", "")
    if how["cause"] is not None:
        return slots.SlotFailed(**stamp, **given, cause=how["cause"], stderr_tail=how.get("stderr_tail", ""))
    return (slots.SlotDone if data["state"] == "DONE" else slots.SlotStopped)(**stamp, **given)


def _task_moved(stamp: Stamp, data: Data) -> Event:
    task = data["task"]
    told = {key: data[key] for key in ("host", "phase")}
    return slots.TaskMoved(
        **stamp, **_slot(task), **told, task=task["task"], pid=data.get("pid", 0), message=data.get("message", "")
    )


def _claim_changed(stamp: Stamp, data: Data) -> Event:
    claim = data["claim"]
    told = {key: claim.get(key, "") for key in ("member", "host", "path", "message")}
    return _CLAIM_STATES.get(claim["state"], slots.ClaimChanged)(
        **stamp, **told, claim=claim["id"], name=claim["plan"]["name"], state=claim["state"], slot=claim.get("index", -1)
    )


def _host_registered(stamp: Stamp, data: Data) -> Event:
    return cluster.HostRegistered(**stamp, host=data["facts"]["name"], node=data["facts"].get("node", ""))


def _host_changed(stamp: Stamp, data: Data) -> Event:
    return cluster.HostChanged(**stamp, host=data["host"], state=data["state"], message=data.get("message", ""))


def _host_operated(stamp: Stamp, data: Data) -> Event:
    if not data["closed"]:
        return cluster.HostOpened(**stamp, host=data["host"], state=data["state"])
    return cluster.HostClosed(
        **stamp, host=data["host"], state=data["state"], message=data["closed"], draining=data.get("draining", False)
    )


def _slot_warned(stamp: Stamp, data: Data) -> Event | None:
    # While tasks are left it is owed only: as `TaskSuperseded`, that is book-keeping.
    return None if data.get("left") else slots.SlotWarned(**stamp, **_slot(data))


READERS: Mapping[str, Callable[[Stamp, Data], Event | None]] = {
    "TermStarted": lambda stamp, data: cluster.ControllerStarted(**stamp, cluster_id=data["cluster_id"], term=data["term"]),
    "HostRegistered": _host_registered,
    "HostChanged": _host_changed,
    "HostOperated": _host_operated,
    "StraysSeen": lambda stamp, data: cluster.StraysSeen(**stamp, host=data["host"], strays=tuple(data["strays"])),
    "GroupSubmitted": _group_submitted,
    "GroupPlaced": lambda stamp, data: groups.GroupPlaced(**stamp),
    "BarrierReleased": lambda stamp, data: groups.GroupStarted(**stamp, epoch=data["epoch"]),
    "TryVoided": _start_voided,
    "GroupChanged": _group_changed,
    "ReasonNoted": _waiting,
    "BudgetSpent": _budget_spent,
    "FloorCrossed": _floor_crossed,
    "HostExcluded": lambda stamp, data: groups.HostExcluded(**stamp, host=data["host"]),
    "HostReadmitted": lambda stamp, data: groups.HostReadmitted(**stamp, host=data["host"]),
    "HostBlamed": _host_blamed,
    "TargetsSet": _targets_set,
    "ChangeMoved": _change_moved,
    "MemberStopped": _member_stopped,
    "FailureJudged": _failure_judged,
    "CoordinatorStarted": lambda stamp, data: groups.CoordinatorStarted(**stamp, term=data["term"]),
    "ValueWritten": _value_written,
    "GroupForgotten": lambda stamp, data: groups.GroupForgotten(**stamp),
    "SlotPlaced": _slot_placed,
    "SlotChanged": _slot_changed,
    "SlotHeld": lambda stamp, data: slots.SlotHeld(**stamp, **_slot(data), hosts=_hosts(data)),
    "SlotWarned": _slot_warned,
    "SlotExited": _slot_exited,
    "TaskMoved": _task_moved,
    "ClaimChanged": _claim_changed,
    "ClaimForgotten": lambda stamp, data: slots.ClaimForgotten(**stamp, claim=data["claim"]),
}
"""The name of a record of the core → how it is read; `LEFT_OUT` has those that are left out on purpose."""
