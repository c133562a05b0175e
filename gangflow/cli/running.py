"""`gangflow run` and `attach`: from a source to an exit code."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType

from rich.console import Console

from gangflow import clusters
from gangflow.cli import faults as fault_words
from gangflow.cli.faults import Fault, check_faults
from gangflow.cli.results import result_lines
from gangflow.cli.sources import Source
from gangflow.cli.watching import Watching, ask_detach_or_cancel, final_words
from gangflow.errors import Problem, UsageError
from gangflow.home import root
from gangflow.runs import Run, submit
from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.member import ReplicaSet

EXIT_OF_STATE = {"SUCCEEDED": 0, "FAILED": 1, "CANCELLED": 3}
DETACHED = 0


def speaker(console: Console) -> clusters.Say:
    """Says each phase on a line of its own, with the seconds since the start."""
    begin = time.monotonic()

    def say(text: str) -> None:
        console.print(f"{time.monotonic() - begin:7.1f} s  {text}", markup=False, highlight=False, soft_wrap=True)

    return say


def open_cluster(
    console: Console, source: Source, described: ClusterSpec | None, address: str, runtime: str, dashboard: bool
) -> clusters.Cluster:
    """Join the cluster at `address`, or start one of the run's own."""
    say = speaker(console)
    slots = sum(member.replicas if isinstance(member, ReplicaSet) else 1 for member in source.group.members.values())
    members = len(source.group.members)
    say(f"group {source.group.name!r}: {_many(members, 'member')}, {_many(slots, 'slot')}")
    if address:
        return clusters.join_cluster(address, say=say)
    return clusters.own_cluster(source.group.name, described, runtime=runtime, dashboard=dashboard, say=say)


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def run_group(
    console: Console,
    source: Source,
    described: ClusterSpec | None,
    address: str,
    runtime: str,
    dashboard: bool,
    faults: Sequence[str],
    detach: bool,
    delegation: Sequence[str] = (),
) -> int:
    """Run a group to its end, or leave it running. Returns the exit code. `delegation`: tokens of owners whom it names."""
    planned = [fault_words.parse(text) for text in faults]
    check_faults(planned, source.group)
    if planned and detach:
        raise UsageError([Problem("fault", repr(faults[0]), "no --detach: whoever watches the run sends its faults")])
    if not address:
        source.check_here()  # The hosts of another cluster may have what is not here.
    # An end from outside (`timeout`, a CI system) takes an own cluster down as any other end does.
    signal.signal(signal.SIGTERM, _terminated)
    cluster = open_cluster(console, source, described, address, runtime, dashboard)
    owns = not address
    try:
        with source.blamed():
            run = submit(source.group, cluster, owns=False, delegation=delegation)
    except BaseException as error:
        if owns:
            clusters.abandon(cluster, error)
        raise
    console.print(
        f"group <{run.id}> {run.name!r} is submitted to {cluster.name}", markup=False, highlight=False, soft_wrap=True
    )
    if detach:
        console.print(
            f"detached: `gangflow attach {run.name}` watches it, `gangflow cancel {run.name}` ends it",
            markup=False,
            soft_wrap=True,
        )
        return DETACHED
    return watch(console, run, planned, stop=owns, recipe=source.recipe)


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def watch(console: Console, run: Run, faults: Sequence[Fault], *, stop: bool, recipe: ModuleType | None = None) -> int:
    """Watch a run until it ends. `stop`: its cluster is the run's own, and ends with it unless it is detached.

    `recipe`: the module that it was built by, if it is known.
    """
    detached = False
    try:
        watching = Watching(run, faults)
        try:
            view = watching.follow(console)
        except KeyboardInterrupt:
            if ask_detach_or_cancel(console):
                detached = True
                console.print(f"detached: `gangflow attach {run.name}` watches it again", markup=False)
                return DETACHED
            console.print("cancelling: everything of it is taken down", markup=False)
            try:
                run.cancel()
                view = run.wait(check=False)
            except KeyboardInterrupt:
                console.print("interrupted again: not waiting for an orderly end", markup=False)
                return EXIT_OF_STATE["CANCELLED"]
        printed = not console.is_terminal
        words = final_words(view, watching.story, printed=printed)
        undue = (f"the fault never came due: {fault}" for fault in watching.pending)
        for line in [*words, *undue, *result_lines(view, recipe)]:
            console.print(line, markup=False, highlight=False, soft_wrap=True)
        tell_what_is_kept(console, run, ends=stop)
        return EXIT_OF_STATE.get(view.state, 1)
    finally:
        run.close()
        if stop and not detached:
            run.cluster.stop()


def tell_what_is_kept(console: Console, run: Run, *, ends: bool) -> None:
    """After the end of a group in a cluster of its own: where its logs are, and whether that cluster `ends` with it."""
    place = Path(run.cluster.name)
    if place.parent != root() / "runs":
        return
    words = f"kept: {place} (logs, trace, journal; `gangflow logs {run.name} SLOT`)"
    if not ends:
        words += f"; its cluster is still up: `gangflow down --home {place}` stops it"
    console.print(words, markup=False, highlight=False, soft_wrap=True)
