"""The common ground of all specs: frozen, no unknown key, and every mistake told as a `SpecError` with its path.

Python and YAML build the same models. A mistake in Python is raised where the object is made; one in a document is raised by
`document.validate`, with the path from the document's root.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationError,
    WrapSerializer,
)
from pydantic_core import PydanticCustomError

from gangflow.specs.faults import Fault, Found
from gangflow.specs.problems import spec_error

MAX_NAME = 63
NAME = re.compile(r"[a-z][a-z0-9-]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_OWNER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]*")
NAME_RULE = f"a name: a-z, 0-9 and -, first a letter, at most {MAX_NAME} characters"

OWNER_RULE = f"an owner's name: letters, digits, _ . @ and -, first a letter, digit or _, at most {MAX_NAME} characters"


def wrong(expected: str, nearest: str = "") -> PydanticCustomError:
    """What a validator raises: says what was expected, and perhaps the nearest valid name."""
    return PydanticCustomError("expected", "{expected}", {"expected": expected, "nearest": nearest})


def later(what: str) -> PydanticCustomError:
    """What a validator raises for a value that is valid, but that this version does not enforce."""
    return PydanticCustomError("not_enforced", "{expected}", {"expected": what})


def check(faults: Sequence[Fault]) -> None:
    """Raise all faults together, if there are any."""
    if faults:
        raise Found(faults)


def _name(value: str) -> str:
    if len(value) > MAX_NAME or not NAME.fullmatch(value):
        raise wrong(NAME_RULE)
    return value


def _word(value: str) -> str:
    if len(value) > MAX_NAME or not _WORD.fullmatch(value):
        raise wrong("a word: letters, digits and _, first no digit")
    return value


def _label(value: str) -> str:
    if len(value) > MAX_NAME or not _LABEL.fullmatch(value):
        raise wrong("a label: letters, digits, . _ and -, first a letter or digit")
    return value


def _owner(value: str) -> str:
    if len(value) > MAX_NAME or not _OWNER.fullmatch(value):
        raise wrong(OWNER_RULE)
    return value


def _text(value: object) -> object:
    # A YAML number in a command or an environment means its digits; what was written (`007`, `1.10`) is kept by the loader.
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = getattr(value, "text", None) or str(value)
    if not isinstance(value, str):
        raise wrong("text (quote it)")
    if "\0" in value or _has_surrogate(value):
        raise wrong("text without NUL characters or lone surrogates")
    return value


def _has_surrogate(value: str) -> bool:
    return not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)


def _variable(value: str) -> str:
    if not _WORD.fullmatch(value):
        raise wrong("a variable's name: letters, digits and _, first no digit")
    if value.startswith("XCE_"):
        raise wrong("a name that does not begin with XCE_: those are XCE's own")
    return value


def _sole(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Name = Annotated[str, AfterValidator(_name)]
"""`[a-z][a-z0-9-]*`, at most 63 characters: safe in paths, and as an environment variable once `-` is `_`."""
Word = Annotated[str, AfterValidator(_word)]
"""The name of a resource, an attribute, a level: what a resource requirement string can write."""
Label = Annotated[str, AfterValidator(_label)]
"""The name of a domain."""
Owner = Annotated[str, AfterValidator(_owner)]
"""Who is charged for a group or a member, as the tokens name him."""
Text = Annotated[str, BeforeValidator(_text)]
"""Text for a process: numbers are taken by their digits; no NUL."""
Variable = Annotated[str, AfterValidator(_variable)]
"""The name of an environment variable that a user may set."""
Whole = Annotated[int, Strict()]
"""A whole number: no text, no `true`, no 1.5."""
Flag = Annotated[bool, Strict()]
one_or_more = BeforeValidator(_sole)
"""Accept a single text where a list of texts is meant."""


class Spec(BaseModel):
    """A part of what a user asks for. Frozen; an unknown key is an error that names the nearest known one."""

    # defer_build: `import gangflow` must cost little more than pydantic; schemas are built when the first spec is made.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    positional: ClassVar[tuple[str, ...]] = ()
    """Fields that Python may give by position."""
    not_yet: ClassVar[dict[str, str]] = {}
    """Keys of the design that this version does not enforce, and what they would do."""
    short: ClassVar[str] = ""
    """The key that a text alone stands for."""
    elsewhere: ClassVar[dict[str, str]] = {}
    """Keys that belong to another part of a document, and where they go."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        if len(args) > len(self.positional):
            raise TypeError(f"{type(self).__name__} takes at most {len(self.positional)} positional arguments, not {len(args)}")
        for key, value in zip(self.positional, args, strict=False):
            if key in fields:
                raise TypeError(f"{type(self).__name__} got two values for {key!r}")
            fields[key] = value
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise spec_error(error, type(self)) from None

    def written(self, key: str) -> Any:
        """The value of a field as a document says it, for a fault: `90s`, not milliseconds."""
        return self.model_dump(mode="json", include={key}).get(key)

    # Tells pydantic that this __init__ only wraps its own: nested documents are then validated in one pass, with full paths.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def tag_of(*tags: str) -> Callable[[object], str | None]:
    """A discriminator of a union that a document writes as `{tag: {…}}` and Python as an object with a `tag`."""

    def choose(value: object) -> str | None:
        if isinstance(value, Mapping):
            key = next(iter(value)) if len(value) == 1 else None
            return key if key in tags else None
        found = getattr(value, "tag", None)
        return found if found in tags else None

    return choose


def unwrap(tag: str) -> BeforeValidator:
    """`{tag: {…}}` → `{…}`, for one choice of such a union."""
    return BeforeValidator(lambda value: value[tag] if isinstance(value, Mapping) else value)


def wrap(tag: str) -> WrapSerializer:
    """The way back: an object → `{tag: {…}}`."""

    def serialize(value: object, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {tag: handler(value)}

    return WrapSerializer(serialize)
