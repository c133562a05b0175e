"""The `directory` provider: a folder per claim, for checkpoints, weights, scratch.

It lies in `<home>/claims/<group>/<name>`, or, with the parameter `path` (absolute), in `<path>/<cluster mark>-<group>/<name>`:
groups of different clusters have the same ids, and must not find each other's checkpoints there. A slot's claim is
`<name>-<member>-<index>`; a standalone claim lies in a folder `standalone` in place of the group's. What was made is noted
beside the claims, and only what is noted is ever removed; links are not followed, neither to make nor to remove.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.ports import Held, Provisioned
from gangflow.xce.providers.rules import DIRECTORY

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*\Z")
_NOTES = ".made"
STANDALONE = "standalone"
"""In place of a group's id; no group is called so."""
T = TypeVar("T")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ClaimRefused(ValueError):
    """The claim's parameters or names cannot be used; another try would fail the same way."""


class DirectoryProvider:
    """Makes and removes folders. All work happens in a thread: the disk may be slow."""

    rules = DIRECTORY

    def __init__(self, home: Path) -> None:
        self._root = home.resolve() / "claims"
        self._working: dict[str, asyncio.Future[Any]] = {}
        """Claim → the call that a thread carries out, whether or not somebody still waits for it."""

    async def provision(self, request: Provision) -> Provisioned:
        """The claim's folder, made if it is not there. Raises ClaimRefused or OSError."""
        return Provisioned(str(await self._alone(request.claim, lambda: self._make(request))))

    async def release(self, request: Release) -> None:
        """Remove the claim's folder with all that is in it, unless it is retained; what is gone already is fine."""
        await self._alone(request.claim, lambda: self._remove(request))

    async def check(self, held: Held) -> str:
        """Whether the folder is still there. Raises OSError when nobody can tell."""
        return await asyncio.to_thread(_missing, held.path)

    async def _alone(self, claim: str, call: Callable[[], T]) -> T:
        """A thread cannot be cancelled: what it makes after its caller has gone must not come after the release of it."""
        while (before := self._working.get(claim)) is not None:
            await asyncio.wait([before])
        work = self._working[claim] = asyncio.ensure_future(asyncio.to_thread(call))
        work.add_done_callback(lambda done: self._ended(claim, done))
        return await asyncio.shield(work)

    def _ended(self, claim: str, work: asyncio.Future[Any]) -> None:
        del self._working[claim]
        if not work.cancelled():
            work.exception()  # whoever waited has it; nobody else is to be warned of it

    # --- making -----------------------------------------------------------------------------------------------------

    def _make(self, request: Provision) -> Path:
        parameters = dict(request.parameters)
        where = parameters.pop("path", "")
        if parameters:
            raise ClaimRefused(f"the directory provider knows no parameter {sorted(parameters)[0]!r}; it has `path`")
        if where and not os.path.isabs(where):
            raise ClaimRefused(f"parameters.path must be absolute, not {where!r}")
        leaf = request.name if request.slot is None else f"{request.name}-{request.slot[0]}-{request.slot[1]}"
        of = request.group or STANDALONE
        for name in (of, leaf):
            if not _PLAIN.match(name):
                raise ClaimRefused(f"{name!r} is no plain name")
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        if where:
            root, folder = Path(os.path.normpath(where)), f"{self._mark()}-{of}"
            root.mkdir(parents=True, exist_ok=True)
        else:
            root, folder = self._root, of
        path = root / folder / leaf
        # Noted first: a crash after this leaves a note without a folder, never a folder that nobody would remove.
        self._note(request.claim, path)
        _make_below(root, (folder, leaf))
        return path

    def _mark(self) -> str:
        """This cluster's mark in shared folders."""
        path = self._root / ".mark"
        if not path.exists():
            aside = path.with_name(f".mark~{secrets.token_hex(4)}")
            aside.write_text(secrets.token_hex(4))
            try:
                os.link(aside, path)  # whole, and only if nobody was first
            except FileExistsError:
                pass
            aside.unlink()
        return path.read_text()

    # --- notes ------------------------------------------------------------------------------------------------------

    def _note_path(self, claim: str) -> Path:
        return self._root / _NOTES / claim.replace("%", "%25").replace("/", "%2F")

    def _note(self, claim: str, path: Path) -> None:
        note = self._note_path(claim)
        note.parent.mkdir(exist_ok=True, mode=0o700)
        aside = note.with_name(f"{note.name}~")
        aside.write_text(json.dumps({"path": str(path)}))
        aside.replace(note)

    # --- removing ---------------------------------------------------------------------------------------------------

    def _remove(self, request: Release) -> None:
        note = self._note_path(request.claim)
        try:
            path = Path(json.loads(note.read_text())["path"])
        except (OSError, ValueError, KeyError):
            return  # never made here, or released before
        if not request.retain:
            _remove_below(path.parent.parent, path.parent.name, path.name)
        note.unlink(missing_ok=True)


def _missing(path: str) -> str:
    try:
        kind = os.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return f"{path} is not there any more"
    return "" if stat.S_ISDIR(kind) else f"{path} is no folder any more"


def _make_below(root: Path, names: tuple[str, ...]) -> None:
    """Make nested folders under `root`. OSError (NotADirectoryError, ELOOP) if a link or a file is in the way."""
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            try:
                os.mkdir(name, 0o700, dir_fd=at)
            except FileExistsError:
                pass
            below = os.open(name, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
    finally:
        os.close(at)


def _remove_below(root: Path, folder: str, leaf: str) -> None:
    """Remove `root/folder/leaf` and, if it is empty then, `root/folder`. Links in the way are removed, not followed."""
    try:
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        try:
            at = os.open(folder, _FOLDER, dir_fd=top)
        except FileNotFoundError:
            return
        except OSError as error:
            raise OSError(error.errno, f"{root / folder} is a link or no folder any more: left alone") from error
        try:
            kind = os.stat(leaf, dir_fd=at, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                shutil.rmtree(leaf, dir_fd=at)
            else:
                os.unlink(leaf, dir_fd=at)
        except FileNotFoundError:
            pass
        finally:
            os.close(at)
        try:
            os.rmdir(folder, dir_fd=top)
        except OSError:
            pass
    finally:
        os.close(top)
