"""A container's command line: values never stand on it, and what a user wrote is never taken for a placeholder."""

from __future__ import annotations

from dataclasses import replace

from gangflow.xce.core.containers import ADDED, FOLDER, contained, container_name, probe_inside
from gangflow.xce.core.effects import Prepare
from gangflow.xce.core.plan import ClaimPlan, ContainerPlan, ProbeKind, ProbePlan
from gangflow.xce.hosts import marks
from tests.unit.xce.core.plans import hosts, job, plan
from tests.unit.xce.core.stage import Stage

PODMAN = ContainerPlan(
    "registry/train:{name}",
    ("podman", "run", "--name", "{name}", "--workdir={cwd}", "{environment}", "{mounts}", "{image}", "{command}"),
    variable=("--env", "{variable}"),
    mount=("--volume", "{source}:{target}"),
    probe=("podman", "exec", "{name}", "{command}"),
    cleanup=("podman", "rm", "{name}"),
)


def test_placeholders_are_filled_in_one_pass() -> None:
    """What an image or a command holds in braces is the user's own."""
    made = contained(PODMAN, ("echo", "{image}", FOLDER), name="n", cwd="/data", variables=["A"], paths=["/claims/ckpt", ""])
    environment = [word for name in ("A", *ADDED) for word in ("--env", name)]
    volumes = ["--volume", f"{FOLDER}:{FOLDER}", "--volume", "/data:/data", "--volume", "/claims/ckpt:/claims/ckpt"]
    head = ["podman", "run", "--name", "n", "--workdir=/data"]
    assert list(made.argv) == [*head, *environment, *volumes, "registry/train:{name}", "echo", "{image}", FOLDER]
    assert [made.argv[index] for index in made.folder_words] == [f"{FOLDER}:{FOLDER}"]
    assert made.argv[-1] == FOLDER
    assert len(made.argv) - 1 not in made.folder_words


def test_without_a_working_directory_it_is_the_tasks_own_folder() -> None:
    made = contained(PODMAN, ("x",), name="n", cwd="", variables=[], paths=[])
    assert [made.argv[index] for index in made.folder_words] == [f"--workdir={FOLDER}", f"{FOLDER}:{FOLDER}"]


def test_a_users_mount_stands_over_ours_and_none_is_made_twice() -> None:
    own = replace(PODMAN, mounts=(("/scratch", "/data"), ("/opt", "/opt")))
    made = contained(own, ("x",), name="n", cwd="/data", variables=[], paths=["/data"])
    volumes = [made.argv[index + 1] for index, word in enumerate(made.argv) if word == "--volume"]
    assert volumes == [f"{FOLDER}:{FOLDER}", "/scratch:/data", "/opt:/opt"]


def test_the_tasks_mark_reaches_inside() -> None:
    assert marks.VARIABLE in ADDED


def test_a_name_is_one_incarnations_own() -> None:
    assert container_name("c 1", "g1", "a-1", 2, 3, 0) == "gangflow-c-1.g1.a-1.2.3.0"
    assert container_name("c", "g1", "a", 12, 3, 0) != container_name("c", "g1", "a", 1, 23, 0)


def test_only_an_exec_probe_is_run_inside() -> None:
    ask = ProbePlan(ProbeKind.EXEC, command=("test", "-e", "{name}"))
    inside = probe_inside(PODMAN, ask, "n")
    assert inside == replace(ask, command=("podman", "exec", "n", "test", "-e", "{name}"))
    for other in (None, ProbePlan(ProbeKind.TCP, port="http")):
        assert probe_inside(PODMAN, other, "n") is other


def test_a_launch_in_a_container_names_variables_and_mounts_claims() -> None:
    stage = Stage(hosts(1))
    actor = job(environment=(("SECRET", "s3cret"),), container=PODMAN, ready=ProbePlan(ProbeKind.EXEC, command=("true",)))
    stage.submit(plan(actor, claims=(ClaimPlan("ckpt"), ClaimPlan("own", scope=actor.name))))
    stage.claims_ready()
    (effect,) = stage.due(Prepare)
    launch = effect.launch
    assert dict(launch.environment)["SECRET"] == "s3cret"
    assert not any("s3cret" in word for word in launch.argv)
    names = [launch.argv[index + 1] for index, word in enumerate(launch.argv) if word == "--env"]
    assert {"SECRET", "XCE_GROUP", "XCE_CLAIM_CKPT", "XCE_CLAIM_OWN", *ADDED} <= set(names)
    assert len(names) == len(set(names))
    volumes = [launch.argv[index + 1] for index, word in enumerate(launch.argv) if word == "--volume"]
    paths = [dict(launch.environment)[f"XCE_CLAIM_{name}"] for name in ("CKPT", "OWN")]
    assert volumes == [f"{FOLDER}:{FOLDER}", *(f"{path}:{path}" for path in paths)]
    assert launch.ready is not None
    assert launch.ready.command[:2] == ("podman", "exec")
    assert launch.argv[3] == launch.ready.command[2] == f"gangflow-{stage.state.cluster_id}.g1.{actor.name}.0.1.0"
    assert launch.cleanup == ("podman", "rm", launch.argv[3])
    assert launch.argv[-2:] == ("run", actor.name)
