"""The app over a fake controller, called in process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI

from gangflow.xce.core.state import TaskKey
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.server import create_app, end_streams
from gangflow.xce.rest.streams import Streams
from gangflow.xce.rest.tokens import Tokens
from tests.inprocess import InProcess
from tests.unit.xce.rest.fake import FakeController, pending, running, state_of

ADMIN = "admin-token"


@pytest.fixture
def controller() -> FakeController:
    return FakeController(state_of(running(), pending("g2", "other")))


@pytest.fixture(scope="session")
def built() -> FastAPI:
    """Made once: making the routes takes longer than most tests."""
    return create_app(FakeController(), admin_token=ADMIN, body_bytes=20_000)


@pytest.fixture
async def app(built: FastAPI, controller: FakeController) -> AsyncIterator[FastAPI]:
    streams = Streams(per_client=3, keepalive_s=0.05)
    built.state.service = replace(built.state.service, controller=controller, streams=streams)
    yield built
    end_streams(built)


@pytest.fixture
async def http(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """Bare HTTP with the admin's token."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    async with httpx.AsyncClient(transport=InProcess(app), base_url="http://xce", headers=headers) as client:
        yield client


@pytest.fixture
async def admin(app: FastAPI) -> AsyncIterator[AsyncClient]:
    async with AsyncClient("http://xce", ADMIN, transport=InProcess(app), patience=1.0) as client:
        yield client


@pytest.fixture
def as_task(app: FastAPI) -> Callable[..., AsyncClient]:
    """A client with the token of one incarnation."""

    def make(group: str = "g1", epoch: int = 1, member: str = "actor", index: int = 0, incarnation: int = 1) -> AsyncClient:
        token = Tokens(ADMIN).task_token(TaskKey(group, epoch, member, index, incarnation, 0))
        return AsyncClient("http://xce", token, transport=InProcess(app), patience=1.0)

    return make
