"""The coordinator's spec: its engine, and what becomes of running requests at a push."""

from __future__ import annotations

from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.specs.document import validate
from gangflow.specs.group import CoStartGroup

GROUP: dict[str, Any] = {
    "name": "g",
    "members": {
        "actor": {"job": {"command": ["train"]}},
        "rollout": {"replica_set": {"command": ["vllm"], "replicas": 2, "ports": ["http"]}},
    },
}


@pytest.mark.parametrize("engine", ["embedded", "vllm"])
def test_the_engines_that_come_with_gangflow(engine: str) -> None:
    group = validate(CoStartGroup, {**GROUP, "coordinator": {"engine": engine}})
    assert group.coordinator is not None
    assert group.coordinator.engine == engine


@pytest.mark.parametrize(
    ("coordinator", "message"),
    [
        ({"engine": "vlm"}, r"coordinator\.engine: expected one of embedded, vllm \(got 'vlm'\).*did you mean 'vllm'"),
        ({"engine": "embedded", "pause": "keep", "max_staleness": 1}, r"coordinator\.pause: .*cannot freeze"),
        ({"engine": "vllm", "pause": "keep"}, r"coordinator\.pause: .*too old"),
        ({"engine": "vllm", "probe_tolerance": 0}, r"coordinator\.probe_tolerance"),
        ({"pause": "kep"}, r"coordinator\.pause"),
        ({"engine": "vllm", "probe_mean_tolerance": 0}, r"coordinator\.probe_mean_tolerance"),
        (
            {"quorum_timeout": "30m"},
            r"coordinator\.no_progress_timeout: expected more than `quorum_timeout`, 30m \(got '?10m",
        ),
        ({"hang_timeout": "1h"}, r"coordinator\.no_progress_timeout: expected more than `hang_timeout`, 1h"),
    ],
)
def test_what_makes_no_sense_says_where_and_why(coordinator: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        validate(CoStartGroup, {**GROUP, "coordinator": coordinator})
