"""Containers: the image that a member runs in, and the cluster's way of running one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from gangflow.specs.base import Spec, Text, check, one_or_more, wrong
from gangflow.specs.faults import Fault, listed, nearest
from gangflow.specs.probes import AnyProbe, ExecProbe

INSIDE = ("image", "name", "cwd")
"""Placeholders that stand within words of a runtime's command."""
WHOLE = ("environment", "mounts", "command")
"""Placeholders that are words of their own, and become many."""
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")


MOUNTABLE = "an absolute path without colons, commas and .."


def mountable(path: str) -> bool:
    """Whether a runtime can be given this path: they write `source:target`, and some a list of them with commas."""
    return path.startswith("/") and path.isprintable() and not any(c in path for c in ":,") and ".." not in path.split("/")


def _path(value: str) -> str:
    if not mountable(value):
        raise wrong(MOUNTABLE)
    return "/" + "/".join(part for part in value.split("/") if part not in ("", "."))


def _target(value: str) -> str:
    path = _path(value)
    if path == "/":
        raise wrong("another path than /: the image is there")
    return path


def _named(value: str) -> str:
    # It stands where a runtime's own options may stand.
    if value.startswith("-") or not value.isprintable() or not value.strip():
        raise wrong("an image's name, which does not begin with -")
    return value


def _mount(value: object) -> object:
    if not isinstance(value, str):
        return value
    source, colon, target = value.partition(":")
    return {"source": source, "target": target if colon else source}


def _image(value: object) -> object:
    return {"image": value} if isinstance(value, str) else value


class Mount(Spec):
    """A folder or file of the host that is seen inside; as text, `/source:/target`, or one path for both."""

    positional: ClassVar[tuple[str, ...]] = ("source", "target")

    source: Annotated[Text, AfterValidator(_path)]
    """On the host."""
    target: Annotated[Text, AfterValidator(_target)]
    """Inside."""

    if TYPE_CHECKING:

        def __init__(self, source: str, target: str) -> None: ...


