"""Replay: what it begins with, how far it goes, whose decisions it compares, and how it says what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from gangflow import __version__
from gangflow.errors import JournalCorrupt, JournalError, OtherVersion
from gangflow.xce.core import events as ev
from gangflow.xce.core import inputs as inp
from gangflow.xce.core.state import State
from gangflow.xce.journal import image
from gangflow.xce.journal import record as records
from gangflow.xce.journal import replay as room
from gangflow.xce.journal.divergence import ABSENT, Difference, Kind
from gangflow.xce.journal.image import Image
from gangflow.xce.journal.record import Batch
from gangflow.xce.journal.replay import replay
from gangflow.xce.machine import Decision, Machine
from tests.property.kept import Kept, altered, batches_of
from tests.property.world import Faults, World
from tests.unit.xce.core.plans import hosts, job, plan, replicas

NOW = 1_000_000


@cache
def story() -> tuple[Batch, ...]:
    """Two hosts, a group that runs and ends, and another controller in the middle."""
    from random import Random

    from gangflow.xce.placement import Scheduler

    world = World(Random(3), hosts(2), Scheduler, Faults())
    world.start()
    world.feed(inp.SubmitGroup(plan(job(), replicas(count=2)), inp.Request("key", "digest")))
    world.run(NOW + 5_000)
    world.restart_controller()
    world.run(world.now_ms + 120_000)
    return tuple(batches_of(world.journal))


def where(batches: Sequence[Batch], kind: type) -> tuple[int, int]:
    """(batch, position) of the first event of that kind."""
    return next(
        (number, position)
        for number, batch in enumerate(batches)
        for position, event in enumerate(batch.events)
        if type(event) is kind
    )


def test_the_story_is_one() -> None:
    found = replay(Kept(story()))
    assert found.divergence is None
    assert (found.began_after, found.seq, found.versions) == (0, story()[-1].last_seq, {__version__: len(story())})
    assert {group.state for group in found.state.groups.values()} == {"SUCCEEDED"}
    assert found.digest == Kept(story()).kept[-1].digest.hex()


def test_an_empty_journal_replays_to_nothing() -> None:
    found = replay(Kept(()))
    assert (found.state, found.seq, found.batches, found.divergence) == (State(), 0, 0, None)


# --- how far --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 3, -2])
def test_until_goes_as_far_as_the_batch_that_holds_it(number: int) -> None:
    journal = Kept(story())
    batch = journal.kept[number]
    for until in (batch.first_seq, batch.last_seq):
        found = replay(journal, until=until)
        assert (found.seq, found.state) == (batch.last_seq, journal.states[number])


def test_from_takes_what_is_before_as_it_was_decided() -> None:
    number, position = where(story(), ev.SlotPlaced)
    changed = altered(story(), number, position, until_ms=77)
    journal = Kept(changed)
    assert replay(journal).divergence is not None
    later = changed[number].last_seq + 1
    assert replay(journal, after=later - 1).began_after == later - 1
    untouched = Kept(story())
    found = replay(untouched, after=later - 1)
    assert (found.divergence, found.state) == (None, untouched.states[-1])
    assert found.batches == len(story()) - number - 1


def test_from_inside_a_batch_compares_all_of_it() -> None:
    batch = next(batch for batch in story() if len(batch.events) > 2)
    found = replay(Kept(story()), after=batch.first_seq)
    assert found.began_after == batch.first_seq - 1


def test_from_the_end_there_is_nothing_to_compare() -> None:
    journal = Kept(story())
    found = replay(journal, after=journal.seq)
    assert (found.batches, found.state, found.versions) == (0, journal.states[-1], {})


# --- what it begins with --------------------------------------------------------------------------------------------


def test_a_forgotten_beginning_is_made_up_for_by_the_oldest_image() -> None:
    journal = Kept(story(), images=(4, 9), horizon=3)
    found = replay(journal)
    assert (found.began_after, found.images) == (story()[4].last_seq, [story()[9].last_seq])
    assert (found.divergence, found.state) == (None, journal.states[-1])
    assert "begins with the oldest image" in found.notes[0]


def test_a_damaged_image_is_passed_over_and_said() -> None:
    journal = Kept(story(), images=(4, 9), horizon=3)
    journal.images[story()[4].last_seq] = b"\0" * 50
    found = replay(journal)
    assert found.began_after == story()[9].last_seq
    assert "falling back" in found.notes[0]


def test_from_needs_an_image_before_it() -> None:
    journal = Kept(story(), images=(4, 9), horizon=3)
    assert replay(journal, after=story()[6].last_seq).state == journal.states[-1]
    with pytest.raises(JournalError, match=f"at or before seq {story()[3].last_seq}$") as caught:
        replay(journal, after=story()[3].last_seq)
    assert f"--from {story()[4].last_seq + 1} is the earliest" in caught.value.advice


def test_without_beginning_and_image_nothing_can_be_said() -> None:
    with pytest.raises(JournalCorrupt, match="no state image can be used") as caught:
        replay(Kept(story(), horizon=3))
    assert caught.value.seq == story()[2].last_seq


def test_from_uses_the_newest_image_before_it() -> None:
    journal = Kept(story(), images=(2, 6))
    journal.kept[1] = journal.kept[1]._replace(raw=b"not to be read")
    assert replay(journal, after=story()[8].last_seq).divergence is None


# --- whose decisions ------------------------------------------------------------------------------------------------


def of_version(code: str, first: int, last: int) -> list[Batch]:
    return [replace(batch, code=code) if first <= number < last else batch for number, batch in enumerate(story())]


def test_another_versions_decisions_are_not_compared_by_themselves() -> None:
    batches = of_version("0.0.9", 0, 5)
    ours = batches[5].first_seq
    with pytest.raises(OtherVersion, match=rf"seq 1 was decided by gangflow 0\.0\.9, this is {__version__}") as caught:
        replay(Kept(batches))
    assert caught.value.exit_code == 12
    assert caught.value.seq == 1
    assert f"--from {ours} begins where gangflow {__version__} took over" in caught.value.advice
    found = replay(Kept(batches), after=ours - 1)
    assert (found.divergence, found.versions) == (None, {__version__: len(batches) - 5})


def test_another_version_in_the_middle_is_met_there() -> None:
    batches = of_version("9.0.0", 7, len(story()))
    with pytest.raises(OtherVersion) as caught:
        replay(Kept(batches))
    assert caught.value.seq == batches[7].first_seq
    assert "--from" not in caught.value.advice
    assert replay(Kept(batches), until=batches[6].last_seq).divergence is None


def test_force_and_a_version_that_is_declared_to_decide_alike_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = of_version("0.0.9", 0, 5)
    assert replay(Kept(batches), force=True).versions == {"0.0.9": 5, __version__: len(batches) - 5}
    monkeypatch.setattr(room, "DECIDES_AS", frozenset({"0.0.9"}))
    assert replay(Kept(batches)).divergence is None


def test_the_same_in_other_words_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that did not know a field yet wrote a record without it: that is no other decision, and it is said."""
    journal = Kept(story())
    number, _ = where(story(), ev.SlotChanged)
    shorter = journal.kept[number].raw.replace(b',"run_until_ms":0', b"")
    assert shorter != journal.kept[number].raw
    journal.kept[number] = journal.kept[number]._replace(raw=shorter)
    found = replay(journal)
    assert (found.divergence, found.reworded) == (None, 1)


