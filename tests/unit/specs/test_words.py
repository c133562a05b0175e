"""The words of specs are the words of the core: neither side may gain one alone."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

from gangflow.specs.claims import Claim
from gangflow.specs.failure import RESTARTS, ActionName, CauseName
from gangflow.specs.probes import ExecProbe, FileProbe, HttpProbe, TcpProbe
from gangflow.xce.core.plan import Access, Action, Cause, ProbeKind
from gangflow.xce.core.policy import RESTARTS as CORE_RESTARTS


def test_causes_actions_and_probes_are_those_of_the_core() -> None:
    assert get_args(CauseName) == tuple(cause.value for cause in Cause)
    assert get_args(ActionName) == tuple(action.value for action in Action)
    assert set(RESTARTS) == {action.value for action in CORE_RESTARTS}
    assert {probe.tag for probe in (HttpProbe, TcpProbe, ExecProbe, FileProbe)} == {kind.value for kind in ProbeKind}
    assert get_args(Claim.model_fields["access"].annotation) == tuple(access.value for access in Access)


def test_a_group_is_imported_without_the_heavy_libraries() -> None:
    """`from gangflow import CoStartGroup` pays for pydantic, and for nothing that only documents or resreqs need."""
    code = (
        "import sys; from gangflow import CoStartGroup; heavy = ('yaml', 'lark', 'numpy', 'ray', 'httpx', 'asyncio');"
        "print([name for name in heavy if name in sys.modules], CoStartGroup.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] CoStartGroup"
