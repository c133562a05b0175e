"""The coordinator of one RL group: watches XCE and the engines, asks the reaction, does what it says. Keeps nothing durable.

It takes a term at its start and sends it with every call, so that two can never drive one group; killing it changes no
member, and its successor goes on. Plain asyncio: an actor of Ray, a process (`run`) or a test owns it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from gangflow.channel import ELIGIBLE, FAILURE, HEAD, Eligible, WeightsId
from gangflow.coordinators import watch
from gangflow.coordinators.engine import Engine, EngineFactory, EngineFenced, EngineRefused, EngineSilent
from gangflow.coordinators.rl_judge import next_deadline
from gangflow.coordinators.rl_messages import (
    Action,
    BeatsUnknown,
    EngineAnswered,
    EngineCall,
    FailGroup,
    HealthSeen,
    Observation,
    PublishEligible,
    ReportCause,
    Stop,
    Tick,
    VersionSeen,
)
from gangflow.coordinators.rl_reaction import begin, react
from gangflow.coordinators.rl_state import RLState, Verb
from gangflow.errors import (
    Conflict,
    Fenced,
    GangflowError,
    Gone,
    JournalFull,
    JournalLocked,
    NotFound,
    SetupError,
    Unauthorized,
    Unreachable,
    XceError,
)
from gangflow.specs.coordinator import RLCoordinator
from gangflow.xce.rest.messages import BeatList, Done, EventView, TermView, ValueView, VersionView
from gangflow.xce.rest.schema import GroupView

log = logging.getLogger(__name__)
T = TypeVar("T")

HEALTH_PERIOD_S = 1.0
HEALTH_RETRY_S = 0.25
"""After a failure. Three failures take a rollout out: an engine that is known dead is out within 2 s."""
HEALTH_TIMEOUT_S = 1.0
VERSION_EVERY = 5
"""Health checks: so often an engine is asked, too, which weights it has."""
BEAT_PERIOD_S = 2.0
AWAY_S = 0.5
"""Between two tries while XCE does not answer."""
AWAY_LIMIT_S = 3_600.0
"""An XCE that is away for so long does not come back: the coordinator ends, rather than ask for ever."""


class GroupServices(Protocol):
    """What a coordinator asks of XCE; `gangflow.xce.rest.aclient.AsyncClient` is one."""

    term: int

    async def take_coordination(self, group: str) -> TermView: ...
    async def group(self, group: str) -> GroupView: ...
    def events(self, after: int | None = None, group: str = "") -> AsyncIterator[EventView]: ...
    async def kv_get(self, group: str, name: str) -> ValueView: ...
    async def kv_put(self, group: str, name: str, value: str, expect: int = -1) -> VersionView: ...
    async def beats(self, group: str) -> BeatList: ...
    async def report(self, group: str, member: str, index: int, incarnation: int, cause: str, message: str = "") -> Done: ...
    async def fail(self, group: str, cause: str, message: str = "") -> Done: ...


class Coordinator:
    """One life of a group's coordinator. `run` is called once."""

    def __init__(
        self,
        client: GroupServices,
        group: str,
        config: RLCoordinator,
        engine: EngineFactory,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state: RLState = begin(watch.limits(config), 0)
        self._client = client
        self._group = group
        self._config = config
        self._factory = engine
        self._clock = clock
        self._inbox: asyncio.Queue[tuple[Observation | Exception, int]] = asyncio.Queue()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pollers: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._engines: dict[tuple[int, int], Engine] = {}
        self._lanes: dict[tuple[int, int], asyncio.Lock] = {}
        self._eligible_version = 0
        self._newest: Eligible | None = None
        """Of what was to be written."""
        self._writer: asyncio.Task[None] | None = None
        self._takes_back = False
        """Something that is not written yet takes back what others may rely on."""
        self._ended = ""

    async def run(self) -> str:
        """Drive the group until it ends; returns its terminal state. Fenced as soon as a newer coordinator has taken over."""
        try:
            self._client.term = (await self._insist(lambda: self._client.take_coordination(self._group))).term
            self.state = begin(self.state.limits, self._client.term)
            self._spawn(self._watch())
            self._spawn(self._watch_beats())
            while not self._ended:
                await self._turn()
            return self._ended
        except EngineFenced as error:
            raise Fenced(error.message) from error
        finally:
            await self._close()

    # --- deciding

    async def _turn(self) -> None:
        """Take what has come, decide, act."""
        actions: list[Action] = []
        for observation, now in await self._receive():
            if isinstance(observation, Exception):
                raise observation
            self.state, wanted = react(self.state, observation, now)
            actions.extend(wanted)
        for action in actions:
            if isinstance(action, PublishEligible):
                self._announce(action.value)
            else:
                await self._announced()
                self._act(action)
        await self._announced()
        self._poll()

    async def _receive(self) -> list[tuple[Observation | Exception, int]]:
        deadline = next_deadline(self.state)
        timeout = None if deadline is None else max(0, deadline - self._now()) / 1_000
        try:
            async with asyncio.timeout(timeout):
                taken = [await self._inbox.get()]
        except TimeoutError:
            return [(Tick(), self._now())]
        while not self._inbox.empty():
            taken.append(self._inbox.get_nowait())
        return taken

    def _observe(self, observation: Observation | Exception) -> None:
        # Stamped on arrival: a decision that was held up takes no silence for longer than it was.
        self._inbox.put_nowait((observation, self._now()))

    def _now(self) -> int:
        return int(self._clock() * 1_000) + 1  # 0 means never.

    # --- acting

    def _act(self, action: Action) -> None:
        match action:
            case EngineCall():
                self._spawn(self._ask(action))
            case ReportCause():
                name = f"{action.member}[{action.index}] incarnation {action.incarnation}"
                log.warning("%s: %s is %s: %s", self._group, name, action.cause, action.message)
                self._spawn(self._tell(lambda: self._report(action)))
            case FailGroup(cause, message):
                log.error("%s fails: %s: %s", self._group, cause, message)
                self._spawn(self._tell(lambda: self._client.fail(self._group, cause, message)))
            case Stop(group_state):
                self._ended = group_state

    def _announce(self, value: Eligible) -> None:
        """Have it written. Only what takes something back has to be durable before anything else is done (`_announced`)."""
        self._takes_back |= self._newest is None or not _only_adds(self._newest, value)
        self._newest = value
        if self._writer is None or self._writer.done():
            self._writer = self._spawn(self._write())

    async def _announced(self) -> None:
        """Wait until what was taken back is, durably."""
        if self._takes_back and self._writer is not None:
            await asyncio.wait([self._writer])
            self._writer.result()
            self._takes_back = False

    async def _write(self) -> None:
        """Write the newest; what was overtaken meanwhile is left out."""
        written = None
        while written is not self._newest:
            written = self._newest
            if written is not None:
                await self._publish(written)

    async def _publish(self, value: Eligible) -> None:
        """Replace `rollouts/eligible` by compare-and-set under the term; durable on return."""
        text = value.render()
        while True:
            try:
                written = await self._insist(lambda: self._client.kv_put(self._group, ELIGIBLE, text, self._eligible_version))
                self._eligible_version = written.version
                return
            except Conflict:
                there = await self._insist(lambda: self._client.kv_get(self._group, ELIGIBLE))
                self._check_term(there.value)
                self._eligible_version = there.version
                if there.value == text:
                    return

    def _check_term(self, text: str | None) -> None:
        try:
            term = Eligible.parse(text).term if text is not None else 0
        except ValueError:
            return
        if term > self._client.term:
            raise Fenced(f"{ELIGIBLE} was written under term {term}; this coordinator has {self._client.term}")

    def _report(self, action: ReportCause) -> Coroutine[Any, Any, Done]:
        return self._client.report(
            self._group, action.member, action.index, action.incarnation, action.cause.value, action.message
        )

    async def _tell(self, call: Callable[[], Coroutine[Any, Any, Done]]) -> None:
        """Tell XCE until it has heard; what it refuses is overtaken (the incarnation was replaced, the group has ended)."""
        try:
            await self._insist(call)
        except (Fenced, Unauthorized):
            raise
        except XceError as error:
            log.info("%s: XCE refused: %s", self._group, error.message)

    async def _insist(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        begun_at = time.monotonic()
        while True:
            try:
                return await call()
            except GangflowError as error:
                if not _passing(error):
                    raise
                _give_up_after(begun_at, error)
                log.info("%s: XCE takes nothing now: %s", self._group, error.message)
                await asyncio.sleep(AWAY_S)

    async def _ask(self, call: EngineCall) -> None:
        """One verb, after those that were sent to this engine before."""
        key = (call.index, call.incarnation)
        engine, timeout_s = self._engine(key, call.url), call.timeout_ms / 1_000
        try:
            async with asyncio.timeout(timeout_s), self._lanes.setdefault(key, asyncio.Lock()):
                answer = await _perform(engine, call, timeout_s)
        except EngineRefused as error:
            answer = EngineAnswered(call.index, call.incarnation, call.call, False, error.weights, error.message)
        except (EngineSilent, TimeoutError) as error:
            message = str(error) or f"{call.verb}: no answer within {timeout_s:g} s"
            answer = EngineAnswered(call.index, call.incarnation, call.call, False, None, message, answered=False)
        self._observe(answer)

    def _engine(self, key: tuple[int, int], url: str) -> Engine:
        if key not in self._engines:
            self._engines[key] = self._factory(url, key[1], self._client.term)
        return self._engines[key]

    # --- watching

    async def _watch(self) -> None:
        """List, then watch; list again whenever the stream cannot go on, or a slot's address is wanted."""
        answered_at = time.monotonic()
        while True:
            try:
                after = await self._list()
                answered_at = time.monotonic()
                async for event in self._client.events(after, self._group):
                    await self._take(event)
            except GangflowError as error:
                if not (isinstance(error, Gone) or _passing(error)):
                    raise
                _give_up_after(answered_at, error)
                log.info("%s: listing again: %s", self._group, error.message)
                await asyncio.sleep(AWAY_S)

    async def _list(self) -> int:
        view = await self._client.group(self._group)
        head = await self._client.kv_get(self._group, HEAD)
        eligible = await self._client.kv_get(self._group, ELIGIBLE)
        self._check_term(eligible.value)
        if not self.state.listed:
            self._eligible_version = eligible.version
        self._observe(watch.listed(view, self._config.port, head.value, eligible.value))
        for failed in watch.failure((await self._client.kv_get(self._group, FAILURE)).value):
            self._observe(failed)
        return view.seq

    async def _take(self, event: EventView) -> None:
        if event.type == "CoordinatorStarted" and int(event.data["term"]) > self._client.term:
            raise Fenced(f"a newer coordinator has term {event.data['term']}; this one has {self._client.term}")
        for observation in watch.observations(event):
            self._observe(observation)
        if event.type == "SlotChanged" and event.data["state"] == "READY" and event.data["member"] == self._config.rollout:
            # Where it answers is in the view only.
            self._observe(watch.listed(await self._client.group(self._group), self._config.port))

    async def _watch_beats(self) -> None:
        while True:
            try:
                self._observe(watch.beat(await self._client.beats(self._group), self._config.actor))
            except NotFound:
                pass  # The group was forgotten: the watcher of its events says so.
            except GangflowError as error:
                if not _passing(error):
                    raise
                self._observe(BeatsUnknown())
            await asyncio.sleep(BEAT_PERIOD_S)

    def _poll(self) -> None:
        """One health watcher for each engine that ought to answer."""
        wanted = {rollout.key: rollout.url for rollout in self.state.rollouts if rollout.answers and rollout.url}
        for key, url in wanted.items():
            if key not in self._pollers:
                self._pollers[key] = self._spawn(self._watch_health(key, self._engine(key, url)))
        for key in [key for key in self._pollers if key not in wanted]:
            self._pollers.pop(key).cancel()
        known = {rollout.key for rollout in self.state.rollouts}
        for key in [key for key in self._engines if key not in known]:
            self._lanes.pop(key, None)
            self._spawn(self._engines.pop(key).close())

    async def _watch_health(self, key: tuple[int, int], engine: Engine) -> None:
        index, incarnation = key
        well = True
        for number in itertools.count(1):
            await asyncio.sleep(HEALTH_PERIOD_S if well else HEALTH_RETRY_S)
            try:
                await engine.health(HEALTH_TIMEOUT_S)
            except (EngineRefused, EngineSilent):
                well = False
                self._observe(HealthSeen(index, incarnation, ok=False))
            else:
                if not well:
                    self._observe(HealthSeen(index, incarnation, ok=True))
                well = True
                if number % VERSION_EVERY == 0:
                    await self._audit(key, engine)

    async def _audit(self, key: tuple[int, int], engine: Engine) -> None:
        """Ask what it has, between two verbs: only then is the answer true of what the reaction knows."""
        lane = self._lanes.setdefault(key, asyncio.Lock())
        if lane.locked():
            return  # Health checks must not wait for a verb, which may hang. It is asked another time.
        async with lane:
            try:
                weights = await engine.version(HEALTH_TIMEOUT_S)
            except (EngineRefused, EngineSilent):
                return  # The health checks' matter.
        self._observe(VersionSeen(*key, weights))

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Nothing dies silently: whoever owns this coordinator starts its successor.
            self._observe(error if isinstance(error, Exception) else GangflowError(f"{type(error).__name__}: {error}"))

    async def _close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for engine in self._engines.values():
            await engine.close()


async def _perform(engine: Engine, call: EngineCall, timeout_s: float) -> EngineAnswered:
    """The verb, done; raises when it was not."""
    weights: WeightsId | None = None
    logprobs: tuple[float, ...] = ()
    match call.verb:
        case Verb.PAUSE:
            await engine.pause(call.mode, timeout_s)
        case Verb.RESUME:
            await engine.resume(timeout_s)
        case Verb.ABORT:
            await engine.abort(timeout_s)
        case Verb.VERSION:
            weights = await engine.version(timeout_s)
        case Verb.GENERATE if call.head is not None and call.head.probe is not None:
            logprobs = _scores(await engine.generate([list(call.head.probe.tokens)], {"score": True}, timeout_s))
        case Verb.RELEASE:
            await engine.release(timeout_s)
        case Verb.LOAD if call.head is not None:
            weights = await engine.load(call.head, timeout_s, call.membership_version)
    return EngineAnswered(call.index, call.incarnation, call.call, True, weights, logprobs=logprobs)


def _scores(outputs: list[Any]) -> tuple[float, ...]:
    try:
        return tuple(float(logprob) for logprob in outputs[0]["logprobs"])
    except (LookupError, TypeError, ValueError) as error:
        raise EngineRefused(f"an answer to the probe that is none: {outputs!r:.200}") from error


def _give_up_after(since: float, error: GangflowError) -> None:
    if time.monotonic() - since > AWAY_LIMIT_S:
        raise SetupError(f"XCE has been away for {AWAY_LIMIT_S:g} s: {error.message}") from error


def _passing(error: GangflowError) -> bool:
    """XCE can not answer now and will: it is away, its disk is full, or it has too much to do. What it is owed stays owed."""
    busy = isinstance(error, XceError) and error.status in (429, 503)
    return busy or isinstance(error, Unreachable | JournalFull | JournalLocked)


def _only_adds(old: Eligible, new: Eligible) -> bool:
    """Nobody who relies on the old one is wronged when the new one comes later."""
    return set(old.rollouts) <= set(new.rollouts) and set(old.holding) <= set(new.holding) and old.members == new.members
