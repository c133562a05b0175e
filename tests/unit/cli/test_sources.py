"""What to run: a recipe's name or a file, with settings; what is wrong is named, with the nearest that would be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from gangflow.cli.sources import read, read_cluster, recipes, rendered
from gangflow.errors import Problem, SpecError

SPEC = "name: my-run\nmembers:\n  a: {job: {command: [train], resources: {cpu: 1}}}\n"


def _problem(what: str, *settings: str) -> Problem:
    """The only thing that is wrong."""
    with pytest.raises(SpecError) as refused:
        read(what, settings)
    (problem,) = refused.value.problems
    return problem


def test_a_recipe_with_preset_and_settings() -> None:
    source = read("grpo", ["steps=7", "preset=smoke", "name=mine"])
    assert (source.group.name, source.config.steps, source.config.prompts) == ("mine", 7, 16)
    assert source.cluster is not None
    assert "grpo" in [name for name, _ in recipes()]


def test_a_file_with_settings(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(SPEC)
    source = read(str(file), ["members.a.job.tasks=3", "priority=70"])
    assert (source.group.priority, source.group.members["a"].tasks, source.cluster) == (70, 3, None)


def test_a_file_of_any_name_that_is_there_is_a_spec(tmp_path: Path) -> None:
    file = tmp_path / "spec"
    file.write_text(SPEC)
    assert read(str(file), []).group.name == "my-run"


def test_an_unknown_recipe_names_the_nearest() -> None:
    problem = _problem("grop")
    assert (problem.path, problem.value, problem.nearest) == ("recipe", "'grop'", "grpo")


def test_an_unknown_preset_names_the_nearest() -> None:
    problem = _problem("grpo", "preset=smoek")
    assert (problem.path, problem.nearest) == ("preset", "smoke")
    assert problem.expected.startswith("one of demo, smoke, one-host, tiny, ")


def test_a_setting_of_one_variant_chooses_it_and_is_none_of_another() -> None:
    assert read("grpo", ["engine=embedded", "preset=smoke"]).config.steps == 30
    source = read("grpo", ["trainer=trl", "preset=8b-1-host", "sharding=replicate", "steps=7"])
    assert (source.config.engine, source.config.trainer, source.config.steps) == ("vllm", "trl", 7)
    assert source.cluster is None


def test_an_unknown_setting_names_the_nearest() -> None:
    problem = _problem("grpo", "setps=5")
    assert (problem.path, problem.nearest) == ("setps", "steps")


def test_a_setting_of_another_variant_says_which_variant_has_it() -> None:
    problem = _problem("grpo", "max_staleness=2")
    assert (problem.path, problem.value) == ("max_staleness", "'2'")
    assert problem.expected == "a setting of engine=embedded, which is meant here; 'max_staleness' is one of engine=vllm"
    with pytest.raises(SpecError) as refused:
        read("grpo", ["preset=tiny", "gpus=0", "epochs=1"])
    assert [problem.path for problem in refused.value.problems] == ["gpus"]
    assert "engine=embedded" in refused.value.advice


def test_what_a_preset_says_beside_a_setting_is_told_as_the_presets() -> None:
    problem = _problem("grpo", "preset=tiny-async", "max_staleness=0")
    assert (problem.path, problem.value) == ("pause", "'keep'")
    assert problem.expected.endswith("(not so by preset=tiny-async: give `pause=` as well)")
    by_user = _problem("grpo", "preset=tiny-async", "max_staleness=0", "pause=keep")
    assert (by_user.path, "preset" in by_user.expected) == ("pause", False)


@pytest.mark.parametrize("what", ["no/such.yaml", "no.yml", "folder/recipe"])
def test_a_file_that_is_not_there_is_said_so(what: str) -> None:
    problem = _problem(what)
    assert (problem.path, problem.value) == ("file", repr(what))
    assert "that exists" in problem.expected


def test_what_is_wrong_in_a_file_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(SPEC.replace("command", "comand"))
    with pytest.raises(SpecError) as refused:
        read(str(file), [])
    problem = next(problem for problem in refused.value.problems if problem.nearest == "command")
    assert (problem.path, problem.line) == ("members.a.job.comand", 3)


def test_a_cluster_description(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("hosts: [{name: 'h[0-1]', cpu: 2, mem: 1GiB}]\n")
    described = read_cluster(file)
    assert described is not None
    assert described.hosts[0].name == "h[0-1]"
    assert read_cluster(None) is None
    with pytest.raises(SpecError, match="a file that exists"):
        read_cluster(tmp_path / "none.yaml")


CLUSTER = "hosts: [{name: h, cpu: 4}]\nprofiles:\n  fast: {wrapper: [nice], resreq: 'rusage[cpu=2]', runtime_limit: 1h}\n"


def test_a_group_is_rendered_as_a_cluster_would_run_it(tmp_path: Path) -> None:
    cluster, file = tmp_path / "cluster.yaml", tmp_path / "job.yaml"
    cluster.write_text(CLUSTER)
    file.write_text("name: alone\njob: {command: [train], profile: fast}\n")
    source = read(str(file), ["job.runtime_limit=2h"])
    assert rendered(source, None) == "name: alone\njob:\n  command: [train]\n  profile: fast\n  runtime_limit: 2h\n"
    text, defaults = rendered(source, read_cluster(cluster)).split("# Where no rule")
    assert "main, anything else: fail_group" in defaults
    assert text.splitlines() == [
        "name: alone",
        "job:",
        "  # command: member and profile 'fast'",
        "  command: [nice, train]",
        "  # resreq: profile 'fast'",
        "  resreq: rusage[cpu=2/task]",
        "  runtime_limit: 2h",
    ]


def test_what_a_cluster_finds_wrong_is_told_with_the_file_and_the_line(tmp_path: Path) -> None:
    cluster, file = tmp_path / "cluster.yaml", tmp_path / "job.yaml"
    cluster.write_text(CLUSTER)
    file.write_text("name: alone\njob:\n  command: [train]\n  profile: fats\n")
    with pytest.raises(SpecError, match=r"job.yaml:4: job.profile: .*did you mean 'fast'"):
        rendered(read(str(file), []), read_cluster(cluster))
    cluster.write_text("hosts: [{name: h, cpus: 4}]\n")
    with pytest.raises(SpecError, match=r"cluster.yaml:1: hosts\[0\].cpus"):
        read_cluster(cluster)
