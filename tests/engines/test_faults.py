"""Everything that can break in a run with real engines, broken on purpose: the run goes on, and its books are right.

One group (GRPO on a tiny language model, two vLLM servers as they are) lives through all of it, one fault after the other; the
last one ends it. Each test says what the coordinator and XCE's rules did, from the group's own events and from outside: the
engine's answers, the process table, the files. Recovery times go into docs/recovery.md.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from gangflow.channel import HEAD, Head
from gangflow.recipes.lm import problems, verifier
from gangflow.xce.rest.messages import EventView
from tests.engines import recoveries, servers
from tests.engines.fault_fixtures import broken_world
from tests.engines.fault_world import Moment, World, gone

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <function Popen:pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def world(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with broken_world(tiny_model, tmp_path_factory.mktemp("faults")) as made:
        yield made


@pytest.fixture(autouse=True)
def _right_before_and_after(world: World) -> Iterator[None]:
    """Every fault meets a run that is whole, and leaves its books right: nothing lost, nothing twice, no invented reward."""
    world.whole()
    at = world.now()
    yield
    crashes = [event.data for event in world.events(at.seq) if event.type == "SlotExited" and event.data["member"] != "rollout"]
    assert {crash["exit"]["cause"] for crash in crashes} <= {None, "signal"}, crashes
    world.check_books()
    assert world.check_rewards(verifier.judge(problems.load(world.config.problems))) > 0


def replaced(world: World, at: Moment, judged: EventView, before: int) -> tuple[float, float]:
    """The rollout was taken out, restarted, brought to the newest weights and admitted again, while the other one worked on.

    Seconds until it was named for the last time, and until its successor was admitted.
    """
    index = judged.data["index"]
    back = world.admitted(at, index, before + 1)
    verdicts = [pair for pair in world.verdicts(at) if pair[0].seq <= back.seq]
    named = [number for number, (_, value) in enumerate(verdicts) if (index, before) in {r.key for r in value.rollouts}]
    # Each push takes all of them out for a moment: what counts is when it was not let in again.
    out = verdicts[named[-1] + 1 if named else 0][0]
    for event, value in verdicts:
        assert event.seq < judged.seq or (index, before) not in {r.key for r in value.rollouts}, "admitted from the dead"
        assert all(rollout.weights == value.weights for rollout in value.rollouts), "requests before weights"
    view = world.run.status()
    assert view.state == "RUNNING"
    other = f"{1 - index}/{view.slot('rollout', 1 - index).incarnation}"
    # The first of these steps may still have what was sampled before.
    meanwhile = [entry for entry in world.commits() if judged.at_ms < entry["at_ms"] < back.at_ms][1:]
    assert meanwhile, "nothing was learned while one was away"
    assert {sample["rollout"] for entry in meanwhile for sample in entry["samples"]} == {other}
    return (out.at_ms - at.at_ms) / 1000, (back.at_ms - at.at_ms) / 1000


# --- an engine


@pytest.mark.parametrize(
    ("name", "order"), [("VLLM::Worker", 1), ("VLLM::EngineCore", 2), ("server", 3)], ids=["worker", "core", "server"]
)
def test_a_killed_process_of_an_engine(world: World, name: str, order: int) -> None:
    """Scenarios 45, 48, 53 and 82: SIGKILL of any of its processes ends all of them; a new engine gets weights first."""
    at, actor = world.now(), world.slot("actor").incarnation
    tree, before = world.tree("rollout"), world.slot("rollout").incarnation
    tree[name].send_signal(signal.SIGKILL)
    # A server without its core answers /health with 503, and ends by itself within five seconds: whichever is seen first.
    judged = world.judged(at, "rollout", 0, *(("signal",) if name == "server" else ("app_exit", "unhealthy")))
    assert judged.data["action"] == "restart_member"
    noticed, back = replaced(world, at, judged, before)
    assert gone(tree)
    assert world.slot("actor").incarnation == actor
    world.goes_on()
    recoveries.note(f"SIGKILL of vLLM's {name}", did="rollout restarted", noticed_s=noticed, back_s=back, order=order)


def test_a_server_that_stands_still(world: World) -> None:
    """SIGSTOP of the API server: nothing answers, health checks included; it counts as unhealthy, and is replaced."""
    at, tree, before = world.now(), world.tree("rollout"), world.slot("rollout").incarnation
    tree["server"].send_signal(signal.SIGSTOP)
    judged = world.judged(at, "rollout", 0, "unhealthy")
    assert judged.data["action"] == "restart_member"
    noticed, back = replaced(world, at, judged, before)
    assert gone(tree), "what was stopped is killed as well"
    recoveries.note("SIGSTOP of the server", did="unhealthy, restarted", noticed_s=noticed, back_s=back, order=4)


@pytest.mark.parametrize(("name", "order"), [("VLLM::EngineCore", 5), ("VLLM::Worker", 6)], ids=["core", "worker"])
def test_an_engine_that_answers_health_and_hangs_on_requests(world: World, name: str, order: int) -> None:
    """SIGSTOP of what computes. /health stays 200 all the time: it is judged hung by its requests."""
    at, tree, before = world.now(), world.tree("rollout"), world.slot("rollout").incarnation
    url = world.url(0)
    tree[name].send_signal(signal.SIGSTOP)
    assert servers.answers(url)
    judged = world.judged(at, "rollout", 0, "hung")
    assert "unhealthy" not in {event.data["cause"] for event in world.events(at.seq) if event.type == "FailureJudged"}
    assert judged.data["action"] == "restart_member"
    noticed, back = replaced(world, at, judged, before)
    assert gone(tree)
    recoveries.note(f"SIGSTOP of {name}: /health is 200", did="hung, restarted", noticed_s=noticed, back_s=back, order=order)


# --- the weights


def test_a_weights_file_that_changed_after_it_was_published(world: World) -> None:
    """No engine is told to load it: each keeps what it has, is reported stale with both digests, and gets the right file."""
    at = world.now()
    before = [world.slot("rollout", index).incarnation for index in (0, 1)]
    head, repair = world.spoil_next_weights()
    for index in (0, 1):
        judged = world.judged(at, "rollout", index, "stale")
        assert "has sha256" in judged.data["message"], judged.data
        assert head.weights.sha256[:12] in judged.data["message"]
    spoiled = [r for _, value in world.verdicts(at) for r in value.rollouts if r.weights == head.weights]
    assert not spoiled, "an engine was admitted with weights that are not what was published"
    repaired = world.now()
    repair()
    backs = [world.admitted(repaired, index, before[index] + 1) for index in (0, 1)]
    world.whole()
    trained = [entry for entry in world.commits() if any(s["weights"] == str(head.weights) for s in entry["samples"])]
    assert all(entry["at_ms"] > repaired.at_ms for entry in trained)
    back = (max(event.at_ms for event in backs) - repaired.at_ms) / 1000
    did = "both stale, restarted; time from the repair on"
    recoveries.note("a weights file changed after publishing", did=did, noticed_s=None, back_s=back, order=7)


@pytest.mark.parametrize(
    ("order", "cause", "message", "number"),
    [
        ("lose-a-tensor", "diverged", "its log-probabilities differ by", 8),
        ("reshape-a-tensor", "stale", "/collective_rpc: HTTP 500", 9),
    ],
    ids=["lost", "reshaped"],
)
def test_weights_that_can_only_be_loaded_half(world: World, order: str, cause: str, message: str, number: int) -> None:
    """The digest is right, the content is not. vLLM answers 200 to a missing tensor and keeps the old one, which only the probe
    sees, and stops half-way at one of another shape. No engine serves such weights; the actor's next incarnation ends it."""
    at, actor = world.now(), world.slot("actor")
    world.order(order)
    judged = world.judged(at, "rollout", 0, cause)
    assert judged.data["action"] == "restart_member"
    assert message in judged.data["message"]
    bad = world.head().weights
    assert not [r for _, value in world.verdicts(at) for r in value.rollouts if r.weights == bad]
    healed = world.now()
    world.client.signal(world.run.id, "actor", 0, actor.incarnation, signal.SIGKILL)
    world.until(lambda: world.head().weights.actor_incarnation > actor.incarnation, "the next actor published nothing")
    world.whole()
    assert not [entry for entry in world.commits() if any(s["weights"] == str(bad) for s in entry["samples"])]
    back = (world.now().at_ms - healed.at_ms) / 1000
    did = f"{cause}, restarted; time from the actor's restart on"
    recoveries.note(f"half a load ({order})", did=did, noticed_s=None, back_s=back, order=number)


