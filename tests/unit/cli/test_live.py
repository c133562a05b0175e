"""The live table, rendered to text."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

from rich.console import Console, RenderableType

from gangflow.channel import ROLE_KEY
from gangflow.cli import live
from gangflow.cli.story import Story
from gangflow.xce.core.plan import Cause
from gangflow.xce.core.state import Exit, Group, GroupState, Slot, SlotState
from gangflow.xce.rest.messages import BeatView
from gangflow.xce.rest.schema import GroupView
from gangflow.xce.rest.views import group_view
from tests.unit.xce.rest.fake import pending, running, state_of

NOW_MS = 61_000


def shown(what: RenderableType) -> str:
    """As a terminal of 120 columns without colours shows it."""
    console = Console(file=io.StringIO(), width=120, color_system=None)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def view_of(group: Group) -> GroupView:
    return group_view(state_of(group), group, 9)


def beat(member: str, index: int, incarnation: int, **body: Any) -> tuple[tuple[str, int], BeatView]:
    return (member, index), BeatView(member=member, index=index, incarnation=incarnation, at_ms=1, body=body)


def row(text: str, slot: str) -> list[str]:
    """The words of a slot's row."""
    return next(line.split() for line in text.splitlines() if line.startswith(slot))


def test_members_in_rows_with_what_they_serve_and_say() -> None:
    beats = dict([beat("actor", 0, 1, step=60, reward=0.5), beat("rollout", 0, 3, step=7)])
    story = Story("g1", weights={(0, 3): "1/60/abc", (0, 1): "1/59/old"})
    text = shown(live.screen(view_of(running()), beats, story, "", NOW_MS, None))
    assert text.startswith("grpo (g1) RUNNING  epoch 1  60 s")
    assert row(text, "actor[0]") == ["actor[0]", "READY", "h0", "1", "0", "step", "60"]
    assert row(text, "rollout[0]") == ["rollout[0]", "READY", "h1", "3", "1/60/abc", "2", "step", "7"]
    assert row(text, "rollout[1]") == ["rollout[1]", "PENDING", "0", "0", "WAITING_CAPACITY:", "1", "GPU", "short"]


def test_only_the_member_that_serves_weights_shows_any() -> None:
    story = Story("g1", rollout="engine", weights={(0, 3): "1/60/abc"})
    assert "1/60/abc" not in shown(live.table(view_of(running()), {}, story))


def test_a_group_without_an_rl_coordinator_hears_no_word_of_rl() -> None:
    samples = {"redispatched": 3, "lost": 0, "duplicates": 0}
    beats = dict([beat("actor", 0, 1, step=60, **{ROLE_KEY: {"samples": samples}})])
    with_one, without = (
        shown(live.screen(view_of(running()), beats, Story("g1", rollout=rollout), "", NOW_MS, None))
        for rollout in ("rollout", "")
    )
    assert "step 60" in without
    for word in ("WEIGHTS", *live.COUNTED.values()):
        assert word in with_one
        assert word not in without


def test_a_beat_of_an_incarnation_that_is_over_says_nothing() -> None:
    beats = dict([beat("rollout", 0, 2, step=59)])
    assert "step 59" not in shown(live.table(view_of(running()), beats, Story("g1")))


def test_a_slot_in_backoff_says_how_it_ended() -> None:
    group = running()
    ended = Exit(Cause.SIGNAL, 3, 1_000, signal=9, message="killed by SIGKILL")
    slot = dataclasses.replace(group.slots["rollout", 0], state=SlotState.BACKOFF, exit=ended)
    view = view_of(dataclasses.replace(group, slots={**group.slots, ("rollout", 0): slot}))
    assert row(shown(live.table(view, {}, Story("g1"))), "rollout[0]")[-4:] == ["signal", "killed", "by", "SIGKILL"]


def test_a_group_that_waits_says_why_and_for_whom() -> None:
    assert shown(live.headline(view_of(pending("g2", "other")), NOW_MS)).rstrip() == (
        "other (g2) PENDING  epoch 0  59 s  WAITING_CAPACITY: 8 CPU short (blocked by g1)"
    )
    text = shown(live.screen(view_of(running()), {}, Story("g1"), "", NOW_MS, view_of(pending("g2", "other"))))
    assert "behind it: other (g2) PENDING" in text


def test_an_ended_group_shows_how_long_it_took() -> None:
    assert "  4 s" in shown(live.headline(view_of(running(ended_ms=5_000)), NOW_MS))


