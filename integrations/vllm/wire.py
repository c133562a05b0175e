"""The SDK's way to vLLM rollouts: one request for each prompt, all of a flight at once.

    context.rollouts.generate([{"token_ids": [5, 6], "seed": 7}], samples_per_prompt=8, params={"max_tokens": 32})

An output is {"token_ids": […], "logprobs": […], "finish_reason": "stop" | "length", "versions": [[version, start, end], …]}:
`versions` says which weights sampled which tokens, `Sample.weights` is the oldest of them. See the README about what the
log-probabilities are of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from gangflow.integrations.vllm import capabilities, tokens
from gangflow.integrations.vllm.calls import complaint
from gangflow.integrations.vllm.capabilities import COMPLETIONS, TOKENS, VERSION, Capabilities
from gangflow.integrations.vllm.http import AioHttp, Http, Unreached, send
from gangflow.member.dispatch import Answer
from gangflow.member.endpoints import Endpoint
from gangflow.member.failures import FailureClass
from gangflow.member.wire import Asked, RequestFailed


class VllmWire:
    """JSON over HTTP, with one connection pool."""

    def __init__(self, http: Http | None = None) -> None:
        self._http = http or AioHttp()
        self._able: dict[str, tuple[int, Capabilities]] = {}
        """Of each address: which incarnation was asked, and what it can do."""

    async def generate(self, target: Endpoint, asked: Asked, timeout_s: float) -> dict[int, Answer]:
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                able = await self._capabilities(target)
                params = _parameters(able, asked.params)
                before = await self._version(target) if _bracketed(able) else None
        except TimeoutError as error:
            raise RequestFailed(FailureClass.INFRA, _late(timeout_s)) from error
        work = [
            asyncio.ensure_future(self._ask(target, able, prompt, len(ids), params, before))
            for prompt, ids in zip(asked.prompts, asked.sample_ids, strict=True)
        ]
        try:
            await asyncio.wait(work, timeout=max(0.0, deadline - asyncio.get_running_loop().time()))
            ended = [_ended(task, timeout_s) for task in work]
        finally:
            # What is late, or not wanted any more: its connection is closed, by which vLLM ends it.
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
        failed = [each for each in ended if isinstance(each, RequestFailed)]
        if len(failed) == len(ended) and all(each.failure is FailureClass.INFRA for each in failed):
            # Nothing came: that is the engine's failure, of which the coordinator counts those in a row.
            refused = all(each.refused for each in failed)
            raise RequestFailed(FailureClass.INFRA, failed[0].message, refused=refused)
        answers = [_answer(each) for each in ended]
        return dict(zip(asked.numbers, answers, strict=True))

    async def close(self) -> None:
        await self._http.close()

    async def _capabilities(self, target: Endpoint) -> Capabilities:
        """Asked once for each life of an engine."""
        incarnation, known = self._able.get(target.url, (0, None))
        if known is None or incarnation != target.incarnation:
            documents = [await self._get(target, path) for path in ("/openapi.json", "/version")]
            try:
                known = capabilities.read(*documents)
            except (ValueError, AttributeError) as error:
                raise RequestFailed(FailureClass.DATA, f"{target.url}: {error}") from error
            self._able[target.url] = (target.incarnation, known)
        return known

    async def _version(self, target: Endpoint) -> str:
        return str((await self._get(target, VERSION))["weight_version"])

    async def _get(self, target: Endpoint, path: str) -> Any:
        try:
            return msgspec.json.decode(await self._send("GET", target, path))
        except msgspec.DecodeError as error:
            raise RequestFailed(FailureClass.INFRA, f"{path}: an answer that is not JSON") from error

    async def _ask(
        self, target: Endpoint, able: Capabilities, given: Any, samples: int, params: Mapping[str, Any], before: str | None
    ) -> Answer:
        try:
            prompt = tokens.prompt(given)
        except ValueError as error:
            return Answer(failure=FailureClass.DATA, message=str(error))
        make, path = (tokens.token_body, TOKENS) if able.tokens else (tokens.completion_body, COMPLETIONS)
        content = await self._send("POST", target, path, msgspec.json.encode(make(prompt, samples, params)))
        around = None if before is None else (before, await self._version(target))
        return tokens.answer(content, samples, around, labelled=target.weights is not None)

    async def _send(self, method: str, target: Endpoint, path: str, content: bytes | None = None) -> bytes:
        try:
            reply = await send(self._http, method, target.url + path, content)
        except Unreached as error:
            raise RequestFailed(FailureClass.INFRA, str(error)) from error
        if reply.status >= 400:
            message = f"{path}: HTTP {reply.status}: {complaint(reply.content)}"
            # 503: it says that its engine is dead. 429: it is full. Neither is a hang.
            raise RequestFailed(tokens.failure_of(reply.status), message, refused=reply.status in (429, 503))
        return reply.content


def _parameters(able: Capabilities, params: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling parameters, or why there can be no sample: vLLM would ignore one that it does not know."""
    try:
        if fault := able.unknown(params):
            raise ValueError(fault)
        return tokens.parameters(params)
    except ValueError as error:
        raise RequestFailed(FailureClass.DATA, str(error)) from error


def _bracketed(able: Capabilities) -> bool:
    """Whether the version has to be asked for before and after, since answers do not say it."""
    return able.versions and not (able.tokens and able.spans)


def _ended(task: asyncio.Task[Answer], timeout_s: float) -> Answer | RequestFailed:
    if not task.done():
        return RequestFailed(FailureClass.INFRA, _late(timeout_s))
    error = task.exception()
    if error is None:
        return task.result()
    if isinstance(error, RequestFailed):
        return error
    raise error


def _answer(ended: Answer | RequestFailed) -> Answer:
    return Answer(failure=ended.failure, message=ended.message) if isinstance(ended, RequestFailed) else ended


def _late(timeout_s: float) -> str:
    return f"no answer within {timeout_s:g} s"
