"""A rollout engine around a policy of one's own: give it `load(path)` and `generate(policy, prompts, params)`, and serve.

    class Rollout(EmbeddedRollout[Policy]):
        def load(self, path): return Policy.read(path)
        def generate(self, policy, prompts, params): return policy.sample(prompts, **params)

    serve(Rollout())        # on this member's own port `http`

It serves only while admission is on and weights are loaded; weights are checked by digest before they are swapped in, as a
whole; each sample carries the id of the weights that made it.
"""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gangflow.channel import INCARNATION_HEADER, TERM_HEADER, WeightsId
from gangflow.integrations.embedded.gate import Aborted, Gate, Loaded
from gangflow.member.digest import digest
from gangflow.member.failures import FailureClass
from gangflow.member.identity import Identity

P = TypeVar("P")


class Failed:
    """In place of a sample: this one could not be made. Its prompt is answered with the failure, the others with samples."""

    def __init__(self, message: str, failure: FailureClass = FailureClass.DATA) -> None:
        self.message = message
        self.failure = failure


class EmbeddedRollout(ABC, Generic[P]):
    """What a program gives to become a rollout engine. Both are called in a worker thread, `generate` in one at a time."""

    threads = 1
    """Requests that generate at the same time; the others queue."""

    @abstractmethod
    def load(self, path: str) -> P:
        """The policy that lies at `path` (its digest was checked). Must not change a policy that was returned before."""

    @abstractmethod
    def generate(self, policy: P, prompts: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
        """One sample (JSON; numpy arrays become lists) for each of `prompts`, in order, or `Failed`.

        A prompt occurs as often as samples of it are wanted. `params["sample_ids"]` has their ids, for who seeds by them.
        """


class EmbeddedServer(Generic[P]):
    """The ASGI application (`app`) of one incarnation."""

    def __init__(self, rollout: EmbeddedRollout[P], incarnation: int = 1) -> None:
        self.gate: Gate[P] = Gate()
        self._rollout = rollout
        self._incarnation = incarnation
        self._term = 0
        self._pool = ThreadPoolExecutor(rollout.threads, thread_name_prefix="generate")
        self._loading = asyncio.Lock()
        verbs: dict[str, Callable[[Request], Awaitable[Response]]] = {
            "/pause": self._pause,
            "/resume": self._resume,
            "/abort": self._abort,
            "/load": self._load,
            "/release": self._release,
        }
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/version", self._version),
                Route("/generate", self._generate, methods=["POST"]),
                *(Route(path, self._commanded(verb), methods=["POST"]) for path, verb in verbs.items()),
            ]
        )

    async def _health(self, _: Request) -> Response:
        return _json({"status": "ok"})

    async def _version(self, _: Request) -> Response:
        return self._state()

    # --- verbs under a term

    def _commanded(self, verb: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            term = int(request.headers.get(TERM_HEADER, "0"))
            if term < self._term:
                return _json({"error": f"term {term} is over, {self._term} commands", "code": "fenced"}, 409)
            meant = int(request.headers.get(INCARNATION_HEADER, self._incarnation))
            if meant != self._incarnation:
                return self._refused(409, f"this is incarnation {self._incarnation}, not {meant}")
            self._term = term
            return await verb(request)

        return guarded

    async def _pause(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body() or b"{}")
        await self.gate.pause(abort=body.get("mode", "wait") == "abort")
        return self._state()

    async def _resume(self, _: Request) -> Response:
        if self.gate.loaded is None:
            return self._refused(409, "no weights are loaded")
        self.gate.admitting = True
        return self._state()

    async def _abort(self, _: Request) -> Response:
        return _json({"aborted": self.gate.abort()})

    async def _load(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body())
        path, wanted, weights = str(body["path"]), str(body["sha256"]), WeightsId.parse(body["weights"])
        async with self._loading:
            if self.gate.loaded is not None and self.gate.loaded.weights == weights:
                return self._state()
            try:
                found = await asyncio.to_thread(digest, path)
            except OSError as error:
                return self._refused(409, f"{path} cannot be read: {error}")
            if found != wanted or found != weights.sha256:
                return self._refused(409, f"{path} has sha256 {found[:12]}, asked for was {wanted[:12]}: the old weights stay")
            try:
                policy = await asyncio.to_thread(self._rollout.load, path)
            except Exception as error:  # Whatever a program's own loader raises: the old policy is untouched.
                return self._refused(422, f"load({path!r}): {type(error).__name__}: {error}: the old weights stay")
            self.gate.loaded = Loaded(policy, weights)
        return self._state()

    async def _release(self, _: Request) -> Response:
        await self.gate.pause(abort=True)
        self.gate.loaded = None
        return self._state()

    # --- samples

    async def _generate(self, request: Request) -> Response:
        body = msgspec.json.decode(await request.body())
        if body["incarnation"] != self._incarnation:
            return _failure(409, FailureClass.INFRA, f"this is incarnation {self._incarnation}, not {body['incarnation']}")
        loaded = self.gate.loaded
        if not self.gate.admitting or loaded is None:
            return _failure(503, FailureClass.INFRA, "paused" if loaded else "no weights are loaded")
        ticket = self.gate.enter()
        try:
            outputs = await self._sample(loaded, body, ticket)
        except Aborted:
            return _failure(503, FailureClass.INFRA, "aborted")
        except Exception as error:  # A program's own fault: nobody can say whose, so it is DATA.
            return _failure(500, FailureClass.DATA, f"{type(error).__name__}: {error}")
        finally:
            self.gate.leave(ticket)
        return _json({"results": _results(outputs, body["sample_ids"], loaded.weights.document())})

    async def _sample(self, loaded: Loaded[P], body: dict[str, Any], ticket: asyncio.Future[None]) -> Sequence[Any]:
        ids = body["sample_ids"]
        prompts = [prompt for prompt, group in zip(body["prompts"], ids, strict=True) for _ in group]
        params = {**body.get("params", {}), "sample_ids": [sample for group in ids for sample in group]}
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._pool, self._rollout.generate, loaded.policy, prompts, params)
        either: set[asyncio.Future[Any]] = {work, ticket}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            # The thread cannot be stopped; what it makes is dropped, and nobody waits for it any more.
            work.add_done_callback(lambda done: done.cancelled() or done.exception())
            work.cancel()
            raise Aborted
        outputs = work.result()
        if len(outputs) != len(prompts):
            raise ValueError(f"generate returned {len(outputs)} samples for {len(prompts)} prompts")
        return outputs

    # --- answers

    def _state(self) -> Response:
        return _json(
            {
                "weights": self.gate.loaded.weights.document() if self.gate.loaded else None,
                "incarnation": self._incarnation,
                "admitting": self.gate.admitting,
                "in_flight": len(self.gate.running),
            }
        )

    def _refused(self, status: int, message: str) -> Response:
        weights = self.gate.loaded.weights.document() if self.gate.loaded else None
        return _json({"error": message, "weights": weights}, status)


