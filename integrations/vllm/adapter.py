"""The engine port over a vLLM server's HTTP.

A vLLM server knows neither terms nor incarnations nor weights ids. Its weight version is our label, or a marker while weights
are brought in (docs/adr/0009): whoever asks after a broken load is told of weights that nobody published, not of the old ones.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final, TypeVar

from gangflow.channel import Head, WeightsId
from gangflow.coordinators.engine import EngineFenced, EngineRefused, PauseMode
from gangflow.integrations.vllm import tokens
from gangflow.integrations.vllm.calls import Calls, content
from gangflow.integrations.vllm.capabilities import (
    ABORT,
    COMPLETIONS,
    PAUSE,
    RESET,
    RESUME,
    SET_VERSION,
    SLEEP,
    TOKENS,
    VERSION,
    WAKE,
    Capabilities,
)
from gangflow.integrations.vllm.http import Http, Reply
from gangflow.integrations.vllm.transport import Transports

T = TypeVar("T")

RESET_TRIES: Final = 5
"""A cache of which blocks are still held (an offload on its way) cannot be reset: it is tried again."""
RESET_PAUSE_S: Final = 0.05
"""After the first try; twice as long after each further one."""
RELEASED: Final = "released"
"""The version of an engine whose weights were given back."""
_MARKER = re.compile(r"loading \S+ under term (\d+)", re.ASCII)


class VllmEngine:
    """One incarnation of one vLLM rollout."""

    def __init__(
        self,
        url: str,
        incarnation: int,
        term: int,
        transports: Transports,
        http: Http | None = None,
    ) -> None:
        self.url = url
        self.incarnation = incarnation
        self._term = term
        self._transports = transports
        self._calls = Calls(url, http)
        self._able: Capabilities | None = None
        self._frozen = False
        """Requests may stand still in it, with what the old weights computed."""
        self._loaded: WeightsId | None = None
        """What this object loaded and read back; None: the engine has to be asked."""
        self._first = True
        """Scores may be asked for before all that waits: until the server says that it has no priorities."""

    async def health(self, timeout_s: float) -> None:
        async with self._calls.deadline("health", timeout_s):
            await self._calls.get("/health")

    async def generate(self, prompts: Sequence[Any], params: Mapping[str, Any], timeout_s: float) -> list[Any]:
        async with self._calls.deadline("generate", timeout_s):
            able = await self._capabilities()
            ask = self._score if params.get("score") else self._sample
            rest = {name: value for name, value in params.items() if name != "score"}
            return await _together(*(ask(able, given, rest) for given in prompts))

    async def pause(self, mode: PauseMode, timeout_s: float) -> None:
        async with self._calls.deadline("pause", timeout_s):
            able = await self._require(PAUSE)
            if mode not in able.pause_modes:
                known = ", ".join(sorted(able.pause_modes))
                raise EngineRefused(f"this vLLM {able.vllm} does not pause with {mode}, only with {known}", self._loaded)
            await self._calls.post(PAUSE, params={"mode": mode})
            self._frozen = mode == "keep" or (self._frozen and mode == "wait")

    async def resume(self, timeout_s: float) -> None:
        async with self._calls.deadline("resume", timeout_s):
            await self._require(RESUME)
            if self._loaded is None and await self._version() is None:
                raise EngineRefused("it has no weights that anybody published: it may not serve")
            await self._calls.post(RESUME)
            self._frozen = False

    async def abort(self, timeout_s: float) -> None:
        async with self._calls.deadline("abort", timeout_s):
            await self._require(ABORT)
            await self._calls.post(ABORT, {})

    async def load(self, head: Head, timeout_s: float, membership_version: int) -> WeightsId:
        async with self._calls.deadline("load", timeout_s):
            able = await self._require(SET_VERSION, VERSION, RESET)
            transport = await self._transports.transport(membership_version)
            try:
                await transport.prepare(head, able)
            except EngineRefused as error:
                held = await self._version()
                raise EngineRefused(f"{error.message}: the engine was not touched", held) from error
            if self._loaded is None and able.sleep and await self._label() == RELEASED:
                await self._wake()
            self._loaded = None
            # From here on a failure leaves the marker, which is nobody's label: the old version is never told again.
            marker = f"loading {head.weights.label()} under term {self._term}"
            await self._set_version(marker)
            await transport.carry(self._calls, head)
            await _together(self._reset_cache(able), self._still_mine(marker))
            await self._set_version(head.weights.label())
            found = await self._version()
            if found != head.weights:
                raise EngineRefused(f"it says that it has {found} after {head.weights} was loaded")
            self._loaded = found
            return found

    async def version(self, timeout_s: float) -> WeightsId | None:
        async with self._calls.deadline("version", timeout_s):
            await self._require(VERSION)
            found = await self._version()
            if found != self._loaded:
                self._loaded = None
            return found

    async def release(self, timeout_s: float) -> None:
        async with self._calls.deadline("release", timeout_s):
            able = await self._require(PAUSE)
            await self._calls.post(PAUSE, params={"mode": "abort"} if "abort" in able.pause_modes else None)
            self._frozen, self._loaded = False, None
            if able.versions:
                await self._set_version(RELEASED)
            if able.sleep:
                await self._calls.post(SLEEP, params={"level": "2", "mode": "abort"})

    async def close(self) -> None:
        await self._calls.close()

    # --- parts of verbs

    async def _capabilities(self) -> Capabilities:
        """Asked once: what a process can do does not change."""
        if self._able is None:
            self._able = await self._calls.capabilities()
        return self._able

    async def _require(self, *paths: str) -> Capabilities:
        able = await self._capabilities()
        if fault := able.lacks(*paths):
            raise EngineRefused(fault, self._loaded)
        return able

    async def _version(self) -> WeightsId | None:
        return WeightsId.from_label(await self._label())

    async def _label(self) -> str:
        return str((await self._calls.get(VERSION))["weight_version"])

    async def _set_version(self, version: str) -> None:
        await self._calls.post(SET_VERSION, {"new_version": version})

    async def _still_mine(self, marker: str) -> None:
        """Nobody else brought weights in meanwhile. A newer coordinator's term ends this one."""
        found = await self._label()
        if found == marker:
            return
        other = _MARKER.fullmatch(found)
        if other and int(other[1]) > self._term:
            raise EngineFenced(f"a coordinator of term {other[1]} is loading it; this one has {self._term}")
        raise EngineRefused(f"somebody else changed its weights during the load: its version became {found!r}")

    async def _reset_cache(self, able: Capabilities) -> None:
        """What was computed with the old weights must not be the beginning of anything sampled with the new ones."""
        if self._frozen and not able.reset_running:
            raise EngineRefused(
                f"this vLLM {able.vllm} cannot compute requests anew that stand still: pause with wait or abort"
            )
        params = {"reset_running_requests": "true"} if self._frozen else None
        for attempt in range(RESET_TRIES):
            answer = await self._calls.post(RESET, params=params)
            # Older servers answer nothing when it is done.
            if not isinstance(answer, Mapping) or answer.get("success", True):
                return
            await asyncio.sleep(RESET_PAUSE_S * 2**attempt)
        raise EngineRefused("its prefix cache cannot be reset: requests still hold blocks of it")

    async def _wake(self) -> None:
        """After a release. Waking up admits work, which has to wait for the weights."""
        await self._calls.post(WAKE)
        await self._calls.post(PAUSE, params={"mode": "abort"})

    async def _score(self, able: Capabilities, given: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        """Log-probabilities of a prompt's own tokens: computed anew, never from the prefix cache."""
        if params:
            raise EngineRefused(f"a score takes no parameters, not {', '.join(sorted(params))}", self._loaded)
        try:
            prompt = tokens.prompt(given).tokens
            if len(prompt) < 2:
                raise ValueError("a score needs two tokens at least")
        except ValueError as error:
            raise EngineRefused(str(error), self._loaded) from error
        path = TOKENS if able.tokens else COMPLETIONS
        if self._first:
            reply = await self._calls.ask("POST", path, tokens.score_body(prompt, token_api=able.tokens, first=True))
            if reply.status != 400:
                return {"logprobs": self._scores(path, reply, prompt)}
            # Without priority scheduling it refuses to put anything first.
            self._first = False
        reply = await self._calls.ask("POST", path, tokens.score_body(prompt, token_api=able.tokens, first=False))
        return {"logprobs": self._scores(path, reply, prompt)}

    def _scores(self, path: str, reply: Reply, prompt: Sequence[int]) -> list[float]:
        try:
            return tokens.scores(content(path, reply), prompt)
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise EngineRefused(f"{path}: an answer that is none: {error}") from error

    async def _sample(self, able: Capabilities, given: Any, params: Mapping[str, Any]) -> Any:
        """One sample, as the wire has it, of whatever weights."""
        try:
            prompt, sampling = tokens.prompt(given), tokens.parameters(params)
        except ValueError as error:
            raise EngineRefused(str(error), self._loaded) from error
        make = tokens.token_body if able.tokens else tokens.completion_body
        path = TOKENS if able.tokens else COMPLETIONS
        reply = await self._calls.ask("POST", path, make(prompt, 1, sampling))
        found = tokens.answer(content(path, reply), 1, None, labelled=False)
        if found.failure is not None:
            raise EngineRefused(f"{path}: {found.message}", self._loaded)
        return found.outputs[0]


async def _together(*work: Coroutine[Any, Any, T]) -> list[T]:
    """All of it at once; with the first failure the rest is given up, and has ended."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class VllmEngines:
    """Makes the engines of one coordinator: they share what brings weights to them."""

    def __init__(self, transports: Transports) -> None:
        self._transports = transports

    def __call__(self, url: str, incarnation: int, term: int) -> VllmEngine:
        return VllmEngine(url, incarnation, term, self._transports)
