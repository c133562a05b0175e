"""A real co-start group (GRPO on a language model, two vLLM engines) for tests that break it, with looks at it from outside."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from gangflow.channel import CHECKPOINT, ELIGIBLE, HEAD, Eligible, Head
from gangflow.member.checkpoint import Checkpoint
from gangflow.member.ledger import Ledger
from gangflow.recipes.grpo.lm.build import CKPT, build
from gangflow.recipes.grpo.lm.config import LmConfig
from gangflow.specs.group import CoStartGroup
from gangflow.xce.rest.messages import EventView
from gangflow.xce.rest.schema import SlotView
from tests.engines import servers
from tests.integration.live.cluster import Live

FAULTS = "GANGFLOW_TEST_FAULTS"
FAULTY = Path(__file__).with_name("faulty.py")
DEADLINE_S = 240.0
"""For what needs an engine's start on a busy machine."""
SYNC_S, UNHEALTHY_S, QUORUM_S = 15, 5, 240


def quick_command(folder: Path) -> Path:
    """A `vllm` command that starts in a third of the time: one import instead of three."""
    script = folder / "vllm"
    script.write_text(f'#!/bin/sh\nexec "{servers.VENV}/bin/python" "{servers.QUICK}" "$@"\n')
    script.chmod(0o755)
    return script


def config(model: Path, vllm: Path, **more: Any) -> LmConfig:
    """As many small steps as a test needs, each with a checkpoint and a push."""
    given: dict[str, Any] = {
        "model": str(model), "vllm": str(vllm), "steps": 1_000_000, "prompts": 4, "samples": 4, "max_tokens": 8,
        # A worker that can be killed, as engines of several GPUs have.
        "vllm_args": ["--distributed-executor-backend=mp"],
        "checkpoint_every": 1, "evaluate_every": 1_000_000, "evaluate_prompts": 4, "max_restarts": 100, "patience": "30s",
        "request_timeout": "10s",
        "sync_timeout": f"{SYNC_S}s", "unhealthy_timeout": f"{UNHEALTHY_S}s", "quorum_timeout": f"{QUORUM_S}s",
    }  # fmt: skip
    return LmConfig(**{**given, **more})


def faulty(group: CoStartGroup, folder: Path, disk: Path) -> CoStartGroup:
    """The same group, whose Python programs can be told to fail (see `faulty.py`); checkpoints and weights lie on that disk."""
    members = {}
    for name, member in group.members.items():
        words = list(member.command)
        if "-m" in words[:2]:
            words[words.index("-m")] = str(FAULTY)
        members[name] = member.model_copy(update={"command": tuple(words)})
    claims = [
        claim.model_copy(update={"parameters": {"path": str(disk)}}) if claim.name == CKPT else claim for claim in group.claims
    ]
    environment = {**group.environment, FAULTS: str(folder)}
    return group.model_copy(update={"members": members, "claims": tuple(claims), "environment": environment})


@dataclass(frozen=True, slots=True)
class Moment:
    """Where the journal stood when something was done, for what comes after it."""

    seq: int
    at_ms: int


