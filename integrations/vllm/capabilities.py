"""What one vLLM server can do, read from its `/openapi.json` and `/version`: a server lists the paths that it was started with.

A server without development mode has no pause and no reload, one without `--enable-scale-out` no token API. That is known
before the first verb, and a verb that needs what is not there is refused with the option that would bring it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gangflow.specs.faults import nearest

FOUR_PHASES = ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights", "/finish_weight_update")
"""vLLM's own way to bring weights by a collective."""
DEVELOPMENT = "start it with VLLM_SERVER_DEV_MODE=1"
SCALE_OUT = "start it with --enable-scale-out"

RELOAD = "/collective_rpc"
PAUSE = "/pause"
RESUME = "/resume"
ABORT = "/abort_requests"
RESET = "/reset_prefix_cache"
SET_VERSION = "/update_weight_version"
VERSION = "/weight_info"
SLEEP = "/sleep"
WAKE = "/wake_up"
TOKENS = "/inference/v1/generate"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Of one server, for as long as its process lives."""

    vllm: str
    """Its version, as it says."""
    paths: frozenset[str] = frozenset()
    """All that it answers."""
    pause_modes: frozenset[str] = frozenset()
    """Of `abort`, `wait` and `keep`; empty: it cannot pause."""
    reset_running: bool = False
    """Resetting the prefix cache can also have requests that stand still computed anew."""
    spans: bool = False
    """With each output it says which weights sampled which tokens."""
    sampling: frozenset[str] = frozenset()
    """Names that the token API takes as sampling parameters; it ignores others in silence. Empty: not known."""
    completion: frozenset[str] = frozenset()
    """Names that /v1/completions takes. Empty: not known."""

    @property
    def reload(self) -> bool:
        """Weights from a path."""
        return RELOAD in self.paths

    @property
    def transfer(self) -> bool:
        """Weights by a collective of vLLM's own: init, start, update, finish."""
        return self.paths.issuperset(FOUR_PHASES)

    @property
    def versions(self) -> bool:
        """It keeps a name for its weights, and says it."""
        return self.paths.issuperset((SET_VERSION, VERSION))

    @property
    def sleep(self) -> bool:
        """It can give memory back."""
        return self.paths.issuperset((SLEEP, WAKE))

    @property
    def tokens(self) -> bool:
        """Token ids in, token ids out."""
        return TOKENS in self.paths

    @property
    def abort(self) -> bool:
        """All that runs, at once."""
        return ABORT in self.paths

    def lacks(self, *paths: str) -> str:
        """Why a verb that needs these paths cannot be done; empty when it can."""
        missing = sorted(set(paths) - self.paths)
        if not missing:
            return ""
        remedy = SCALE_OUT if missing == [TOKENS] else DEVELOPMENT
        return f"this vLLM {self.vllm} has no {', '.join(missing)}: {remedy}"

    def unknown(self, names: Iterable[str]) -> str:
        """What is wrong with these sampling parameters; empty when the server knows them all."""
        known = self.sampling if self.tokens else self.completion
        for name in names:
            if known and name not in known:
                near = nearest(name, sorted(known))
                return f"vLLM {self.vllm} has no sampling parameter {name!r}" + (f"; nearest: {near}" if near else "")
        return ""


def read(openapi: Mapping[str, Any], version: Mapping[str, Any]) -> Capabilities:
    """From the documents `/openapi.json` and `/version`. ValueError when they are not a vLLM server's."""
    paths, vllm = openapi.get("paths"), version.get("version")
    if not isinstance(paths, Mapping) or not isinstance(vllm, str):
        raise ValueError("no vLLM server: /openapi.json lists no paths, or /version says none")
    schemas = _dig(openapi, "components", "schemas")
    asked = _dig(schemas, "GenerateRequest", "properties", "sampling_params")
    if "$ref" in asked:
        asked = _dig(schemas, str(asked["$ref"]).rpartition("/")[2])
    return Capabilities(
        vllm=vllm,
        paths=frozenset(paths),
        pause_modes=frozenset(_choices(_parameter(paths, PAUSE, "mode"))) if PAUSE in paths else frozenset(),
        reset_running=bool(_parameter(paths, RESET, "reset_running_requests")),
        spans="weight_versions" in _dig(schemas, "GenerateTokensChoice", "properties"),
        sampling=frozenset(_dig(asked, "properties")),
        completion=frozenset(_dig(schemas, "CompletionRequest", "properties")),
    )


def _parameter(paths: Mapping[str, Any], path: str, name: str) -> Mapping[str, Any]:
    """The declaration of a query parameter of a POST; empty when there is none."""
    given = _dig(paths, path, "post").get("parameters")
    for parameter in given if isinstance(given, list) else []:
        if isinstance(parameter, Mapping) and parameter.get("name") == name:
            return parameter
    return {}


def _choices(parameter: Mapping[str, Any]) -> list[str]:
    # A /pause without modes is of a vLLM that knew one only.
    given = _dig(parameter, "schema").get("enum")
    return [str(one) for one in given] if isinstance(given, list) else ["abort"]


def _dig(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The mapping that lies there; an empty one when nothing does."""
    for key in keys:
        found = document.get(key)
        if not isinstance(found, Mapping):
            return {}
        document = found
    return document
