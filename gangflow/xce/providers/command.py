"""The `command` provider: a user's own executable makes a claim, takes it away, and tells whether it is still there.

Parameter `script`: its absolute path, as the controller's machine has it. It is run without a shell, in a session of its own,
as the user of the controller, with one argument:

- `SCRIPT provision`: make the claim and print its path. The last line of stdout that is not empty is the absolute path that
  tasks see as `XCE_CLAIM_<NAME>`; every host must find it there. Exit code 0, or the claim is FAILED with the end of stderr.
- `SCRIPT release`: take it away; what is gone already is fine. Exit code 0, or it is run again, after growing pauses, without
  end.
- `SCRIPT check`: now and then while the claim is READY. 0: it is whole. 3: it is lost (the last line of stderr, or else of
  stdout, says why). 64: this script does not check, and is not asked again. Anything else says nothing.

What it is asked comes as one JSON document on stdin (`claim`, `attempt`, `group`, `name`, `member`, `index`, `hosts`, `path`,
`parameters`, `after`, `retain`), and in the environment, which has PATH, HOME, USER, LANG, TZ and TMPDIR besides:
`XCE_CLAIM_ID`, `XCE_CLAIM_GROUP`, `XCE_CLAIM_NAME`, `XCE_CLAIM_MEMBER`, `XCE_CLAIM_INDEX`, `XCE_CLAIM_HOSTS` (commas between
them), `XCE_CLAIM_PATH`, `XCE_CLAIM_ATTEMPT`, and `XCE_CLAIM_PARAMETER_<NAME>` for each parameter.

It must be idempotent: a controller that was away, or whose answer was lost, asks the same again for the same `claim`. When its
time is over (the claim's `timeout`), or the claim is not wanted any more, its whole process group is killed: SIGTERM, and
SIGKILL half a second later; a release follows. Never are two of them run for one claim at the same time.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from gangflow.xce.core.effects import Provision, Release
from gangflow.xce.ports import Held, Provisioned
from gangflow.xce.providers.rules import COMMAND

INHERITED = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR")
LOST, NO_CHECK = 3, 64
KEEP_BYTES = 64 << 10
"""Of what a script prints, the end."""
TAIL_LINES = 5
"""Of stderr in a claim's message."""
TAIL_CHARACTERS = 1_000
TERM_S = 0.5
"""From SIGTERM to SIGKILL."""
TRIM_BYTES, TRIM_S = 8 << 20, 1.0
"""What it prints is cut to its end when it is more than this, looked at so often."""


class CommandFailed(RuntimeError):
    """The script could not be run, or did not do what it was asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of a script ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def end(self) -> str:
        """`exit code 2: the last lines of stderr`, or of stdout where there is nothing."""
        how = f"exit code {self.code}" if self.code >= 0 else f"signal {-self.code}"
        return f"{how}: {_last(self.stderr or self.stdout, TAIL_LINES)}" if (self.stderr or self.stdout).strip() else how


class CommandProvider:
    """Runs users' scripts."""

    rules = COMMAND

    def __init__(self) -> None:
        self._unchecked: set[str] = set()
        """Scripts that do not check."""

    async def provision(self, request: Provision) -> Provisioned:
        """The path that the script printed. Raises CommandFailed."""
        document = _document(request, attempt=request.attempt, hosts=request.hosts, after=dict(request.after))
        script, outcome = await _run("provision", request.parameters, document)
        if outcome.code:
            raise CommandFailed(f"{script} provision: {outcome.end}")
        lines = [line.strip() for line in outcome.stdout.splitlines() if line.strip()]
        if not lines or not os.path.isabs(lines[-1]):
            got = repr(lines[-1]) if lines else "nothing"
            raise CommandFailed(f"{script} provision: the last line of its stdout must be an absolute path, not {got}")
        return Provisioned(lines[-1])

    async def release(self, request: Release) -> None:
        """Raises CommandFailed; then it is asked again."""
        document = _document(request, path=request.path, hosts=request.hosts)
        script, outcome = await _run("release", request.parameters, document | {"retain": request.retain})
        if outcome.code:
            raise CommandFailed(f"{script} release: {outcome.end}")

    async def check(self, held: Held) -> str:
        """Why it is lost; empty if it is not, or nobody can tell."""
        if dict(held.parameters).get("script", "") in self._unchecked:
            return ""
        script, outcome = await _run("check", held.parameters, _document(held, path=held.path, hosts=held.hosts))
        if outcome.code == NO_CHECK:
            self._unchecked.add(script)
        elif outcome.code == LOST:
            return _last(outcome.stderr or outcome.stdout, 1) or f"{script} check does not find it any more"
        elif outcome.code:
            raise CommandFailed(f"{script} check: {outcome.end}")
        return ""


