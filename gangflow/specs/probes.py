"""Probes: how XCE sees that a slot is ready, or still alive. In a document, the key says the kind: `{http: {port: http}}`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, Discriminator, Field, Tag

from gangflow.specs.base import Name, Spec, Text, Whole, tag_of, unwrap, wrap, wrong
from gangflow.specs.quantity import Duration


def _http_path(value: str) -> str:
    if not value.startswith("/") or not value.isascii() or not value.isprintable() or " " in value:
        raise wrong("a path that begins with /")
    return value


class Probe(Spec):
    """What all probes have: after `delay`, every `period`; so many answers in a row turn it."""

    tag: ClassVar[str] = ""

    delay: Duration = 0
    """Before the first question."""
    period: Annotated[Duration, Field(ge=10)] = 500
    """From one question to the next."""
    timeout: Annotated[Duration, Field(ge=10)] = 1_000
    """An answer later than this is a failure."""
    failures: Annotated[Whole, Field(ge=1)] = 3
    """So many in a row: not ready, or not alive."""
    successes: Annotated[Whole, Field(ge=1)] = 2
    """So many in a row: ready."""


class HttpProbe(Probe):
    """GET `path` on one of the member's ports; 200–399 within `timeout` is a success."""

    tag: ClassVar[str] = "http"
    positional: ClassVar[tuple[str, ...]] = ("port", "path")

    port: Name
    """One of the member's `ports`."""
    path: Annotated[str, AfterValidator(_http_path)] = "/"
    """Of the request."""

    if TYPE_CHECKING:

        def __init__(self, port: str, path: str = "/", **fields: Any) -> None: ...


class TcpProbe(Probe):
    """A connection to one of the member's ports."""

    tag: ClassVar[str] = "tcp"
    positional: ClassVar[tuple[str, ...]] = ("port",)

    port: Name
    """One of the member's `ports`."""

    if TYPE_CHECKING:

        def __init__(self, port: str, **fields: Any) -> None: ...


class ExecProbe(Probe):
    """A command in the task's environment that exits with 0."""

    tag: ClassVar[str] = "exec"
    positional: ClassVar[tuple[str, ...]] = ("command",)

    command: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Run without a shell; in a container it runs inside."""

    if TYPE_CHECKING:

        def __init__(self, command: Sequence[str], **fields: Any) -> None: ...


class FileProbe(Probe):
    """A file that exists; a relative path is below the task's working directory."""

    tag: ClassVar[str] = "file"
    positional: ClassVar[tuple[str, ...]] = ("path",)

    path: Annotated[Text, Field(min_length=1)]
    """A relative one is below the task's working directory."""

    if TYPE_CHECKING:

        def __init__(self, path: str, **fields: Any) -> None: ...


AnyProbe = Annotated[
    Annotated[HttpProbe, unwrap("http"), wrap("http"), Tag("http")]
    | Annotated[TcpProbe, unwrap("tcp"), wrap("tcp"), Tag("tcp")]
    | Annotated[ExecProbe, unwrap("exec"), wrap("exec"), Tag("exec")]
    | Annotated[FileProbe, unwrap("file"), wrap("file"), Tag("file")],
    Discriminator(tag_of("http", "tcp", "exec", "file")),
]
"""One probe of any kind."""
