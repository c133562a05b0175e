"""`python -m gangflow.coordinators.run --group G`: a coordinator as a plain process, by XCE_URL and XCE_TOKEN.

Ends with 0 when the group has ended; with 9 when another start would end the same: a newer coordinator has taken over, or
there is nothing to drive; with 1 after anything else, so that its supervisor starts it again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

from gangflow.coordinators.shell import Coordinator
from gangflow.engines import kind
from gangflow.errors import Fenced, GangflowError, NotFound, SetupError, Unauthorized
from gangflow.specs.coordinator import RLCoordinator
from gangflow.xce.rest.aclient import AsyncClient


async def coordinate(client: AsyncClient, group: str) -> str:
    """Drive a group until it ends, as its own spec says; returns its terminal state."""
    document = (await client.group(group)).document or {}
    if document.get("coordinator") is None:
        raise SetupError(f"group {group} has no coordinator in its spec: XCE's failure policy alone holds")
    config = RLCoordinator.model_validate(document["coordinator"])
    return await Coordinator(client, group, config, kind(config.engine).adapter).run()


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangflow.coordinators.run")
    parser.add_argument("--group", required=True, help="id or name")
    parser.add_argument("--url", default=os.environ.get("XCE_URL", ""), help="default: XCE_URL")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    if not arguments.url:
        parser.error("--url or XCE_URL is needed")

    async def drive() -> str:
        async with AsyncClient(arguments.url, os.environ.get("XCE_TOKEN", "")) as client:
            return await coordinate(client, arguments.group)

    try:
        logging.info("group %s ended: %s", arguments.group, asyncio.run(drive()))
    except (Fenced, NotFound, Unauthorized, SetupError) as error:
        logging.error("%s", error.message)
        return SetupError.exit_code
    except GangflowError as error:
        logging.error("%s; another start may do better", error.message)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
