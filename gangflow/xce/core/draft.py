"""A state that is being changed: copies only what is touched, and only once between two freezes."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from gangflow.xce.core.layers import changeable, frozen
from gangflow.xce.core.state import Answer, Claim, Group, Host, KeyValue, Slot, State
from gangflow.xce.renew import replace

LAYERED = frozenset({"groups", "claims", "answers", "values"})
"""What every batch changes a little of. Hosts change rarely and are read all the time."""


class Draft:
    """The mutable inside of one `apply`, or of one machine step. It never changes the state that it was made from.

    A group that was opened is a private copy until `freeze`: its slots change in place, so whoever iterates over them while
    emitting events iterates over a copy.
    """

    __slots__ = ("_base", "_changes", "_maps", "_opened", "now_ms")

    def __init__(self, base: State, now_ms: int) -> None:
        self._base = base
        self._maps: dict[str, MutableMapping[Any, Any]] = {}
        self._changes: dict[str, Any] = {}
        self._opened: dict[str, Group] = {}
        self.now_ms = now_ms

    # --- reading ------------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> Group | None:
        """The group as it is now; None if there is none of that id."""
        return self._opened.get(group_id) or self.groups.get(group_id)

    def at(self, group_id: str) -> Group:
        """The group as it is now; KeyError if there is none of that id."""
        return self._opened.get(group_id) or self.groups[group_id]

    @property
    def groups(self) -> Mapping[str, Group]:
        return self._maps.get("groups", self._base.groups)

    @property
    def hosts(self) -> Mapping[str, Host]:
        return self._maps.get("hosts", self._base.hosts)

    @property
    def claims(self) -> Mapping[str, Claim]:
        return self._maps.get("claims", self._base.claims)

    @property
    def answers(self) -> Mapping[str, Answer]:
        return self._maps.get("answers", self._base.answers)

    @property
    def values(self) -> Mapping[tuple[str, str], KeyValue]:
        return self._maps.get("values", self._base.values)

    @property
    def term(self) -> int:
        return int(self._changes.get("term", self._base.term))

    @property
    def grace_until_ms(self) -> int:
        return int(self._changes.get("grace_until_ms", self._base.grace_until_ms))

    @property
    def offer_ms(self) -> int:
        return int(self._changes.get("offer_ms", self._base.offer_ms))

    @property
    def cluster_id(self) -> str:
        return str(self._changes.get("cluster_id", self._base.cluster_id))

    @property
    def claim_attempts(self) -> int:
        return int(self._changes.get("claim_attempts", self._base.claim_attempts))

    @property
    def next_group(self) -> int:
        return int(self._changes.get("next_group", self._base.next_group))

    # --- writing ------------------------------------------------------------------------------------------------------

    def own(self, name: str) -> MutableMapping[Any, Any]:
        """The mapping of that name (`groups`, `hosts`, …) as this draft's own, to be changed."""
        mine = self._maps.get(name)
        if mine is None:
            known = getattr(self._base, name)
            mine = self._maps[name] = changeable(known) if name in LAYERED else dict(known)
        return mine

    def set(self, **fields: Any) -> None:
        """Change plain fields of the state."""
        self._changes.update(fields)

    def open(self, group_id: str) -> tuple[Group, dict[tuple[str, int], Slot]]:
        """The group as a private copy, and its slots to change in place."""
        group = self._opened.get(group_id)
        if group is None:
            old = self.groups[group_id]
            group = replace(old, slots=dict(old.slots))
            self._opened[group_id] = self.own("groups")[group_id] = group
        return group, group.slots  # type: ignore[return-value]  # ours: a dict

    def put_group(self, group: Group) -> None:
        """Put a changed group back; its slots must be the opened ones, or new."""
        self._opened[group.id] = self.own("groups")[group.id] = group

    def drop_group(self, group_id: str) -> None:
        self._opened.pop(group_id, None)
        del self.own("groups")[group_id]

    def touch(self) -> None:
        """Something happened now: the state's own time moves."""
        self._changes["now_ms"] = max(self.now_ms, self._base.now_ms)

    def freeze(self) -> State:
        """The state as it is now; the draft goes on from it, without sharing anything that it will change."""
        if self._maps or self._changes:
            maps = {name: frozen(mapping) for name, mapping in self._maps.items()}
            self._base = replace(self._base, **maps, **self._changes)
            self._maps, self._changes, self._opened = {}, {}, {}
        return self._base