def test_a_rollout_that_is_restarted_while_weights_are_pushed_to_it(world: World) -> None:
    """Scenario 45: the other one serves the new weights at once; the restarted one never with anything older."""
    note = world.stopped_at("before-push")
    at, tree, before = world.now(), world.tree("rollout", 1), world.slot("rollout", 1).incarnation
    tree["server"].send_signal(signal.SIGSTOP)
    psutil.Process(note["pid"]).send_signal(signal.SIGCONT)

    def pushed_to_one(value: object) -> bool:
        return [(r.index, r.weights.version) for r in value.rollouts] == [(0, note["version"])]  # type: ignore[attr-defined]

    half = world.wait_verdict(at, pushed_to_one, "only rollout[0] has the new weights")[0]
    assert world.slot("rollout", 1).incarnation == before
    asked = world.now()
    world.run.restart("rollout", 1)
    back = world.admitted(asked, 1, before + 1)
    after = [value for _, value in world.verdicts(Moment(half.seq, half.at_ms))]
    assert not [r for value in after for r in value.rollouts if r.key == (1, before)]
    first = next(r for value in after for r in value.rollouts if r.key == (1, before + 1))
    assert first.weights.version >= note["version"]
    assert gone(tree)
    world.whole()
    recoveries.note(
        "restart of a rollout during a push", did="new engine synced first", noticed_s=None,
        back_s=(back.at_ms - asked.at_ms) / 1000, order=10,
    )  # fmt: skip


