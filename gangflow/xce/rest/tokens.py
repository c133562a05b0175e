"""Who is calling: the admin, an owner, or one incarnation of one task, each by a bearer token.

Nothing is stored: a token says whose it is (and until when), authenticated by an HMAC under a key that is derived from the
admin token. So a controller that comes back still knows the tokens of running members, and no single token can be taken back
before it expires: changing the admin token is what revokes them, all of them. Whoever can make tokens should keep them short.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from gangflow.xce.core.state import TaskKey

TASK_PREFIX = "xct1"
OWNER_PREFIX = "xcu1"
DELEGATION_PREFIX = "xcd1"
_PURPOSES = {
    TASK_PREFIX: b"gangflow task tokens, version 1",
    OWNER_PREFIX: b"gangflow owner tokens, version 1",
    DELEGATION_PREFIX: b"gangflow delegation tokens, version 1",
}
OWNER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}")
"""What names an owner: a user of the operating system, or of whatever directory hands out the tokens."""


class Role(StrEnum):
    """What a token may do: everything, what concerns its owner's groups and members, or what concerns its own group."""

    ADMIN = "admin"
    OWNER = "owner"
    TASK = "task"


@dataclass(frozen=True, slots=True)
class Principal:
    """Whose token it is."""

    role: Role
    task: TaskKey | None = None
    """Of a task's token."""
    owner: str = ""
    """Of an owner's token."""
    expires_ms: int = field(default=0, compare=False)
    """When its token ends; 0: it does not by itself."""

    @property
    def name(self) -> str:
        """For the record, and as the scope of its idempotency keys: `admin`, `owner/alice`, `g1/1/actor/0/1/0`."""
        return f"owner/{self.owner}" if self.owner else "admin" if self.task is None else str(self.task)


ADMIN = Principal(Role.ADMIN)


class Tokens:
    """Makes and checks bearer tokens. An empty admin token means that callers without one are trusted (loopback only)."""

    def __init__(self, admin_token: str) -> None:
        self._admin = admin_token.encode()
        # A key for each kind: what authenticates one never authenticates another.
        self._keys = {prefix: hmac.new(self._admin, purpose, hashlib.sha256).digest() for prefix, purpose in _PURPOSES.items()}

    @property
    def open(self) -> bool:
        return not self._admin

    def task_token(self, task: TaskKey) -> str:
        """The token of one incarnation of one task: `xct1.<payload>.<mac>`, safe in a header and in an environment."""
        return self._made(TASK_PREFIX, [task.group, task.epoch, task.member, task.index, task.incarnation, task.task])

    def owner_token(self, owner: str, expires_ms: int) -> str:
        """`xcu1.…`: its holder is this owner until then."""
        return self._made(OWNER_PREFIX, [owner, expires_ms])

    def delegation_token(self, owner: str, expires_ms: int) -> str:
        """`xcd1.…`: its holder may name this owner at a submission until then, and nothing else."""
        return self._made(DELEGATION_PREFIX, [owner, expires_ms])

    def check(self, bearer: str, now_ms: int) -> Principal | None:
        """Whose token this is; None if it is nobody's, or expired. Takes the same time for every wrong token."""
        if self._admin and hmac.compare_digest(bearer.encode(), self._admin):
            return ADMIN
        if not bearer:
            return ADMIN if self.open else None
        task = self._read(TASK_PREFIX, bearer)
        if task is not None:
            return Principal(Role.TASK, TaskKey(*task))
        named = self._named(OWNER_PREFIX, bearer, now_ms)
        return Principal(Role.OWNER, owner=named[0], expires_ms=named[1]) if named else None

    def delegated(self, token: str, now_ms: int) -> str | None:
        """The owner whom the holder of a delegation token may name; None if it is none, or expired."""
        named = self._named(DELEGATION_PREFIX, token, now_ms)
        return named[0] if named else None

    def _named(self, prefix: str, token: str, now_ms: int) -> tuple[str, int] | None:
        content = self._read(prefix, token)
        if content is None:
            return None
        owner, expires_ms = content
        return (str(owner), int(expires_ms)) if now_ms < expires_ms else None

    def _made(self, prefix: str, content: list[Any]) -> str:
        payload = json.dumps(content).encode()
        return ".".join((prefix, _text(payload), _text(self._mac(prefix, payload))))

    def _read(self, prefix: str, token: str) -> list[Any] | None:
        """What an authentic token of this kind says."""
        parts = token.split(".")
        if len(parts) != 3 or parts[0] != prefix:
            return None
        try:
            payload, mac = _bytes(parts[1]), _bytes(parts[2])
        except (binascii.Error, ValueError):
            return None
        if not hmac.compare_digest(mac, self._mac(prefix, payload)):
            return None
        content: list[Any] = json.loads(payload)
        return content

    def _mac(self, prefix: str, payload: bytes) -> bytes:
        return hmac.new(self._keys[prefix], payload, hashlib.sha256).digest()


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