def _document(request: Provision | Release | Held, **more: Any) -> dict[str, Any]:
    member, index = request.slot or ("", -1)
    return {
        "claim": request.claim,
        "group": request.group,
        "name": request.name,
        "member": member,
        "index": index,
        "parameters": {key: value for key, value in request.parameters if key != "script"},
        **more,
    }


def _environment(document: Mapping[str, Any]) -> dict[str, str]:
    environment = {key: os.environ[key] for key in INHERITED if key in os.environ}
    environment["XCE_CLAIM_ID"] = document["claim"]
    for key in ("group", "name", "member", "index", "path", "attempt"):
        environment[f"XCE_CLAIM_{key.upper()}"] = str(document.get(key, ""))
    environment["XCE_CLAIM_HOSTS"] = ",".join(document["hosts"])
    for key, value in document["parameters"].items():
        environment[f"XCE_CLAIM_PARAMETER_{re.sub('[^A-Z0-9]', '_', key.upper())}"] = value
    return environment


async def _run(verb: str, parameters: tuple[tuple[str, str], ...], document: dict[str, Any]) -> tuple[str, Outcome]:
    """The script and how it ended. When this is cancelled, its process group is killed first.

    It reads and writes files: whoever it leaves behind may hold them open for as long as it likes.
    """
    script = dict(parameters).get("script", "")
    if not os.path.isabs(script):
        raise CommandFailed(f"parameters.script must be an absolute path, not {script!r}")
    with ExitStack() as files:
        asked, out, err = (files.enter_context(tempfile.TemporaryFile("a+b", buffering=0)) for _ in range(3))
        asked.write(json.dumps(document).encode())
        asked.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                script,
                verb,
                stdin=asked,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd="/",
                env=_environment(document),
            )
        except OSError as error:
            raise CommandFailed(f"{script} cannot be run: {error.strerror or error}") from error
        ended = asyncio.ensure_future(process.wait())
        try:
            while not (await asyncio.wait([ended], timeout=TRIM_S))[0]:
                for file in (out, err):
                    _trim(file.fileno())
        except asyncio.CancelledError:
            await _kill(process.pid, ended)
            raise
        return script, Outcome(ended.result(), _end_of(out.fileno()), _end_of(err.fileno()))


def _trim(fd: int) -> None:
    """Of a file that is written to its end, keep the end only."""
    if os.fstat(fd).st_size > TRIM_BYTES:
        kept = _end_of(fd).encode()
        os.ftruncate(fd, 0)
        os.write(fd, kept)


def _end_of(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, KEEP_BYTES, max(0, size - KEEP_BYTES)).decode(errors="replace")


async def _kill(leader: int, ended: asyncio.Future[int]) -> None:
    """The whole process group, and wait for its leader."""
    for number, patience in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, None)):
        try:
            os.killpg(leader, number)
        except ProcessLookupError:
            return
        await asyncio.wait([ended], timeout=patience)


def _last(text: str, lines: int) -> str:
    """The last lines, as one."""
    found = [line.strip() for line in text.splitlines() if line.strip()][-lines:]
    return " | ".join(found)[-TAIL_CHARACTERS:]