# --- the actor


@pytest.mark.parametrize(
    ("moment", "order"), [("before-push", 11), ("files-written", 12), ("published", 13)], ids=["before", "during", "after"]
)
def test_a_killed_actor(world: World, moment: str, order: int) -> None:
    """SIGKILL before, during and after a push. It goes on from its newest checkpoint; the rollouts stay, and are
    asked for nothing before they have that incarnation's weights."""
    rollouts = [world.slot("rollout", index).incarnation for index in (0, 1)]
    note = world.stopped_at(moment)
    saved, _ = world.ledger()
    at = world.now()
    world.client.signal(world.run.id, "actor", 0, note["incarnation"], signal.SIGKILL)
    assert world.judged(at, "actor", 0, "signal").data["action"] == "restart_member"
    new = note["incarnation"] + 1
    world.until(lambda: [entry for entry in world.commits() if entry["incarnation"] == new], "the new actor did no step")
    first = next(entry for entry in world.commits() if entry["incarnation"] == new)
    assert first["step"] == saved.step + 1
    assert all(sample["weights"].startswith(f"{new}/") for sample in first["samples"])
    published = [event for event in world.events(at.seq) if event.type == "ValueWritten" and event.data["name"] == HEAD]
    assert Head.parse(published[0].data["value"]).weights.actor_incarnation == new
    back = world.admitted(Moment(published[0].seq, 0), 0, rollouts[0])
    for event, value in world.verdicts(at):
        if event.seq > published[0].seq:
            assert {rollout.weights.actor_incarnation for rollout in value.rollouts} <= {new}
    assert [world.slot("rollout", index).incarnation for index in (0, 1)] == rollouts
    world.whole()
    for index in (0, 1):
        # Between two pushes, and not in the middle of one: what the engine itself says that it has.
        world.until(lambda index=index: f"{world.engine_version(index)}".startswith(f"{new}/"), "an engine has other weights")
    recoveries.note(
        f"SIGKILL of the actor {moment.replace('-', ' ')}", did="resumed from its checkpoint; rollouts stayed", noticed_s=None,
        back_s=(back.at_ms - at.at_ms) / 1000, order=order,
    )  # fmt: skip


