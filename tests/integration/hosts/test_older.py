"""Agents of another version: with a link that is one protocol ahead, the agent of this version is an earlier one."""

from __future__ import annotations

import pytest

from gangflow.xce.core.effects import Launch, Prepare, Warn
from gangflow.xce.core.inputs import TaskExited, TaskPrepared, TaskRefused, TaskStarted, TaskWarned
from gangflow.xce.hosts import link, older
from gangflow.xce.hosts.link import AgentFailed
from gangflow.xce.hosts.settings import PROTOCOL
from tests.integration.hosts.world import World, alive, until


def upgraded(monkeypatch: pytest.MonkeyPatch, *spoken: int) -> None:
    """From here on links speak the next protocol, and these."""
    monkeypatch.setattr(link, "PROTOCOL", PROTOCOL + 1)
    monkeypatch.setattr(older, "PROTOCOLS", spoken)


async def test_an_upgrade_ends_no_member_and_the_agent_is_replaced_when_it_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with World() as world:
        key = await world.run("sleep", "60")
        first = world.agent_pid
        upgraded(monkeypatch, PROTOCOL)
        await world.reconnect()
        assert world.agent_pid == first
        assert world.link.welcome is not None
        assert world.link.welcome.inventory == (("h0", key),)
        contained, plain = world.key(), world.key()
        launch = Launch(("true", "{folder}"), (), folder_words=(1,))
        await world.link.deliver(
            [Warn(key, "h0", 15), Prepare(contained, "h0", launch), Prepare(plain, "h0", Launch(("true",), ()))]
        )
        refused = await world.of(TaskRefused, contained)
        assert "earlier version" in refused.message
        assert not refused.permanent
        await world.of(TaskPrepared, plain)
        assert not world.count(TaskWarned, key)
        assert alive(next(held.pid for held in (await world.link.status()).tasks if held.task == key))
        await world.stop(plain)
        await world.stop(key)
        # The one that comes is as old as its program: only that it is another one counts here.
        await until(lambda: not alive(first))
        monkeypatch.undo()
        await until(lambda: world.link.connected)
        assert world.agent_pid != first
        world.agents.add(world.agent_pid)
        assert not world.count(TaskStarted, key)
        assert world.count(TaskExited, key) == 1


async def test_an_agent_that_speaks_no_protocol_of_ours_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as world:
        await world.link.stop()
        upgraded(monkeypatch)
        newer = world.new_link()
        with pytest.raises(AgentFailed, match=f"speaks protocol {PROTOCOL}, and this one {PROTOCOL + 1}"):
            await newer.start()
        monkeypatch.undo()
        await world.reconnect()
