"""A task's command in a container: the cluster's runtime command with its placeholders filled in.

Pure, and without a secret: variables are named, their values are inherited by the runtime. Only the agent knows the task's own
folder, so `{folder}` stands for it, in words that are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from gangflow.xce.core.plan import ContainerPlan, ProbeKind, ProbePlan

FOLDER = "{folder}"
"""Stands for the task's own folder, in the words that `Contained.folder_words` lists."""
ADDED = ("XCE_URL", "XCE_TOKEN", "TRACEPARENT", "XCE_GROUP_FILE", "GANGFLOW_TASK", "PYTHONUNBUFFERED")
"""Variables that the controller's shell and the agent add. The task's mark must reach inside: strays are found by it."""
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Contained:
    """A command line."""

    argv: tuple[str, ...]
    folder_words: tuple[int, ...] = ()
    """Indices of words in which `{folder}` stands for the task's own folder; the user's own words are never among them."""


def container_name(cluster: str, group: str, member: str, index: int, incarnation: int, task: int) -> str:
    """A name that no other incarnation has, of whatever cluster on the same machine."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", f"gangflow-{cluster}.{group}.{member}.{index}.{incarnation}.{task}")


def contained(
    plan: ContainerPlan,
    command: tuple[str, ...],
    *,
    name: str,
    cwd: str,
    variables: Iterable[str],
    paths: Iterable[str],
) -> Contained:
    """`command` as the runtime runs it: with these variables, and with these paths seen under their own names.

    The task's own folder is always seen, and is the working directory where `cwd` is empty. A mount of the user's may stand
    over any of them.
    """
    mounts = {FOLDER: FOLDER}
    mounts.update((path, path) for path in (cwd, *paths) if path)
    mounts.update((target, source) for source, target in plan.mounts)
    known = {"image": plan.image, "name": name, "cwd": cwd or FOLDER}
    argv: list[str] = []
    own: list[int] = []

    def add(word: str, known: Mapping[str, str], is_folder: bool) -> None:
        if is_folder:
            own.append(len(argv))
        argv.append(_filled(word, known))

    for word in plan.runtime:
        if word == "{command}":
            argv += command
        elif word == "{environment}":
            for variable in dict.fromkeys((*variables, *ADDED)):
                argv += [_filled(part, {"variable": variable}) for part in plan.variable]
        elif word == "{mounts}":
            for target, source in mounts.items():
                for part in plan.mount:
                    is_folder = target is FOLDER and part != _filled(part, {"source": "", "target": ""})
                    add(part, {"source": source, "target": target}, is_folder)
        else:
            add(word, known, not cwd and "{cwd}" in word)
    return Contained(tuple(argv), tuple(own))


def probe_inside(plan: ContainerPlan, probe: ProbePlan | None, name: str) -> ProbePlan | None:
    """The probe as the agent asks it: an exec probe's command runs inside, by the runtime's own means."""
    if probe is None or probe.kind is not ProbeKind.EXEC:
        return probe
    words: list[str] = []
    for word in plan.probe:
        words += probe.command if word == "{command}" else [_filled(word, {"image": plan.image, "name": name})]
    return replace(probe, command=tuple(words))


def cleanup_of(plan: ContainerPlan, name: str) -> tuple[str, ...]:
    """What removes the container when it has ended, however that was; empty where nothing needs to."""
    return tuple(_filled(word, {"image": plan.image, "name": name}) for word in plan.cleanup)


def _filled(word: str, known: Mapping[str, str]) -> str:
    # In one pass: what is put in is never looked at again.
    return _PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), word)
