from __future__ import annotations

import pytest

from gangflow.xce.core.state import TaskKey
from gangflow.xce.rest.tokens import ADMIN, Principal, Role, Tokens

NOW = 1_000_000
KEY = TaskKey("g1", 2, "rollout", 3, 4, 0)


def test_the_admins_token_is_the_admin() -> None:
    assert Tokens("secret").check("secret", NOW) == ADMIN


def test_a_task_token_says_whose_it_is() -> None:
    principal = Tokens("secret").check(Tokens("secret").task_token(KEY), NOW)
    assert principal is not None
    assert (principal.role, principal.task) == (Role.TASK, KEY)
    assert principal.name == "g1/2/rollout/3/4/0"


def test_two_incarnations_have_two_tokens() -> None:
    tokens = Tokens("secret")
    assert tokens.task_token(KEY) != tokens.task_token(TaskKey("g1", 2, "rollout", 3, 5, 0))


@pytest.mark.parametrize(
    "bearer",
    [
        "",
        "secre",
        "secret ",
        "xct1",
        "xct1..",
        "xct1.!!.!!",
        "xct1.e30.e30",
        "xct2.a.b",
        "xcu1",
        "xcu1..",
        "xcu1.e30.e30",
        "xcd1.W10.W10",
        "é" * 9,
    ],
)
def test_nobodys_token(bearer: str) -> None:
    assert Tokens("secret").check(bearer, NOW) is None


def test_another_clusters_token_is_nobodys() -> None:
    assert Tokens("secret").check(Tokens("other").task_token(KEY), NOW) is None


def test_no_single_changed_character_is_accepted() -> None:
    tokens = Tokens("secret")
    token = tokens.task_token(KEY)
    for position, character in enumerate(token[:-1]):
        forged = token[:position] + ("A" if character != "A" else "B") + token[position + 1 :]
        assert tokens.check(forged, NOW) is None


def test_without_an_admin_token_only_silence_is_trusted() -> None:
    tokens = Tokens("")
    assert tokens.check("", NOW) == ADMIN
    assert tokens.check("guess", NOW) is None
    task = tokens.check(tokens.task_token(KEY), NOW)
    assert task is not None
    assert task.task == KEY


def test_an_owners_token_is_good_until_it_expires() -> None:
    tokens = Tokens("secret")
    token = tokens.owner_token("alice", NOW)
    principal = tokens.check(token, NOW - 1)
    assert principal == Principal(Role.OWNER, owner="alice")
    assert principal.name == "owner/alice"
    assert tokens.check(token, NOW) is None
    assert Tokens("changed").check(token, NOW - 1) is None


def test_a_delegation_names_its_owner_and_opens_nothing() -> None:
    tokens = Tokens("secret")
    token = tokens.delegation_token("alice", NOW)
    assert tokens.delegated(token, NOW - 1) == "alice"
    assert tokens.delegated(token, NOW) is None
    assert tokens.check(token, NOW - 1) is None
    for other in (tokens.owner_token("alice", NOW), tokens.task_token(KEY), "secret", "xcd1.a.b"):
        assert tokens.delegated(other, NOW - 1) is None


def test_what_authenticates_one_kind_authenticates_no_other() -> None:
    """The payload and the code of one kind, under the prefix of another, are nobody's."""
    tokens = Tokens("secret")
    delegation = tokens.delegation_token("alice", NOW)
    for prefix in ("xcu1", "xct1"):
        assert tokens.check(delegation.replace("xcd1", prefix), NOW - 1) is None


def test_no_owner_is_called_as_a_scope_of_keys() -> None:
    """`admin` as an owner's name is another principal than the admin."""
    assert Principal(Role.OWNER, owner="admin").name != ADMIN.name
