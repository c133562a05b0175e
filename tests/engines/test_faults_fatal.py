"""Broken for good: the group fails, within its deadlines and with the reason, and nothing of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engines import recoveries
from tests.engines.fault_fixtures import broken_world
from tests.engines.fault_world import gone

pytestmark = pytest.mark.filterwarnings("ignore:Exception ignored in. <function Popen:pytest.PytestUnraisableExceptionWarning")


def test_weights_that_nobody_can_load_fail_the_group_with_that_reason(tiny_model: Path, tmp_path: Path) -> None:
    """Scenario 50: the file of the newest version is not what was published, and stays so. Engines are restarted in vain; the
    group FAILED for want of a quorum, and says which file it was; no sample was made of it, and the ledger is that of the
    checkpoint."""
    with broken_world(tiny_model, tmp_path, sync_timeout="5s", quorum_timeout="30s") as world:
        at = world.now()
        engines = {f"{name} {index}": process for index in (0, 1) for name, process in world.tree("rollout", index).items()}
        head, _ = world.spoil_next_weights()
        broken = world.now()
        view = world.run.wait(timeout=240, check=False)
        assert (view.state, view.cause) == ("FAILED", "no_quorum")
        assert f"{head.path} has sha256" in view.message
        assert head.weights.sha256[:12] in view.message
        for index in (0, 1):
            assert world.judged(at, "rollout", index, "stale").data["action"] == "restart_member"
        assert not [r for _, value in world.verdicts(at) for r in value.rollouts if r.weights == head.weights]
        assert not [entry for entry in world.commits() if any(s["weights"] == str(head.weights) for s in entry["samples"])]
        world.check_books()
        assert gone(engines)
        recoveries.note(
            "weights that stay broken", did="the group failed: no_quorum (here after 30s)", noticed_s=None,
            back_s=(view.ended_ms - broken.at_ms) / 1000, order=17,
        )  # fmt: skip
