"""What a run reads on this machine is looked at before anything is submitted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from gangflow.cli import running
from gangflow.cli.sources import read
from gangflow.errors import Problem, SpecError
from gangflow.recipes.grpo.lm import build as grpo
from gangflow.recipes.grpo.plot import main as plot_grpo
from gangflow.recipes.lm import inputs, make_problems
from gangflow.recipes.rlhf_ppo import build as rlhf
from gangflow.recipes.rlhf_ppo.plot import main as plot_rlhf
from gangflow.specs.faults import Fault

GOOD = '{"prompt": "a>", "answer": "a", "split": "train"}\n{"prompt": "b>", "answer": "b", "split": "held_out"}\n'


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """Settings with an interpreter and a vllm that are there."""
    vllm = tmp_path / "vllm"
    vllm.write_text("")
    vllm.chmod(0o755)
    return {"python": "/bin/sh", "vllm": str(vllm)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "models" / "8b"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def only(faults: list[Fault]) -> Fault:
    (fault,) = faults
    return fault


def test_what_is_there_is_no_fault(programs: dict[str, str], model: Path, tmp_path: Path) -> None:
    problems = tmp_path / "mine.jsonl"
    problems.write_text(GOOD)
    assert grpo.missing(grpo.Config(**programs)) == []
    assert grpo.missing(grpo.Config(**programs, model=str(model), ref_model=str(model), problems=str(problems))) == []
    assert rlhf.missing(rlhf.Config(**programs)) == []


def test_a_problem_set_that_is_not_shipped_is_refused_anywhere_with_the_nearest() -> None:
    with pytest.raises(SpecError) as refused:
        grpo.Config(problems="spell_backwrd")
    (problem,) = refused.value.problems
    assert (problem.path, problem.value, problem.nearest) == ("problems", "'spell_backwrd'", "spell_backward")
    assert problem.expected.startswith("one of spell_backward")


def test_a_problem_file_that_is_not_there_names_what_is_shipped(programs: dict[str, str]) -> None:
    fault = only(grpo.missing(grpo.Config(**programs, problems="/data/spell_backward_v2.jsonl")))
    assert (fault.loc, fault.value, fault.nearest) == (("problems",), "/data/spell_backward_v2.jsonl", "spell_backward")
    assert "a file of problems on this machine" in fault.expected


@pytest.mark.parametrize(
    ("text", "told"),
    [("{}\n", ":1: prompt: expected a text"), (GOOD.replace("held_out", "train"), "0 held out"), ("", "has no problems")],
)
def test_a_problem_file_is_read_before_the_reward_server_does(
    programs: dict[str, str], tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(text)
    fault = only(grpo.missing(grpo.Config(**programs, problems=str(file))))
    assert fault.loc == ("problems",)
    assert told in fault.expected


def test_a_path_that_is_no_model_folder_says_what_is_there(programs: dict[str, str], model: Path) -> None:
    slip = only(grpo.missing(grpo.Config(**programs, model=f"{model}b")))
    assert (slip.loc, slip.value, slip.nearest) == (("model",), f"{model}b", str(model))
    assert "there is nothing at this path" in slip.expected
    above = only(grpo.missing(grpo.Config(**programs, model=str(model.parent))))
    assert (above.nearest, "config.json" in above.expected) == (str(model), True)
    file = only(grpo.missing(grpo.Config(**programs, ref_model=str(model / "config.json"))))
    assert (file.loc, "there is a file" in file.expected) == (("ref_model",), True)


@pytest.mark.parametrize("key", ["model", "critic_model", "reward_base", "reward_model", "data"])
def test_every_path_of_rlhf_is_looked_at(programs: dict[str, str], key: str) -> None:
    settings: dict[str, Any] = {**programs, key: "/no/such"}
    assert only(rlhf.missing(rlhf.Config(**settings))).loc == (key,)


@pytest.mark.parametrize("recipe", [grpo, rlhf])
def test_programs_that_are_not_there_are_faults(recipe: Any) -> None:
    faults = recipe.missing(recipe.Config(python="/no/python", vllm="/no/vllm"))
    assert [fault.loc for fault in faults] == [("python",), ("vllm",)]
    assert all("make engines" in fault.expected for fault in faults)


def test_this_interpreter_without_torch_trains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "find_spec", lambda _name: None)
    assert "gangflow[rl]" in only(list(inputs.missing_torch("python", sys.executable))).expected
    monkeypatch.setattr(inputs, "find_spec", lambda _name: object())
    assert list(inputs.missing_torch("python", sys.executable)) == []


SETTINGS = ["engine=vllm", "model=/no/such"]


def _refused(address: str, monkeypatch: pytest.MonkeyPatch) -> list[Problem]:
    class Opened(Exception):
        pass

    def opened(*_: object) -> None:
        raise Opened

    monkeypatch.setattr(running, "open_cluster", opened)
    monkeypatch.setattr(running.signal, "signal", lambda *_: None)
    source = read("grpo", SETTINGS)
    try:
        running.run_group(running.Console(quiet=True), source, None, address, "local", False, [], False)
    except SpecError as error:
        return list(error.problems)
    except Opened:
        return []
    raise AssertionError("nothing was opened")


def test_a_run_of_its_own_is_refused_before_a_cluster_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "model" in [problem.path for problem in _refused("", monkeypatch)]


def test_the_hosts_of_another_cluster_may_have_what_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _refused("http://there", monkeypatch) == []
    read("grpo", ["preset=70b-16-hosts"])


def _lacking(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """As if it were not installed."""
    monkeypatch.setitem(sys.modules, module, None)


def test_making_the_problems_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    _lacking(monkeypatch, "reasoning_gym")
    with pytest.raises(SystemExit, match=r"pip install reasoning-gym==0\.1\.25"):
        make_problems.main()


@pytest.mark.parametrize("main", [plot_grpo, plot_rlhf])
def test_a_picture_without_matplotlib_says_which_extra_has_it(
    main: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "reward": 0.5}\n')
    _lacking(monkeypatch, "matplotlib")
    monkeypatch.setattr(sys, "argv", ["plot", str(metrics), str(tmp_path / "out.png")])
    with pytest.raises(SystemExit, match=r"gangflow\[plot\]"):
        main()
