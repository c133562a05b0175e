from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import GroupState, HostState, Slot, SlotState
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.host_views import HOST_WORDS, host_views
from gangflow.xce.rest.views import GROUP_WORDS, SLOT_WORDS, group_view, queue_items, satisfied_now, slot_view
from tests.unit.xce.rest.fake import FakeController, ended, host, pending, running, state_of, task


def test_every_state_has_a_word_of_lsf() -> None:
    assert set(SLOT_WORDS) == set(SlotState)
    assert set(GROUP_WORDS) == set(GroupState)
    assert set(HOST_WORDS) == set(HostState)
    assert {*SLOT_WORDS.values(), *GROUP_WORDS.values()} <= {
        "PEND",
        "PSUSP",
        "RUN",
        "USUSP",
        "SSUSP",
        "DONE",
        "EXIT",
        "UNKWN",
        "WAIT",
    }


def test_a_group_in_detail() -> None:
    view = group_view(state_of(running()), running(), 42)
    assert (view.seq, view.id, view.state, view.lsf) == (42, "g1", "RUNNING", "RUN")
    assert (view.satisfied_now, view.satisfied_once) == (True, True)
    assert view.document == {"name": "grpo"}
    assert [(m.name, m.target, m.ready, m.restarts) for m in view.members] == [("actor", 1, 1, 0), ("rollout", 2, 1, 2)]
    actor = view.slot("actor", 0)
    assert actor.addresses == {"http": ("127.0.0.1:20000",)}
    assert actor.hosts == ("h0",)
    assert (actor.tasks[0].gpus[0].device, actor.tasks[0].gpus[0].milli) == (0, 500)
    waiting = view.slot("rollout", 1)
    assert waiting.reason is not None
    assert (waiting.lsf, waiting.reason.shortfall, waiting.reason.blocker) == ("PEND", {"gpus": 1_000}, "g2")
    assert [claim.path for claim in view.claims] == ["/claims/c1"]


async def test_the_detail_has_the_controllers_clock_for_the_ages_of_things(
    admin: AsyncClient, controller: FakeController
) -> None:
    assert (await admin.group("g1")).now_ms == controller.now_ms() > 0


def test_no_view_shows_a_secret() -> None:
    state = state_of(running(), pending("g2", "other"))
    shown = [group_view(state, group, 1).model_dump_json() for group in state.groups.values()]
    shown += [view.model_dump_json() for view in host_views(state)]
    assert not [text for text in shown if "secret-boot" in text or "hunter2" in text]


def test_satisfied_now_is_not_satisfied_once() -> None:
    """Scenario 34: half of the group is gone; it was satisfied once, and is not now."""
    group = running(state=GroupState.DEGRADED)
    broken = replace(group.slots["rollout", 0], state=SlotState.BACKOFF, tasks=(), exit=ended())
    group = replace(group, slots={**group.slots, ("rollout", 0): broken})
    view = group_view(state_of(group), group, 1)
    assert (view.satisfied_now, view.satisfied_once) == (False, True)
    exit = view.slot("rollout", 0).exit
    assert exit is not None
    assert (exit.cause, exit.code, exit.stderr_tail) == (Cause.APP_EXIT, 3, "boom")


def test_a_job_that_is_done_is_satisfied() -> None:
    """Scenario 31: members that finished count towards the minimum."""
    group = running()
    done = replace(group.slots["actor", 0], state=SlotState.DONE, tasks=())
    assert satisfied_now(replace(group, slots={**group.slots, ("actor", 0): done}))
    lost = replace(done, state=SlotState.LOST)
    assert not satisfied_now(replace(group, slots={**group.slots, ("actor", 0): lost}))


@pytest.mark.parametrize(
    ("slot", "states", "word"),
    [
        (SlotState.PLACED, {}, "PEND"),
        (SlotState.READY, {}, "RUN"),
        (SlotState.READY, {"h0": HostState.UNKNOWN}, "UNKWN"),
        (SlotState.READY, {"h1": HostState.UNKNOWN}, "RUN"),
        (SlotState.STOPPING, {"h0": HostState.LOST}, "UNKWN"),
        (SlotState.PLACED, {"h0": HostState.UNKNOWN}, "PEND"),
        (SlotState.DONE, {"h0": HostState.UNKNOWN}, "DONE"),
    ],
)
def test_what_may_run_on_a_silent_host_is_unknown(slot: SlotState, states: dict[str, HostState], word: str) -> None:
    """Scenario 80: liveness is alive, dead or unknown; a silent host's slots are not called dead."""
    state = state_of()
    state = replace(
        state, hosts={name: replace(each, state=states.get(name, HostState.UP)) for name, each in state.hosts.items()}
    )
    assert slot_view(state, running(), Slot("a", 0, slot, 1, 1, (task("h0"),))).lsf == word


def test_never_placed_placed_started_and_broken_are_different() -> None:
    """Scenario 35: "never placed" and "placed, preparing" are states of their own. Scenario 39: so is "was ready and broke"."""
    state = state_of()
    slots = [
        Slot("a", 0),
        Slot("a", 0, SlotState.PLACED, 1),
        Slot("a", 0, SlotState.STARTING, 1),
        Slot("a", 0, SlotState.BACKOFF, 1),
    ]
    assert len({slot_view(state, running(), slot).state for slot in slots}) == 4


def test_the_queue_is_in_order() -> None:
    groups = [
        pending("g10", "d"),
        pending("g9", "c"),
        pending("g3", "late", 3_000),
        pending("g4", "first", 9_000, 60),
        running(),
    ]
    assert [(item.position, item.name) for item in queue_items(groups)] == [(1, "first"), (2, "c"), (3, "d"), (4, "late")]


def test_hosts_show_what_is_used_and_by_whom() -> None:
    first, second = host_views(state_of(running()))
    assert {name: (q.used, q.total) for name, q in first.counters.items()} == {
        "cpu": (1_000, 4_000), "mem": (512, 8_192), "gpus": (500, 2_000), "ports": (1, 32),
    }  # fmt: skip
    assert [(held.group, held.member, held.tasks, held.running) for held in second.slots] == [("g1", "rollout", 1, 1)]
    assert first.domains == {"switch": "s0"}


def test_a_lost_host_keeps_what_may_still_run_there() -> None:
    state = state_of(running())
    lost = replace(state, hosts={**state.hosts, "h0": host("h0", state=HostState.LOST, until_ms=9_000)})
    view = host_views(lost)[0]
    assert (view.lsf, view.counters["cpu"].used, view.until_ms) == ("unavail", 1_000, 9_000)
