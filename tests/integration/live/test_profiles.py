"""A cluster with a profile and a container runtime, from its description to the process inside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gangflow as gf
from gangflow.errors import SpecError
from tests.integration.hosts.runtimes import stub
from tests.integration.live.cluster import Live, OwnRoot, ended, processes, state, until


@pytest.fixture
def boxed(tmp_path: Path) -> Iterator[Live]:
    """A cluster whose profile `boxed` runs members in containers of a stub of podman."""
    runtime = stub(tmp_path)
    spec = gf.ClusterSpec(
        hosts=[gf.HostSpec("h", cpu=2, mem="2GiB")],
        container_runtime=gf.ContainerRuntime(
            runtime.runtime, variable=runtime.variable, mount=runtime.mount, probe=runtime.probe, cleanup=runtime.cleanup
        ),
        profiles={
            "boxed": gf.Profile(
                wrapper=["env", "WRAPPED=yes"],
                container=runtime.image,
                environment={"FROM_PROFILE": "1", "OVER": "profile"},
                resources={"cpu": "100m"},
                termination_grace="1s",
            )
        },
    )
    made = OwnRoot()
    try:
        live = Live(spec, "boxed")
        yield live
        live.clear()
        live.stop()
    finally:
        made.close()


def test_members_run_in_their_profiles_container(boxed: Live, tmp_path: Path) -> None:
    script = (
        'test -n "$container" -a -n "$XCE_TOKEN" -a -n "$XCE_URL" && test -s "$XCE_GROUP_FILE" && '
        'echo "$WRAPPED $FROM_PROFILE $OVER $PWD" > "$XCE_CLAIM_OUT/said"'
    )
    group = gf.CoStartGroup(
        "boxed",
        {
            "job": gf.Job(["sh", "-c", script], profile="boxed", environment={"OVER": "member"}, cwd=str(tmp_path)),
            "service": gf.ReplicaSet(
                ["sh", "-c", "touch up; exec sleep 1000"],
                profile="boxed",
                ready=gf.ExecProbe(["sh", "-c", 'test "$container" = stub && test -e up'], period="50ms"),
                cwd=str(tmp_path),
            ),
        },
        claims=[gf.Claim("out", retain=True, parameters={"path": str(tmp_path / "claims")})],
    )
    run = boxed.run(group)
    view = ended(run)
    assert view.state == "SUCCEEDED", view
    (said,) = (tmp_path / "claims").rglob("said")
    assert said.read_text() == f"yes 1 member {tmp_path}\n"
    until(lambda: not list((tmp_path / "containers").iterdir()), "every container is removed")


def test_a_stopped_group_leaves_nothing_inside(boxed: Live, tmp_path: Path) -> None:
    script = "trap '' TERM; (trap '' TERM; while :; do sleep 1; done) & while :; do sleep 1; done"
    run = boxed.run(gf.CoStartGroup("deaf", {"a": gf.Job(["sh", "-c", script], profile="boxed", cwd=str(tmp_path))}))
    state(run, "RUNNING")
    url = boxed.home.url
    inside = until(lambda: [each for each in processes(url) if each.environment.get("container") == "stub"], "it runs inside")
    assert all("XCE_TOKEN" in each.environment for each in inside)
    tokens = {each.environment["XCE_TOKEN"] for each in inside}
    assert not [each.command for each in processes(url) if any(token in each.command for token in tokens)]
    run.cancel()
    state(run, "CANCELLED")
    assert not [each for each in processes(url) if each.environment.get("container") == "stub"]


def test_a_profile_that_the_cluster_does_not_have_is_refused(boxed: Live) -> None:
    with pytest.raises(SpecError, match=r"job.profile: expected a profile of the cluster: boxed.*did you mean 'boxed'"):
        boxed.run(gf.CoStartGroup.of_one("boxd", gf.Job(["true"], profile="boxd")))