class Container(Spec):
    """An image that the command runs in; a text is the image alone. The cluster's `container_runtime` says how it is run."""

    positional: ClassVar[tuple[str, ...]] = ("image",)
    short: ClassVar[str] = "image"

    image: Annotated[Text, AfterValidator(_named)]
    """As the cluster's runtime names images; not beginning with `-`."""
    mounts: tuple[Annotated[Mount, BeforeValidator(_mount)], ...] = ()
    """Beside the claims, the working directory and the task's own folder, which are there under their own paths."""

    if TYPE_CHECKING:

        def __init__(self, image: str, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        targets = [mount.target for mount in self.mounts]
        check(
            [
                Fault(("mounts", index, "target"), target, "another target: this one is taken")
                for index, target in enumerate(targets)
                if target in targets[:index]
            ]
        )
        return self


AnyContainer = Annotated[Container, BeforeValidator(_image)]
"""A container, or the text of its image."""


class ContainerRuntime(Spec):
    """How the cluster runs a command in an image: words of a command line with placeholders, run without a shell.

    `{image}`, `{name}` (of the container, different for every incarnation) and `{cwd}` stand within words; the words
    `{environment}`, `{mounts}` and `{command}` become many. No value of a variable is ever on the command line.
    """

    positional: ClassVar[tuple[str, ...]] = ("command",)

    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    """E.g. `[podman, run, --rm, --name, "{name}", "{environment}", "{mounts}", "{image}", "{command}"]`."""
    variable: Annotated[tuple[Text, ...], one_or_more] = ()
    """For each variable, in place of `{environment}`: e.g. `[--env, "{variable}"]`; its value is inherited."""
    mount: Annotated[tuple[Text, ...], one_or_more] = ()
    """For each mount, in place of `{mounts}`: e.g. `[--volume, "{source}:{target}"]`."""
    probe: tuple[Text, ...] = ()
    """How an exec probe's command is run inside: e.g. `[podman, exec, "{name}", "{command}"]`. Empty: there are none."""

    cleanup: tuple[Text, ...] = ()
    """Run after every end, when nothing runs inside any more: e.g. `[podman, rm, --force, --ignore, "{name}"]`. What `--rm`
    leaves to the runtime is not done when the runtime was killed with all that belongs to the task. After a crash of the host's
    agent the next one runs it."""

    if TYPE_CHECKING:

        def __init__(self, command: object, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = [
            *_placeholders("command", self.command, INSIDE, WHOLE),
            *_placeholders("variable", self.variable, ("variable",), ()),
            *_placeholders("mount", self.mount, ("source", "target"), ()),
            *_placeholders("probe", self.probe, ("image", "name"), ("command",)),
            *_placeholders("cleanup", self.cleanup, ("image", "name"), ()),
        ]
        if not faults:
            faults += _missing(self)
        check(faults)
        return self


def _placeholders(key: str, words: tuple[str, ...], inside: tuple[str, ...], whole: tuple[str, ...]) -> Iterator[Fault]:
    for index, word in enumerate(words):
        for found in _PLACEHOLDER.findall(word):
            known = (*inside, *whole)
            if found not in known:
                expected = "a known placeholder: " + listed(f"{{{name}}}" for name in known)
                yield Fault((key, index), word, expected, nearest(found, known))
            elif found in whole and word != f"{{{found}}}":
                yield Fault((key, index), word, f"{{{found}}} as a word of its own: it becomes many")
            elif found in whole and word in words[:index]:
                yield Fault((key, index), word, f"{{{found}}} once")


def _missing(runtime: ContainerRuntime) -> Iterator[Fault]:
    if not runtime.command[0] or _PLACEHOLDER.search(runtime.command[0]):
        yield Fault(("command", 0), runtime.command[0], "the runtime's program")
    for key, words, needed in (
        ("command", runtime.command, ("image", "command")),
        ("probe", runtime.probe, ("name", "command")),
        ("cleanup", runtime.cleanup, ("name",)),
        ("variable", runtime.variable, ("variable",)),
        ("mount", runtime.mount, ("source", "target")),
    ):
        for name in needed if words else ():
            if not any(f"{{{name}}}" in word for word in words):
                yield Fault((key,), list(words), f"{{{name}}} among the words")
    for key in ("probe", "cleanup"):
        if getattr(runtime, key) and not any("{name}" in word for word in runtime.command):
            yield Fault(
                ("command",), list(runtime.command), f"{{name}} among the words, since `{key}` asks for the container by it"
            )
            break
    pairs: Mapping[str, tuple[str, ...]] = {"variable": ("environment",), "mount": ("mounts",)}
    for key, (name,) in pairs.items():
        has = f"{{{name}}}" in runtime.command
        if has and not getattr(runtime, key):
            yield Fault((key,), [], f"what {{{name}}} in `command` is made of")
        if getattr(runtime, key) and not has:
            yield Fault(("command",), list(runtime.command), f"{{{name}}} among the words, since `{key}` is given")


def runtime_faults(
    container: Container | None, runtime: ContainerRuntime | None, probes: Sequence[AnyProbe | None]
) -> Iterator[Fault]:
    """What a container asks for that the cluster's runtime cannot do, relative to a member or profile that has these probes."""
    if container is None:
        return
    if runtime is None:
        expected = "no container: the cluster's description has no `container_runtime`"
        yield Fault(("container",), container.image, expected)
        return
    if container.mounts and "{mounts}" not in runtime.command:
        expected = "no mounts: the cluster's `container_runtime` has no place for {mounts}"
        yield Fault(("container", "mounts"), [mount.target for mount in container.mounts], expected)
    for key, probe in zip(("ready", "live"), probes, strict=True):
        if isinstance(probe, ExecProbe) and not runtime.probe:
            expected = "another probe: the cluster's `container_runtime` has no `probe`, so nothing can be run inside"
            yield Fault((key,), {"exec": list(probe.command)}, expected)
