"""A claim that 100 slots share: from the submission until all are READY and the last one runs, beside the same without a claim.

    python tests/benchmarks/claim_shared.py [--repeats 5] [--slots 100]

The controller runs in this process, over a real agent and a real journal, without Ray. Sides: no claim; a folder of the group's
own; a standalone claim that is there already, shared; a model of 8 MiB that is in the host's cache already, one claim for each
slot. Measured: from the submission until the group is RUNNING, and from the placement until the last claim is READY. CPU is
this process's: the controller's, and not the agent's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish

from gangflow.specs.claims import Claim, StandaloneClaim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import ReplicaSet
from gangflow.xce.admission import admit
from gangflow.xce.admission_claims import standalone_plan
from gangflow.xce.cluster_home import ClusterHome
from gangflow.xce.core.events import ClaimChanged, Event, GroupChanged, GroupPlaced
from gangflow.xce.core.inputs import CreateClaim, DeleteClaim, EndGroup, SubmitGroup
from gangflow.xce.core.state import ClaimState, GroupState
from gangflow.xce.hosts.checksums import checksum
from gangflow.xce.runtime import Runtime

LIMIT_S = 120
MODEL_BYTES = 8 << 20


class Case:
    """One kind of claim."""

    def __init__(self, name: str, *claims: Claim) -> None:
        self.claims = claims
        self.running = Side(f"{name}: submitted → RUNNING")
        self.ready = Side(f"{name}: placed → claims READY")


async def follow(runtime: Runtime, after: int, over: Callable[[int, Event], bool]) -> None:
    """The journal's records, with their times, until one of them ends it."""
    async with asyncio.timeout(LIMIT_S):
        async for stamped in runtime.controller.events(after):
            if over(stamped.at_ms, stamped.event):
                return


async def once(runtime: Runtime, cluster: ClusterSpec, case: Case, name: str, slots: int, keep: bool) -> None:
    member = ReplicaSet(["sleep", "600"], replicas=slots, resources={"cpu": 0.05, "mem": 4}, termination_grace="1s")
    group = CoStartGroup(name, members={"engine": member}, claims=case.claims)
    seen: dict[str, int] = {}

    def over(at_ms: int, event: Event) -> bool:
        if isinstance(event, GroupPlaced):
            seen["placed"] = seen["ready"] = at_ms
        elif isinstance(event, ClaimChanged) and event.claim.state is ClaimState.READY:
            seen["ready"] = at_ms
        return isinstance(event, GroupChanged) and event.state is GroupState.RUNNING

    after = runtime.controller.seq
    wall, cpu = time.perf_counter(), time.process_time()
    reply = await runtime.controller.command(SubmitGroup(admit(group, cluster)))
    identity = str(dict(reply.fields)["id"])
    await follow(runtime, after, over)
    if keep:
        case.running.add((time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000)
        case.ready.add(seen["ready"] - seen["placed"])
    await runtime.controller.command(EndGroup(identity, GroupState.CANCELLED))

    def gone(at_ms: int, event: Event) -> bool:
        state = runtime.controller.state
        kept = any(claim.group == identity and claim.state is not ClaimState.GONE for claim in state.claims.values())
        return state.groups[identity].state.terminal and not kept

    await follow(runtime, runtime.controller.seq - 1, gone)


async def alone(runtime: Runtime, spec: StandaloneClaim) -> None:
    after = runtime.controller.seq
    await runtime.controller.command(CreateClaim(standalone_plan(spec)))
    await follow(runtime, after, lambda _, event: isinstance(event, ClaimChanged) and event.claim.state is ClaimState.READY)


async def measure(repeats: int, slots: int, folder: Path, cases: list[Case]) -> None:
    cluster = ClusterSpec(hosts=[HostSpec("h0", cpu=64, mem="64GiB", gpus=0)])
    runtime = Runtime(ClusterHome(folder / "home"), cluster)
    await runtime.start()
    try:
        await alone(runtime, StandaloneClaim("dataset"))
        for turn in range(repeats + 1):
            for number, case in enumerate(cases):
                await once(runtime, cluster, case, f"case-{number}-{turn}", slots, keep=turn > 0)
        await runtime.controller.command(DeleteClaim("dataset"))
    finally:
        await runtime.take_down()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--slots", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gf-") as folder:
        source = Path(folder) / "model.bin"
        source.write_bytes(bytes(MODEL_BYTES))
        parameters: dict[str, Any] = {"source": str(source), "sha256": checksum(source)}
        cases = [
            Case("no claim"),
            Case("directory", Claim("data")),
            Case("standalone", Claim("data", uses="dataset")),
            Case("model", Claim("weights", provider="model", parameters=parameters)),
        ]
        asyncio.run(measure(options.repeats, options.slots, Path(folder), cases))
    sides = [side for case in cases for side in (case.running, case.ready)]
    facts = {"slots": options.slots}
    lines = [
        f"{sides[number].name.split(':')[0]}: {cases[number // 2].running.median - cases[0].running.median:+.0f} ms "
        "beside no claim"
        for number in range(2, len(sides), 2)
    ]
    publish("claim_shared", f"A claim shared by {options.slots} slots", sides, lines, facts)


if __name__ == "__main__":
    main()
