"""The state as Prometheus text: gauges only, computed when asked. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gangflow.xce.core.state import ClaimState, GroupState, HostState, SlotState, State
from gangflow.xce.rest.host_views import host_views

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(state: State, seq: int, streams: int) -> str:
    """Groups, slots, hosts and claims by state; capacity and use by resource; restarts; pending seconds of the queue's head."""
    groups = Counter(group.state for group in state.groups.values())
    slots = Counter(slot.state for group in state.groups.values() for slot in group.slots.values())
    hosts = Counter(host.state for host in state.hosts.values())
    claims = Counter(claim.state for claim in state.claims.values())
    total: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for host in host_views(state):
        for name, quantity in host.counters.items():
            total[name] += quantity.total
            used[name] += quantity.used
    restarts = {
        _labels(group=group.id, name=group.plan.name): sum(slot.restarts for slot in group.slots.values())
        for group in state.groups.values()
        if not group.state.terminal
    }
    pending = Counter(group.reason.code for group in state.groups.values() if group.reason is not None)
    lines: list[str] = []
    lines += _gauge("journal_seq", "Position of the journal that the state shows.", {"": seq})
    lines += _gauge("controller_term", "The controller's term.", {"": state.term})
    lines += _gauge("event_streams", "Open event, log and heartbeat streams.", {"": streams})
    lines += _gauge("groups", "Groups by state.", {_labels(state=s): groups[s] for s in GroupState})
    lines += _gauge(
        "groups_waiting", "Groups with a pend reason, by its code.", {_labels(code=c): n for c, n in pending.items()}
    )
    lines += _gauge("slots", "Slots by state.", {_labels(state=s): slots[s] for s in SlotState})
    lines += _gauge("hosts", "Hosts by state.", {_labels(state=s): hosts[s] for s in HostState})
    lines += _gauge("claims", "Claims by state.", {_labels(state=s): claims[s] for s in ClaimState})
    lines += _gauge("capacity", "What all hosts have, by resource.", {_labels(resource=r): n for r, n in total.items()})
    lines += _gauge("allocated", "What is in use, by resource.", {_labels(resource=r): n for r, n in used.items()})
    lines += _gauge("restarts", "Restarts of a live group's slots.", restarts)
    return "\n".join(lines) + "\n"


def _labels(**labels: str) -> str:
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + inside + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _gauge(name: str, text: str, values: Mapping[str, int]) -> Iterable[str]:
    yield f"# HELP gangflow_{name} {text}"
    yield f"# TYPE gangflow_{name} gauge"
    for labels, value in values.items():
        yield f"gangflow_{name}{labels} {value}"
