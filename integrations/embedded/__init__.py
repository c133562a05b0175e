"""The embedded engine: a rollout server around a policy of one's own (`server`), and its adapter (`adapter`).

HTTP, JSON: GET /health, GET /version, POST /generate (see `gangflow.member.wire`), and under a coordinator's term
POST /pause {mode}, /resume, /abort, /load {path, sha256, weights}, /release.
"""

from gangflow.engines import EngineKind
from gangflow.integrations.embedded.adapter import EmbeddedEngine
from gangflow.member.wire import HttpWire

KIND = EngineKind(EmbeddedEngine, HttpWire)
"""For `gangflow.engines`."""
