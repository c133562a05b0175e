"""Containers, and the command template that a cluster runs them by."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.specs import ClusterSpec, Container, Job, Mount, dump, load, validate
from gangflow.specs.container import ContainerRuntime
from gangflow.specs.document import plain

PODMAN = {
    "command": [
        "podman",
        "run",
        "--rm",
        "--name",
        "{name}",
        "--network=host",
        "{environment}",
        "{mounts}",
        "{image}",
        "{command}",
    ],
    "variable": ["--env", "{variable}"],
    "mount": ["--volume", "{source}:{target}"],
    "probe": ["podman", "exec", "{name}", "{command}"],
    "cleanup": ["podman", "rm", "--force", "--ignore", "{name}"],
}
APPTAINER = {"command": ["apptainer", "exec", "{mounts}", "docker://{image}", "{command}"], "mount": "--bind={source}:{target}"}


def test_an_image_alone_is_a_text() -> None:
    assert Job(["x"], container="i:1") == Job(["x"], container=Container("i:1"))
    assert plain(Job(["x"], container="i:1"))["container"] == {"image": "i:1"}


def test_a_mount_may_be_a_text() -> None:
    container = validate(Container, {"image": "i", "mounts": ["/a:/b", "/c", {"source": "/d", "target": "/e"}]})
    assert container.mounts == (Mount("/a", "/b"), Mount("/c", "/c"), Mount("/d", "/e"))
    assert validate(Container, plain(container)) == container


@pytest.mark.parametrize("runtime", [PODMAN, APPTAINER])
def test_usual_runtimes_are_taken_and_read_back(runtime: dict[str, Any]) -> None:
    cluster = validate(ClusterSpec, {"hosts": [{"name": "h"}], "container_runtime": runtime})
    assert load(dump(cluster), ClusterSpec) == cluster


@pytest.mark.parametrize(
    ("document", "path", "expected"),
    [
        ({"image": ""}, "image", "an image's name"),
        ({"image": " "}, "image", "an image's name"),
        ({"image": "--privileged"}, "image", "which does not begin with -"),
        ({"image": "i", "mounts": ["a:/b"]}, "mounts[0].source", "absolute path"),
        ({"image": "i", "mounts": ["/a:/b:ro"]}, "mounts[0].target", "without colons"),
        ({"image": "i", "mounts": ["/a:/b", "/c:/b"]}, "mounts[1].target", "taken"),
        ({"image": "i", "mounts": ["/a:/b", "/c://b/./"]}, "mounts[1].target", "taken"),
        ({"image": "i", "mounts": ["/a/../b:/c"]}, "mounts[0].source", "without colons, commas and .."),
        ({"image": "i", "mounts": ["/a:/"]}, "mounts[0].target", "the image is there"),
        ({"image": "i", "mount": []}, "mount", "a known key"),
    ],
)
def test_a_mistake_in_a_container_is_named(document: dict[str, Any], path: str, expected: str) -> None:
    with pytest.raises(SpecError) as caught:
        validate(Container, document)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert expected in problem.expected


@pytest.mark.parametrize(
    ("change", "path", "expected", "nearest"),
    [
        ({"command": ["podman", "{imge}", "{command}"]}, "command[1]", "a known placeholder", "image"),
        ({"command": ["podman", "{image}", "sh {command}"]}, "command[2]", "a word of its own", ""),
        ({"command": ["podman", "{image}", "{command}", "{command}"]}, "command[3]", "once", ""),
        ({"command": ["{image}", "{name}", "{command}"], "variable": [], "mount": []}, "command[0]", "program", ""),
        ({"command": ["podman", "{name}", "{command}"], "variable": [], "mount": []}, "command", "{image} among the words", ""),
        ({"command": ["podman", "{name}", "{image}"], "variable": [], "mount": []}, "command", "{command} among the words", ""),
        ({"variable": ["--env", "{name}"]}, "variable[1]", "a known placeholder: one of {variable}", ""),
        ({"variable": ["--env"]}, "variable", "{variable} among the words", ""),
        ({"variable": []}, "variable", "what {environment} in `command` is made of", ""),
        ({"mount": ["-v", "{source}"]}, "mount", "{target} among the words", ""),
        ({"command": ["podman", "{name}", "{environment}", "{image}", "{command}"]}, "command", "{mounts} among the words", ""),
        ({"probe": ["podman", "exec", "{command}"]}, "probe", "{name} among the words", ""),
        ({"probe": ["podman", "{cwd}", "{name}", "{command}"]}, "probe[1]", "a known placeholder", ""),
        ({"cleanup": ["podman", "rm", "{nam}"]}, "cleanup[2]", "a known placeholder", "name"),
        (
            {"command": ["podman", "run", "{environment}", "{mounts}", "{image}", "{command}"]},
            "command",
            "{name} among the words, since `probe`",
            "",
        ),
    ],
)
def test_a_mistake_in_a_runtime_is_named(change: dict[str, Any], path: str, expected: str, nearest: str) -> None:
    with pytest.raises(SpecError) as caught:
        validate(ContainerRuntime, PODMAN | change)
    (problem,) = caught.value.problems
    assert (problem.path, problem.nearest) == (path, nearest)
    assert expected in problem.expected


def test_a_warning_in_a_container_names_a_signal_that_reaches_inside() -> None:
    with pytest.raises(SpecError, match=r"warning.signal: expected another signal.*\(got 'SIGURG'\)"):
        Job(["x"], container="i", runtime_limit="1h", warning={"before": "1m"})
    assert Job(["x"], container="i", runtime_limit="1h", warning={"before": "1m", "signal": "USR1"}).warning


def test_what_is_mounted_needs_an_absolute_path() -> None:
    with pytest.raises(SpecError, match=r"cwd: expected an absolute path"):
        Job(["x"], container="i", cwd="here")
    assert Job(["x"], container="i", cwd="/here").cwd == "/here"


@pytest.mark.parametrize("cwd", ["/data:/etc", "/a,b", "/a/../b"])
def test_a_working_directory_that_a_runtime_would_misread_is_refused(cwd: str) -> None:
    assert Job(["x"], cwd=cwd).cwd == cwd
    with pytest.raises(SpecError, match=r"cwd: expected an absolute path without colons"):
        Job(["x"], container="i", cwd=cwd)
