"""Who this process is, from its environment."""

from __future__ import annotations

import pytest

from gangflow.member.failures import NotAMember
from gangflow.member.identity import Claims, Identity

ENVIRONMENT = {
    "XCE_URL": "http://127.0.0.1:1",
    "XCE_TOKEN": "secret",
    "XCE_GROUP": "g1",
    "XCE_MEMBER": "actor",
    "XCE_SLOT": "1",
    "XCE_INCARNATION": "3",
    "XCE_GROUP_EPOCH": "2",
    "XCE_PORT_HTTP": "7001",
    "XCE_PORT_SIDE_CHANNEL": "7002",
    "XCE_CLAIM_CKPT": "/claims/ckpt",
    "XCE_ADDRS_ROLLOUT_HTTP": "10.0.0.1:7,10.0.0.2:8",
}


def test_it_is_read() -> None:
    me = Identity.read(ENVIRONMENT)
    assert (me.group, me.member, me.slot, me.incarnation, me.epoch) == ("g1", "actor", 1, 3, 2)
    assert me.port("side-channel") == 7002
    assert me.addresses("rollout", "http") == ("10.0.0.1:7", "10.0.0.2:8")
    assert dict(Claims(me)) == {"ckpt": "/claims/ckpt"}


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(Identity.read(ENVIRONMENT))


def test_outside_of_a_group_everything_that_is_missing_is_named() -> None:
    with pytest.raises(NotAMember) as told:
        Identity.read({"XCE_SLOT": "first"})
    for part in ("XCE_URL is not set", "XCE_GROUP is not set", "XCE_MEMBER is not set", "XCE_SLOT is not a number: 'first'"):
        assert part in told.value.message
    assert told.value.advice


@pytest.mark.parametrize(
    ("ask", "known"),
    [
        (lambda me: me.port("grpc"), "there are: http, side_channel"),
        (lambda me: me.claim("data"), "there are: ckpt"),
        (lambda me: me.addresses("reward", "http"), "there are: rollout_http"),
    ],
)
def test_a_wrong_name_says_the_right_ones(ask: object, known: str) -> None:
    with pytest.raises(KeyError, match=known):
        ask(Identity.read(ENVIRONMENT))  # type: ignore[operator]
