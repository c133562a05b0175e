"""The host agent of one node: `python -m gangflow.xce.hosts.agent --dir DIR --node NAME --hosts FILE`.

One plain process, in a session of its own so that it outlives whoever started it. Its main thread is the only one that forks:
parent-death signals follow the forking thread.
"""

from __future__ import annotations

import argparse
import asyncio
import fcntl
import logging
import os
import sys
from pathlib import Path

import msgspec

from gangflow.xce.core.state import HostFacts
from gangflow.xce.hosts import kernel
from gangflow.xce.hosts.keeper import TaskKeeper
from gangflow.xce.hosts.portpool import PortPool
from gangflow.xce.hosts.server import Server
from gangflow.xce.hosts.settings import BUSY, EXIT_BUSY, FILES, AgentOptions

log = logging.getLogger("gangflow.agent")


def main() -> int:
    """The command line of `python -m gangflow.xce.hosts.agent`; its exit code."""
    usual = AgentOptions()
    parser = argparse.ArgumentParser(prog="gangflow-agent")
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--hosts", type=Path, required=True, help="JSON list of HostFacts")
    parser.add_argument("--lease-ms", type=int, default=usual.lease_ms)
    parser.add_argument("--fence-ms", type=int, default=usual.fence_ms)
    parser.add_argument("--log-bytes", type=int, default=usual.log_bytes)
    parser.add_argument("--idle-exit-ms", type=int, default=usual.idle_exit_ms)
    parser.add_argument("--no-control-groups", dest="control_groups", action="store_false")
    parser.add_argument("--ready-fd", type=int, default=-1, help="told `ready` when the socket listens")
    parser.add_argument("--detach", action="store_true", help="run in a child of a process that ends at once")
    given = parser.parse_args()
    if given.detach and os.fork():
        # Nobody's child: a Ray worker that exits kills its children, and what starts an agent must be free to die.
        os._exit(0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    directory: Path = given.dir.resolve()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = os.open(directory / "agent.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        log.error("another agent serves %s", directory)
        if given.ready_fd >= 0:
            os.write(given.ready_fd, BUSY)
        return EXIT_BUSY
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    kernel.plain_signals()
    kernel.allow_files(FILES)
    kernel.become_subreaper()
    kernel.death_wrapper()  # looked for now, not at the first start
    wanted = msgspec.json.decode(given.hosts.read_bytes(), type=tuple[HostFacts, ...])
    pool = PortPool()  # holds its locks for as long as this process lives
    hosts = pool.assign(wanted, directory / "ports.json")
    options = AgentOptions(
        given.lease_ms, given.fence_ms, given.log_bytes, control_groups=given.control_groups, idle_exit_ms=given.idle_exit_ms
    )

    async def serve() -> None:
        await Server(TaskKeeper(directory, given.node, hosts, options)).run(directory / "agent.sock", given.ready_fd)

    asyncio.run(serve())
    pool.release()
    log.info("ended")
    return 0


if __name__ == "__main__":
    sys.exit(main())
