"""The follower: an XCE that is away is waited for, one that says it is over ends it, and a fault is never silent."""

from __future__ import annotations

import pytest

from gangflow.errors import NotFound, XceError
from gangflow.member import follow as module
from gangflow.member.endpoints import Picture
from gangflow.member.follow import Follower
from gangflow.xce.rest.schema import GroupView
from tests.unit.member.fake_xce import FakeXce

DEADLINE_S = 10.0


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RELIST_S", 0.01)


def ready(picture: Picture) -> list[int]:
    return [endpoint.index for endpoint in picture.endpoints("b")]


def test_it_follows_what_happens() -> None:
    xce = FakeXce({"b": 2})
    follower = Follower(xce, "g1")
    assert ready(follower.picture) == []
    xce.ready("b", 1, "h:1")
    assert follower.wait(lambda picture: ready(picture) == [1], DEADLINE_S)
    assert follower.picture.endpoints("b")[0].url == "http://h:1"
    xce.slot("b", 1, "EXIT")
    assert follower.wait(lambda picture: ready(picture) == [], DEADLINE_S)


def test_an_xce_that_is_away_at_the_start_is_waited_for() -> None:
    xce = FakeXce({"b": 1})
    xce.away = True
    follower = Follower(xce, "g1")
    assert not follower.wait(lambda picture: picture.seq >= 0, 0.1)
    xce.away = False
    xce.ready("b", 0, "h:1")
    assert follower.wait(lambda picture: ready(picture) == [0], DEADLINE_S)


@pytest.mark.parametrize("error", [NotFound("the group was forgotten"), ZeroDivisionError("a fault of ours")])
def test_what_ends_it_is_raised_to_whoever_asks(error: Exception) -> None:
    class Broken(FakeXce):
        def group(self, group: str) -> GroupView:
            raise error

    follower = Follower(Broken({}), "g1")
    with pytest.raises(XceError, match=str(error)):
        _ = follower.picture


def test_listeners_are_told_of_every_change_until_they_leave() -> None:
    xce = FakeXce({"b": 1})
    follower = Follower(xce, "g1")
    assert follower.picture.seq >= 0
    told: list[int] = []
    stop = follower.listen(lambda: told.append(1))
    xce.ready("b", 0, "h:1")
    assert follower.wait(lambda picture: ready(picture) == [0], DEADLINE_S)
    assert told
    stop()
    del told[:]
    xce.slot("b", 0, "EXIT")
    assert follower.wait(lambda picture: ready(picture) == [], DEADLINE_S)
    assert told == []
