"""Container runtimes for tests: a stub that behaves like `podman run`, and how a real one is asked."""

from __future__ import annotations

import stat
import sys
from pathlib import Path

from gangflow.xce.core.containers import contained, container_name, probe_inside
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
    if os.fork() == 0:
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
    pid = int(said.readline())
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGURG):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = int(said.readline() or 137)
    sys.exit(code if code >= 0 else 128 - code)


def execute(words):
    name, *command = words
    _, environment, cwd = json.loads((STATE / name / "container.json").read_text())
    os.chdir(cwd)
    os.execvpe(command[0], command, environment)


{{"run": run, "exec": execute}}[sys.argv[1]](sys.argv[2:])
'''


def stub(folder: Path) -> ContainerPlan:
    """A runtime in this folder: its containers are folders below `containers`."""
    program = folder / "stubman"
    (folder / "containers").mkdir()
    program.write_text(STUB.format(python=sys.executable, state=str(folder / "containers")))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return podman(str(program), "stub:1")


def podman(program: str, image: str, *more: str, **fields: object) -> ContainerPlan:
    """How `podman` is asked, as the documentation has it."""
    run = (
        program,
        "run",
        *more,
        "--rm",
        "--name",
        "{name}",
        "--workdir",
        "{cwd}",
        "{environment}",
        "{mounts}",
        "{image}",
        "{command}",
    )
    return ContainerPlan(
        image,
        run,
        variable=("--env", "{variable}"),
        mount=("--volume", "{source}:{target}"),
        probe=(program, "exec", "{name}", "{command}"),
        **fields,  # type: ignore[arg-type]
    )


def inside(
    plan: ContainerPlan,
    *command: str,
    index: int = 1,
    incarnation: int = 1,
    environment: dict[str, str] | None = None,
    cwd: str = "",
    paths: tuple[str, ...] = (),
    ready: ProbePlan | None = None,
    cluster: str = "c1",
) -> Launch:
    """What the core would launch."""
    name = container_name(cluster, "g1", "m", index, incarnation, 0)
    made = contained(plan, command, name=name, cwd=cwd, variables=environment or {}, paths=paths)
    return Launch(
        made.argv,
        tuple((environment or {}).items()),
        cwd,
        folder_words=made.folder_words,
        ready=probe_inside(plan, ready, name),
    )
