"""A headless Chromium, spoken to by its own DevTools protocol over aiohttp: no driver, no other package."""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

WAIT_S = 60.0
LOOK_MS = 50
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip


def chromium() -> str | None:
    """The browser's program; None where there is none."""
    return shutil.which("chromium")


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol, and its result."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == self._number:
                assert "error" not in message, f"{method}: {message['error']}"
                return dict(message["result"])

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page (of its promise, if it is one)."""
        said = await self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait, in the page, until an expression is true."""
        look = (
            f"new Promise(done => {{ const look = () => ({condition}) ? done(true) : setTimeout(look, {LOOK_MS}); look(); }})"
        )
        try:
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        await self.evaluate(look)
                        return
                    except AssertionError:  # the page was replaced meanwhile, or is not there yet
                        await asyncio.sleep(LOOK_MS / 1000)
        except TimeoutError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"never {condition} in:\n{text}") from None

    async def screenshot(self) -> bytes:
        """A PNG of the whole page."""
        size = (await self.call("Page.getLayoutMetrics"))["cssContentSize"]
        whole = {**size, "scale": 1}
        shot = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=whole)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def opened(width: int = 1280, height: int = 900) -> AsyncIterator[Page]:
    """A tab of a browser with a profile of its own; both are gone afterwards."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = await asyncio.create_subprocess_exec(
            program, *FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}", "about:blank",
            stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            assert browser.stderr is not None
            async with asyncio.timeout(WAIT_S):
                async for line in browser.stderr:
                    if b"DevTools listening on" in line:
                        break
                else:
                    raise AssertionError("the browser did not start")
            port = line.decode().split(":")[2].split("/")[0]
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                    tab = next(each for each in await answer.json() if each["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            if browser.returncode is None:
                browser.kill()
            await browser.communicate()
