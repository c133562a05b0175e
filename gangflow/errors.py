"""What can go wrong, as one exception tree: what, for which member, what was expected, and what the user can do.

Every error has a stable `code`, the exit code that the CLI ends with, and a `remedy` (`docs/operations.md` has them all).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class GangflowError(Exception):
    """The root. Raised as such only where nothing more precise can be said."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    remedy: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.advice = remedy or self.remedy


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a spec."""

    path: str
    """Where: `members.rollout.replica_set.replicas`."""
    value: str
    """What stands there, as a short repr; empty when it is missing."""
    expected: str
    nearest: str = ""
    """The nearest valid name, if the value looks like a slip of one."""
    line: int = 0
    """In the YAML text, from 1; 0 when it was not read from one."""
    file: str = ""
    """The file, as the user named it; empty when it was not read from one."""

    def __str__(self) -> str:
        line = str(self.line) if self.file else f"line {self.line}"
        where = "".join(f"{part}:" for part in (self.file, line if self.line else "") if part)
        where += " " if where else ""
        got = f" (got {self.value})" if self.value else ""
        hint = f"; did you mean {self.nearest!r}?" if self.nearest else ""
        return f"{where}{self.path}: expected {self.expected}{got}{hint}"


class SpecError(GangflowError, ValueError):
    """A spec, a cluster description, an override or a resreq is wrong; nothing was created."""

    code = "invalid_spec"
    exit_code = 2
    remedy = "correct the named paths; `gangflow render` checks a spec without submitting it"

    def __init__(self, problems: Sequence[Problem], *, remedy: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in problems), remedy=remedy)
        self.problems = tuple(problems)


class UsageError(SpecError):
    """An option, a name or an argument is wrong, not a document: the message says what was expected."""

    remedy = ""


class NotYetError(SpecError):
    """Valid, but not enforced by this version: refused rather than silently dropped."""

    code = "not_enforced"


class XceError(GangflowError):
    """XCE refused a call: its problem document, as an exception."""

    code = "xce"
    exit_code = 10

    def __init__(self, message: str, *, status: int = 0, problem: str = "", remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.problem = problem or self.code
        """The stable code of the problem document: `not_found`, `superseded`, `fenced`, `conflict`, …"""
        self.fields: dict[str, str | int] = {}
        """What else it says, for programs: the `incarnation` that is the newest, the `state` that is in the way, …"""


class NotFound(XceError):
    """No group, member, slot, claim or key of that name."""

    code = "not_found"
    remedy = "`gangflow status`, `xcecli groups -a` and `xcecli hosts` list what there is"


class Superseded(XceError):
    """The call judged an incarnation that is not the newest any more, or wrote with a superseded task's token."""

    code = "superseded"


class Fenced(XceError):
    """A newer coordinator (or controller) has taken over; this one must stop."""

    code = "fenced"


class Conflict(XceError):
    """A compare-and-set lost, or a name is taken."""

    code = "conflict"
    remedy = "look at what it is now (`gangflow status`), then try again, or choose another name if it is taken"


class Gone(XceError):
    """The position to watch from is too old (or from another journal): list again, then watch from what that shows."""

    code = "gone"

    def __init__(self, message: str, *, seq: int = 0, status: int = 410) -> None:
        super().__init__(message, status=status)
        self.seq = seq
        """Where the journal stands now."""


class Unauthorized(XceError):
    """No token, a wrong one, or one whose role may not do this."""

    code = "unauthorized"
    remedy = "pass the cluster's token: GANGFLOW_TOKEN, or the token file beside its journal"


class Unreachable(XceError):
    """Nobody answers at the controller's URL; whatever it acknowledged is safe in its journal."""

    code = "unreachable"
    exit_code = 4
    remedy = "check that the controller runs (`gangflow status`) and the URL; `gangflow up` starts one on its journal"


class JournalError(GangflowError):
    """The durable log cannot be opened, trusted or written."""

    code = "journal"
    exit_code = 5


class JournalFull(JournalError):
    """The disk is full. The batch was not acknowledged and did not act."""

    code = "journal_full"
    exit_code = 5
    remedy = "free space on the journal's disk; the controller goes on by itself"


class JournalLocked(JournalError):
    """Another controller holds this journal."""

    code = "journal_locked"
    exit_code = 6
    remedy = "stop the other controller, or name another journal"


class JournalCorrupt(JournalError):
    """A record's digest does not continue the chain: `seq` is the first that cannot be trusted."""

    code = "journal_corrupt"
    exit_code = 7
    remedy = "restore the journal file from a copy; nothing was overwritten"

    def __init__(self, message: str, *, seq: int = 0, good: int = 0) -> None:
        """`good`: up to where records are kept that can be trusted, if there are any before the damage."""
        look = f"; `gangflow replay HOME --until {good}` shows what is still good before the damage" if good else ""
        super().__init__(message, remedy=self.remedy + look)
        self.seq = seq


class JournalRegressed(JournalError):
    """An agent has seen a later position of this journal, or another journal: this one is older than what runs."""

    code = "journal_regressed"
    exit_code = 8
    remedy = "members run on; restore the newer journal, or stop the agents if this one is really meant to take over"


class OtherVersion(JournalError):
    """Another version of gangflow made these decisions: that it would make the same ones is not to be expected."""

    code = "other_version"
    exit_code = 12
    remedy = "replay with the version that decided"

    def __init__(self, message: str, *, seq: int = 0, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.seq = seq
        """The first record of that version."""


class ReplayDiverged(JournalError):
    """A journal's inputs, decided again, gave something else than the journal has."""

    code = "replay_diverged"
    exit_code = 11
    remedy = "keep the journal and the explanation: this is a fault of gangflow, or the journal was changed by hand"


class SetupError(GangflowError):
    """Something on this machine cannot be started: Ray, an agent, a port."""

    code = "setup"
    exit_code = 9


class ClusterRefused(SetupError):
    """A controller refused the description of its hosts; nothing was started on them."""

    code = SpecError.code
    exit_code = SpecError.exit_code
    remedy = SpecError.remedy


class GroupEnded(GangflowError):
    """A group that was waited for did not succeed."""

    code = "group_failed"
    exit_code = 1

    def __init__(self, message: str, *, group: str, state: str, cause: str) -> None:
        super().__init__(message)
        self.group = group
        self.state = state
        self.cause = cause


class ChangeFailed(GangflowError):
    """A change of targets that was waited for did not become DONE; what stood then is the target now."""

    code = "change_failed"
    exit_code = 1
    remedy = "the message says why; the group goes on with what stands"


class NoQuorum(GangflowError):
    """Too few eligible rollouts for longer than `quorum_timeout`."""

    code = "no_quorum"
