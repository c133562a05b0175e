"""Which groups have tasks on which hosts: counted by group at each decision, listed by host only when somebody asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Holders:
    """Tasks of each group on each host, and the groups of a host."""

    def __init__(self) -> None:
        self.tasks: dict[str, dict[int, int]] = {}
        """Per group: how many tasks it has on each host (by row)."""
        self._groups: dict[int, dict[str, None]] = {}
        """Per host, as of the last question."""
        self._listed: dict[str, tuple[int, ...]] = {}
        """The hosts under which each group is listed there."""
        self._changed: dict[str, None] = {}

    def count(self, gid: str, tasks_on: Mapping[int, int], sign: int) -> None:
        """Count the tasks that a group has on hosts, up or down."""
        held = self.tasks.get(gid)
        if held is None:
            held = self.tasks[gid] = {}
        for row, tasks in tasks_on.items():
            left = held.get(row, 0) + sign * tasks
            if left:
                held[row] = left
            else:
                del held[row]
        self._changed[gid] = None
        if not held:
            self.drop(gid)

    def drop(self, gid: str) -> Mapping[int, int]:
        """The group has nothing any more; what it had."""
        if gid in self._listed:
            self._changed[gid] = None
        else:
            self._changed.pop(gid, None)
        return self.tasks.pop(gid)

    def on(self, row: int) -> Sequence[str]:
        """The groups that have tasks on a host, in no order that means anything."""
        for gid in self._changed:
            for old in self._listed.pop(gid, ()):
                groups = self._groups[old]
                del groups[gid]
                if not groups:
                    del self._groups[old]
            rows = tuple(self.tasks.get(gid, ()))
            for new in rows:
                self._groups.setdefault(new, {})[gid] = None
            if rows:
                self._listed[gid] = rows
        self._changed.clear()
        return list(self._groups.get(row, ()))
