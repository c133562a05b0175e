"""From `ctx.weights.publish` to all rollouts admitted again, against the same reload asked of the same engines by hand.

    .venv-rl/bin/python tests/benchmarks/weight_push.py [--repeats 15] [--models tiny 200M]

A real co-start group: an actor (this file) and two vLLM rollouts. In turns, on the same engines and with nothing else to do:

- "gangflow": from the return of `publish` until both rollouts are eligible with the new version, as the actor sees it. On the
  way the coordinator hears of it, takes both out, checks that the files are what was hashed, does the verbs on both, reads the
  version back, compares the log-probabilities of a probe with the trainer's, and writes who is eligible, durably. "without a
  probe": the same but for that comparison.
- "by hand": pause, reload, reset the prefix cache, set the version, resume, called by the actor on both servers at the same
  time; the slowest one's. "the reload alone" is a part of it. Then the probe, asked of both.

Goal: at most 1.2 × the whole push wired by hand on the slowest engine; the ratio to the bare reload is printed beside it. In
neither: what `publish` itself takes (fsync, digest, announcing), for which the engines do not wait. The larger model is random:
16 layers of 1,024, 200 million parameters, float32.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Side, publish

from gangflow.integrations.vllm.launch import VllmServer
from gangflow.runs import launch
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job

ORDER = "WEIGHT_PUSH"
"""The environment variable with the actor's order, as JSON."""
ROLLOUTS = 2
WARM_UP = 2
RUN_S = 1_500.0
PROBED = "Say what"
"""8 tokens. On one core of a CPU each of them costs the larger model 5 ms, on a GPU all of them nothing."""
SIZES = {"tiny": {}, "200M": {"hidden": 1_024, "layers": 16, "heads": 32, "kv_heads": 8, "intermediate": 3_072}}


