"""Who is calling: the admin's bearer token, and one for each incarnation of each task.

A task's token names its (group, epoch, member, slot, incarnation, task) and is authenticated by an HMAC under a key that is
derived from the admin token: nothing is stored, and a controller that comes back still knows the tokens of running members.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import dataclass
from enum import StrEnum

from gangflow.xce.core.state import TaskKey

PREFIX = "xct1"


class Role(StrEnum):
    """What a token may do: everything, or what concerns its own group."""

    ADMIN = "admin"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose token it is."""

    role: Role
    task: TaskKey | None = None
    """Of a task's token."""

    @property
    def name(self) -> str:
        """For the record, and as the scope of its idempotency keys."""
        return "admin" if self.task is None else str(self.task)

    def sees(self, group: str) -> bool:
        """May it look at this group (an id)?"""
        return self.task is None or self.task.group == group


ADMIN = Principal(Role.ADMIN)


class Tokens:
    """Makes and checks bearer tokens. An empty admin token means that callers without one are trusted (loopback only)."""

    def __init__(self, admin_token: str) -> None:
        self._admin = admin_token.encode()
        self._key = hmac.new(self._admin, b"gangflow task tokens, version 1", hashlib.sha256).digest()

    @property
    def open(self) -> bool:
        return not self._admin

    def task_token(self, task: TaskKey) -> str:
        """The token of one incarnation of one task: `xct1.<payload>.<mac>`, safe in a header and in an environment."""
        payload = json.dumps([task.group, task.epoch, task.member, task.index, task.incarnation, task.task]).encode()
        return ".".join((PREFIX, _text(payload), _text(self._mac(payload))))

    def check(self, bearer: str) -> Principal | None:
        """Whose token this is; None if it is nobody's. Takes the same time for every wrong token."""
        if self._admin and hmac.compare_digest(bearer.encode(), self._admin):
            return ADMIN
        parts = bearer.split(".")
        if len(parts) != 3 or parts[0] != PREFIX:
            return ADMIN if self.open and not bearer else None
        try:
            payload, mac = _bytes(parts[1]), _bytes(parts[2])
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(mac, self._mac(payload)):
            return None
        group, epoch, member, index, incarnation, task = json.loads(payload)
        return Principal(Role.TASK, TaskKey(group, epoch, member, index, incarnation, task))

    def _mac(self, payload: bytes) -> bytes:
        return hmac.new(self._key, payload, hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
