"""How a vLLM server is started as a rollout: its options, its command line and environment, and the replica set around it.

Plain `vllm serve`, with what an RL run needs of it switched on: the development endpoints (pause, reload, weight version) and
the token API. The process that XCE starts is vLLM's own API server (`exec`), so that its end is the slot's end and the host
agent takes down what vLLM started below it, whichever of its processes died first.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from gangflow.specs.base import Flag, Name, Spec, Text, Whole, check
from gangflow.specs.faults import Fault
from gangflow.specs.member import ReplicaSet
from gangflow.specs.probes import ExecProbe, HttpProbe
from gangflow.specs.quantity import Memory, render_memory

PORT = "http"
"""The port of the replica set that the engine's verbs and the requests for samples go to."""
RENDEZVOUS = "rendezvous"
"""The port where the tasks of an engine over several hosts meet."""
VARIABLE = "GANGFLOW_VLLM"
"""The environment variable that says where the `vllm` command is."""
SIBLING = ".venv-vllm"
"""The virtual environment of vLLM beside that of gangflow: the two cannot share one."""

READY_TIMEOUT = {"cpu": "10m", "gpu": "30m"}
"""From the start to READY: imports, weights from storage, compilation and CUDA graphs."""

_OWN = {
    "--model": "model",
    "--served-model-name": "served_name",
    "--dtype": "dtype",
    "--tensor-parallel-size": "tensor_parallel",
    "-tp": "tensor_parallel",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--num-gpu-blocks-override": "kv_blocks",
    "--enforce-eager": "eager",
    "--enable-sleep-mode": "sleep_mode",
    "--logprobs-mode": "logprobs_mode",
    "--seed": "seed",
    "--host": "host",
}
"""Options of the command line that are fields here."""
_SET_HERE = (
    *("--port", "--enable-scale-out", "--scheduling-policy"),
    *("--nnodes", "--node-rank", "--master-addr", "--master-port", "--headless"),
)
"""Options that every server gets, or that its place decides."""

_MEET = 'set -- "$@" --node-rank "$PET_NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
_ANSWERS = 'import os, urllib.request as ask; ask.urlopen("http://{host}:" + os.environ["{port}"] + "/health", timeout=4)'


def find_vllm(environment: Mapping[str, str] = os.environ) -> str:
    """The `vllm` command: `$GANGFLOW_VLLM`, else beside this interpreter, else in `.venv-vllm` beside this environment, else
    the first of `$PATH` on the host where it runs."""
    given = environment.get(VARIABLE)
    if given:
        return given
    for folder in (Path(sys.executable).parent, Path(sys.prefix).parent / SIBLING / "bin"):
        found = shutil.which("vllm", path=str(folder))
        if found:
            return found
    return "vllm"