class World:
    """One such group. Everything is waited for with a deadline; a group that has ended meanwhile fails the wait at once."""

    def __init__(self, live: Live, chosen: LmConfig, folder: Path, disk: Path) -> None:
        self.live = live
        self.config = chosen
        self.folder = folder
        self.disk = disk
        self.run = live.run(faulty(build(chosen), folder, disk))
        self.client = self.run.client
        self._events: list[EventView] = []
        self._read = 0

    # --- what the group says

    def now(self) -> Moment:
        view = self.run.status()
        return Moment(view.seq, view.now_ms)

    def events(self, after: int = 0) -> list[EventView]:
        """Records of the group behind a position, up to now. Each is read once: there are thousands after a while."""
        now = self.run.status().seq
        if now > self._read:
            self._events += [event for event in self.client.events(self._read, self.run.id, now) if event.seq > self._read]
            self._read = now
        return [event for event in self._events if event.seq > after]

    def wait_event(self, after: Moment, wanted: Callable[[EventView], bool], what: str) -> EventView:
        """The first record behind that moment for which it is true."""
        found: list[EventView] = []

        def look() -> bool:
            found[:] = [event for event in self.events(after.seq) if wanted(event)]
            return bool(found)

        self.until(look, f"no event: {what}", ended_is_fine=True)
        return found[0]

    def judged(self, after: Moment, member: str, index: int, *causes: str) -> EventView:
        """The verdict of XCE's rules on that failure, for one of these causes."""

        def is_it(event: EventView) -> bool:
            if event.type != "FailureJudged":
                return False
            data = event.data
            return (data["member"], data["index"]) == (member, index) and data["cause"] in causes

        return self.wait_event(after, is_it, f"{member}[{index}] judged {' or '.join(causes)}")

    def verdicts(self, after: Moment) -> Iterator[tuple[EventView, Eligible]]:
        """What the coordinator wrote since, in order."""
        for event in self.events(after.seq):
            if event.type == "ValueWritten" and event.data["name"] == ELIGIBLE:
                yield event, Eligible.parse(event.data["value"])

    def wait_verdict(self, after: Moment, wanted: Callable[[Eligible], bool], what: str) -> tuple[EventView, Eligible]:
        """The first that the coordinator wrote behind that moment for which it is true."""
        found: list[tuple[EventView, Eligible]] = []

        def look() -> bool:
            found[:] = [pair for pair in self.verdicts(after) if wanted(pair[1])]
            return bool(found)

        self.until(look, f"the coordinator never wrote: {what}", ended_is_fine=True)
        return found[0]

    def admitted(self, after: Moment, index: int, incarnation: int) -> EventView:
        """When the coordinator named that incarnation (again), with weights of the present actor."""
        key = (index, incarnation)
        what = f"rollout[{index}]/{incarnation} is eligible"
        return self.wait_verdict(after, lambda value: key in {r.key for r in value.rollouts}, what)[0]

    def eligible(self) -> Eligible:
        text = self.client.kv_get(self.run.id, ELIGIBLE).value
        return Eligible() if text is None else Eligible.parse(text)

    def head(self) -> Head:
        return Head.parse(self.client.kv_get(self.run.id, HEAD).value or "")

    def slot(self, member: str, index: int = 0) -> SlotView:
        return self.run.status().slot(member, index)

    def beat(self) -> dict[str, Any]:
        """What the actor's newest heartbeat says; empty before the first."""
        beats = [beat for beat in self.client.beats(self.run.id).heartbeats if beat.member == "actor"]
        return max(beats, key=lambda beat: beat.incarnation).body if beats else {}

    def step(self) -> int:
        """The newest step that the actor beat; -1 before."""
        return int(self.beat().get("step") or -1)

    # --- waiting

    def still_beats(self, times: int) -> None:
        """Wait for so many further heartbeats of the actor."""
        seen = 0
        for beat in self.client.follow_beats(self.run.id):
            seen += beat.member == "actor"
            if seen > times:
                return

    def until(self, true: Callable[[], object], what: str, *, ended_is_fine: bool = False) -> None:
        def look() -> bool:
            if true():
                return True
            view = self.run.status()
            assert ended_is_fine or not view.terminal, f"{what}\n{self.story()}"
            return view.terminal and bool(true())

        servers.until(look, DEADLINE_S, lambda: f"{what}\n{self.story()}")

    def goes_on(self, steps: int = 2) -> int:
        """Wait until the actor has done so many more steps; the newest."""
        before = len(self.commits())
        self.until(lambda: len(self.commits()) >= before + steps, f"no {steps} more steps")
        return self.step()

    def whole(self) -> None:
        """Wait until both rollouts serve and the actor trains."""
        if not self.commits():
            crashes = [event.data for event in self.events() if event.type == "SlotExited"]
            assert not crashes, crashes
        self.until(lambda: len(self.eligible().rollouts) == self.config.rollouts, "not all rollouts are eligible")
        self.goes_on()

    def story(self) -> str:
        """What there is to say about a wait that was in vain."""
        view = self.run.status()
        lines = [f"{view.state} {view.cause} {view.message}", f"eligible: {self.client.kv_get(self.run.id, ELIGIBLE).value}"]
        for member in view.members:
            lines += [f"{slot.id} {slot.state}/{slot.incarnation} {slot.exit or ''}" for slot in member.slots]
        for member in ("actor", "rollout"):
            lines.append("".join(self.run.logs(member, stream="stderr"))[-1500:])
        log = self.live.home.path / f"coordinator-{self.run.id}.log"
        return "\n".join([*lines, log.read_text()[-3000:] if log.exists() else "no coordinator's log"])

    # --- from outside

    def tree(self, member: str, index: int = 0) -> dict[str, psutil.Process]:
        """The processes of a slot's task by name: `server`, `VLLM::EngineCore`, `VLLM::Worker`, …"""
        root = psutil.Process(self.slot(member, index).tasks[0].pid)
        found = {}
        for process in [root, *root.children(recursive=True)]:
            words = process.cmdline()
            found["server" if "serve" in words else words[0] if words else str(process.pid)] = process
        return found

    def url(self, index: int) -> str:
        return f"http://{self.slot('rollout', index).addresses['http'][0]}"

    def engine_version(self, index: int) -> str:
        """What the engine itself says."""
        answer = httpx.get(f"{self.url(index)}/weight_info", timeout=10, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["weight_version"])

    def told(self, name: str) -> list[dict[str, Any]]:
        """What the programs told in a file of the folder; a line that is being written is left for later."""
        path = self.folder / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def commits(self) -> list[dict[str, Any]]:
        """Steps as the SDK committed them."""
        return [entry for entry in self.told("commits") if entry["step"] is not None]

    def order(self, name: str) -> None:
        (self.folder / name).write_text("")

    def withdraw(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def stopped_at(self, moment: str) -> dict[str, Any]:
        """Wait until the trainer has stopped at that moment of a push; what it said of it."""
        before = len(self.told(f"at-{moment}"))
        self.order(f"stop-at-{moment}")
        self.until(lambda: len(self.told(f"at-{moment}")) > before, f"the actor did not come to {moment}")
        note = self.told(f"at-{moment}")[-1]
        self.until(lambda: psutil.Process(note["pid"]).status() == psutil.STATUS_STOPPED, "it does not stand still")
        return note

    def spoil_next_weights(self) -> tuple[Head, Callable[[], None]]:
        """Change one bit of the next version after its publishing and before any load; that head, and what repairs its file.

        The coordinator stands still meanwhile: nobody else could be quick enough.
        """
        coordinator = self.coordinator()

        def between_two_pushes() -> bool:
            coordinator.suspend()
            served = [rollout.weights for rollout in self.eligible().rollouts]
            if served == [self.head().weights] * self.config.rollouts:
                return True
            coordinator.resume()  # The actor waits for it.
            return False

        self.until(between_two_pushes, "the rollouts never had the newest weights")
        old = self.eligible().rollouts[0].weights
        self.until(lambda: self.head().weights != old, "nothing more was published")
        head = self.head()
        (file,) = Path(head.path).glob("*.safetensors")
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        coordinator.resume()
        return head, lambda: _written(file, whole)

    def coordinator(self) -> psutil.Process:
        (pid,) = self.live.coordinators(self.run.id)
        return psutil.Process(pid)

    # --- what must always be so

    def ledger(self) -> tuple[Checkpoint, Ledger]:
        """The newest checkpoint's."""
        saved = Checkpoint.parse(self.client.kv_get(self.run.id, CHECKPOINT).value or "")
        return saved, Ledger.parse(Path(saved.ledger).read_text())

    def check_books(self) -> None:
        """No sample lost, none committed twice; each step of the run's history has all of its samples, once."""
        commits = self.commits()
        saved, ledger = self.ledger()
        assert ledger.run == self.run.id
        history: dict[int, dict[str, Any]] = {}
        expected = {}
        for entry in commits:
            # A restarted actor goes on behind a checkpoint: what an earlier incarnation had beyond it is no history.
            if entry["incarnation"] not in expected:
                history = {step: old for step, old in history.items() if step < entry["step"]}
            elif entry["step"] != expected[entry["incarnation"]]:
                raise AssertionError(f"step {entry['step']} in place of {expected[entry['incarnation']]}")
            expected[entry["incarnation"]] = entry["step"] + 1
            history[entry["step"]] = entry
            counters = entry["counters"]
            assert (counters["lost"], counters["duplicates"], counters["skipped"]) == (0, 0, 0), entry
        first = min(history)
        for step in range(first, max(history) + 1):
            ids = [sample["id"] for sample in history[step]["samples"]]
            assert len(ids) == len(set(ids)) == self.config.prompts * self.config.samples, f"step {step}"
        for step in range(first, saved.step + 1):
            assert ledger.finished(step), f"step {step} is not in the ledger of the checkpoint of step {saved.step}"
        assert not ledger.finished(saved.step + 1)

    def check_rewards(self, score: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> int:
        """Every reward that the trainer got is what the verifier says of that answer, computed here; how many there were."""
        judged = self.told("judged")
        for entry in judged:
            assert score(entry["asked"]) == entry["answered"]
        return len(judged)


def _written(file: Path, content: bytes) -> None:
    file.write_bytes(content)


def gone(processes: Mapping[str, psutil.Process]) -> bool:
    """None of them lives any more (a pid that was given away again is another process)."""
    return not any(_lives(process) for process in processes.values())


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
