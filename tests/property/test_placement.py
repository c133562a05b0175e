"""Placement holds for any cluster and any asks: capacity, all or nothing, packing, determinism, and a brute-force oracle."""

from __future__ import annotations

import dataclasses
import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from gangflow.xce.core.asks import Ask, AskKind, Grant, Refusal, SlotAsk
from gangflow.xce.core.invariants_capacity import capacity
from gangflow.xce.core.plan import Pack, Per, TaskTerm, Use
from gangflow.xce.core.state import Host, HostFacts, HostState, PendCode, State
from gangflow.xce.placement import Scheduler
from gangflow.xce.placement.feasible import Fits
from gangflow.xce.placement.need import Mode
from gangflow.xce.placement.snapshot import ClusterView
from tests.unit.xce.placement.worlds import adopt

LEVELS = ("block", "switch")
SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
CAPACITY_CODES = (PendCode.WAITING_CAPACITY, PendCode.WAITING_SHAPE, PendCode.WAITING_TOPOLOGY)


@st.composite
def hosts(draw: st.DrawFn, most: int = 8) -> dict[str, Host]:
    found = {}
    shared = draw(st.booleans())
    for i in range(draw(st.integers(1, most))):
        facts = HostFacts(
            name=f"h{i}",
            node=f"n{i // 2}" if shared else f"n{i}",
            path=(f"b{i // 4}", f"s{draw(st.integers(0, 2))}"),
            counters=(("cpu", draw(st.integers(0, 8)) * 1_000), ("mem", draw(st.integers(0, 8)) * 1_024)),
            gpus=draw(st.integers(0, 4)),
            gpu_first=draw(st.sampled_from((0, 4))),
            port_first=20_000,
            port_count=draw(st.integers(0, 6)),
            attributes=(("zone", draw(st.sampled_from("xy"))),),
        )
        state = draw(st.sampled_from((HostState.UP, HostState.UP, HostState.UP, HostState.CLOSED)))
        found[facts.name] = Host(facts, state)
    return found


@st.composite
def terms(draw: st.DrawFn) -> TaskTerm:
    uses = []
    for name, amounts in (("cpu", (1_000, 2_000, 3_500)), ("mem", (512, 2_048)), ("gpus", (300, 500, 1_000, 2_000))):
        if draw(st.booleans()):
            per = draw(st.sampled_from((Per.TASK, Per.TASK, Per.TASK, Per.HOST, Per.JOB)))
            uses.append(Use(name, draw(st.sampled_from(amounts)), per))
    count = draw(st.integers(1, 5))
    shape = draw(st.sampled_from(("free", "free", "host", "tile")))
    return TaskTerm(
        count,
        tuple(uses),
        select=draw(st.sampled_from(("", "", "zone==x", "cpu>=2"))),
        order=draw(st.sampled_from(((), (), ("-cpu",)))),
        one_host=shape == "host",
        ptile=draw(st.integers(1, 3)) if shape == "tile" else 0,
    )


packs = st.one_of(st.none(), st.none(), st.builds(Pack, st.sampled_from((*LEVELS, "host")), st.booleans()))