class VllmServer(Spec):
    """One `vllm serve`, as an RL group wants it."""

    positional: ClassVar[tuple[str, ...]] = ("model",)

    model: Text = ""
    """The first weights and the tokenizer: a folder, or a name on the hub; below `model_claim`, if that is given."""
    model_claim: Name | None = None
    """The claim of the group (or of the member) in which the model lies."""
    served_name: Text = "policy"
    """Under which it answers."""
    device: Literal["gpu", "cpu"] = "gpu"
    """`cpu` needs a vLLM that was built for CPUs."""
    dtype: Text = ""
    """Of weights and activations; the model's own on a GPU, float32 on a CPU, when left out."""
    tensor_parallel: Annotated[Whole, Field(ge=1)] = 1
    """GPUs that share the model."""
    hosts: Annotated[Whole, Field(ge=1)] = 1
    """Over which those GPUs are spread: each slot has a task on each, and the first of them answers."""
    max_model_len: Annotated[Whole, Field(ge=1)] | None = None
    """Prompt and answer, in tokens."""
    max_num_seqs: Annotated[Whole, Field(ge=1)] | None = None
    """Sequences that it works on at once; also the most samples of one prompt."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Part of a GPU's memory that it takes."""
    kv_cache: Memory = 1024
    """On a CPU: room for keys and values, in whole GiB."""
    kv_blocks: Annotated[Whole, Field(ge=1)] | None = None
    """Blocks of the cache, in place of what it measures."""
    threads: Annotated[Whole, Field(ge=1)] = 1
    """On a CPU: of its computing."""
    eager: Flag | None = None
    """No compilation, no CUDA graphs: starts sooner, runs slower. On a CPU unless said otherwise."""
    sleep_mode: Flag = False
    """It can give its memory back on release (GPU)."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] = "raw_logprobs"
    """What a sample's log-probabilities are of: the model's own distribution, or the one that was sampled from (after
    temperature, top-p and so on). The same at temperature 1 without truncation."""
    seed: Annotated[Whole, Field(ge=0)] | None = None
    """Of requests that bring none."""
    host: Text = ""
    """The address that it listens on; all of the host's when left out."""
    command: Text = ""
    """The `vllm` command; `find_vllm` looks for it when left out."""
    extra_args: tuple[Text, ...] = ()
    """Further options of `vllm serve`."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = [] if self.model or self.model_claim else [Fault(("model",), "", "a folder or a name, or `model_claim`")]
        if self.model_claim and self.model.startswith("/"):
            faults.append(Fault(("model",), self.model, f"a path below the claim `{self.model_claim}`, or none"))
        if self.tensor_parallel % self.hosts:
            faults.append(Fault(("hosts",), self.hosts, f"a divisor of `tensor_parallel`, {self.tensor_parallel}"))
        if self.kv_cache % 1024:
            faults.append(Fault(("kv_cache",), render_memory(self.kv_cache), "whole GiB"))
        for index, word in enumerate(self.extra_args):
            option = word.partition("=")[0].replace("_", "-")
            if option in _OWN:
                faults.append(Fault(("extra_args", index), word, f"no {option} here: it is the field `{_OWN[option]}`"))
            elif option in _SET_HERE:
                faults.append(Fault(("extra_args", index), word, f"no {option} here: it is set for every rollout"))
        check(faults)
        return self

    @classmethod
    def on_cpu(cls, model: str = "", **fields: Any) -> Self:
        """A server on a CPU."""
        return cls(model=model, device="cpu", **fields)

    def command_line(self, port_variable: str = "XCE_PORT_HTTP") -> tuple[str, ...]:
        """The member's command. The port and the claim are known on the host only, so a shell puts them in and is gone."""
        model = "$1" if self.model_claim is None else "$" + _variable("XCE_CLAIM_", self.model_claim) + "${1:+/$1}"
        words = ["vllm=$0", f'model="{model}"', "shift"]
        if self.hosts > 1:
            words += [_MEET, '[ "$PET_NODE_RANK" = 0 ] || set -- "$@" --headless']
        words += [f'exec "$vllm" serve "$model" --port "${port_variable}" "$@"']
        return ("sh", "-c", "; ".join(words), self.command or find_vllm(), self.model, *self.options())

    def options(self) -> list[str]:
        """Of `vllm serve`, but for the model and the port."""
        cpu = self.device == "cpu"
        dtype = self.dtype or ("float32" if cpu else "")
        eager = cpu if self.eager is None else self.eager
        words = ["--served-model-name", self.served_name, "--enable-scale-out", "--scheduling-policy", "priority"]
        for option, value in (
            ("--host", self.host),
            ("--dtype", dtype),
            ("--tensor-parallel-size", self.tensor_parallel if self.tensor_parallel > 1 else None),
            ("--nnodes", self.hosts if self.hosts > 1 else None),
            ("--max-model-len", self.max_model_len),
            ("--max-num-seqs", self.max_num_seqs),
            ("--gpu-memory-utilization", None if cpu else self.gpu_memory_utilization),
            ("--num-gpu-blocks-override", self.kv_blocks),
            ("--logprobs-mode", self.logprobs_mode if self.logprobs_mode != "raw_logprobs" else None),
            ("--seed", self.seed),
        ):
            if value not in (None, ""):
                words += [option, str(value)]
        words += ["--enforce-eager"] if eager else []
        words += ["--enable-sleep-mode"] if self.sleep_mode and not cpu else []
        return [*words, *self.extra_args]

    def environment(self) -> dict[str, str]:
        """What it needs beside its options. The development endpoints have no password: see the README about networks."""
        words = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self.model_claim is not None or self.model.startswith(("/", "./")):
            # Everything is there: the hub is not asked, at the start least of all.
            words |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        if self.device == "cpu":
            words |= {
                "VLLM_CPU_KVCACHE_SPACE": str(self.kv_cache // 1024),
                "OMP_NUM_THREADS": str(self.threads),
                # Otherwise every server of a host pins its threads to the same first cores.
                "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            }
        if self.device == "cpu" and self.tensor_parallel == 1:
            # As on one GPU: the worker is a part of the engine's process. On its own it would spin on a core for a second after
            # each request, and the trainer, the reference and the coordinator with it wait for theirs.
            words["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if self.device == "cpu" and self.eager is not False:
            # Without it the first request for log-probabilities is compiled, half a minute of it.
            words["TORCHDYNAMO_DISABLE"] = "1"
        return words

    def replica_set(self, replicas: int = 1, *, resources: Mapping[str, Any] | None = None, **fields: Any) -> ReplicaSet:
        """The member: `fields` are a ReplicaSet's own, and win. Its GPUs are `tensor_parallel`, unless `resources` (which are
        of each of its tasks) say otherwise."""
        wanted = dict(resources or {})
        if self.device == "gpu":
            wanted.setdefault("gpus", self.tensor_parallel // self.hosts)
        given: dict[str, Any] = {
            "ports": [PORT] if self.hosts == 1 else [PORT, RENDEZVOUS],
            "ready_timeout": READY_TIMEOUT[self.device],
            "termination_grace": "20s",
            **({"resources": wanted} if wanted else {}),
            **({"tasks": self.hosts} if self.hosts > 1 else {}),
            **fields,
            "environment": {**self.environment(), **fields.get("environment", {})},
        }
        port = given["ports"][0]
        given.setdefault("ready", self._ready(port))
        return ReplicaSet(list(self.command_line(_variable("XCE_PORT_", port))), replicas=replicas, **given)

    def _ready(self, port: str) -> HttpProbe | ExecProbe:
        if self.hosts == 1:
            return HttpProbe(port, "/health", period="1s", timeout="5s", successes=1)
        # Only the first task of a slot answers HTTP; each is probed.
        program = _ANSWERS.format(host=self.host or "127.0.0.1", port=_variable("XCE_PORT_", port))
        words = ["sh", "-c", '[ "$XCE_TASK" != 0 ] || exec python3 -c "$0"', program]
        return ExecProbe(words, period="2s", timeout="5s", successes=1)


def _variable(prefix: str, name: str) -> str:
    return prefix + name.upper().replace("-", "_")
