"""A vLLM server in memory, as its HTTP is: what a real one was seen to answer (0.32), with switches for its faults.

Its "model" is what lies in a folder: every log-probability is a function of the folder's content, so that wrong weights show.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

OPENAPI: dict[str, Any] = json.loads(Path(__file__).with_name("openapi.json").read_text())
"""Of `vllm serve --enable-scale-out` in development mode, without what nobody here reads."""
DEVELOPMENT = (
    *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/collective_rpc", "/server_info", "/sleep"),
    *("/release_kv_cache_memory", "/wake_up", "/is_sleeping", "/pause", "/resume", "/abort_requests", "/is_paused"),
    *("/init_weight_transfer_engine", "/shutdown_weight_transfer_engine", "/start_weight_update", "/update_weights"),
    *("/start_draft_weight_update", "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker"),
    "/get_world_size",
)
TOKENS = "/inference/v1/generate"
MAX_NUM_SEQS = 128
VOCABULARY = 128
DISABLED = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."


def logprob(weights: str, before: Sequence[int], token: int) -> float:
    """What a model says of a token after others."""
    return -1.0 - zlib.crc32(repr((weights, tuple(before), token)).encode()) % 100_000 / 1e4


@dataclass(eq=False)
class Sequence_:
    """One sequence that is being sampled."""

    prompt: list[int]
    max_tokens: int
    seed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[list[Any]] = field(default_factory=list)
    """[version, start] of each."""
    computed_with: str = ""
    """The weights behind its keys and values: stale ones show in its log-probabilities."""
    ended: str = ""


class FakeVllm:
    """One process. `app` is its HTTP; what is public beside that is for tests."""

    def __init__(
        self, model: str = "the first", *, development: bool = True, scale_out: bool = True, priorities: bool = False
    ) -> None:
        self.weights = model
        self.label = "default"
        self.paused = ""
        self.asleep = False
        self.dead = False
        self.requests: list[str] = []
        """METHOD path?query of every call."""
        self.bodies: dict[str, Any] = {}
        """The newest body, by path."""
        self.running: list[Sequence_] = []
        self.cached_with = ""
        """The weights that the blocks of the prefix cache were computed with."""
        self.hold_after: int | None = None
        """Sequences stand still when they have so many tokens, until it is None again."""
        self.hold_prompt: list[int] = []
        """Sequences with this prompt stand still."""
        self.held = asyncio.Event()
        """Set when one stands still for that."""
        self.left = 0
        """Sequences whose caller went away."""
        # --- faults
        self.reload_fault = ""
        """`broken`: raised half-way; a good reload heals. `poisoned`: no reload heals. `half`: 200, and some tensors are old.
        `hang`: it never answers."""
        self.hang: set[str] = set()
        """Paths that never answer."""
        self.lies = ""
        """What /weight_info says instead."""
        self.cache_busy = 0
        """So many resets of the prefix cache do not succeed."""
        self.says_spans = True
        self.on: dict[str, Callable[[], None]] = {}
        """Called when a path is asked."""
        self._change = asyncio.Event()
        self._priorities = priorities
        self._openapi = copy.deepcopy(OPENAPI)
        self._disabled = set() if scale_out else {TOKENS}
        for path in [*(DEVELOPMENT if not development else ()), *([TOKENS] if not scale_out else [])]:
            del self._openapi["paths"][path]
        calls: dict[str, Callable[[Request], Any]] = {
            "GET /health": self._health,
            "GET /openapi.json": lambda _: JSONResponse(self._openapi),
            "GET /version": lambda _: JSONResponse({"version": "0.32.0"}),
            "GET /weight_info": lambda _: JSONResponse({"weight_version": self.lies or self.label}),
            "POST /pause": self._pause,
            "POST /resume": self._resume,
            "POST /abort_requests": self._abort,
            "POST /collective_rpc": self._collective_rpc,
            "POST /reset_prefix_cache": self._reset,
            "POST /update_weight_version": self._set_version,
            "POST /sleep": self._sleep,
            "POST /wake_up": self._wake,
            "POST /init_weight_transfer_engine": self._transfer,
            "POST /start_weight_update": self._transfer,
            "POST /update_weights": self._update,
            "POST /finish_weight_update": self._transfer,
            f"POST {TOKENS}": self._generate,
            "POST /v1/completions": self._completions,
        }
        self.app = Starlette(routes=[self._route(name, call) for name, call in calls.items()])

    def lose(self, path: str) -> None:
        """An older server: it has not got that."""
        del self._openapi["paths"][path]

    def pause_modes(self, *modes: str) -> None:
        """An older server: it pauses in these ways only."""
        (parameter,) = [each for each in self._openapi["paths"]["/pause"]["post"]["parameters"] if each["name"] == "mode"]
        parameter["schema"]["enum"] = list(modes)

    def forget_parameters(self, path: str) -> None:
        """An older server: the path takes none."""
        self._openapi["paths"][path]["post"] = {}

    @property
    def paths(self) -> set[str]:
        """All that it lists."""
        return set(self._openapi["paths"])

    def wake(self) -> None:
        """Something changed for those that stand still."""
        self._change.set()
        self._change = asyncio.Event()

    # --- the frame

    def _route(self, name: str, call: Callable[[Request], Any]) -> Route:
        method, path = name.split(" ")

        async def answer(request: Request) -> Response:
            query = f"?{request.url.query}" if request.url.query else ""
            self.requests.append(f"{method} {path}{query}")
            if method == "POST":
                self.bodies[path] = json.loads(await request.body() or b"null")
            if path in self.on:
                self.on[path]()
            if path in self.hang:
                return await _never(request)
            if path in self._disabled:
                return _error(403, DISABLED, "PermissionDeniedError")
            if path not in self._openapi["paths"] and path not in {"/openapi.json", "/version", "/health"}:
                return JSONResponse({"detail": "Not Found"}, 404)
            if self.dead and path != "/version":
                return Response(status_code=503) if path == "/health" else _died()
            found = call(request)
            return await found if asyncio.iscoroutine(found) else found  # type: ignore[no-any-return]

        return Route(path, answer, methods=[method])

    async def _health(self, _: Request) -> Response:
        return Response(status_code=200)

    # --- verbs

    async def _pause(self, request: Request) -> Response:
        mode = request.query_params.get("mode", "abort")
        if mode not in ("abort", "wait", "keep"):
            return _error(400, f"1 validation error: mode {mode}")
        if mode == "abort":
            self._end("abort")
        self.paused = mode
        while mode == "wait" and any(sequence.tokens and not self._frozen(sequence) for sequence in self.running):
            await self._change.wait()
        return JSONResponse({"status": "paused"})

    async def _resume(self, _: Request) -> Response:
        self.paused = ""
        self.wake()
        return JSONResponse({"status": "resumed"})

    async def _abort(self, _: Request) -> Response:
        aborted = len(self.running)
        self._end("abort")
        return JSONResponse({"status": "aborted", "aborted": aborted})

    async def _collective_rpc(self, request: Request) -> Response:
        body = self.bodies["/collective_rpc"]
        assert body["method"] == "reload_weights"
        path = Path(body["kwargs"]["weights_path"])
        if self.reload_fault == "hang":
            return await _never(request)
        if self.weights == "poisoned" or self.reload_fault == "poisoned":
            self.weights = "poisoned"
            return _worker("start (0) + length (256) exceeds dimension size (100).")
        if self.reload_fault == "broken":
            self.weights = "broken"
            return _worker("Error while deserializing header: incomplete metadata, file not fully covered")
        try:
            found = (path / "model.safetensors").read_text()
        except OSError:
            self.weights = "broken"
            return _worker("Repo id must be in the form 'repo_name' or 'namespace/repo_name'")
        self.weights = f"half {found}" if self.reload_fault == "half" else found
        return JSONResponse({"results": [None]})

    async def _transfer(self, request: Request) -> Response:
        return JSONResponse({"message": request.url.path})

    async def _update(self, _: Request) -> Response:
        self.weights = self.bodies["/update_weights"]["update_info"]["weights"]
        return JSONResponse({"message": "Weights updated"})

    async def _reset(self, request: Request) -> Response:
        anew = request.query_params.get("reset_running_requests") == "true"
        holding = [sequence for sequence in self.running if sequence.tokens]
        if self.cache_busy or (holding and not anew):
            self.cache_busy = max(0, self.cache_busy - 1)
            return JSONResponse({"success": False})
        for sequence in holding:
            sequence.computed_with = ""
        self.cached_with = ""
        return JSONResponse({"success": True})

    async def _set_version(self, _: Request) -> Response:
        self.label = self.bodies["/update_weight_version"]["new_version"]
        return JSONResponse({"success": True, "new_version": self.label})

    async def _sleep(self, request: Request) -> Response:
        self.asleep, self.paused = True, "abort"
        if request.query_params.get("level") == "2":
            self.weights = "discarded"
        return JSONResponse({"status": "sleeping", "level": int(request.query_params.get("level", "1"))})

    async def _wake(self, _: Request) -> Response:
        self.asleep, self.paused = False, ""
        self.wake()
        return JSONResponse({"status": "awake", "tags": None})

    # --- samples

    async def _generate(self, request: Request) -> Response:
        body = self.bodies[TOKENS]
        prompt, params = body.get("token_ids"), body["sampling_params"]
        if fault := self._fault(prompt, params, body.get("priority", 0)):
            return _error(400, fault)
        sequences = await self._run(request, prompt, params)
        if sequences is None:
            return _died()
        scored = self._scored(prompt, params)
        return JSONResponse({"prompt_logprobs": scored, "choices": [self._choice(n, s) for n, s in enumerate(sequences)]})

    async def _completions(self, request: Request) -> Response:
        body = self.bodies["/v1/completions"]
        prompt = body["prompt"]
        if fault := self._fault(prompt, body, body.get("priority", 0)):
            return _error(400, fault)
        sequences = await self._run(request, prompt, body)
        if sequences is None:
            return _died()
        choices = [
            {
                "index": number,
                "text": "",
                "logprobs": {"token_logprobs": sequence.logprobs, "tokens": []} if body.get("logprobs") is not None else None,
                "finish_reason": sequence.ended,
                "token_ids": sequence.tokens if body.get("return_token_ids") else None,
                "prompt_logprobs": self._scored(prompt, body),
            }
            for number, sequence in enumerate(sequences)
        ]
        return JSONResponse({"object": "text_completion", "choices": choices})

    def _fault(self, prompt: list[int], params: dict[str, Any], priority: int) -> str:
        if not prompt:
            return "List should have at least 1 item after validation, not 0"
        if bad := [token for token in prompt if token >= VOCABULARY]:
            return f"Token id {bad[0]} is out of vocabulary"
        if params.get("n", 1) > MAX_NUM_SEQS:
            return f"sampling_params.n must be at most the server's max_num_seqs ({MAX_NUM_SEQS}), got {params['n']}."
        if priority and not self._priorities:
            return f"Got priority {priority} but Priority scheduling is not enabled."
        return ""

    async def _run(self, request: Request, prompt: list[int], params: dict[str, Any]) -> list[Sequence_] | None:
        """Sample `n` sequences, side by side; None when the engine died of it."""
        seed = params.get("seed") or 0
        sequences = [Sequence_(prompt, params["max_tokens"], seed + number) for number in range(params.get("n", 1))]
        if params.get("prompt_logprobs") is None:
            # What the cache has of a prompt is used, whichever weights computed it.
            self.cached_with = self.cached_with or self.weights
            for sequence in sequences:
                sequence.computed_with = self.cached_with
        self.running += sequences
        leaving = asyncio.create_task(self._leave(request, sequences))
        try:
            await asyncio.gather(*(self._sample(sequence) for sequence in sequences))
        finally:
            leaving.cancel()
            self.running = [sequence for sequence in self.running if sequence not in sequences]
            self.wake()
        return None if self.dead else sequences

    async def _leave(self, request: Request, sequences: list[Sequence_]) -> None:
        """Whose caller has gone is ended."""
        await _never(request)
        self.left += len(sequences)
        for sequence in sequences:
            sequence.ended = "abort"
        self.wake()

    async def _sample(self, sequence: Sequence_) -> None:
        while not sequence.ended and len(sequence.tokens) < sequence.max_tokens:
            if self._frozen(sequence):
                await self._change.wait()
                continue
            if self.weights in ("broken", "poisoned", "discarded"):
                self.dead = True
                return
            sequence.computed_with = sequence.computed_with or self.weights
            token = zlib.crc32(repr((sequence.seed, self.weights, sequence.prompt, sequence.tokens)).encode()) % VOCABULARY
            sequence.logprobs.append(logprob(sequence.computed_with, [*sequence.prompt, *sequence.tokens], token))
            if not sequence.spans or sequence.spans[-1][0] != self.label:
                sequence.spans.append([self.label, len(sequence.tokens)])
            sequence.tokens.append(token)
            await asyncio.sleep(0)
        sequence.ended = sequence.ended or "length"

    def _frozen(self, sequence: Sequence_) -> bool:
        late = self.hold_after is not None and len(sequence.tokens) >= self.hold_after
        if late or sequence.prompt == self.hold_prompt:
            self.held.set()
            return True
        return self.paused == "keep" or (bool(self.paused) and not sequence.tokens)

    def _end(self, reason: str) -> None:
        for sequence in self.running:
            sequence.ended = reason
        self.wake()

    def _choice(self, number: int, sequence: Sequence_) -> dict[str, Any]:
        ends = [start for _, start in sequence.spans[1:]] + [len(sequence.tokens)] * bool(sequence.spans)
        spans = [{"version": v, "start": s, "end": e} for (v, s), e in zip(sequence.spans, ends, strict=True)]
        content = [{"token_id": t, "logprob": p, "rank": 1} for t, p in zip(sequence.tokens, sequence.logprobs, strict=True)]
        return {
            "index": number,
            "finish_reason": sequence.ended,
            "token_ids": sequence.tokens,
            "logprobs": {"content": content},
            "weight_versions": spans if spans and self.says_spans else None,
        }

    def _scored(self, prompt: list[int], params: dict[str, Any]) -> list[Any] | None:
        if params.get("prompt_logprobs") is None:
            return None
        return [None] + [
            {str(token): {"logprob": _clamped(logprob(self.weights, prompt[:place], token)), "rank": 1}}
            for place, token in enumerate(prompt[1:], 1)
        ]


async def _never(request: Request) -> Response:
    """Returns when the caller has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    return Response(status_code=499)


def _clamped(value: float) -> float:
    return -9999.0 if math.isnan(value) else max(value, -9999.0)


def _error(status: int, message: str, kind: str = "BadRequestError") -> Response:
    return JSONResponse({"error": {"message": message, "type": kind, "param": None, "code": status}}, status)


def _worker(message: str) -> Response:
    told = f"Call to collective_rpc method failed: Worker failed with error '{message}', please check the stack trace above"
    return _error(500, told, "InternalServerError")


def _died() -> Response:
    return _error(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "InternalServerError")