def _results(outputs: Sequence[Any], ids: Sequence[Sequence[str]], weights: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    at = 0
    for group in ids:
        mine = outputs[at : at + len(group)]
        at += len(group)
        failed = next((output for output in mine if isinstance(output, Failed)), None)
        if failed is not None:
            results.append({"error": failed.message, "class": failed.failure.value})
        else:
            results.append({"outputs": list(mine), "weights": weights})
    return results


def _plain(value: Any) -> Any:
    """Numpy's arrays and numbers as lists and numbers, without importing numpy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a sample must be JSON, not {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_plain)


def _json(document: object, status: int = 200) -> Response:
    return Response(_encoder.encode(document), status, media_type="application/json")


def _failure(status: int, failure: FailureClass, message: str) -> Response:
    return _json({"error": message, "class": failure.value}, status)


def own_host(me: Identity, port: str) -> str:
    """The address on which others were told to find this slot: its own if it is plain which one that is, else every one."""
    # The list has the slots that are placed, so a slot's number is no position in it.
    mine = {
        host
        for host, _, number in (entry.rpartition(":") for entry in me.addresses(me.member, port))
        if number == str(me.port(port))
    }
    return mine.pop() if len(mine) == 1 else "0.0.0.0"


def serve(rollout: EmbeddedRollout[Any], port: str = "http") -> None:
    """Serve on this member's port of that name until SIGTERM. NotAMember when no XCE started this process."""
    me = Identity.read(os.environ)
    config = uvicorn.Config(
        EmbeddedServer(rollout, me.incarnation).app,
        host=own_host(me, port),
        port=me.port(port),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_keep_alive=75,  # Longer than any client keeps a connection: a reused one is never just being closed.
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run()
