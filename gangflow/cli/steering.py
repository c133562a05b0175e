"""`gangflow scale`, `suspend`, `resume`, `restart`: a running group told to be otherwise, wherever of this user's it runs."""

from __future__ import annotations

from collections.abc import Sequence

from gangflow.cli.lsf_columns import moved_text
from gangflow.cli.names import Name, group_only, meant, parse, slots_meant
from gangflow.cli.xce_acts import seconds_of, targets_of
from gangflow.errors import Gone, NotFound, SpecError
from gangflow.runs import Run, attach
from gangflow.xce.rest.schema import GroupView, SlotView


def scale_group(group: str, words: Sequence[str], timeout: str, *, wait: bool, address: str) -> None:
    """Other numbers of replicas, and what became of it.

    Raises:
        Conflict: it is not proved to fit, or cannot be in this state; nothing has changed.
        ChangeFailed: with `wait`: it was accepted and failed later.
    """
    targets, limit = targets_of(words), seconds_of(timeout)
    run = attach(group_only(group).group, address=address)
    change = run.scale(targets, timeout=limit, wait=wait)
    if change is None:
        print(f"{_named(run)} has these targets already")
    else:
        print(f"{_named(run)} {moved_text(change)}: change {change.id} {change.state}")


def suspend_group(group: str, message: str, *, wait: bool, address: str) -> None:
    """Give everything of a group back; with `wait`, until all of it is gone."""
    run = attach(group_only(group).group, address=address)
    run.suspend(message)
    view = run.status()
    print(f"{_named(run)} {view.state}", flush=True)
    if wait and view.state == "SUSPENDING":
        print(f"{_named(run)} {_after(run, 'SUSPENDING')}")


def resume_group(group: str, *, address: str) -> None:
    """Let a suspended group wait for a place again."""
    run = attach(group_only(group).group, address=address)
    run.resume()
    print(f"{_named(run)} {run.status().state}")


def restart_named(names: Sequence[str], message: str, *, address: str) -> None:
    """Restart groups, or slots of them.

    Raises:
        NotFound, SpecError: one of the names stands for nothing; nothing was restarted.
    """
    found = _found(names, address)
    for run, name, slots in found:
        if name.is_group:
            run.restart(message=message)
            print(f"{_named(run)} {run.status().state}", flush=True)
        for slot in slots:
            run.client.restart(run.id, slot.member, slot.index, slot.incarnation)
            print(f"{run.name}.{slot.member}[{slot.index}] #{slot.incarnation} is being restarted", flush=True)


def _found(names: Sequence[str], address: str) -> list[tuple[Run, Name, list[SlotView]]]:
    """What each of the names stands for (of a group: no slots); nothing is done where one of them stands for nothing."""
    found: list[tuple[Run, Name, list[SlotView]]] = []
    views: dict[str, GroupView] = {}
    for position, text in enumerate(names):
        try:
            name = parse(text)
            run = attach(name.group, address=address)
            views[text] = view = run.status()
            slots = [] if name.is_group else slots_meant(view, name)
        except (NotFound, SpecError) as error:
            near = meant(names, position, views)
            if near:
                raise NotFound(f"no group {text!r}; did you mean {near!r}?", status=404) from error
            raise
        found.append((run, name, slots))
    return found


def _named(run: Run) -> str:
    return f"{run.name} ({run.id})"


def _after(run: Run, state: str) -> str:
    """The state that follows this one, as soon as it does."""
    view = run.status()
    while view.state == state:
        try:
            for event in run.client.events(view.seq, run.id):
                if event.type == "GroupChanged":
                    break
        except Gone:  # it took longer than records are kept
            pass
        view = run.status()
    return view.state
