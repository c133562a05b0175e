"""How a vLLM server is started: its command line as a shell really makes it, its environment, the replica set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gangflow.errors import SpecError
from gangflow.integrations.vllm import launch
from gangflow.integrations.vllm.launch import VllmServer, find_vllm
from gangflow.specs.probes import ExecProbe, HttpProbe

SHOW = "import json, os, sys; print(json.dumps([os.getpid(), sys.argv[1:]]))"


@pytest.fixture
def vllm(tmp_path: Path) -> str:
    """A `vllm` that says who it is and what it was told."""
    file = tmp_path / "some where" / "vllm"
    file.parent.mkdir()
    file.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{SHOW}' \"$@\"\n")
    file.chmod(0o755)
    return str(file)


def told(server: VllmServer, environment: Mapping[str, str]) -> list[str]:
    """The arguments that `vllm` gets; it is the very process that was started."""
    process = subprocess.Popen(
        server.command_line(), env={"PATH": os.environ["PATH"], **environment}, stdout=subprocess.PIPE, text=True
    )
    out, _ = process.communicate(timeout=30)
    pid, arguments = json.loads(out)
    assert pid == process.pid
    return list(arguments)


def test_on_a_gpu(vllm: str) -> None:
    server = VllmServer("/models/8b", tensor_parallel=4, max_model_len=4096, gpu_memory_utilization=0.9, command=vllm)
    assert told(server, {"XCE_PORT_HTTP": "30001"}) == [
        *("serve", "/models/8b", "--port", "30001", "--served-model-name", "policy", "--enable-scale-out"),
        *("--scheduling-policy", "priority", "--tensor-parallel-size", "4", "--max-model-len", "4096"),
        *("--gpu-memory-utilization", "0.9"),
    ]
    assert server.environment() == {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }


def test_on_a_cpu(vllm: str) -> None:
    server = VllmServer.on_cpu("hub/name", kv_blocks=512, threads=2, max_num_seqs=64, command=vllm)
    assert told(server, {"XCE_PORT_HTTP": "1"}) == [
        *("serve", "hub/name", "--port", "1", "--served-model-name", "policy", "--enable-scale-out"),
        *("--scheduling-policy", "priority", "--dtype", "float32", "--max-num-seqs", "64"),
        *("--num-gpu-blocks-override", "512", "--enforce-eager"),
    ]
    environment = server.environment()
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "1"
    assert environment["TORCHDYNAMO_DISABLE"] == "1"
    assert environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "its worker would spin"
    assert "VLLM_ENABLE_V1_MULTIPROCESSING" not in VllmServer.on_cpu("m", tensor_parallel=2).environment()
    assert "HF_HUB_OFFLINE" not in environment
    assert "TORCHDYNAMO_DISABLE" not in VllmServer.on_cpu("m", eager=False).environment()


@pytest.mark.parametrize(("model", "found"), [("", "/claims/my model"), ("tiny one", "/claims/my model/tiny one")])
def test_a_model_in_a_claim(vllm: str, model: str, found: str) -> None:
    server = VllmServer(model, model_claim="the-model", command=vllm)
    environment = {"XCE_PORT_HTTP": "1", "XCE_CLAIM_THE_MODEL": "/claims/my model"}
    assert told(server, environment)[:2] == ["serve", found]
    assert server.environment()["HF_HUB_OFFLINE"] == "1"


def test_words_reach_vllm_as_they_are(vllm: str) -> None:
    words = ["--override-generation-config", '{"temperature": 1, "x": "$HOME `ls` \'q\'"}', "--max-log-len=3"]
    assert told(VllmServer("m", command=vllm, extra_args=words), {"XCE_PORT_HTTP": "1"})[-3:] == words


@pytest.mark.parametrize(("rank", "headless"), [("0", []), ("1", ["--headless"])])
def test_over_two_hosts(vllm: str, rank: str, headless: list[str]) -> None:
    server = VllmServer("/m", tensor_parallel=8, hosts=2, command=vllm)
    environment = {"XCE_PORT_HTTP": "1", "PET_NODE_RANK": rank, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    found = told(server, environment)
    assert found[-6 - len(headless) :] == [
        *("--node-rank", rank, "--master-addr", "10.0.0.1", "--master-port", "29500"),
        *headless,
    ]
    assert found[found.index("--nnodes") + 1] == "2"
    member = server.replica_set(3)
    assert (member.tasks, member.ports, member.replicas) == (2, ("http", "rendezvous"), 3)
    assert member.resources is not None
    assert member.resources.gpus == 4_000
    assert isinstance(member.ready, ExecProbe)


@pytest.mark.parametrize(("task", "code"), [("0", 1), ("1", 0)])
def test_only_the_task_that_answers_is_asked(task: str, code: int) -> None:
    ready = VllmServer("/m", tensor_parallel=2, hosts=2, command="vllm").replica_set().ready
    assert isinstance(ready, ExecProbe)
    environment = {"PATH": os.environ["PATH"], "XCE_TASK": task, "XCE_PORT_HTTP": "9"}
    assert subprocess.run(ready.command, env=environment, capture_output=True, timeout=30, check=False).returncode == code


def test_the_replica_set() -> None:
    member = VllmServer("/m", tensor_parallel=2, command="vllm").replica_set(
        2, resources={"cpu": 4}, min_replicas=1, environment={"VLLM_LOGGING_LEVEL": "DEBUG", "HF_HUB_OFFLINE": "0"}
    )
    assert (member.replicas, member.min_replicas, member.ports) == (2, 1, ("http",))
    assert member.resources is not None
    assert (member.resources.cpu, member.resources.gpus) == (4_000, 2_000)
    assert isinstance(member.ready, HttpProbe)
    assert (member.ready.port, member.ready.path) == ("http", "/health")
    assert member.ready_timeout == 30 * 60_000
    assert member.live is None, "its health is the coordinator's to judge"
    assert (member.environment["HF_HUB_OFFLINE"], member.environment["VLLM_LOGGING_LEVEL"]) == ("0", "DEBUG")
    other = VllmServer.on_cpu("/m", command="vllm").replica_set(ports=["api-port"], ready_timeout="1m")
    assert other.resources is None
    assert other.ready_timeout == 60_000
    assert '--port "$XCE_PORT_API_PORT"' in other.command[2]
    assert isinstance(other.ready, HttpProbe)
    assert other.ready.port == "api-port"


@pytest.mark.parametrize(
    ("fields", "path", "said"),
    [
        ({}, "model", "a folder or a name, or `model_claim`"),
        ({"model": "/m", "model_claim": "c"}, "model", "a path below the claim `c`"),
        ({"model": "m", "tensor_parallel": 4, "hosts": 3}, "hosts", "a divisor of `tensor_parallel`, 4"),
        ({"model": "m", "kv_cache": "512MiB"}, "kv_cache", "whole GiB"),
        ({"model": "m", "extra_args": ["--dtype", "half"]}, "extra_args[0]", "it is the field `dtype`"),
        ({"model": "m", "extra_args": ["--max_model_len=3"]}, "extra_args[0]", "it is the field `max_model_len`"),
        ({"model": "m", "extra_args": ["--x", "--port=3"]}, "extra_args[1]", "it is set for every rollout"),
        ({"model": "m", "gpu_memory_utilization": 1.5}, "gpu_memory_utilization", "1.5"),
        ({"model": "m", "tensor_paralel": 2}, "tensor_paralel", "tensor_parallel"),
    ],
)
def test_what_cannot_be_is_said_with_its_path(fields: dict[str, Any], path: str, said: str) -> None:
    with pytest.raises(SpecError) as error:
        VllmServer(**fields)
    assert path in str(error.value)
    assert said in str(error.value)


def test_the_command_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def command(*parts: str) -> str:
        file = tmp_path.joinpath(*parts)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n")
        file.chmod(0o755)
        return str(file)

    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv/bin/python"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    assert find_vllm({}) == "vllm"
    sibling = command(".venv-vllm", "bin", "vllm")
    assert find_vllm({}) == sibling
    beside = command(".venv", "bin", "vllm")
    assert find_vllm({}) == beside
    assert find_vllm({launch.VARIABLE: "/opt/vllm"}) == "/opt/vllm"
    assert VllmServer("m").command_line()[3] == beside
