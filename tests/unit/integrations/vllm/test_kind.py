"""Both sides of the engine, by its name."""

from __future__ import annotations

import subprocess
import sys

from gangflow import engines
from gangflow.integrations.vllm.adapter import VllmEngine
from gangflow.integrations.vllm.wire import VllmWire


async def test_the_name_gives_the_adapter_and_the_wire() -> None:
    kind = engines.kind("vllm")
    engine, wire = kind.adapter("http://rollout", 3, 2), kind.wire()
    assert isinstance(engine, VllmEngine)
    assert (engine.url, engine.incarnation) == ("http://rollout", 3)
    assert isinstance(wire, VllmWire)
    await engine.close()
    await wire.close()


def test_neither_side_needs_torch_or_vllm() -> None:
    """They run in the coordinator and in the actor's environment, which has no vLLM; specs are rendered without torch."""
    program = (
        "import sys; sys.modules['torch'] = sys.modules['vllm'] = None\n"
        "from gangflow import engines; engines.kind('vllm').wire()\n"
        "from gangflow.integrations.vllm.launch import VllmServer; VllmServer('m').replica_set()"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
