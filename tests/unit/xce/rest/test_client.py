"""The clients against a transport that answers what a test says: tries, keys, reconnection, and exceptions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from gangflow.errors import (
    Conflict,
    Gone,
    JournalRegressed,
    NotYetError,
    SpecError,
    Unreachable,
    XceError,
)
from gangflow.xce.rest import aclient
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.client import Client
from gangflow.xce.rest.refusals import refusal_of

Answers = Iterator[httpx.Response | Exception]


class Scripted(httpx.MockTransport):
    """Gives the answers in turn and keeps the requests."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = iter(answers)
        super().__init__(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def client(*answers: httpx.Response | Exception, **given: Any) -> tuple[Client, Scripted]:
    transport = Scripted(*answers)
    return Client("http://127.0.0.1:1", "t0k3n", transport=transport, **given), transport


def problem(status: int, code: str, **more: Any) -> httpx.Response:
    document = {
        "type": f"urn:gangflow:problem:{code}",
        "title": code,
        "status": status,
        "code": code,
        "detail": "because",
        **more,
    }
    return httpx.Response(status, json=document)


def done(**fields: Any) -> httpx.Response:
    return httpx.Response(200, json={"seq": 7, **fields})


def stream(*messages: str) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, text="".join(f"{m}\n\n" for m in messages))


def event(seq: int) -> str:
    data = {"seq": seq, "at_ms": 1, "type": "GroupChanged", "group": "g1", "data": {}}
    return f"event: GroupChanged\nid: {seq}\ndata: {json.dumps(data)}"


def test_a_call_that_nobody_answered_is_sent_again_under_one_key() -> None:
    """However often it is sent, it acts once: every try carries the same idempotency key."""
    sender, transport = client(
        httpx.ConnectError("refused"),
        httpx.ReadTimeout("slow"),
        problem(503, "journal_full"),
        httpx.RemoteProtocolError("cut"),
        done(),
    )
    assert sender.cancel("g1").seq == 7
    assert len(transport.requests) == 5
    keys = {request.headers["Idempotency-Key"] for request in transport.requests}
    assert len(keys) == 1
    assert transport.requests[0].headers["Authorization"] == "Bearer t0k3n"


def test_two_calls_have_two_keys_and_a_given_key_is_kept() -> None:
    sender, transport = client(done(), done(), done())
    sender.cancel("g1")
    sender.cancel("g1")
    sender.cancel("g1", key="mine")
    keys = [request.headers["Idempotency-Key"] for request in transport.requests]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_the_patience_ends_in_unreachable() -> None:
    sender, transport = client(*[httpx.ConnectError("refused")] * 1_000, patience=0.3)
    with pytest.raises(Unreachable, match=r"nobody answers at http://127\.0\.0\.1:1: refused") as error:
        sender.groups()
    assert error.value.exit_code == 4
    assert len(transport.requests) > 1


def test_503_to_the_end_is_what_its_problem_says() -> None:
    sender, _ = client(*[problem(503, "unreachable_host")] * 1_000, patience=0.2)
    with pytest.raises(XceError, match="because") as error:
        sender.log("g1", "a", 0)
    assert (error.value.status, error.value.problem) == (503, "unreachable_host")


@pytest.mark.parametrize("call", [lambda c: c.beat("g1", "a", 0, {}), lambda c: c.signal("g1", "a", 0, 1)])
def test_what_must_not_be_repeated_is_sent_once(call: Callable[[Client], Any]) -> None:
    sender, transport = client(httpx.ReadTimeout("slow"), done())
    with pytest.raises(Unreachable):
        call(sender)
    assert len(transport.requests) == 1
    sender, transport = client(problem(503, "busy"), done())
    with pytest.raises(XceError, match="because"):
        call(sender)
    assert len(transport.requests) == 1


def test_a_refusal_is_not_tried_again() -> None:
    sender, transport = client(problem(409, "superseded"), done())
    with pytest.raises(XceError):
        sender.restart("g1", "a", 0, 1)
    assert len(transport.requests) == 1


def test_a_coordinator_sends_its_term() -> None:
    sender, transport = client(done(term=3), done(), done(version=1))
    assert "XCE-Term" not in sender._http.headers
    sender.term = sender.take_coordination("g1").term
    sender.fail("g1", "no_quorum")
    sender.kv_put("g1", "rollouts/eligible", "{}")
    assert [request.headers.get("XCE-Term") for request in transport.requests] == [None, "3", "3"]


def test_paths_are_quoted() -> None:
    sender, transport = client(done(key="a/b c"), done(key="x"))
    sender.kv_get("my group/../x", "a/b c?")
    assert transport.requests[0].url.raw_path == b"/v1/groups/my%20group%2F..%2Fx/kv/a/b%20c%3F"


def test_a_watch_goes_on_where_it_was_cut() -> None:
    sender, transport = client(
        httpx.ConnectError("refused"),
        stream(": watching\nid: 10", event(11), ": keepalive\nid: 15"),
        httpx.ReadError("cut"),
        stream(event(16), event(17)),
    )
    events = sender.events(10, "g1")
    assert [next(events).seq for _ in range(3)] == [11, 16, 17]
    positions = [request.url.params["after"] for request in transport.requests]
    assert positions == ["10", "10", "15", "15"]
    assert {request.url.params["group"] for request in transport.requests} == {"g1"}