# --- what differs ---------------------------------------------------------------------------------------------------


def test_a_field_that_differs_is_named_with_its_entity() -> None:
    number, position = where(story(), ev.SlotPlaced)
    event = story()[number].events[position]
    assert isinstance(event, ev.SlotPlaced)
    tasks = (replace(event.tasks[0], host="h9"), *event.tasks[1:])
    found = replay(Kept(altered(story(), number, position, tasks=tasks)))
    what = found.divergence
    assert what is not None
    assert (what.kind, what.seq, what.about) == (Kind.EVENTS, story()[number].first_seq + position, "slot g1.actor[0]")
    assert what.differences == (Difference("tasks[0].host", "h9", event.tasks[0].host),)
    assert (what.first_seq, what.at_ms, what.inputs) == (
        story()[number].first_seq,
        story()[number].now_ms,
        story()[number].inputs,
    )
    assert (found.seq, found.state) == (what.first_seq - 1, Kept(story()).states[number - 1])


@pytest.mark.parametrize("more", [False, True])
def test_an_event_too_many_or_too_few_is_said(more: bool) -> None:
    number, _ = where(story(), ev.GroupPlaced)
    batch = story()[number]
    extra = ev.HostBlamed("g1", ev.Blame("h0", (5,)))
    events = (*batch.events, extra) if more else batch.events[:-1]
    batches = [*story()[:number], replace(batch, events=events)]
    what = replay(Kept(batches)).divergence
    assert what is not None
    assert what.position == len(batch.events) - (not more)
    name = type(batch.events[-1]).__name__
    expected = Difference("", "HostBlamed", ABSENT) if more else Difference("", ABSENT, name)
    assert what.differences == (expected,)
    assert what.about.endswith("g1")


