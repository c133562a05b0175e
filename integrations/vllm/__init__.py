"""vLLM as a rollout engine: the coordinator's adapter, the SDK's wire, and how a server is started. See README.md here."""

from gangflow.engines import EngineKind
from gangflow.integrations.vllm.adapter import VllmEngines
from gangflow.integrations.vllm.transport import by_path
from gangflow.integrations.vllm.wire import VllmWire

KIND = EngineKind(VllmEngines(by_path()), VllmWire)
"""For `gangflow.engines`: weights by path."""
