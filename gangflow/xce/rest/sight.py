"""What a caller sees of the groups that he may look at, and how what names others' groups is told to him. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gangflow.xce.core.state import Group, Reason, State
from gangflow.xce.rest.rights import Stand, members_of, of_claim, of_group
from gangflow.xce.rest.tokens import ADMIN, Principal

_ID = re.compile(r"\bg[0-9]+\b(?:[./-][\w./\[\]-]*)?")
"""A group's id, also as the beginning of a member's, a slot's or a claim's."""
ELSEWHERE = "another group"


class Sight:
    """One caller's, over one state."""

    def __init__(self, caller: Principal, state: State, known: Mapping[str, Group] | None = None) -> None:
        """`known`: groups that are not in the state any more."""
        self.caller = caller
        self._state = state
        self._known: Mapping[str, Group] = known if known is not None else {}
        self._everything = caller == ADMIN

    @property
    def everything(self) -> bool:
        """Nothing is hidden."""
        return self._everything

    def sees(self, group: Group) -> bool:
        """May he look at the group at all?"""
        return self._everything or of_group(self.caller, group) is not Stand.NOBODY

    def sees_id(self, group: str) -> bool:
        """The same, of a group that may not be there any more."""
        found = self._state.groups.get(group) or self._known.get(group)
        return self._everything or (found is not None and self.sees(found))

    def sees_name(self, name: str) -> bool:
        """May he look at the group, or the claim, with this id?"""
        claim = self._state.claims.get(name)
        return self.sees_id(name) or (claim is not None and of_claim(self.caller, claim, self._state) is not Stand.NOBODY)

    def whole(self, group: Group) -> bool:
        """May he look at all of it?"""
        return self._everything or of_group(self.caller, group) in (Stand.OWNER, Stand.TASK)

    def members(self, group: Group) -> frozenset[str]:
        """The members that he may look at."""
        if self.whole(group):
            return frozenset(member.name for member in group.plan.members)
        return frozenset(members_of(group, self.caller.owner))

    def reason(self, reason: Reason | None) -> Reason | None:
        """A pend reason; of whoever is in the way, nothing but that somebody is."""
        if reason is None or self._everything:
            return reason
        blocker = reason.blocker if self.sees_id(reason.blocker) else ""
        return replace(reason, text=self.text(reason.text), blocker=blocker)

    def text(self, text: str) -> str:
        """A text without the ids of groups that he does not see (hosts may be called alike)."""
        if self._everything:
            return text

        def told(found: re.Match[str]) -> str:
            word = found.group()
            known = self.sees_id(re.split(r"[./-]", word, maxsplit=1)[0]) or word in self._state.hosts
            return word if known else ELSEWHERE

        return _ID.sub(told, text)


EVERYTHING = Sight(ADMIN, State())
"""The admin's."""
