"""Container runtimes for tests: a stub that behaves like `podman run`, and how a real one is asked."""

from __future__ import annotations

import io
import itertools
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from gangflow.xce.core.containers import cleanup_of, contained, container_name, probe_inside
from gangflow.xce.core.effects import Launch
from gangflow.xce.core.plan import ContainerPlan, ProbePlan

STUB = '''#!{python}
"""Like `podman run` and `podman exec`: the command runs in a session of its own under a monitor that nobody waits for, with
nothing of the environment but what was named; the client passes signals on, and ends with the command's code."""
import json, os, pathlib, signal, subprocess, sys

STATE = pathlib.Path({state!r})
BARE = {{"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "container": "stub"}}


def fail(text):
    sys.stderr.write(f"Error: {{text}}\\n")
    sys.exit(125)


def run(words):
    environment, mounts, name, cwd = dict(BARE), [], "", "/"
    while words and words[0].startswith("--"):
        option = words.pop(0)
        if option == "--rm":
            continue
        value = words.pop(0)
        if option == "--env":
            if "=" in value:
                fail("a value on the command line")
            if value in os.environ:
                environment[value] = os.environ[value]
        elif option == "--volume":
            source, target = value.split(":")
            if not os.path.exists(source):
                fail(f"statfs {{source}}: no such file or directory")
            mounts.append(target)
        elif option == "--name":
            name = value
        elif option == "--workdir":
            cwd = value
    image, *command = words
    if image != "stub:1":
        fail(f"{{image}}: no such image")
    if len(set(mounts)) != len(mounts):
        fail("duplicate mount destination")
    try:
        (STATE / name).mkdir()
    except FileExistsError:
        fail(f"the name {{name}} is in use")
    environment["STUB_MOUNTS"] = ",".join(mounts)
    told, tells = os.pipe()
    inside, early = [], []

    def pass_on(number, _):
        os.kill(inside[0], number) if inside else early.append(number)

    passed = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    for number in passed:
        signal.signal(number, pass_on)
    if os.fork() == 0:
        for number in passed:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if os.fork():
            os._exit(0)
        os.close(told)
        process = subprocess.Popen(command, env=environment, cwd=cwd, start_new_session=True)
        (STATE / name / "container.json").write_text(json.dumps([process.pid, environment, cwd]))
        os.write(tells, f"{{process.pid}}\\n".encode())
        code = process.wait()
        (STATE / name / "container.json").unlink()
        (STATE / name).rmdir()
        os.write(tells, f"{{code}}\\n".encode())
        os._exit(0)
    os.close(tells)
    said = os.fdopen(told)
    inside.append(int(said.readline()))
    for number in early:
        pass_on(number, None)
    code = int(said.readline() or 137)
    sys.exit(code if code >= 0 else 128 - code)


def execute(words):
    name, *command = words
    _, environment, cwd = json.loads((STATE / name / "container.json").read_text())
    os.chdir(cwd)
    os.execvpe(command[0], command, environment)


def remove(words):
    for path in (STATE / words[-1]).glob("*"):
        path.unlink()
    if (STATE / words[-1]).exists():
        (STATE / words[-1]).rmdir()


{{"run": run, "exec": execute, "rm": remove}}[sys.argv[1]](sys.argv[2:])
'''


def stub(folder: Path) -> ContainerPlan:
    """A runtime in this folder: its containers are folders below `containers`."""
    program = folder / "stubman"
    (folder / "containers").mkdir()
    program.write_text(STUB.format(python=sys.executable, state=str(folder / "containers")))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return podman((str(program),), "stub:1")


def podman(program: Sequence[str], image: str, options: Sequence[str] = ()) -> ContainerPlan:
    """How `podman` is asked, as the documentation has it."""
    words = ("--rm", "--name", "{name}", "--workdir", "{cwd}", "{environment}", "{mounts}", "{image}", "{command}")
    return ContainerPlan(
        image,
        (*program, "run", *options, *words),
        variable=("--env", "{variable}"),
        mount=("--volume", "{source}:{target}"),
        probe=(*program, "exec", "{name}", "{command}"),
        cleanup=(*program, "rm", "--force", "--ignore", "{name}"),
    )


_CLUSTERS = itertools.count(1)


class Unusable(Exception):
    """Why there is no real runtime here."""


LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
"""Podman's own defaults are more than a sandbox may have."""


def real_podman(folder: Path) -> tuple[ContainerPlan, tuple[str, ...]]:
    """Podman with a store of its own in `folder` and an image of busybox made on the spot, and the words it is called by.

    Raises Unusable with what was tried and what came back.
    """
    found, busybox = shutil.which("podman"), shutil.which("busybox")
    if found is None or busybox is None:
        raise Unusable(f"{'podman' if found is None else 'busybox'} is not installed")
    program = (found, "--root", f"{folder}/s", "--runroot", f"{folder}/r", "--tmpdir", f"{folder}/t")
    program += ("--storage-driver", "vfs", "--cgroup-manager", "cgroupfs")
    said = _asked((*program, "import", "-", "localhost/busybox:1"), _root_filesystem(Path(busybox)))
    if said:
        raise Unusable(f"podman import: {said}")
    tried = []
    for options in ((), LIMITS, (*LIMITS, "--runtime", "runc"), (*LIMITS, "--cgroups", "disabled")):
        options = ("--network", "host", *options)
        said = _asked((*program, "run", "--rm", *options, "localhost/busybox:1", "true"))
        if not said:
            return podman(program, "localhost/busybox:1", options), program
        tried.append(f"{' '.join(options)}: {said}")
    raise Unusable("podman run: " + "; ".join(tried))


def _asked(argv: Sequence[str], given: bytes = b"") -> str:
    """Empty if it went well, else the last line of what it said."""
    try:
        done = subprocess.run(argv, input=given, capture_output=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return "no end within 120 s"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return "" if done.returncode == 0 else (lines[-1] if lines else f"code {done.returncode}")


def _root_filesystem(busybox: Path) -> bytes:
    """A tar of a busybox and the names that the tests call it by."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in ("bin", "tmp"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        content = busybox.read_bytes()
        entry = tarfile.TarInfo("bin/busybox")
        entry.mode, entry.size = 0o755, len(content)
        tar.addfile(entry, io.BytesIO(content))
        for name in ("sh", "cat", "sleep", "touch", "true", "test", "tr"):
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return made.getvalue()


def inside(
    plan: ContainerPlan,
    *command: str,
    index: int = 1,
    incarnation: int = 1,
    environment: dict[str, str] | None = None,
    cwd: str = "",
    paths: tuple[str, ...] = (),
    ready: ProbePlan | None = None,
) -> Launch:
    """What the core would launch, each time in another cluster."""
    name = container_name(f"c{next(_CLUSTERS)}", "g1", "m", index, incarnation, 0)
    made = contained(plan, command, name=name, cwd=cwd, variables=environment or {}, paths=paths)
    return Launch(
        made.argv,
        tuple((environment or {}).items()),
        cwd,
        folder_words=made.folder_words,
        ready=probe_inside(plan, ready, name),
        cleanup=cleanup_of(plan, name),
    )
