"""Runs a program of a recipe as it is, and does to it from inside what a test asks for: `python faulty.py MODULE`.

The test and the program meet in the folder $GANGFLOW_TEST_FAULTS. Orders are files that the test makes there:

    stop-at-MOMENT     stop this process (SIGSTOP) at the next such moment of a push, and say so in `at-MOMENT`
    lose-a-tensor      the next weights to be published lack a tensor; their digest is that of what lies there
    reshape-a-tensor   the next weights to be published have a tensor of another shape
    answer-500         as long as it is there, POSTs to the reward service are answered with status 500
    wrong-reference    a reference server that starts while it is there takes the model whose path is its content

and what happened is told there, one JSON object a line: `commits` (the samples of a step, as the SDK gave them to the program),
`judged` (what the reward service was asked and answered), `refused` (requests that were answered with 500).
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["GANGFLOW_TEST_FAULTS"])
MOMENTS = ("before-push", "files-written", "published")


def tell(name: str, **facts: Any) -> None:
    """One line, whole, whoever else writes there."""
    about = {"incarnation": int(os.environ["XCE_INCARNATION"]), "at_ms": time.time_ns() // 1_000_000}
    line = json.dumps({**about, **facts}) + "\n"
    place = os.open(FOLDER / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(place, line.encode())
    os.close(place)


def taken(order: str) -> bool:
    """Whether the test has given that order; it is carried out once."""
    try:
        (FOLDER / order).unlink()
    except FileNotFoundError:
        return False
    return True


def moment(name: str, version: int) -> None:
    if taken(f"stop-at-{name}"):
        tell(f"at-{name}", pid=os.getpid(), version=version)
        os.kill(os.getpid(), signal.SIGSTOP)


def break_weights(path: str) -> None:
    """What a saver with a fault in it leaves behind."""
    lose, reshape = taken("lose-a-tensor"), taken("reshape-a-tensor")
    if not (lose or reshape):
        return
    from safetensors.torch import load_file, save_file

    (file,) = Path(path).glob("*.safetensors")
    tensors = load_file(file)
    name = next(name for name in sorted(tensors) if name.endswith("mlp.down_proj.weight"))
    if lose:
        del tensors[name]
    else:
        tensors[name] = tensors[name][:, :-2].contiguous()
    file.unlink()
    save_file(tensors, file, metadata={"format": "pt"})


def arm_trainer() -> None:
    """Around the SDK's steps of a push, and its commits."""
    from gangflow.member.rollouts import Rollouts
    from gangflow.member.weights import Publishing

    written, done, announce, generate = Publishing.written, Publishing.done, Publishing.announce, Rollouts.generate

    def writes(self: Publishing, version: int, path: Any, data: Any, probe: Any) -> Any:
        moment("before-push", version)
        break_weights(path)
        return written(self, version, path, data, probe)

    def announces(self: Publishing, weights: Any) -> None:
        moment("files-written", weights.version)
        announce(self, weights)

    def is_done(self: Publishing, weights: Any) -> None:
        done(self, weights)
        moment("published", weights.version)

    def generates(self: Rollouts, prompts: Any, *rest: Any, **more: Any) -> Any:
        groups = generate(self, prompts, *rest, **more)
        samples = [
            {
                "id": str(sample.id),
                "weights": str(sample.weights),
                "rollout": f"{sample.rollout}/{sample.incarnation}",
                "attempt": sample.attempt,
                "output": sample.output,
            }
            for group in groups
            for sample in group.samples
        ]
        step = more.get("step", rest[2] if len(rest) > 2 else None)
        skipped = [group.skipped for group in groups if group.skipped]
        tell("commits", step=step, asked=len(groups), samples=samples, skipped=skipped, counters=self.counters.document())
        return groups

    for name, patched in (("written", writes), ("announce", announces), ("done", is_done)):
        setattr(Publishing, name, patched)
    Rollouts.generate = generates  # type: ignore[method-assign]


def arm_asking() -> None:
    """What the reward service said, as the trainer got it."""
    from gangflow.recipes.services.asking import Asking

    ask = Asking.ask

    def asks(self: Asking, member: str, path: str, body: Any, **more: Any) -> dict[str, Any]:
        found = ask(self, member, path, body, **more)
        if member == "reward":
            tell("judged", asked=body, answered=found)
        return found

    Asking.ask = asks  # type: ignore[method-assign]


def arm_service() -> None:
    """A service that answers, and only with its own fault."""
    from gangflow.recipes.services import serving

    post = serving._Handler.do_POST

    def posts(self: Any) -> None:
        if not (FOLDER / "answer-500").exists():
            post(self)
            return
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        tell("refused", path=self.path)
        self._reply(500, {"error": "on purpose"})

    serving._Handler.do_POST = posts  # type: ignore[method-assign]


def arm_reference() -> None:
    """Somebody started it with another model."""
    order = FOLDER / "wrong-reference"
    if order.exists():
        config = json.loads(os.environ["GRPO_CONFIG"])
        os.environ["GRPO_CONFIG"] = json.dumps({**config, "ref_model": order.read_text()})


ARMS = {"actor": (arm_trainer, arm_asking), "reward": (arm_service,), "ref": (arm_reference,)}

if __name__ == "__main__":
    for arm in ARMS[os.environ["XCE_MEMBER"]]:
        arm()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
