"""The run's files."""

import json
import os
from pathlib import Path

from gangflow.recipes.grpo.plot import read_metrics
from gangflow.recipes.services.run_folder import KEPT_WEIGHTS, RunFolder


def test_only_the_newest_weights_stay_and_the_head_always(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, 1, suffix=".npz")
    paths = [folder.weights(version) for version in range(7)]
    for age, path in enumerate(paths):
        path.write_bytes(b"w")
        os.utime(path, ns=(age, age))
    folder.forget_weights(paths[0])
    assert {path for path in paths if path.exists()} == {paths[0], *paths[-KEPT_WEIGHTS:]}


def test_an_old_checkpoint_goes_with_its_ledger(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, 1, suffix=".npz")
    paths = [folder.checkpoint(step) for step in (0, 10, 20)]
    for age, path in enumerate(paths):
        for file in (path, path.with_name(f"{path.name}.ledger.json")):
            file.write_bytes(b"c")
            os.utime(file, ns=(age, age))
    folder.forget_checkpoints(paths[2])
    assert sorted(path.name for path in paths[0].parent.iterdir()) == [
        "step-000010-i1.npz",
        "step-000010-i1.npz.ledger.json",
        "step-000020-i1.npz",
        "step-000020-i1.npz.ledger.json",
    ]


def test_two_lives_of_a_step_have_two_files(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path, 1), RunFolder(tmp_path, 2)
    assert first.checkpoint(10) != second.checkpoint(10)
    assert first.weights(10) != second.weights(10)


def test_a_line_that_a_kill_cut_short_spoils_no_other(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, 1, suffix=".npz")
    folder.record({"step": 1, "reward": 0.1})
    with open(folder.metrics, "a") as out:
        out.write('{"step": 2, "rew')
    folder.record({"step": 2, "reward": 0.2})
    folder.record({"step": 3, "reward": 0.3})
    assert [entry["reward"] for entry in read_metrics(folder.metrics)] == [0.1, 0.2, 0.3]


def test_the_result_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, 1, suffix=".npz")
    folder.finish({"accuracy": 0.5})
    folder.finish({"accuracy": 0.9})
    assert json.loads(folder.result.read_text()) == {"accuracy": 0.9}
    assert not list(tmp_path.glob(".*"))


def test_checkpoints_and_weights_may_be_folders(tmp_path: Path) -> None:
    """As those of a language model are: they go with what is in them, and their names have no suffix."""
    folder = RunFolder(tmp_path, 1, kept_weights=2, kept_checkpoints=1)
    paths = [folder.weights(version) for version in range(4)] + [folder.checkpoint(step) for step in (0, 5)]
    for age, path in enumerate(paths):
        path.mkdir()
        (path / "model.safetensors").write_bytes(b"w")
        os.utime(path, ns=(age, age))
    ledger = paths[4].with_name(f"{paths[4].name}.ledger.json")
    ledger.write_text("{}")
    folder.forget_weights(paths[3])
    folder.forget_checkpoints(paths[5])
    assert [path for path in paths if path.exists()] == [paths[2], paths[3], paths[5]]
    assert not ledger.exists()


def test_a_full_disk_is_freed_of_all_but_what_others_may_still_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, 1)
    paths = [folder.weights(1), folder.weights(2), folder.checkpoint(0), folder.checkpoint(5)]
    for path in paths:
        path.mkdir()
    folder.free(paths[2], paths[1])
    assert [path for path in paths if path.exists()] == [paths[1], paths[2]]
    folder.free(None, None)
    assert not any(path.exists() for path in paths)


def test_what_an_earlier_life_left_unfinished_is_removed(tmp_path: Path) -> None:
    first = RunFolder(tmp_path, 1)
    unfinished = first.weights(3).with_name(".i1-v000003.99")
    unfinished.mkdir()
    (unfinished / "model.safetensors").write_bytes(b"half")
    kept = first.weights(2)
    kept.mkdir()
    RunFolder(tmp_path, 2)
    assert not unfinished.exists()
    assert kept.exists()