def test_a_changed_input_shows_as_another_decision() -> None:
    """The chain would be broken by it; that somebody made the chain anew as well does not help him."""
    number = next(n for n, batch in enumerate(story()) if any(isinstance(one, inp.TaskStarted) for one in batch.inputs))
    inputs = tuple(replace(one, pid=4_242) if isinstance(one, inp.TaskStarted) else one for one in story()[number].inputs)
    batches = [*story()[:number], replace(story()[number], inputs=inputs), *story()[number + 1 :]]
    what = replay(Kept(batches)).divergence
    assert what is not None
    assert [(each.path, each.replayed) for each in what.differences] == [("pid", 4_242)]


def test_another_time_is_another_batch() -> None:
    number = len(story()) - 1
    early = replace(story()[number], now_ms=1)
    what = replay(Kept([*story()[:number], early])).divergence
    assert what is not None
    assert what.kind in (Kind.BATCH, Kind.EVENTS)


def test_another_term_is_another_batch() -> None:
    number = len(story()) - 1
    what = replay(Kept([*story()[:number], replace(story()[number], term=9)])).divergence
    assert what is not None
    assert (what.kind, what.differences) == (Kind.BATCH, (Difference("term", 9, 2),))


def test_a_machine_that_cannot_take_the_inputs_is_a_divergence() -> None:
    class Broken:
        def __init__(self, state: State) -> None:
            self.machine = Machine(state)

        def handle(self, inputs: Sequence[inp.Input], now_ms: int) -> Decision:
            if any(isinstance(one, inp.TaskExited) for one in inputs):
                raise KeyError("g1")
            return self.machine.handle(inputs, now_ms)

    what = replay(Kept(story()), machine=Broken).divergence
    assert what is not None
    assert (what.kind, what.fault) == (Kind.FAULT, "KeyError: 'g1'")
    assert any(isinstance(one, inp.TaskExited) for one in what.inputs)


def test_an_image_that_says_something_else_is_a_divergence() -> None:
    journal = Kept(story(), images=(6,))
    seq, state = story()[6].last_seq, journal.states[6]
    group = replace(state.groups["g1"], attempt=44)
    wrong = Image(replace(state, groups={"g1": group}), seq, journal.kept[6].digest)
    journal.images[seq] = image.encode(wrong)
    what = replay(journal).divergence
    assert what is not None
    assert (what.kind, what.last_seq) == (Kind.IMAGE, seq)
    assert what.differences == (Difference("groups.g1.attempt", 44, state.groups["g1"].attempt),)


def test_the_order_of_an_images_entries_counts() -> None:
    journal = Kept(story(), images=(6,))
    seq, state = story()[6].last_seq, journal.states[6]
    turned = dict(reversed(list(state.hosts.items())))
    journal.images[seq] = image.encode(Image(replace(state, hosts=turned), seq, journal.kept[6].digest))
    what = replay(journal).divergence
    assert what is not None
    assert [each.path for each in what.differences] == ["hosts (its order)"]


def test_a_damaged_image_on_the_way_is_a_note() -> None:
    journal = Kept(story(), images=(6,))
    journal.images[story()[6].last_seq] = b"x" * 100
    found = replay(journal)
    assert (found.divergence, found.images) == (None, [])
    assert "state image" in found.notes[0]


def test_a_record_that_cannot_be_applied_on_the_way_is_said() -> None:
    journal = Kept(story())
    odd = replace(story()[3], events=(ev.HostExcluded("g77", "h0"),))
    journal.kept[3] = journal.kept[3]._replace(raw=records.encode(odd))
    with pytest.raises(JournalError, match="cannot be applied"):
        replay(journal, after=journal.kept[3].last_seq)


def test_a_record_of_no_version_of_ours_is_an_error() -> None:
    journal = Kept(story())
    journal.kept[2] = journal.kept[2]._replace(raw=b'{"v":1,"nothing":2}')
    with pytest.raises(JournalError, match="cannot be read"):
        replay(journal)
    assert records.code_of(b"\xff") == ""
    assert records.written_events(b"\xff") == []


def test_who_watches_hears_of_every_batch() -> None:
    heard: list[int] = []
    replay(Kept(story()), watch=heard.append)
    assert heard == [batch.last_seq for batch in story()]
