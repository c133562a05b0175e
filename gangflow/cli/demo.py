"""`gangflow demo`: a GRPO group co-started, broken, healed and finished on one machine, and a second group that had to wait."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gangflow.cli import faults
from gangflow.cli.live import COUNTED
from gangflow.cli.running import open_cluster
from gangflow.cli.sources import Source, read
from gangflow.cli.story import Story
from gangflow.cli.watching import Watching, final_words
from gangflow.errors import GangflowError
from gangflow.runs import Run, submit
from gangflow.specs.group import CoStartGroup
from gangflow.specs.member import Job, ReplicaSet
from gangflow.xce.rest.schema import GroupView

FAULT = "rollout[0]@step=60:kill"
REQUIRED_ACCURACY = 0.9


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the demo claims, and whether it came about."""

    claim: str
    seen: str
    held: bool


def run_demo(console: Console, settings: list[str], runtime: str, dashboard: bool, out: Path) -> int:
    """Run it; 0 if everything that it claims was seen."""
    begin = time.monotonic()
    source = read("grpo", settings)
    planned = faults.parse(FAULT)
    steps = source.config.steps
    if planned.step is not None and steps <= planned.step:
        planned = faults.parse(f"rollout[0]@step={steps // 4}:kill")
    cluster = open_cluster(console, source, source.cluster, "", runtime, dashboard)
    try:
        page = getattr(cluster, "dashboard_url", "")
        if page:
            console.print(f"           the page: {page}/gangflow", markup=False, highlight=False)
        run = submit(source.group, cluster)
        behind = submit(second_group(source.config.python), cluster)
        watching = Watching(run, [planned], behind)
        watching.follow(console)
        ended_behind = behind.wait(check=False)
        return _report(console, source, watching, ended_behind, out, time.monotonic() - begin)
    except KeyboardInterrupt:
        console.print("interrupted: taking everything down", markup=False)
        return 3
    finally:
        cluster.stop()


def second_group(python: str) -> CoStartGroup:
    """A small group that needs a GPU for each of its two members: it cannot start while the first one holds them all."""
    serve = [python, "-m", "http.server", "--bind", "127.0.0.1"]
    return CoStartGroup(
        "second",
        members={
            "probe": Job(
                [python, "-c", "print('the first group is gone: both members of the second one run')"], resources={"gpus": 1}
            ),
            "files": ReplicaSet(
                ["sh", "-c", f"exec {' '.join(serve)} $XCE_PORT_HTTP"], replicas=1, ports=["http"], resources={"gpus": 1}
            ),
        },
    )