# --- the services, and the disk


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Every free byte of it is taken as soon as it is free."""
    filler, over = disk / "filler", threading.Event()

    def fill() -> None:
        with filler.open("wb", buffering=0) as file:
            while not over.wait(0.02):
                try:
                    while file.write(b"\0" * 4_096):
                        pass
                except OSError:
                    continue

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        filler.unlink()


def test_a_reward_service_that_answers_500(world: World) -> None:
    """The actor waits and asks again: no step is done without rewards, and no failure is a reward (`check_rewards`)."""
    before, at = world.run.status(), world.now()
    world.order("answer-500")
    world.until(lambda: len(world.told("refused")) >= 5, "it was not asked again")
    done = len(world.told("judged"))
    world.until(lambda: len(world.told("refused")) >= 8, "it was not asked again")
    assert len(world.told("judged")) == done, "a step was judged by nobody"
    mended = world.now()
    world.withdraw("answer-500")
    world.goes_on()
    back = (world.now().at_ms - mended.at_ms) / 1000
    after = world.run.status()
    assert [m.restarts for m in after.members] == [m.restarts for m in before.members]
    assert not [event for event in world.events(at.seq) if event.type == "FailureJudged"]
    did = "the actor asked again; time from the mending on"
    recoveries.note("reward answers 500", did=did, noticed_s=None, back_s=back, order=14)


def test_a_disk_that_is_full(world: World) -> None:
    """Nothing half-written is ever published, and with room again the run goes on where it was."""
    if not os.path.ismount(world.disk):
        pytest.skip("a small disk needs the right to mount one")
    at = world.now()
    with filled(world.disk):
        # At first it frees what nobody needs any more; that is taken as well, until it only waits and says so.
        waited: list[Head] = []

        def waits() -> bool:
            if "the disk is full" in str(world.beat().get("waiting")) and (not waited or waited[-1] == world.head()):
                waited.append(world.head())
            else:
                waited.clear()
            return len(waited) >= 20

        world.until(waits, "the actor never waited for room")
        steps = len(world.commits())
        world.still_beats(2)
        assert world.head() == waited[-1], "something was published without a place to put it"
        assert len(world.commits()) == steps
    mended = world.now()
    world.goes_on()
    back = (world.now().at_ms - mended.at_ms) / 1000
    for event in world.events(at.seq):
        if event.type == "ValueWritten" and event.data["name"] == HEAD:
            assert Head.parse(event.data["value"]).weights.actor_incarnation == world.slot("actor").incarnation
    did = "the actor waited for room; time from the room on"
    recoveries.note("no room in the weights claim", did=did, noticed_s=None, back_s=back, order=15)


# --- what ends it: keep this the last


def test_a_reference_of_another_policy(world: World, tiny_model: Path, tmp_path: Path) -> None:
    """A reference that holds another policy than the run's first: POLICY. The group fails for that reason, whole."""
    other = servers.make_model(tmp_path / "other", seed=1)
    assert (other / "model.safetensors").read_bytes() != (tiny_model / "model.safetensors").read_bytes()
    engines = {**world.tree("rollout", 0), **{f"other {name}": process for name, process in world.tree("rollout", 1).items()}}
    at = world.now()
    (world.folder / "wrong-reference").write_text(str(other))
    world.client.signal(world.run.id, "ref", 0, world.slot("ref").incarnation, signal.SIGKILL)
    view = world.run.wait(timeout=120, check=False)
    assert view.state == "FAILED"
    assert "reference" in view.message or "ref serves" in view.message, view.message
    done = world.commits()[-1]
    assert done["at_ms"] < view.ended_ms
    assert gone(engines)
    recoveries.note(
        "ref with another policy", did=f"the group failed: {view.cause}", noticed_s=None,
        back_s=(view.ended_ms - at.at_ms) / 1000, order=16,
    )  # fmt: skip
