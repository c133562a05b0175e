"""What is wrong with a group beside its wrong fields: what does not go together, as far as it can be told without those.

A model is checked as a whole only when each of its fields is valid. Here the wrong ones are left out, and a check that needs
one of them says nothing: so whoever corrects a document is told everything at once, and nothing that is not so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError

from gangflow.specs.faults import Fault, Loc
from gangflow.specs.group import CHECKS, FORMS, MAIN, CoStartGroup, form_faults
from gangflow.specs.member import UNCHECKED, Job, Member, ReplicaSet

_KINDS: Mapping[str, type[Member]] = {"job": Job, "replica_set": ReplicaSet}
_PLACEHOLDER: Mapping[str, Any] = {"command": ["?"], "name": "x"}
"""For fields that a model cannot do without."""


class _UnknownError(Exception):
    """A check looked at a field that is wrong."""


class _Partly:
    """A model whose wrong fields nobody may look at."""

    def __init__(self, model: BaseModel, wrong: Iterable[str]) -> None:
        self._model = model
        self._wrong = frozenset(wrong)
        self._other: dict[str, Any] = {}

    def see(self, **fields: Any) -> None:
        """Have these stand for the model's own."""
        self._other.update(fields)

    @property  # type: ignore[misc]  # so that it passes for what it stands for
    def __class__(self) -> type:
        return type(self._model)

    def __getattr__(self, name: str) -> Any:
        if name in self._wrong:
            raise _UnknownError(name)
        if name in self._other:
            return self._other[name]
        found = getattr(type(self._model), name, None)
        if isinstance(found, property) and found.fget is not None:
            return found.fget(self)
        return getattr(self._model, name)


def more_faults(data: object, known: Sequence[Fault]) -> list[Fault]:
    """Beside the faults that are known of the fields of this document of a group."""
    if not isinstance(data, Mapping):
        return []
    found: list[Fault] = []
    members: dict[str, Any] = {}
    places: list[tuple[str, Loc, object]] = [(MAIN, (), {tag: data[tag]}) for tag in _KINDS if tag in data]
    if isinstance(data.get("members"), Mapping):
        places += [(str(name), ("members", str(name)), value) for name, value in data["members"].items()]
    for name, at, value in places:
        member = _member(value, at, known)
        if member is not None:
            members[name] = member
            loc = (*at, member.tag)
            found += [replace(fault, loc=loc + fault.loc) for fault in _checked(member, member.checks())]
    found += _of_group(data, members, len(places), known)
    return [fault for fault in found if fault not in known]


def _of_group(data: Mapping[Any, Any], members: dict[str, Any], count: int, known: Sequence[Fault]) -> list[Fault]:
    """What must agree across the group, if it is clear what its members are."""
    forms = [key for key in FORMS if data.get(key)]
    fields = {key: value for key, value in data.items() if key not in FORMS}
    group = _without_wrong(
        CoStartGroup, fields, (), [fault for fault in known if fault.loc[:1] not in [(key,) for key in FORMS]]
    )
    if group is None:
        return []
    if len(forms) != 1:
        return form_faults(forms) if all(fault.loc[:1] != ("members",) for fault in known) else []
    if count == 0 or len(members) != count:
        return []
    group.see(members=members)
    found = list(_checked(group, CHECKS))
    if forms == ["members"]:
        return found
    return [replace(fault, loc=fault.loc[2:]) if fault.loc[:2] == ("members", MAIN) else fault for fault in found]


def _member(value: object, at: Loc, known: Sequence[Fault]) -> Any:
    """A member without its wrong fields; None: there is nothing to be checked."""
    if not isinstance(value, Mapping) or len(value) != 1:
        return None
    ((tag, fields),) = value.items()
    kind = _KINDS.get(tag)
    if kind is None or not isinstance(fields, Mapping):
        return None
    return _without_wrong(kind, fields, (*at, tag), known)


def _without_wrong(kind: type[BaseModel], fields: Mapping[Any, Any], at: Loc, known: Sequence[Fault]) -> Any:
    wrong = {str(fault.loc[len(at)]) for fault in known if len(fault.loc) > len(at) and fault.loc[: len(at)] == at}
    left = {key: value for key, value in fields.items() if key not in wrong}
    left |= {key: value for key, value in _PLACEHOLDER.items() if key in wrong and key in kind.model_fields}
    try:
        return _Partly(kind.model_validate(left, context={UNCHECKED: True}), wrong)
    except ValidationError:
        return None


def _checked(model: Any, checks: Iterable[Callable[[Any], Iterable[Fault]]]) -> Iterator[Fault]:
    for check in checks:
        try:
            yield from check(model)
        except _UnknownError:
            continue
