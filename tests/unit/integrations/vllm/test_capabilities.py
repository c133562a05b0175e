"""What a server can do, from what it lists."""

from __future__ import annotations

import pytest

from gangflow.integrations.vllm import capabilities
from gangflow.integrations.vllm.capabilities import (
    ABORT,
    FOUR_PHASES,
    PAUSE,
    RELOAD,
    SET_VERSION,
    SLEEP,
    TOKENS,
    Capabilities,
)
from tests.unit.integrations.vllm.fake_vllm import DEVELOPMENT, OPENAPI

VERSION = {"version": "0.32.0"}


def without(*paths: str) -> Capabilities:
    kept = {path: methods for path, methods in OPENAPI["paths"].items() if path not in paths}
    return capabilities.read({**OPENAPI, "paths": kept}, VERSION)


def test_a_server_in_development_mode_with_scale_out_can_do_all() -> None:
    able = without()
    assert able.vllm == "0.32.0"
    assert all((able.reload, able.transfer, able.versions, able.sleep, able.tokens, able.abort, able.spans, able.reset_running))
    assert able.pause_modes == {"wait", "keep", "abort"}
    assert {"temperature", "top_p", "max_tokens", "stop_token_ids"} <= able.sampling & able.completion
    assert able.lacks(RELOAD, PAUSE, ABORT, TOKENS) == ""


def test_one_without_development_mode_says_how_to_get_it() -> None:
    able = without(*DEVELOPMENT)
    assert not any((able.reload, able.transfer, able.versions, able.sleep, able.abort, able.reset_running, able.pause_modes))
    assert able.tokens
    assert able.lacks(PAUSE, RELOAD) == (
        "this vLLM 0.32.0 has no /collective_rpc, /pause: start it with VLLM_SERVER_DEV_MODE=1"
    )


def test_one_without_scale_out_says_how_to_get_it() -> None:
    able = without(TOKENS)
    assert not able.tokens
    assert able.lacks(TOKENS).endswith("start it with --enable-scale-out")


@pytest.mark.parametrize("path", [*FOUR_PHASES, SET_VERSION, SLEEP])
def test_half_of_a_capability_is_none(path: str) -> None:
    able = without(path)
    assert (able.transfer, able.versions, able.sleep) == (path not in FOUR_PHASES, path != SET_VERSION, path != SLEEP)


def test_a_pause_without_modes_aborts() -> None:
    paths = {**OPENAPI["paths"], PAUSE: {"post": {}}}
    assert capabilities.read({"paths": paths}, VERSION).pause_modes == {"abort"}


def test_a_sampling_parameter_that_would_be_ignored_is_named_with_the_nearest() -> None:
    assert without().unknown({"temprature": 1}) == "vLLM 0.32.0 has no sampling parameter 'temprature'; nearest: temperature"
    assert without().unknown({"temperature": 1, "structured_outputs": {}}) == ""
    assert "vllm_xargs" in without(TOKENS).completion
    assert without(TOKENS).unknown({"vllm_xargs": {}}) == ""
    assert "sampling parameter 'vllm_xargs'" in without().unknown({"vllm_xargs": {}})


def test_names_are_not_judged_by_a_server_that_lists_none() -> None:
    assert capabilities.read({"paths": {TOKENS: {}}}, VERSION).unknown({"anything": 1}) == ""


def test_a_declaration_by_reference_is_followed() -> None:
    schemas = {
        "GenerateRequest": {"properties": {"sampling_params": {"$ref": "#/components/schemas/SamplingParams"}}},
        "SamplingParams": {"properties": {"temperature": {}}},
    }
    able = capabilities.read({"paths": {TOKENS: {}}, "components": {"schemas": schemas}}, VERSION)
    assert able.sampling == {"temperature"}


@pytest.mark.parametrize(("openapi", "version"), [({}, VERSION), ({"paths": []}, VERSION), ({"paths": {}}, {})])
def test_what_is_no_vllm_is_said_to_be_none(openapi: dict[str, object], version: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="no vLLM server"):
        capabilities.read(openapi, version)