def _report(console: Console, source: Source, watching: Watching, behind: GroupView, out: Path, seconds: float) -> int:
    for line in final_words(watching.view, watching.story):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    files = _collect(console, watching.run, watching, out)
    checks = _checks(watching, behind, files, _result(watching.run))
    table = Table("claim", "seen", "", box=None, pad_edge=False, header_style="dim")
    for check in checks:
        table.add_row(check.claim, check.seen, "[green]ok[/]" if check.held else "[red]NOT SEEN[/]")
    console.print(table)
    for what, path in files.items():
        console.print(f"{what}: {path}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"{seconds:.0f} s in all", highlight=False)
    return 0 if all(check.held for check in checks) else 1


def _result(run: Run) -> dict[str, Any]:
    value = run.client.kv_get(run.id, "result").value
    return dict(json.loads(value)) if value else {}


def _checks(watching: Watching, behind: GroupView, files: dict[str, Path], result: dict[str, Any]) -> list[Check]:
    story, view = watching.story, watching.view
    samples = result.get("samples", {})
    accuracy = float(result.get("accuracy") or 0)
    back = next((one for one in story.readmissions if one.served_ms), None)
    waited = watching.behind_waited
    reason = waited.reason if waited is not None else None
    drift = _drift_after(files.get("metrics"), back.replacement if back else 0)
    incarnations = {slot.member: slot.incarnation for member in view.members for slot in member.slots}
    return [
        Check("the group was placed as a whole and started behind one barrier", _start_words(story), story.released_ms > 0),
        Check(
            "one rollout was killed",
            "; ".join(f"{fault} (step {step})" for fault, _, step in watching.fired) or "no fault was sent",
            bool(watching.fired),
        ),
        Check(
            "it was restarted, re-synchronised and re-admitted",
            f"after {back.took_s:.1f} s as incarnation {back.replacement} with weights {back.weights}"
            if back
            else "it never came back",
            back is not None,
        ),
        Check(
            "no other member was touched", f"actor's incarnation: {incarnations.get('actor')}", incarnations.get("actor") == 1
        ),
        Check(
            "no sample was lost or counted twice",
            ", ".join(f"{samples.get(key, '?')} {word}" for key, word in COUNTED.items()),
            samples.get("lost") == 0 and samples.get("duplicates") == 0,
        ),
        Check(
            "trainer and re-admitted engine agree on logprobs",
            f"largest difference {drift:.1e}" if drift is not None else "it made no sample",
            drift is not None and drift <= 1e-3,
        ),
        Check("the policy learned", f"held-out accuracy {accuracy:.3f}", accuracy >= REQUIRED_ACCURACY),
        Check("the group SUCCEEDED", view.state, view.state == "SUCCEEDED"),
        Check(
            "the second group waited with its reason",
            f"{reason.code}: {reason.text}; short of {_amounts(reason.shortfall)}; blocked by {reason.blocker}"
            if reason
            else "it did not wait",
            reason is not None and bool(reason.blocker) and any(amount > 0 for amount in reason.shortfall.values()),
        ),
        Check(
            "and started when the first had ended",
            f"{behind.state}, running {_after(behind, story)}",
            behind.state == "SUCCEEDED",
        ),
    ]


def _amounts(shortfall: Mapping[str, int]) -> str:
    """CPUs and GPUs in whole ones: on the wire they are thousandths."""
    return ", ".join(f"{amount / 1000 if name in {'cpu', 'gpus'} else amount:g} {name}" for name, amount in shortfall.items())


def _start_words(story: Story) -> str:
    if not story.released_ms:
        return "it never started"
    moments = {"placed": story.placed_ms, "released": story.released_ms, "running": story.running_ms}
    return ", ".join(f"{word} after {(at - story.begin_ms) / 1000:.2f} s" for word, at in moments.items())


def _after(behind: GroupView, story: Story) -> str:
    if not behind.first_running_ms:
        return "never"
    return f"{(behind.first_running_ms - story.stopping_ms) / 1000:.1f} s after the first one's trainer was done"


def _drift_after(metrics: Path | None, incarnation: int) -> float | None:
    """The largest logprob difference of samples that the re-admitted incarnation made."""
    if metrics is None or not incarnation:
        return None
    from gangflow.recipes.grpo.plot import read_metrics

    drifts = [
        made["drift"]
        for entry in read_metrics(metrics)
        for maker, made in entry.get("rollouts", {}).items()
        if maker == f"0/{incarnation}"
    ]
    return max(drifts, default=None)


def _collect(console: Console, run: Run, watching: Watching, out: Path) -> dict[str, Path]:
    """Copies of what the run left: metrics, the picture, the trace."""
    out.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    claim = next((claim for claim in watching.view.claims if claim.name == "ckpt" and claim.path), None)
    folder = Path(claim.path) if claim else None
    if folder is not None and (folder / "metrics.jsonl").exists():
        files["metrics"] = Path(shutil.copy(folder / "metrics.jsonl", out / "metrics.jsonl"))
        try:
            from gangflow.recipes.grpo.plot import draw, read_metrics

            marks = [(step, f"{fault.member}[{fault.index}] killed") for fault, _, step in watching.fired]
            draw(read_metrics(files["metrics"]), out / "reward.png", marks, f"{run.name}: reward and held-out accuracy")
            files["picture"] = out / "reward.png"
        except ModuleNotFoundError as error:
            console.print(f"no picture: {error.name} is not installed (gangflow[plot])", markup=False, highlight=False)
    trace = Path(run.cluster.name) / "traces" / f"{run.id}.jsonl"
    try:
        files["trace"] = Path(shutil.copy(trace, out / "trace.jsonl"))
    except OSError as error:
        raise GangflowError(f"the run left no trace at {trace}: {error}") from error
    return files
