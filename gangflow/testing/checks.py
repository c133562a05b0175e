"""What a test may ask of a cluster, with answers that tell the story when something is not so."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from gangflow.events import Event, read
from gangflow.testing.faults import known
from gangflow.xce.core.state import GroupState, SlotState
from gangflow.xce.rest.event_views import event_view

if TYPE_CHECKING:
    from gangflow.testing.xce import FakeXCE
    from gangflow.xce.core.state import Group
    from gangflow.xce.rest.schema import GroupView, SlotView

T = TypeVar("T")
E = TypeVar("E", bound=Event)
STORY = 25


class Checks:
    """Part of `FakeCluster`. Where `group` is left out, the only live one is meant (else the newest)."""

    xce: FakeXCE

    if TYPE_CHECKING:

        def do(self, work: Callable[[], T]) -> T: ...
        def _group(self, name: str) -> Group: ...
        def group(self, name: str = "") -> GroupView: ...

    def events(self, kind: type[E] = Event, *, group: str = "", after: int = 0) -> list[E]:  # type: ignore[assignment]
        """What has happened so far, of that class, oldest first; of one group, or (without one) of all and of the cluster."""

        def collect() -> list[E]:
            wanted = self._group(group).id if group else ""
            found = []
            for stamped in self.xce.records[after:]:
                view = event_view(stamped.seq, stamped.at_ms, stamped.event)
                event = read(view) if view is not None else None
                if isinstance(event, kind) and (not wanted or event.group == wanted):
                    found.append(event)
            return found

        return self.do(collect)

    def story(self, group: str = "") -> str:
        """The newest events as text."""
        return "\n".join(map(str, self.events(group=group)[-STORY:])) or "nothing has happened"

    def assert_group(self, state: str, *, group: str = "", **fields: Any) -> GroupView:
        """The group is in that state, and its view has these fields: `assert_group("FAILED", cause="app_exit")`."""
        known(state, GroupState, "state of groups")
        view = self.group(group)
        self._compare(f"group {view.name!r}", view, {"state": state, **fields}, group)
        return view

    def assert_slot(self, member: str, index: int, state: str, *, group: str = "", **fields: Any) -> SlotView:
        """The slot is in that state, and its view has these fields: `assert_slot("rollout", 1, "READY", incarnation=2)`."""
        known(state, SlotState, "state of slots")
        try:
            slot = self.group(group).slot(member, index)
        except KeyError:
            raise AssertionError(f"there is no slot {member}[{index}]\n{self.story(group)}") from None
        self._compare(f"{member}[{index}]", slot, {"state": state, **fields}, group)
        return slot

    def assert_event(self, kind: type[E], *, group: str = "", after: int = 0, **fields: Any) -> E:
        """Such an event has happened (behind `after`); returns the newest one."""
        found = [event for event in self.events(kind, group=group, after=after) if _has(event, fields)]
        if not found:
            raise AssertionError(f"no {_asked(kind, fields)} has happened\n{self.story(group)}")
        return found[-1]

    def assert_no_event(self, kind: type[Event], *, group: str = "", after: int = 0, **fields: Any) -> None:
        """No such event has happened (behind `after`)."""
        found = [event for event in self.events(kind, group=group, after=after) if _has(event, fields)]
        if found:
            raise AssertionError(f"{_asked(kind, fields)} has happened: {found[0]}\n{self.story(group)}")

    def _compare(self, what: str, view: Any, wanted: dict[str, Any], group: str) -> None:
        strange = [name for name in wanted if not hasattr(view, name)]
        if strange:
            raise AttributeError(f"{type(view).__name__} has no {strange[0]!r}")
        wrong = [
            f"{name} is {getattr(view, name)!r}, not {value!r}"
            for name, value in wanted.items()
            if getattr(view, name) != value
        ]
        if wrong:
            raise AssertionError(f"{what}: {'; '.join(wrong)}\n{self.story(group)}")


def _has(event: Event, fields: dict[str, Any]) -> bool:
    strange = [name for name in fields if not hasattr(event, name)]
    if strange:
        raise AttributeError(f"{type(event).__name__} has no {strange[0]!r}")
    return all(getattr(event, name) == value for name, value in fields.items())


def _asked(kind: type[Event], fields: dict[str, Any]) -> str:
    return f"{kind.__name__}({', '.join(f'{name}={value!r}' for name, value in fields.items())})"