def test_a_watch_from_now_on_learns_its_position_at_once() -> None:
    sender, transport = client(stream(": watching\nid: 40"), stream(event(41)))
    assert next(sender.events()).seq == 41
    assert ["after" in request.url.params for request in transport.requests] == [False, True]


def test_gone_says_where_to_list_again() -> None:
    for answer in (problem(410, "gone", seq=99), stream('event: gone\ndata: {"seq": 99}')):
        sender, _ = client(answer)
        with pytest.raises(Gone) as gone:
            next(sender.events(3))
        assert gone.value.seq == 99


def test_a_followed_log_ends() -> None:
    piece = {"seq": 1, "incarnation": 2, "text": "a", "offset": 0, "next_offset": 1, "ended": False}
    sender, transport = client(stream(f"id: 1\ndata: {json.dumps(piece)}"), stream("event: end\nid: 1\ndata: {}"))
    assert [each.text for each in sender.follow_log("g1", "a", 0)] == ["a"]
    assert [request.url.params["offset"] for request in transport.requests] == ["0", "1"]


def test_spec_problems_come_back_as_they_were() -> None:
    problems = [{"path": "members.a.job.cpu", "value": "'x'", "expected": "a number", "nearest": "cpus"}]
    for code, kind in (("invalid_spec", SpecError), ("not_enforced", NotYetError), ("never_fits", SpecError)):
        error = refusal_of(422, problem(422, code, problems=problems).content)
        assert type(error) is kind
        assert [(p.path, p.value, p.expected, p.nearest) for p in error.problems] == [
            ("members.a.job.cpu", "'x'", "a number", "cpus")
        ]


def test_a_journal_that_went_back_is_said_so() -> None:
    assert isinstance(refusal_of(500, problem(500, "journal_regressed").content), JournalRegressed)


@pytest.mark.parametrize("code", ["conflict", "no_fit", "in_use", "one_of_a_newer_xce"])
def test_whatever_a_state_does_not_allow_is_a_conflict(code: str) -> None:
    error = refusal_of(409, problem(409, code).content)
    assert isinstance(error, Conflict)
    assert error.problem == code


@pytest.mark.parametrize("content", [b"<html>bad gateway</html>", b"[]", b'"text"', b"\xff\xfe"])
def test_what_is_no_problem_document_is_quoted(content: bytes) -> None:
    error = refusal_of(502, content)
    assert isinstance(error, XceError)
    assert (error.status, error.problem) == (502, "http_502")


async def test_the_asynchronous_client_does_the_same() -> None:
    transport = Scripted(httpx.ConnectError("refused"), done(), stream(event(11)), httpx.ReadError("cut"), stream(event(12)))
    async with AsyncClient("http://127.0.0.1:1", "t", transport=transport) as sender:
        await sender.cancel("g1")
        assert transport.requests[0].headers["Idempotency-Key"] == transport.requests[1].headers["Idempotency-Key"]
        events = sender.events(10)
        assert [(await anext(events)).seq for _ in range(2)] == [11, 12]
        assert [request.url.params["after"] for request in transport.requests[2:]] == ["10", "11", "11"]


def test_both_clients_have_the_same_surface() -> None:
    import inspect

    def surface(kind: type) -> dict[str, list[str]]:
        calls = {name: call for name, call in vars(kind).items() if not name.startswith("_") and callable(call)}
        return {name: list(inspect.signature(call).parameters) for name, call in calls.items()}

    assert surface(Client) == surface(AsyncClient)
    assert aclient.__doc__


def test_clients_import_without_fastapi() -> None:
    import subprocess
    import sys

    code = (
        "import sys\n"
        "sys.modules['fastapi'] = sys.modules['starlette'] = sys.modules['ray'] = None\n"
        "import gangflow.xce.rest.client, gangflow.xce.rest.aclient\n"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_a_refusal_says_what_helps_and_nothing_twice() -> None:
    owner = {"path": "owner", "value": "bob", "expected": "an owner whom the caller may name (ada)"}
    said = "owner: expected an owner whom the caller may name (ada) (got bob)"
    error = refusal_of(403, problem(403, "forbidden", detail=said, problems=[owner]).content)
    assert isinstance(error, XceError)
    assert error.message == said
    assert "delegation token" in error.advice
    assert "token of whoever may" in refusal_of(403, problem(403, "forbidden").content).advice
    assert "ask for less" in refusal_of(409, problem(409, "no_fit").content).advice
    targets = [{"path": "targets.rollout", "expected": "at most 4"}]
    assert "ratios and budget" in refusal_of(422, problem(422, "invalid", problems=targets).content).advice
    assert refusal_of(404, problem(404, "not_found").content).advice
    body = [{"path": "body.owner", "expected": "a name"}]
    assert "see problems" not in refusal_of(422, problem(422, "x", detail="see problems", problems=body).content).message