@st.composite
def asks(draw: st.DrawFn, number: int) -> Ask:
    slots: list[SlotAsk] = []
    names = ("actor", "rollout")[: draw(st.integers(1, 2))]
    for member in names:
        shape = tuple(draw(terms()) for _ in range(draw(st.sampled_from((1, 1, 2)))))
        ports = ("http", "rpc")[: draw(st.integers(0, 2))]
        pack_slot = draw(packs)
        slots += [SlotAsk(member, i, shape, ports, pack_slot) for i in range(draw(st.integers(1, 3)))]
    kind = draw(st.sampled_from((AskKind.MINIMUM, AskKind.MINIMUM, AskKind.SURPLUS, AskKind.RECOVERY)))
    return Ask(
        group=f"g{number}",
        kind=kind,
        priority=draw(st.sampled_from((10, 50))),
        submitted_ms=draw(st.integers(0, 3)),
        slots=tuple(slots),
        pack=draw(packs),
        pack_members=tuple((name, pack) for name in names if (pack := draw(packs)) is not None),
        excluded=draw(st.sampled_from(((), (), ("h0",)))),
        together=kind is AskKind.RECOVERY and draw(st.booleans()),
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[dict[str, Host], list[list[Ask]], list[int]]:
    """Hosts, the asks of each session, and seeds of what goes between sessions."""
    number = itertools.count(1)
    sessions = [[draw(asks(next(number))) for _ in range(draw(st.integers(1, 3)))] for _ in range(draw(st.integers(1, 4)))]
    return draw(hosts()), sessions, [draw(st.integers(0, 7)) for _ in sessions]


def disturbed(state: State, how: int) -> State:
    """What happens between two sessions: a group ends, a slot gives its place back, a host closes or returns, facts change."""
    held = [(gid, key) for gid, group in state.groups.items() for key, slot in group.slots.items() if slot.tasks]
    first = next(iter(state.hosts.values()))
    if how == 1 and state.groups:
        gone = next(iter(state.groups))
        return dataclasses.replace(state, groups={gid: group for gid, group in state.groups.items() if gid != gone})
    if how == 2 and held:
        gid, key = held[len(held) // 2]
        group = state.groups[gid]
        slots = {**group.slots, key: dataclasses.replace(group.slots[key], tasks=())}
        return dataclasses.replace(state, groups={**state.groups, gid: dataclasses.replace(group, slots=slots)})
    if how == 3:
        turned = HostState.CLOSED if first.state is HostState.UP else HostState.UP
        return dataclasses.replace(state, hosts={**state.hosts, first.facts.name: dataclasses.replace(first, state=turned)})
    if how == 4:
        facts = dataclasses.replace(first.facts, counters=(("cpu", 9_000), ("mem", 9_000), ("fpga", 1)))
        return dataclasses.replace(state, hosts={**state.hosts, facts.name: dataclasses.replace(first, facts=facts)})
    if how == 5 and held:
        gid, key = held[0]
        group = state.groups[gid]
        renewed = tuple(dataclasses.replace(task, token="boot") for task in group.slots[key].tasks)
        slots = {**group.slots, key: dataclasses.replace(group.slots[key], tasks=renewed)}
        return dataclasses.replace(state, groups={**state.groups, gid: dataclasses.replace(group, slots=slots)})
    return state


def run(
    history: tuple[dict[str, Host], list[list[Ask]], list[int]],
) -> Iterator[tuple[Scheduler, State, list[Ask], tuple[Grant | Refusal, ...]]]:
    """(scheduler, state before, asks, answers) of every session of a history."""
    found, sessions, between = history
    state, scheduler = State(levels=LEVELS, hosts=found), Scheduler()
    for wanted, how in zip(sessions, between, strict=True):
        answers = scheduler.decide(state, wanted)
        yield scheduler, state, wanted, answers
        if how != 7:  # 7: the answers are dropped, as when the journal could not be written
            state = adopt(state, answers)
        state = disturbed(state, how)


@given(histories())
@SETTINGS
def test_nothing_is_ever_over_capacity(history: tuple[dict[str, Host], list[list[Ask]], list[int]]) -> None:
    """Property 5 (I3), and each task gets exactly what its term says."""
    for _, state, wanted, answers in run(history):
        after = adopt(state, answers)
        if not list(capacity(state)):
            assert not list(capacity(after))
        numbers = Counter(
            (after.hosts[task.host].facts.node, number)
            for answer in answers
            if isinstance(answer, Grant)
            for _, _, tasks in answer.slots
            for task in tasks
            for _, number in task.ports
        )
        assert not [key for key, count in numbers.items() if count > 1]
        shapes = {(ask.group, slot.member, slot.index): (slot, ask) for ask in wanted for slot in ask.slots}
        for answer in answers:
            if isinstance(answer, Grant):
                for member, index, tasks in answer.slots:
                    check_slot(after, *shapes[answer.group, member, index], tasks)


def check_slot(state: State, slot: SlotAsk, ask: Ask, tasks: tuple) -> None:
    """One granted slot against what it asked for."""
    assert [task.index for task in tasks] == list(range(sum(term.count for term in slot.terms)))
    rest = list(tasks)
    for term in slot.terms:
        mine, rest = rest[: term.count], rest[term.count :]
        stand = Counter(task.host for task in mine)
        for name in ("cpu", "mem", "gpus"):
            took = sum(
                sum(share for _, share in task.gpus) if name == "gpus" else dict(task.counters).get(name, 0) for task in mine
            )
            times = {Per.TASK: term.count, Per.HOST: len(stand), Per.JOB: 1}
            assert took == sum(use.amount * times[use.per] for use in term.uses if use.name == name)
        assert not term.one_host or len(stand) == 1
        assert not term.ptile or all(count <= term.ptile for count in stand.values())
        assert not term.ptile or sum(count < term.ptile for count in stand.values()) <= 1
        for host in stand:
            facts = state.hosts[host].facts
            assert host not in ask.excluded
            assert state.hosts[host].state is HostState.UP
            assert term.select != "zone==x" or dict(facts.attributes)["zone"] == "x"
    for task in tasks:
        facts = state.hosts[task.host].facts
        assert [name for name, _ in task.ports] == list(slot.ports)
        assert all(facts.port_first <= number < facts.port_first + facts.port_count for _, number in task.ports)
        assert all(facts.gpu_first <= device < facts.gpu_first + facts.gpus for device, _ in task.gpus)


@given(histories())
@SETTINGS
def test_all_or_nothing_and_every_slot_is_answered_once(history: tuple[dict[str, Host], list[list[Ask]], list[int]]) -> None:
    """Property 6."""
    for _, _, wanted, answers in run(history):
        for ask in wanted:
            keys = sorted((slot.member, slot.index) for slot in ask.slots)
            granted = [(m, i) for one in answers if isinstance(one, Grant) and one.group == ask.group for m, i, _ in one.slots]
            refused = [key for one in answers if isinstance(one, Refusal) and one.group == ask.group for key in one.slots]
            assert sorted([*granted, *refused]) == keys
            if ask.kind is AskKind.MINIMUM or ask.together:
                assert not (granted and refused)
            event("granted" if granted else "refused")


@given(histories())
@SETTINGS
def test_what_waits_has_a_reason_with_a_shortfall(history: tuple[dict[str, Host], list[list[Ask]], list[int]]) -> None:
    """Property 9 (I9): a known code; where capacity is the cause, something is missing."""
    for _, _, _, answers in run(history):
        for answer in answers:
            if isinstance(answer, Refusal):
                event(answer.reason.code)
                assert answer.reason.text
                if answer.reason.code in CAPACITY_CODES:
                    assert answer.reason.shortfall
                    assert all(amount > 0 for _, amount in answer.reason.shortfall)


@given(histories())
@SETTINGS
def test_a_required_pack_never_straddles(history: tuple[dict[str, Host], list[list[Ask]], list[int]]) -> None:
    """Property 7. Scenario 10: what must stand together stands in one domain."""
    for _, state, wanted, answers in run(history):
        placed: dict[tuple[str, str, int], list[str]] = {}
        for answer in answers:
            if isinstance(answer, Grant):
                placed |= {(answer.group, m, i): [task.host for task in tasks] for m, i, tasks in answer.slots}
        for ask in wanted:
            everything = [host for key, found in placed.items() if key[0] == ask.group for host in found]
            assert_together(state, ask.pack, everything)
            for member, pack in ask.pack_members:
                assert_together(
                    state, pack, [host for key, found in placed.items() if key[:2] == (ask.group, member) for host in found]
                )
            for slot in ask.slots:
                assert_together(state, slot.pack_slot, placed.get((ask.group, slot.member, slot.index), []))


def assert_together(state: State, pack: Pack | None, names: list[str]) -> None:
    """All of these hosts in one domain, if that is required."""
    if pack is None or not pack.required:
        return
    if pack.level == "host":
        assert len({*names}) <= 1
        return
    depth = LEVELS.index(pack.level) + 1
    assert len({state.hosts[name].facts.path[:depth] for name in names}) <= 1


@given(histories())
@SETTINGS
def test_the_view_that_was_kept_equals_one_built_anew(history: tuple[dict[str, Host], list[list[Ask]], list[int]]) -> None:
    """Property 24."""
    for scheduler, state, wanted, answers in run(history):
        assert Scheduler().decide(state, wanted) == answers
        kept = scheduler._fits
        assert kept is not None
        after = adopt(state, answers)
        kept.view.refresh(after)
        anew = ClusterView(after.hosts, after.levels)
        anew.refresh(after)
        for name in ("free", "gpu_free", "usable"):
            assert np.array_equal(getattr(kept.view, name), getattr(anew, name)), name
        assert np.array_equal(kept.view.ports.free, anew.ports.free)
        assert kept.view.ports.taken == anew.ports.taken
        assert kept.view.booked == anew.booked
        assert kept.view.holders.tasks == anew.holders.tasks
        for row in range(anew.topology.size):
            assert sorted(kept.view.holders.on(row)) == sorted(anew.holders.on(row))
        fresh = Fits(anew)
        for slot in (slot for ask in wanted for slot in ask.slots):
            term = slot.terms[0]
            one = kept.get(term, Mode.WHOLE, 1, len(slot.ports))
            other = fresh.get(term, Mode.WHOLE, 1, len(slot.ports))
            kept.refresh((one,))
            fresh.refresh((other,))
            assert np.array_equal(one.cap, other.cap)
            assert np.array_equal(one.sums, other.sums)
        for level in range(anew.topology.depth):
            assert np.array_equal(kept.sums.level(level), fresh.sums.level(level))


simple_hosts = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=4)
"""(CPUs, GPUs, switch) of each host."""


@given(
    simple_hosts,
    st.integers(1, 5),
    st.integers(0, 2),
    st.integers(0, 2),
    st.sampled_from(("none", "group", "slot")),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_brute_force_oracle_agrees(
    found: list[tuple[int, int, int]], count: int, cpu: int, gpus: int, packed: str, one_slot: bool
) -> None:
    """Property 8: equal tasks as one job or as replicas, packed or not, are placed exactly when an assignment exists."""
    hosts = {
        f"h{i}": Host(HostFacts(f"h{i}", f"n{i}", path=(f"s{switch}",), counters=(("cpu", cpus * 1_000),), gpus=devices))
        for i, (cpus, devices, switch) in enumerate(found)
    }
    uses = tuple(Use(name, amount * 1_000) for name, amount in (("cpu", cpu), ("gpus", gpus)) if amount)
    pack = Pack("switch", True)
    slot_pack = pack if packed == "slot" else None
    if one_slot:
        slots = (SlotAsk("m", 0, (TaskTerm(count, uses),), (), slot_pack),)
    else:
        slots = tuple(SlotAsk("m", i, (TaskTerm(1, uses),), (), slot_pack) for i in range(count))
    ask = Ask("g1", AskKind.MINIMUM, 50, 0, slots, pack if packed == "group" else None)
    (answer,) = Scheduler().decide(State(levels=("switch",), hosts=hosts), [ask])

    together = packed == "group" or (packed == "slot" and one_slot)
    exists = False
    for assignment in itertools.product(range(len(found)), repeat=count):
        load = Counter(assignment)
        fits = all(n * cpu <= found[i][0] and n * gpus <= found[i][1] for i, n in load.items())
        if fits and (not together or len({found[i][2] for i in load}) == 1):
            exists = True
            break
    assert isinstance(answer, Grant) == exists, answer
    event(f"{packed} {'fits' if exists else 'does not fit'}")


@given(simple_hosts, st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_the_oracle_agrees_on_tiles(found: list[tuple[int, int, int]], tile: int, full: int, cpu: int) -> None:
    """Property 8. `span[ptile=n]`: placed exactly when so many hosts have room for n tasks."""
    hosts = {
        f"h{i}": Host(HostFacts(f"h{i}", f"n{i}", path=(f"s{switch}",), counters=(("cpu", cpus * 1_000),)))
        for i, (cpus, _, switch) in enumerate(found)
    }
    term = TaskTerm(tile * full, (Use("cpu", cpu * 1_000),), ptile=tile)
    ask = Ask("g1", AskKind.MINIMUM, 50, 0, (SlotAsk("m", 0, (term,)),))
    (answer,) = Scheduler().decide(State(levels=("switch",), hosts=hosts), [ask])
    assert isinstance(answer, Grant) == (sum(cpus >= tile * cpu for cpus, _, _ in found) >= full)


HISTORY = """
from gangflow.xce.core.asks import Ask, AskKind, SlotAsk
from gangflow.xce.core.plan import Pack, TaskTerm, Use
from gangflow.xce.core.state import Host, HostFacts, State
from gangflow.xce.placement import Scheduler

hosts = {}
for i in range(40):
    name = f"h{i}"
    counters = (("cpu", 8_000 + 1_000 * (i % 3)), ("mem", 65_536), (f"licence{i % 4}", 2))
    attributes = (("zone", "xy"[i % 2]), ("model", f"m{i % 3}"))
    path = (f"b{i // 20}", f"s{i // 5}")
    hosts[name] = Host(HostFacts(name, f"n{i // 2}", "", path, counters, 2, 0, 20_000, 9, attributes))
asks = []
for i in range(60):
    uses = (Use("cpu", 1_000 * (1 + i % 4)), Use("gpus", (0, 500, 1_000)[i % 3]), Use(f"licence{i % 4}", i % 2))
    term = TaskTerm(1 + i % 5, uses, ("", "zone==x", "model!=m1")[i % 3], ((), ("-cpu",))[i % 2])
    slots = tuple(SlotAsk(f"m{j % 2}", j // 2, (term,), ("http",)[: i % 2]) for j in range(1 + i % 6))
    pack = (None, Pack("switch", True), Pack("block"), Pack("switch"))[i % 4]
    asks.append(Ask(f"g{i}", AskKind.MINIMUM, 50 + i % 2, i // 7, slots, pack))
print(Scheduler().decide(State(levels=("block", "switch"), hosts=hosts), asks))
"""


def test_the_same_answers_whatever_the_hash_seed() -> None:
    """I14: byte for byte."""
    outputs = []
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", HISTORY], env=environment, capture_output=True, check=True, cwd=Path(__file__).parents[2]
        )
        outputs.append(done.stdout)
    assert outputs[0].count(b"Grant(") > 5
    assert outputs[0].count(b"Refusal(") > 5
    assert len({*outputs}) == 1
