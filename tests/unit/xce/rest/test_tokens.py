from __future__ import annotations

import pytest

from gangflow.xce.core.state import TaskKey
from gangflow.xce.rest.tokens import ADMIN, Role, Tokens

KEY = TaskKey("g1", 2, "rollout", 3, 4, 0)


def test_the_admins_token_is_the_admin() -> None:
    assert Tokens("secret").check("secret") == ADMIN


def test_a_task_token_says_whose_it_is() -> None:
    principal = Tokens("secret").check(Tokens("secret").task_token(KEY))
    assert principal is not None
    assert (principal.role, principal.task) == (Role.TASK, KEY)
    assert principal.sees("g1")
    assert not principal.sees("g2")


def test_two_incarnations_have_two_tokens() -> None:
    tokens = Tokens("secret")
    assert tokens.task_token(KEY) != tokens.task_token(TaskKey("g1", 2, "rollout", 3, 5, 0))


@pytest.mark.parametrize(
    "bearer", ["", "secre", "secret ", "xct1", "xct1..", "xct1.!!.!!", "xct1.e30.e30", "xct2.a.b", "é" * 9]
)
def test_nobodys_token(bearer: str) -> None:
    assert Tokens("secret").check(bearer) is None


def test_another_clusters_token_is_nobodys() -> None:
    assert Tokens("secret").check(Tokens("other").task_token(KEY)) is None


def test_no_single_changed_character_is_accepted() -> None:
    tokens = Tokens("secret")
    token = tokens.task_token(KEY)
    for position, character in enumerate(token[:-1]):
        forged = token[:position] + ("A" if character != "A" else "B") + token[position + 1 :]
        assert tokens.check(forged) is None


def test_without_an_admin_token_only_silence_is_trusted() -> None:
    tokens = Tokens("")
    assert tokens.check("") == ADMIN
    assert tokens.check("guess") is None
    task = tokens.check(tokens.task_token(KEY))
    assert task is not None
    assert task.task == KEY
