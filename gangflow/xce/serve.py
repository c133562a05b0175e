"""`python -m gangflow.xce.serve --home DIR`: an embedded XCE on this machine, without Ray.

When it is ready it prints one line of JSON, what `controller.json` in its home says. SIGTERM and SIGINT end the controller and
leave members and agents running: the next one on the same home takes them up again. SIGUSR1 takes everything down (groups are
cancelled, agents end); with `--take-down` every one of these signals does. The exit code is the error's (`docs/operations.md`).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from gangflow.errors import GangflowError, JournalRegressed
from gangflow.xce.cluster_home import ClusterHome

if TYPE_CHECKING:
    from gangflow.specs.cluster import ClusterSpec

_log = logging.getLogger("gangflow.serve")


def cluster_of(home: ClusterHome, file: Path | None) -> ClusterSpec:
    """The cluster description: from the file, which becomes the home's, else the home's, else this machine as one host."""
    from gangflow.specs.cluster import ClusterSpec, HostSpec
    from gangflow.specs.document import load_cluster

    if file is not None:
        spec = load_cluster(file)
        if file.resolve() != home.cluster_file:
            shutil.copyfile(file, home.cluster_file)
        return spec
    if home.cluster_file.exists():
        return load_cluster(home.cluster_file)
    return ClusterSpec(hosts=[HostSpec("local")])


async def run(home: ClusterHome, cluster: ClusterSpec, bind: str, port: int, *, take_down: bool) -> None:
    """Serve until a signal comes, or the controller cannot go on (its error is raised; members run on)."""
    from gangflow.xce.runtime import Runtime

    asked: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def ask(everything: bool) -> None:
        if not asked.done():
            asked.set_result(everything)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask, take_down)
    loop.add_signal_handler(signal.SIGUSR1, ask, True)
    runtime = Runtime(home, cluster, bind=bind, port=port)
    await runtime.start()
    failing = asyncio.create_task(runtime.failed())
    try:
        with contextlib.suppress(OSError):  # whoever started it may not listen any more
            print(msgspec.json.encode(home.card()).decode(), flush=True)  # noqa: T201
        either: set[asyncio.Future[Any]] = {asked, failing}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if failing.done() and isinstance(failing.result(), JournalRegressed):
            # It goes on showing what it knows; an operator decides.
            await asked
    finally:
        failing.cancel()
        if asked.done() and asked.result():
            await runtime.take_down()
        else:
            await runtime.stop()
    if not asked.done():
        raise failing.result()


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m gangflow.xce.serve", description="An embedded XCE on this machine.")
    parser.add_argument("--home", type=Path, required=True, help="the cluster's folder: journal, token, logs")
    parser.add_argument("--cluster", type=Path, help="cluster description (YAML); default: the home's, else this machine")
    parser.add_argument("--bind", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0: the former one if it is free, else any")
    parser.add_argument("--take-down", action="store_true", help="end groups and agents too when told to end")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    try:
        home = ClusterHome(options.home)
        asyncio.run(run(home, cluster_of(home, options.cluster), options.bind, options.port, take_down=options.take_down))
    except GangflowError as error:
        advice = f"\n{error.advice}" if error.advice else ""
        print(f"{error.code}: {error.message}{advice}", file=sys.stderr, flush=True)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
