"""Property 39: nothing leaks between owners: random requests of several, a model of which words each of them may ever read."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from gangflow.xce.core.state import TaskKey
from tests.conformance.served import ADMIN, NEVER_MS, TOKENS, Served, owner, served

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12")) // 2
pytestmark = pytest.mark.timeout(1_800)  # `make nightly` asks for much more
OWNERS = ("alice", "bob", "carol")
OWNER = st.sampled_from(OWNERS)
GET = (
    "groups", "groups?state=live", "jobs", "queue", "hosts", "claims", "owners", "events?after=0&until=1000000",
    "groups/{group}", "groups/{group}/why?level=1", "groups/{group}/why?level=3", "groups/{group}/changes",
    "claims?group={group}",
    "groups/{group}/kv", "groups/{group}/kv/fact", "groups/{group}/heartbeats", "groups/{group}/trace", "claims/{claim}",
    "groups/{group}/changes/c1", "groups/{group}/members/{member}/slots/0/log", "events?after=0&until=1000000&group={group}",
)  # fmt: skip
DO = (
    ("POST", "groups/{group}:suspend", {"message": "{word}"}),
    ("POST", "groups/{group}:resume", None),
    ("POST", "groups/{group}:restart", {"message": "{word}"}),
    ("POST", "groups/{group}:fail", {"cause": "{word}", "message": "{word}"}),
    ("DELETE", "groups/{group}", None),
    ("PATCH", "groups/{group}/members", {"targets": {"{member}": 2}}),
    ("DELETE", "groups/{group}/members/{member}", None),
    ("POST", "groups/{group}/members/{member}/slots/0:restart", {"incarnation": 1}),
    ("POST", "groups/{group}/members/{member}/slots/0:drain", {"incarnation": 1}),
    ("POST", "groups/{group}/members/{member}/slots/0:report", {"incarnation": 1, "cause": "hung", "message": "{word}"}),
    ("PUT", "groups/{group}/kv/fact", {"value": '"{word}"'}),
    ("PUT", "groups/{group}/members/{member}/slots/0/heartbeat", {"{word}": 1}),
    ("DELETE", "claims/{claim}", None),
    ("POST", "groups", {"name": "{group}", "members": {"a": {"job": {"command": ["true"]}}}}),
)
NUMBERS = itertools.count(1)
MAY: dict[str, frozenset[str]] = {}
"""Word, or id of a group → the owners who may ever be told of it. Examples leave things behind for those that follow."""


class Leaks(RuleBasedStateMachine):
    """Words are made up for what belongs to somebody; `MAY` says who may ever be told each of them."""

    def __init__(self, service: Served) -> None:
        super().__init__()
        self.service = service
        self.groups: list[tuple[str, str, tuple[str, ...]]] = []
        """(id, owner, members)."""
        self.claims: list[tuple[str, str]] = []
        self.clients: dict[str, httpx.Client] = {}

    def teardown(self) -> None:
        with self.service.client() as admin:
            for group, _, _ in self.groups:
                admin.delete(f"groups/{group}")
            for claim, _ in self.claims:
                admin.delete(f"claims/{claim}")
        for client in self.clients.values():
            client.close()

    def word(self, *owners: str) -> str:
        """A new word that these owners may be told."""
        word = f"w{next(NUMBERS)}z"
        MAY[word] = frozenset(owners)
        return word

    def as_(self, who: str) -> httpx.Client:
        if who not in self.clients:
            token = owner(who)
            if who.startswith("task of "):
                group, _, members = next(each for each in self.groups if each[0] == who.removeprefix("task of "))
                token = TOKENS.task_token(TaskKey(group, 1, members[0], 0, 1, 0))
            self.clients[who] = self.service.client(token)
        return self.clients[who]

    def told(self, who: str, answer: httpx.Response, asked: str) -> None:
        """Nothing that was answered is beyond what he may know; what he said himself he knows already."""
        assert answer.status_code < 500 or answer.status_code == 503, (asked, answer.status_code, answer.text)
        names = {who}
        if who.startswith("task of "):
            # A task reads its own group as its owner does.
            names = {next(each[1] for each in self.groups if each[0] == who.removeprefix("task of "))} | {who}
        said = set(re.findall(r"w[0-9]+z|\bg[0-9]+\b", asked))
        for word in set(re.findall(r"w[0-9]+z|\bg[0-9]+\b", answer.text)) - said:
            # What the service began with is not of this model.
            allowed = MAY.get(word)
            assert allowed is None or allowed & names, f"{who} was told {word} by {asked}: {answer.text}"

    @initialize()
    def everybody_has_something(self) -> None:
        for name, guest in (("alice", "bob"), ("bob", "bob"), ("carol", "carol")):
            self.submits(name, guest, 1)

    @rule(name=OWNER, guest=OWNER, cpu=st.sampled_from([1, 3, 4]))
    def submits(self, name: str, guest: str, cpu: int) -> None:
        """A group with a member of the owner's and one of a guest's."""
        both = (name, guest)
        group, own, others, secret = self.word(*both), self.word(name), self.word(*both), self.word(name)
        spec: dict[str, Any] = {
            "name": group,
            "environment": {"SECRET": secret},
            "members": {
                own: {"job": {"command": ["run", self.word(name)], "resources": {"cpu": cpu}}},
                others: {"replica_set": {"command": [self.word(name)], "replicas": 1, "max_replicas": 2, "owner": guest,
                                         "resources": {"cpu": 1}}},
            },
        }  # fmt: skip
        mine = [claim for claim, whose in self.claims if whose == name]
        if mine:
            spec["claims"] = [{"name": "used", "uses": mine[-1]}]
        delegation = {"XCE-Delegation": TOKENS.delegation_token(guest, NEVER_MS)}
        answer = self.as_(name).post("groups", json=spec, headers=delegation)
        self.told(name, answer, str(spec))
        if answer.status_code == 201:
            made = answer.json()["id"]
            MAY[made] = frozenset(both)
            self.groups.append((made, name, (own, others)))

    @rule(name=OWNER)
    def claims_something(self, name: str) -> None:
        claim = self.word(name)
        answer = self.as_(name).post("claims", json={"name": claim, "provider": "directory"})
        self.told(name, answer, claim)
        if answer.status_code == 201:
            self.claims.append((claim, name))

    def one_of(self, data: st.DataObject) -> tuple[str, dict[str, str]]:
        """Somebody, and things of anybody's."""
        group, name, members = data.draw(st.sampled_from(self.groups))
        who = data.draw(st.sampled_from([*OWNERS, *(f"task of {each[0]}" for each in self.groups)]))
        named = {"group": group, "member": data.draw(st.sampled_from(members)), "claim": "data", "word": self.word(name)}
        if self.claims:
            named["claim"] = data.draw(st.sampled_from(self.claims))[0]
        return who, named

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), path=st.sampled_from(GET))
    def looks(self, data: st.DataObject, path: str) -> None:
        who, named = self.one_of(data)
        self.told(who, self.as_(who).get(path.format(**named)), path.format(**named))

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), what=st.sampled_from(DO))
    def does(self, data: st.DataObject, what: tuple[str, str, Any]) -> None:
        method, path, body = what
        who, named = self.one_of(data)
        filled = _filled(body, named)
        if "word" in str(body):
            # What a guest says of a group its owner may read, and the other way round.
            group = next(each for each in self.groups if each[0] == named["group"])
            MAY[named["word"]] = MAY[group[0]] if who != group[1] else frozenset({group[1]})
        answer = self.as_(who).request(method, path.format(**named), json=filled)
        self.told(who, answer, f"{path.format(**named)} {filled}")

    @precondition(lambda self: self.groups)
    @rule(data=st.data())
    def looks_everywhere(self, data: st.DataObject) -> None:
        """Whoever it is, at everything that he could read."""
        who, named = self.one_of(data)
        for path in GET:
            self.told(who, self.as_(who).get(path.format(**named)), path.format(**named))


def _filled(body: Any, named: dict[str, str]) -> Any:
    if isinstance(body, dict):
        return {_filled(key, named): _filled(value, named) for key, value in body.items()}
    return re.sub(r"\{(\w+)\}", lambda found: named[found[1]], body) if isinstance(body, str) else body


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("leaks")) as made:
        yield made


def test_nobody_is_told_what_is_somebody_elses(service: Served) -> None:
    run_state_machine_as_test(
        lambda: Leaks(service),
        settings=settings(
            max_examples=EXAMPLES, stateful_step_count=25, deadline=None, database=None,
            phases=(Phase.generate,), derandomize="FUZZ_EXAMPLES" not in os.environ, suppress_health_check=list(HealthCheck),
        ),
    )  # fmt: skip


def test_the_model_notices_a_leak(service: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, with an XCE to which every owner is the admin: were nothing found, the model would be worth nothing."""
    monkeypatch.setitem(globals(), "owner", lambda name: ADMIN)
    with pytest.raises(BaseException, match=r"was told (w[0-9]+z|g[0-9]+) by"):
        test_nobody_is_told_what_is_somebody_elses(service)