def make_model(folder: Path, size: str, seed: int) -> int:
    """A random model with the recipes' tokenizer; how many bytes its weights have."""
    from transformers import Qwen3ForCausalLM

    from gangflow.recipes.lm import tiny
    from gangflow.recipes.lm.model import save_for_engines

    given: dict[str, Any] = dict(SIZES[size])
    wider = given.pop("intermediate", None)
    model = tiny.fresh(replace(tiny.Tiny(), seed=seed, **given))
    if wider:
        config = model.config
        config.intermediate_size = wider
        generation = model.generation_config
        model = Qwen3ForCausalLM(config).eval()
        model.generation_config = generation
    save_for_engines(model, folder, tokenizer=tiny.tokenizer())
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def group(folder: Path, repeats: int) -> CoStartGroup:
    """The actor and two rollouts that begin with the first of the two models."""
    order = {"folder": str(folder), "repeats": repeats}
    rollout = VllmServer.on_cpu(str(folder / "a"), max_model_len=128).replica_set(
        ROLLOUTS, resources={"cpu": 1, "mem": "4GiB"}, min_replicas=ROLLOUTS
    )
    return CoStartGroup(
        "weight-push",
        environment={ORDER: json.dumps(order), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"},
        coordinator=RLCoordinator(
            engine="vllm",
            min_rollouts=ROLLOUTS,
            quorum_timeout="5m",
            sync_timeout="2m",
            hang_timeout="5m",
            unhealthy_timeout="1m",
        ),
        barrier={"start_timeout": "10m"},
        members={
            "actor": Job([sys.executable, str(Path(__file__).resolve())], resources={"cpu": 1, "mem": "3GiB"}),
            "rollout": rollout,
        },
    )


def actor(order: dict[str, Any]) -> None:
    """In the group: the two sides in turns; what they took goes into `measured.json`."""
    from by_hand import Engines

    import gangflow
    from gangflow.recipes.lm import model as models

    folder = Path(order["folder"])
    contents = [folder / "a", folder / "b"]
    tokens = models.tokenizer_of(contents[0]).encode(PROBED)
    probes = [models.probe_of(models.load(content), tokens) for content in contents]
    context = gangflow.context()
    context.heartbeat(phase="first weights")
    context.weights.publish(0, contents[0], probe=probes[0])
    context.weights.wait_synced(0, rollouts=ROLLOUTS)
    engines = Engines([endpoint.url for endpoint in context.endpoints("rollout")])
    measured: dict[str, list[float]] = {"gangflow": [], "publish": [], "unprobed": [], "by hand": [], "reload": [], "probe": []}
    version = 0
    for turn in range(1, order["repeats"] + WARM_UP + 1):
        head = context.weights.head
        assert head is not None
        # Under the version that they have: to the coordinator nothing happens.
        pushed = engines.push(contents[(turn - 1) % 2], head.label())
        reloaded = time.monotonic()
        engines.score(tokens)
        spent = {"by hand": max(each.whole for each in pushed), "reload": max(each.reload for each in pushed)}
        spent["probe"] = time.monotonic() - reloaded
        for name, probe in (("gangflow", probes[turn % 2]), ("unprobed", None)):
            version += 1
            began = time.monotonic()
            context.weights.publish(version, contents[turn % 2], probe=probe)
            published = time.monotonic()
            context.weights.wait_synced(version, rollouts=ROLLOUTS)
            spent[name] = time.monotonic() - published
            spent["publish"] = published - began
        if turn > WARM_UP:
            for name, seconds in spent.items():
                measured[name].append(seconds)
        context.heartbeat(turn=turn)
    engines.close()
    (folder / "measured.json").write_text(json.dumps(measured))


def compare(size: str, repeats: int) -> float:
    """One model; the ratio of medians to the whole push by hand."""
    from recipe_runs import scratch

    with scratch() as root:
        folder = root / "models"
        held = make_model(folder / "a", size, seed=1)
        make_model(folder / "b", size, seed=2)
        hosts = ClusterSpec(name="virtual", hosts=[HostSpec(name=f"h[0-{ROLLOUTS}]", cpu=1, mem="4GiB", gpus=0)])
        with launch(group(folder, repeats), cluster=hosts, runtime="local") as run:
            run.wait(timeout=RUN_S)
        measured = json.loads((folder / "measured.json").read_text())
    sides = []
    for name, story in (
        ("gangflow", "gangflow: publish returned to all admitted"),
        ("unprobed", "gangflow: without a probe"),
        ("by hand", "by hand: the slowest server's push"),
        ("reload", "  the reload alone"),
        ("probe", "(by hand: the probe, asked of both)"),
        ("publish", "(gangflow: publish itself)"),
    ):
        side = Side(story)
        for seconds in measured[name]:
            side.add(seconds * 1_000)
        sides.append(side)
    ours, unprobed, theirs, reload, probe = sides[:5]
    ratio = ours.median / theirs.median
    pairs = [mine / other for mine, other in zip(ours.wall_ms, theirs.wall_ms, strict=True)]
    bare = ours.median / reload.median
    line = (
        f"{ratio:.2f} × the whole push wired by hand (pause, reload, reset of the cache, version, resume) on the slowest "
        f"engine, {ours.median - theirs.median:+.0f} ms "
        f"(goal: ≤ 1.2 ×; of single turns {min(pairs):.2f}–{max(pairs):.2f}, median {statistics.median(pairs):.2f})"
    )
    reloaded = f"{bare:.2f} × the bare reload on the slowest engine, {ours.median - reload.median:+.0f} ms (no goal)"
    both = ours.median / (theirs.median + probe.median)
    probed = f"{both:.2f} × what the push and the probe take by hand, which is what is done here before a rollout is admitted"
    bald = f"without a probe {unprobed.median / theirs.median:.2f} ×, {unprobed.median - theirs.median:+.0f} ms"
    publish(
        f"weight_push_{size}",
        f"weight push, {size} model of {held / 1e6:,.0f} MB, {ROLLOUTS} rollouts",
        sides,
        [line, bald, probed, reloaded],
        {
            "ratio": ratio,
            "ratio_without_probe": unprobed.median / theirs.median,
            "ratio_with_probe": both,
            "ratio_to_reload": bare,
            "ratios": pairs,
            "weights_bytes": held,
        },
    )
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--models", nargs="+", choices=tuple(SIZES), default=tuple(SIZES))
    options = parser.parse_args()
    from recipe_runs import needs_engines

    needs_engines()
    for size in options.models:
        compare(size, options.repeats)


if __name__ == "__main__":
    if ORDER in os.environ:
        actor(json.loads(os.environ[ORDER]))
    else:
        main()