def test_progress_is_what_the_members_say() -> None:
    own = {"samples": {"redispatched": 2, "lost": 0, "duplicates": 1}}
    beats = dict(
        [beat("actor", 0, 1, step=60, reward=0.4999, samples_per_s=3456.7, accuracy=0.123, gangflow=own), beat("rollout", 0, 3)]
    )
    assert live.progress_line(beats, "rollout") == (
        "step 60 · reward 0.500 · 3457 samples/s · held-out accuracy 0.12 · 2 re-dispatched · 0 lost · 1 duplicate"
    )
    assert live.progress_line(dict([beat("actor", 0, 1, step="sixty", note="x")]), "rollout") == ""
    assert live.progress_line({}, "rollout") == ""


def test_the_newest_lines_stand_below_each_on_one_line() -> None:
    story = Story("g1", begin_ms=1_000)
    story.lines = [(1_000 * number, f"line {number}\nits second line") for number in range(1, 12)]
    text = shown(live.screen(view_of(running()), {}, story, "", NOW_MS, None))
    tail = text.splitlines()[-live.LINES_SHOWN :]
    assert tail[-1] == "   10.0 s  line 11"
    assert tail[0] == "    3.0 s  line 4"
    assert "second line" not in text


def test_what_lasts_stands_above_the_table_and_takes_no_line_below() -> None:
    story = Story("g1", begin_ms=1_000)
    story.add((2_000, "rollout[1] incarnation 1: oom → restart_member"), lasting=True)
    for number in range(3, 3 + live.LINES_SHOWN):
        story.add((1_000 * number, f"line {number}"))
    text = shown(live.screen(view_of(running()), {}, story, "", NOW_MS, None))
    assert "restart_member" not in text
    assert "line 3" in text


def started(group: Group, *names: str, until_ms: int = 0) -> GroupView:
    """The group with replicas that run since 33 s and are not READY yet."""
    slots = dict(group.slots)
    for number in range(len(names)):
        slots["rollout", number] = Slot(
            "rollout", number, SlotState.RUNNING, 1, 1, (), 33_000 + 1_000 * number, until_ms=until_ms
        )
    return view_of(dataclasses.replace(group, slots=slots))


def test_replicas_that_load_are_named_with_how_long_they_have() -> None:
    view = started(running(state=GroupState.STARTING), "a", "b")
    line = "rollout[0], rollout[1] start: not READY yet (28 s)"
    assert live.waited_for(view, NOW_MS) == line
    assert line in shown(live.screen(view, {}, Story("g1"), "", NOW_MS, None))
    limited = started(running(), "a", until_ms=333_000)
    assert live.waited_for(limited, NOW_MS) == "rollout[0] start: not READY yet (28 s of at most 300 s)"
    many = started(running(), *"abcdefgh")
    assert live.waited_for(many, NOW_MS).startswith(
        "rollout[0], rollout[1], rollout[2], rollout[3], rollout[4], rollout[5] and 2 "
    )


def test_a_replica_that_was_ready_before_does_not_start() -> None:
    group = running()
    sick = Slot("rollout", 1, SlotState.RUNNING, 1, 1, (), 57_000, until_ms=600_000, ready_ms=20_000)
    loading = Slot("rollout", 0, SlotState.STARTING, 2, 1, (), 51_000)
    one = dataclasses.replace(group, slots={**group.slots, ("rollout", 1): sick})
    assert live.waited_for(view_of(one), NOW_MS) == "rollout[1] not READY any more (4 s)"
    both = dataclasses.replace(one, slots={**one.slots, ("rollout", 0): loading})
    assert live.waited_for(view_of(both), NOW_MS) == (
        "rollout[0] start: not READY yet (10 s); rollout[1] not READY any more (4 s)"
    )


def test_nothing_is_waited_for_where_all_are_ready_or_the_group_stops() -> None:
    assert live.waited_for(view_of(running()), NOW_MS) == "", "a slot without a place has a reason of its own"
    assert live.waited_for(started(running(state=GroupState.STOPPING), "a"), NOW_MS) == ""
    assert live.waited_for(started(running(state=GroupState.FAILED, ended_ms=50_000), "a"), NOW_MS) == ""


def test_brackets_and_markup_in_names_are_text() -> None:
    story = Story("g1")
    story.lines = [(1_000, "rollout[0] died: [red]not a colour[/red]")]
    assert "[red]not a colour[/red]" in shown(live.screen(view_of(running()), {}, story, "", NOW_MS, None))


def test_before_there_is_a_view_the_phase_is_shown() -> None:
    assert shown(live.screen(None, {}, Story("g1"), "starting", NOW_MS, None)) == "starting\n"
