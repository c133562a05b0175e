"""Property 40: the contract fuzzed from its own document, no 5xx, no hang, answers that are what the document says they are.

`FUZZ_EXAMPLES` examples of every call (some seconds in all by default; `make nightly` runs many more).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from gangflow.xce.rest.server import create_app
from tests.conformance.served import ADMIN, Served, served
from tests.unit.xce.rest.fake import FakeController

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "12"))


def no_fault(ctx: Any, response: Any, case: Any) -> None:
    """No 5xx but what says that it is meant: not enforced yet, or not now (and when to come again)."""
    meant = response.status_code == 501 or (response.status_code == 503 and "retry-after" in response.headers)
    assert response.status_code < 500 or meant, f"{response.status_code}: {response.text}"


CHECKS = [
    no_fault, status_code_conformance, content_type_conformance, response_schema_conformance, ignored_auth,
    negative_data_rejection,
]  # fmt: skip
THERE = {
    "group": ["g1", "g2", "g3", "demo"], "member": ["actor", "rollout", "big"], "index": [0, 1, 2], "host": ["h0", "h1"],
    "claim": ["data", "g1/ckpt"], "change": ["c1"], "name": ["x", "a/b"],
}  # fmt: skip
SCHEMA = schemathesis.openapi.from_dict(create_app(FakeController(), admin_token=ADMIN).openapi())
CALLS = [operation.ok() for operation in SCHEMA.get_all_operations()]
HURTFUL = {
    "../../etc/passwd",
    "..%2f..",
    "%2e%2e",
    "a\0b",
    "$(touch /tmp/x)",
    "`id`",
    "; rm -rf x",
    "é" * 300,
    "\ud7ff",
    "0" * 5_000,
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


@pytest.mark.parametrize("operation", CALLS, ids=lambda operation: operation.label)
def test_every_call_bears_everything(operation: Any, service: Served) -> None:
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize="FUZZ_EXAMPLES" not in os.environ,
        phases=(Phase.explicit, Phase.generate), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @hypothesis.given(data=st.data())
    def bears(data: st.DataObject) -> None:
        case = data.draw(operation.as_strategy())
        for name in case.path_parameters or {}:
            chosen = data.draw(st.sampled_from([None, *THERE[name], *sorted(HURTFUL)]))
            if chosen is not None:
                case.path_parameters[name] = chosen
        # Streams do not end by themselves: they have tests of their own.
        if operation.path == "/v1/events":
            case.query["until"] = 0
        case.query.pop("follow", None)
        case.call_and_validate(base_url=service.url, headers={"Authorization": f"Bearer {ADMIN}"}, timeout=20, checks=CHECKS)

    service.refill()
    bears()
    assert service.world.controller.trouble is None
