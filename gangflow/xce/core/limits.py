"""Every limit of the core that is not in a plan, in one place, with its reason."""

from __future__ import annotations

ANSWERS_KEPT_MS = 24 * 3_600_000
"""How long the outcome of a command is remembered under its idempotency key: the contract says 24 h."""
ANSWERS_KEPT_MAX = 8_192
"""Answers that are remembered at most, the newest: they are in every state image, and the table is copied in each batch that
answers a command (some 50 µs for so many). A client asks again within minutes; at ten commands a second this is a quarter of an
hour."""
ANSWERS_FORGOTTEN_AT_ONCE = 256
"""Oldest answers that go when there are too many: one at a time would be one more event for every command from then on."""
ENDED_KEPT_MS = 24 * 3_600_000
"""How long an ended group stays in the state: long enough to look at it the next morning; the journal has it for ever."""
ENDED_KEPT_MAX = 1_000
"""Ended groups that stay at most: they are in every state image and in every list."""
FORGET_EVERY_MS = 60_000
"""Answers and ended groups are forgotten at most once a minute, many at once: each time is a journal record."""
TERM_GRACE_MS = 15_000
"""After a controller's start: agents register and say what happened meanwhile before any silence counts against anybody."""
VALUE_MAX = 65_536
"""Characters of a durable value: it goes through the journal and to every watcher."""
VALUES_MAX = 1_024
"""Values of one group: they are in every state image."""
STOP_GRACE_MS = 10_000
"""SIGTERM to SIGKILL for a superseded task whose group is not known any more."""
REASONS_MAX = 64
"""Waiting groups, first in order, whose reason is kept exact in one session: among ten thousand that wait, each session would
otherwise be ten thousand records, about figures that `why` computes when it is asked. A reason's code is always exact."""
SESSIONS_MAX = 4
"""Scheduler sessions in one step: a grant that frees another place may let a next one in; the rest is due in a step at once."""
STORY_MAX = 200
"""Recent inputs that a machine remembers for the story of an InvalidTransition."""
STEADY_MS = 3_600_000
"""A claim that was READY for so long and is lost counts its losses anew: it has not been flapping."""
STANDALONE_MAX = 4_096
"""Standalone claims that commands may make: they are in every state image. Retained ones come on top, one by one."""
CHANGES_KEPT = 16
"""Changes of a group's targets that are kept, the newest: whoever asked can still read how its change ended."""
