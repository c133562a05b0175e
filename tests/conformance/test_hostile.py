"""What no client of ours sends: paths that climb, JSON that is none, documents that are nearly right, floods."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gangflow.xce.core.effects import Prepare
from tests.conformance.served import ADMIN, Served, served

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))
pytestmark = pytest.mark.timeout(1_800)  # `make nightly` asks for much more
PER_CLIENT = 4
BOUNDED = settings(
    max_examples=EXAMPLES * 8, deadline=None, database=None, phases=(Phase.explicit, Phase.generate),
    derandomize="FUZZ_EXAMPLES" not in os.environ, suppress_health_check=list(HealthCheck),
)  # fmt: skip
CLIMBING = (
    "..", "../..", "../../../../etc/passwd", "%2e%2e", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "..%5c..", "%00", "a%00b", "/", "//",
    "%2f", "%2fetc%2fpasswd", ".", "%2e", "~", "$HOME", "$(id)", "`id`", "%0a", "a%0d%0aX-Injected:%201", "é", "%ff%fe", "%",
    "%zz", "%F0%9F%92%A9", "-1", "1e3", "0x1", "9" * 400, "g1%20", "G1", "g01", "g1;g2", "g1?x", "g1#x", "*", "{group}",
    "x" * 5_000,
)  # fmt: skip
LIKE_NOTHING = (".", "%2e", "/", "//", "%2f", "..", "g1?x", "g1#x", "{group}")
WORDS = st.text(st.characters(exclude_categories=()), max_size=40) | st.sampled_from([*CLIMBING, "g1", "demo", "rollout"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("hostile"), per_client=PER_CLIENT) as made:
        yield made


def raw(service: Served, request: bytes, wait: bool = True) -> bytes:
    """Bytes to the socket, as they are; what comes back until the server closes, or has said enough."""
    parts = urlsplit(service.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=20) as line:
        line.sendall(request)
        answer = b""
        while wait and (piece := line.recv(65_536)):
            answer += piece
    return answer


def ask(service: Served, method: str, path: str, body: bytes = b"", *headers: bytes) -> tuple[int, bytes]:
    """(status, whole answer) of a request whose path is sent as it is."""
    lines = [
        f"{method} {path} HTTP/1.1".encode("utf-8", "surrogateescape"), b"Host: x", b"Connection: close",
        b"Authorization: Bearer " + ADMIN.encode(), b"Content-Type: application/json", b"Content-Length: %d" % len(body),
    ]  # fmt: skip
    answer = raw(service, b"\r\n".join([*lines, *headers]) + b"\r\n\r\n" + body)
    return int(answer.split(b" ", 2)[1]), answer


DOING = (("POST", "/v1/groups/{}:suspend"), ("DELETE", "/v1/claims/{}"), ("POST", "/v1/hosts/{}:close"))


def test_no_path_leads_out(service: Served) -> None:
    """Whatever stands where a name is expected is a name that nothing has: 4xx, and nothing is read, written or run."""
    before = sorted(service.world.path.parent.rglob("*"))
    templates = (
        "/v1/groups/{}", "/v1/groups/{}/why", "/v1/groups/{}/kv", "/v1/groups/g1/members/{}/slots/0/log",
        "/v1/groups/g1/members/rollout/slots/{}/log", "/v1/groups/g1/changes/{}", "/v1/claims/{}", "/v1/{}",
        "/v1/groups/g1/members/rollout/slots/0/log?stream={}", "/v1/groups/g1/members/rollout/slots/0/log?incarnation={}",
        "/v1/events?group={}x&until=0", "/v1/claims?group={}x", "/gangflow/{}", "/{}",
    )  # fmt: skip
    for template in templates:
        for word in CLIMBING:
            status, answer = ask(service, "GET", template.format(word).replace(" ", "%20"))
            assert status in (200, 307, 400, 404, 405, 422), (template, word, answer)
            assert b"root:" not in answer
            assert b"X-Injected" not in answer.split(b"\r\n\r\n")[0], (template, word)
            if status == 200:
                # What begins like an address that there is, and goes on as its query or in the same words.
                assert word in LIKE_NOTHING or "?" in template, (template, word)
    for word in CLIMBING:
        if "?" not in word and "#" not in word:
            for method, template in DOING:
                status, answer = ask(service, method, template.format(word).replace(" ", "%20"), b"")
                assert status in (400, 404, 405, 422), (template, word, answer)
    assert sorted(service.world.path.parent.rglob("*")) == before


def test_a_key_is_a_name_and_no_path(service: Served) -> None:
    """Keys may have slashes and dots: they are words in a table."""
    for name in ("../../etc/passwd", "a/../b", "/etc/passwd", "$(touch x)", "a b", "..", "a//b"):
        status, answer = ask(service, "PUT", f"/v1/groups/demo/kv/{quote(name)}", b'{"value": "1"}')
        assert status == 200, (name, answer)
        with service.client() as admin:
            assert any(value["key"] == name for value in admin.get("groups/demo/kv").json()["values"]), name


SPAN = b'"span_id": "0000000000000000", "parent_id": "0000000000000000", "start_ms": 1, "end_ms": 2, "name": '
BODIES = (
    b"", b"{", b"null", b"[]", b'"x"', b"1", b"\xff\xfe", b"{}", b'{"a":' * 3_000, b"[" * 100_000, b'{"x": 1e999}',
    b'{"x": NaN}', b'{"message": "\\ud800"}', b'{"incarnation": 1' + b"0" * 5_000 + b"}", b'{"incarnation": 1e400}',
    b'{"incarnation": true}', b'{"incarnation": -9223372036854775809}', b'{"value": "1", "expect": 99999999999999999999}',
    b'{"value": "\\ud800"}', b'{"targets": {"rollout": 99999999999999999999}}', b'{"targets": {"\\u0000": 1}}',
    b'{"targets": {"rollout": -1}}', b'{"targets": {"\\ud800": 1}}', b'{"targets": {"rollout": 1}, "timeout": NaN}',
    b'{"name": "x", "members": {"a": {"job": {"command": ["\\ud800"]}}}}', b'{"\\ud800": 1}', b'{"owner": "\\ud800"}',
    b'{"cause": "\\ud800"}', b'{"cause": "hung", "incarnation": 1, "message": "\\ud800"}', b'{"ttl": NaN}',
    b'{"ttl": 1e300}', b'{"value": "NaN"}', b'{"value": "[1e999]"}', b'{"value": "\\"\\\\ud800\\""}',
    b'{"value": "' + b"[" * 50_000 + b'"}', b'{"value": "1' + b"0" * 5_000 + b'"}',
    b'{"spans": [{' + SPAN + b'"\\ud800"}]}', b'{"spans": [{' + SPAN + b'"x", "attributes": {"n": 99999999999999999999999}}]}',
    b'{"spans": [{' + SPAN + b'"x", "attributes": {"\\ud800": "\\ud800"}}]}',
)  # fmt: skip


def test_no_body_is_too_much(service: Served) -> None:
    """JSON that is none, that nobody else can read, or that holds numbers beyond every limit: refused, and never kept."""
    filled = {"group": "demo", "member": "rollout", "index": "0", "host": "nowhere", "name": "odd", "claim": "nothing"}
    for path, calls in service.document["paths"].items():
        for method in calls:
            if method == "get" or path.endswith("/groups/{group}"):
                continue
            for body in BODIES:
                status, answer = ask(service, method.upper(), path.format(**filled), body)
                assert status < 500 or b"not_enforced" in answer, (method, path, body[:80], answer)
    # What was kept can be shown to everybody.
    with service.client() as admin:
        for path in ("groups", "groups/demo", "groups/demo/kv", "groups/demo/heartbeats", "groups/demo/trace", "claims"):
            answer = admin.get(path)
            assert answer.status_code == 200, (path, answer.text)
            json.loads(answer.text, parse_constant=pytest.fail)
        assert admin.get("events", params={"after": 0, "until": 10**6}).status_code == 200
    service.refill()


@BOUNDED
@given(words=st.lists(WORDS, min_size=3, max_size=3), odd=st.binary(max_size=200))
def test_headers_are_only_words(service: Served, words: list[str], odd: bytes) -> None:
    clean = bytes(byte for byte in odd if byte not in b"\r\n\0")
    for header in (
        b"Idempotency-Key: ",
        b"XCE-Term: ",
        b"XCE-Delegation: ",
        b"Last-Event-ID: ",
        b"X-Forwarded-For: ",
        b"Cookie: ",
    ):
        status, answer = ask(service, "POST", "/v1/groups/demo/coordinator", b"", header + clean)
        assert status < 500, (header, clean, answer)
    bearer = "".join(words).encode("latin-1", "ignore").translate(None, b"\r\n\0")
    answer = raw(
        service, b"GET /v1/groups HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer " + bearer + b"\r\n\r\n"
    )
    assert answer.split(b" ", 2)[1] in (b"401", b"400"), answer


GOOD: dict[str, Any] = {
    "name": "odd", "priority": 50, "environment": {"A": "b"}, "barrier": {"timeout": "1m", "max_attempts": 2},
    "placement": {"mode": "session"}, "failure": [{"match": {"member": "b", "cause": ["hung"]}, "action": "restart_member"}],
    "claims": [{"name": "ckpt", "provider": "directory", "parameters": {"path": "/tmp"}}], "termination_delay": "1s",
    "members": {
        "a": {"job": {"command": ["run", "x"], "resources": {"cpu": 1, "mem": "1GiB"}, "tasks": 2, "environment": {"X": "y"}}},
        "b": {"replica_set": {"command": ["serve"], "replicas": 2, "min_replicas": 1, "ports": ["http"],
                              "ready": {"http": {"port": "http", "path": "/"}}, "resreq": "2*{rusage[cpu=1]}"}},
    },
}  # fmt: skip
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from places(part, (*path, index))


@BOUNDED
@given(where=st.sampled_from(list(places(GOOD))[1:]), junk=JUNK, key=WORDS | st.none())
def test_documents_that_are_nearly_right(service: Served, where: tuple[Any, ...], junk: Any, key: str | None) -> None:
    """One thing in a good document is replaced (or added): 201, or 422 that names a path; nothing else."""
    document = json.loads(json.dumps(GOOD))
    inside = document
    for part in where[:-1]:
        inside = inside[part]
    if key is not None and isinstance(inside, dict):
        inside[key] = junk
    else:
        inside[where[-1]] = junk
    for path in ("/v1/groups", "/v1/jobs"):
        status, answer = ask(service, "POST", path, json.dumps(document).encode("utf-8", "surrogatepass"))
        assert status in (201, 400, 403, 409, 422), (document, answer)
        content = answer.split(b"\r\n\r\n", 1)[1]
        if status == 422:
            assert json.loads(content)["problems"] or json.loads(content)["code"] == "invalid", content
        if status == 201:
            with service.client() as admin:
                made = json.loads(content)["id"]
                assert admin.get(f"groups/{made}").status_code == 200
                admin.delete(f"groups/{made}")


def test_a_command_is_words_and_never_a_shells(service: Served) -> None:
    """What a submission says goes to the agents word by word: nothing puts the words together."""
    words = ["sh -c id", "$(touch /tmp/x)", "`id`", "; rm -rf x", "a b", "'\"", "\n", "%s{x}", "--"]
    document = {
        "name": "words",
        "members": {"a": {"job": {"command": words, "environment": {"A": "$B; `id`"}, "resources": {"cpu": 0.1}}}},
    }
    with service.client() as admin:
        made = admin.post("groups", json=document)
        assert made.status_code == 201, made.text
        group = made.json()["id"]
        try:
            launches = service.call(_launches(service, group))
        finally:
            admin.delete(f"groups/{group}")
    assert [launch.argv for launch in launches] == [tuple(words)]
    assert dict(launches[0].environment)["A"] == "$B; `id`"


async def _launches(service: Served, group: str) -> list[Any]:
    from tests.unit.xce.controller.fakes import until

    def prepared() -> list[Any]:
        return [each.launch for each in service.world.hosts.delivered if isinstance(each, Prepare) and each.task.group == group]

    await until(prepared)
    return prepared()


def test_streams_of_one_client_are_bounded(service: Served) -> None:
    """The one too many is refused with when to come again; what is closed makes room; commands go on."""
    with service.client() as admin:
        streams = [admin.stream("GET", "events") for _ in range(PER_CLIENT)]
        opened = [stream.__enter__() for stream in streams]
        assert [answer.status_code for answer in opened] == [200] * PER_CLIENT
        refused = admin.get("events")
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        assert int(refused.headers["retry-after"]) > 0
        assert admin.get("groups").status_code == 200
        for stream in streams:
            stream.__exit__(None, None, None)
        service.call(_closed(service))
        with admin.stream("GET", "events") as again:
            assert again.status_code == 200


async def _closed(service: Served) -> None:
    from tests.unit.xce.controller.fakes import until

    await until(lambda: not service.streams.open)


def test_a_flood_of_everything_is_borne(service: Served) -> None:
    """Many clients at once, with whatever: each is answered, by an answer or by when to come again; then all is as before."""

    def one(number: int) -> list[int]:
        with service.client() as client:
            answers = [
                client.put("groups/demo/kv/flood", json={"value": str(number)}),
                client.get("groups"),
                client.post("groups", json={"name": f"f{number}", "members": {"a": {"job": {"command": ["x"]}}}}),
                client.post("groups", content=b" " * 1_100_000, headers={"Content-Type": "application/json"}),
                client.get("groups", params={"limit": 10**9}),
                client.get("groups/demo/why", params={"level": 3}),
            ]
            return [answer.status_code for answer in answers]

    with ThreadPoolExecutor(16) as clients:
        statuses = [status for each in clients.map(one, range(64)) for status in each]
    assert set(statuses) <= {200, 201, 413, 422, 429, 503}, sorted(set(statuses))
    assert statuses.count(413) == statuses.count(422) == 64
    with service.client() as admin:
        for view in admin.get("groups", params={"state": "live"}).json()["groups"]:
            if view["name"].startswith("f"):
                admin.delete(f"groups/{view['id']}")
        assert admin.get("readyz").status_code == 200
    assert service.streams.open.total() == 0
    assert threading.active_count() < 200


def test_half_a_request_holds_up_nobody(service: Served) -> None:
    """Clients that begin and do not go on, or go away in the middle."""
    for begun in (
        b"GET /v1/groups HT",
        b"POST /v1/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"\x16\x03\x01\x02\x00",
        b"\r\n" * 9,
    ):
        raw(service, begun, wait=False)
    with service.client() as admin:
        assert admin.get("healthz").status_code == 200
