"""How things are named on the command line: `g1`, `g1.rollout`, `g1.rollout[2]`; a group's name may stand for its id. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gangflow.errors import NotFound, Problem, UsageError
from gangflow.specs.faults import nearest
from gangflow.specs.hostrange import RANGE_RULE, expand_range
from gangflow.xce.rest.schema import GroupView, MemberView, SlotView

_FORM = re.compile(r"(?P<group>[^.\[\]\s]+)(?:\.(?P<member>[^.\[\]\s]+)(?:\[(?P<index>\d{1,9})\])?)?")
_PART = re.compile(r"(?P<member>[^.\[\]\s]+)(?P<index>\[\d{1,9}\])?")
RULE = "a group, a member or a slot: g1, g1.rollout or g1.rollout[2] (a group's name may stand for its id)"
MAX_HOSTS = 100_000


@dataclass(frozen=True, slots=True)
class Name:
    """What was named."""

    group: str
    member: str = ""
    index: int = -1
    """-1: no slot was named."""

    @property
    def is_group(self) -> bool:
        return not self.member

    @property
    def is_slot(self) -> bool:
        return self.index >= 0

    def __str__(self) -> str:
        member = f".{self.member}" if self.member else ""
        return f"{self.group}{member}" + (f"[{self.index}]" if self.is_slot else "")


def parse(text: str) -> Name:
    """The name that a text is; SpecError if it is none."""
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise UsageError([Problem("name", repr(text), RULE)])
    return Name(found["group"], found["member"] or "", int(found["index"]) if found["index"] else -1)


def group_only(text: str, instead: str = "") -> Name:
    """A name that must be a group's; `instead` says what is there for a member or a slot."""
    name = parse(text)
    if not name.is_group:
        raise UsageError([Problem("name", repr(text), "a group" + (f"; {instead}" if instead else ""), name.group)])
    return name


def member_of(view: GroupView, name: Name) -> MemberView:
    """The member that is named; NotFound with the nearest there is."""
    try:
        return view.member(name.member)
    except KeyError:
        known = [member.name for member in view.members]
        near = _near(name.member, known)
        raise NotFound(f"group {view.id} has no member {name.member!r}; it has {', '.join(known)}{near}") from None


def slots_named(view: GroupView, name: Name) -> list[SlotView]:
    """The slots that a name stands for: one, a member's, or all of the group. NotFound if there is none."""
    if name.is_group:
        return [slot for member in view.members for slot in member.slots]
    member = member_of(view, name)
    if not name.is_slot:
        return list(member.slots)
    found = [slot for slot in member.slots if slot.index == name.index]
    if not found:
        last = max((slot.index for slot in member.slots), default=-1)
        there = f"0 to {last}" if last > 0 else "0" if last == 0 else "none"
        raise NotFound(f"{view.id}.{member.name} has no slot {name.index}; it has {there}")
    return found


def slots_meant(view: GroupView, name: Name) -> list[SlotView]:
    """The slots that a command by this name is for: all but those that were scaled away, unless one of them is named."""
    return [slot for slot in slots_named(view, name) if name.is_slot or not slot.out]


def hosts_named(text: str, there: Sequence[str]) -> list[str]:
    """The hosts that a text names: one, a range as `cluster.yaml` has them (`h[0-3]`), or all. NotFound, SpecError."""
    if text in there:
        return [text]
    if text == "all":
        return list(there)
    try:
        names = list(expand_range(text, MAX_HOSTS))
    except ValueError:
        raise UsageError([Problem("host", repr(text), f"{RANGE_RULE}; or all")]) from None
    missing = [name for name in names if name not in there]
    if missing:
        raise NotFound(f"no host {', '.join(map(repr, missing[:5]))}{_near(missing[0], there)}", status=404)
    return names


def meant(words: Sequence[str], at: int, views: Mapping[str, GroupView]) -> str:
    """What a word that names nothing most likely means behind a group's name, as in `g1 rollout[2]` or `g1 rollout 2`; empty
    if it means nothing. `views`: the groups that words before it name."""
    before = next((word for word in reversed(words[:at]) if word in views), "")
    members = {member.name for member in views[before].members} if before else set()
    word, last, after = words[at], words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
    found = _PART.fullmatch(word)
    if found is not None and found["member"] in members:
        index = found["index"] or (f"[{after}]" if after.isdecimal() else "")
        return f"{before}.{found['member']}{index}"
    return f"{before}.{last}[{word}]" if word.isdecimal() and last in members else ""


def _near(word: str, known: Iterable[str]) -> str:
    near = nearest(word, known)
    return f". Did you mean {near!r}?" if near else ""
