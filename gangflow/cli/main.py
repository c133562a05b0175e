"""`gangflow`: run a recipe or a spec, watch it, find what runs, and keep a cluster up."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gangflow.errors import GangflowError, GroupEnded

app = typer.Typer(
    name="gangflow",
    help="Co-start groups: the parts of an RL run or an LLM service start together or not at all.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # member[0] is no markup
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
EXIT_CANCELLED = 3

What = Annotated[str, typer.Argument(help="A recipe's name (see `gangflow recipes`) or a YAML file.")]
Settings = Annotated[list[str] | None, typer.Argument(help="key=value settings, e.g. steps=100 or members.a.job.tasks=2.")]
Address = Annotated[
    str, typer.Option(envvar="GANGFLOW_ADDRESS", help="Join: an XCE's URL, a kept cluster's home, or a Ray address.")
]
ClusterFile = Annotated[Path | None, typer.Option("--cluster", help="Description of the hosts, for a cluster of one's own.")]
Runtime = Annotated[str, typer.Option(help="Of a cluster of one's own: `ray`, or `local` (no Ray; one machine).")]
Dashboard = Annotated[bool, typer.Option(help="Start Ray's dashboard, with the page /gangflow.")]
Group = Annotated[str, typer.Argument(help="A group's name or id.")]
Why = Annotated[str, typer.Option("--message", "-m", help="Why, for the record.")]


@app.command()
def run(
    what: What,
    settings: Settings = None,
    address: Address = "",
    cluster: ClusterFile = None,
    runtime: Runtime = "ray",
    dashboard: Dashboard = False,
    fault: Annotated[list[str] | None, typer.Option(help="e.g. 'rollout[0]@step=60:kill'; may be repeated.")] = None,
    detach: Annotated[bool, typer.Option(help="Return when it is submitted; find it again with `gangflow attach`.")] = False,
    delegation: Annotated[
        list[str] | None,
        typer.Option(envvar="GANGFLOW_DELEGATION", help="A delegation token of an owner whom it names; may be repeated."),
    ] = None,
) -> None:
    """Run a group: start a cluster (or join one), submit, watch, and end with the group's result as exit code."""
    from gangflow.cli.running import run_group
    from gangflow.cli.sources import read, read_cluster

    source = read(what, settings or [])
    described = read_cluster(cluster) or source.cluster
    raise typer.Exit(run_group(console, source, described, address, runtime, dashboard, fault or [], detach, delegation or ()))


@app.command()
def demo(
    settings: Annotated[list[str] | None, typer.Argument(help="key=value settings of the grpo recipe.")] = None,
    runtime: Runtime = "ray",
    dashboard: Dashboard = False,
    out: Annotated[Path, typer.Option(help="Where the picture and the trace are written.")] = Path("out/demo"),
) -> None:
    """The whole story on one machine: co-started, a rollout killed and re-admitted, learned, and a second group that waited."""
    from gangflow.cli.demo import run_demo

    raise typer.Exit(run_demo(console, settings or [], runtime, dashboard, out))


@app.command()
def render(what: What, settings: Settings = None, cluster: ClusterFile = None) -> None:
    """Print the group that would be submitted, as YAML; with --cluster as that cluster would run it. Nothing is started."""
    from gangflow.cli.sources import read, read_cluster, rendered

    print(rendered(read(what, settings or []), read_cluster(cluster)), end="")


@app.command()
def recipes(
    name: Annotated[str, typer.Argument(help="A recipe; all of them, a line each, if left out.")] = "",
    settings: Annotated[list[str] | None, typer.Argument(help="key=value settings: which variant, what is changed.")] = None,
) -> None:
    """List the recipes; or one's variants, presets and settings, with what each setting means."""
    if name:
        from gangflow.cli.recipe_page import page

        print(page(name, settings or []))
        return
    from gangflow.cli.sources import recipes as listed

    for known, summary in listed():
        print(f"{known:12} {summary}")


@app.command()
def status(group: Annotated[str, typer.Argument(help="A group; all groups if left out.")] = "", address: Address = "") -> None:
    """Show what runs: every group of every cluster of this user, or one group in detail."""
    from gangflow.cli.looking import show_status

    show_status(console, group, address)


@app.command()
def logs(
    group: Annotated[str, typer.Argument(help="A group's name or id; or the slot as well: g1.rollout[2].")],
    slot: Annotated[str, typer.Argument(help="member or member[index].")] = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    stderr: Annotated[bool, typer.Option(help="stderr instead of stdout.")] = False,
    incarnation: Annotated[int, typer.Option(help="0 is the newest.")] = 0,
    task: Annotated[int, typer.Option(help="Of a job of several tasks.")] = 0,
    address: Address = "",
) -> None:
    """Print a slot's log."""
    from gangflow.cli.looking import show_log

    show_log(
        group, slot, follow=follow, stream="stderr" if stderr else "stdout", incarnation=incarnation, task=task, address=address
    )


@app.command()
def attach(group: Group, address: Address = "") -> None:
    """Watch a group that runs; Ctrl-C asks again whether to detach or to cancel it."""
    from gangflow.cli.running import watch
    from gangflow.runs import attach as find

    run_ = find(group, address=address)
    raise typer.Exit(watch(console, run_, [], stop=False))


@app.command()
def cancel(
    group: Group, address: Address = "", wait: Annotated[bool, typer.Option(help="Until nothing of it is left.")] = True
) -> None:
    """Tear a group down."""
    from gangflow.runs import attach as find

    run_ = find(group, address=address)
    run_.cancel()
    view = run_.wait(check=False) if wait else run_.status()
    print(f"{view.name} ({view.id}) {view.state}")
    if wait:
        from gangflow.cli.running import tell_what_is_kept

        tell_what_is_kept(Console(stderr=True), run_, ends=False)


@app.command()
def scale(
    group: Group,
    targets: Annotated[list[str], typer.Argument(metavar="MEMBER=N...", help="How many replicas of which member.")],
    timeout: Annotated[str, typer.Option(help="After this what stands becomes the target, e.g. 10m; else the group's.")] = "",
    wait: Annotated[bool, typer.Option(help="Until it is done, or has failed.")] = False,
    address: Address = "",
) -> None:
    """Change how many replicas members have: one durable change, accepted when it is proved to fit."""
    from gangflow.cli.steering import scale_group

    scale_group(group, targets, timeout, wait=wait, address=address)


@app.command()
def suspend(
    group: Group,
    message: Why = "",
    wait: Annotated[bool, typer.Option(help="Until nothing of it is left.")] = True,
    address: Address = "",
) -> None:
    """Stop a group and give everything back; `resume` lets it start again, as it was submitted and scaled."""
    from gangflow.cli.steering import suspend_group

    suspend_group(group, message, wait=wait, address=address)


@app.command()
def resume(group: Group, address: Address = "") -> None:
    """Let a suspended group wait for a place again, with its first submission time."""
    from gangflow.cli.steering import resume_group

    resume_group(group, address=address)


@app.command()
def restart(
    names: Annotated[list[str], typer.Argument(metavar="NAMES...", help="Groups, members or slots: g1.rollout[2].")],
    message: Why = "",
    address: Address = "",
) -> None:
    """Restart a group as a whole, or slots of it, outside its rules and budgets."""
    from gangflow.cli.steering import restart_named

    restart_named(names, message, address=address)


@app.command()
def up(
    home: Annotated[
        Path | None, typer.Option(envvar="GANGFLOW_HOME", help="Its folder; ~/.gangflow/default by default.")
    ] = None,
    cluster: ClusterFile = None,
    runtime: Runtime = "ray",
    dashboard: Dashboard = True,
) -> None:
    """Start a cluster that stays, on the journal in its home if there is one."""
    from gangflow.cli.keeping import bring_up

    bring_up(console, home, cluster, runtime, dashboard)


@app.command()
def down(
    home: Annotated[Path | None, typer.Option(envvar="GANGFLOW_HOME", help="The cluster's folder.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every cluster of this user, left-over runs too.")] = False,
) -> None:
    """Stop a kept cluster and everything that runs in it. Its journal stays."""
    from gangflow.cli.keeping import take_down

    take_down(console, home, every)


@app.command()
def replay(
    journal: Annotated[Path, typer.Argument(help="A journal.db, or the home of a cluster; it may be in use.")],
    begin: Annotated[
        int, typer.Option("--from", min=0, help="Compare from this seq on; before it, take what was decided.")
    ] = 0,
    until: Annotated[int, typer.Option(min=0, help="As far as the batch that holds this seq; else to the end.")] = 0,
    show: Annotated[str, typer.Option(metavar="GROUP", help="Print this group (id or name) as it was then.")] = "",
    force: Annotated[bool, typer.Option(help="Compare what another version of gangflow decided, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, as JSON.")] = False,
) -> None:
    """Decide a journal's inputs again and compare byte for byte; exit code 0: the same, 11: not, 12: another version's."""
    from gangflow.cli.replaying import run_replay

    run_replay(journal, begin, until, show, force=force, as_json=as_json)


@app.command()
def compact(
    journal: Annotated[Path, typer.Argument(help="A journal.db, or the home of a cluster that does not run.")],
    keep: Annotated[str, typer.Option(help="Records stay so long, e.g. 7d; else what the home's cluster.yaml says.")] = "",
    keep_size: Annotated[str, typer.Option(help="And at most so much of them, e.g. 1GiB; 0: no limit.")] = "",
    images: Annotated[
        int, typer.Option(min=1, help="State images that stay: an older one is there if the newest is damaged.")
    ] = 2,
) -> None:
    """Forget a journal's old records and give the space back, verified. (A controller forgets by itself while it runs.)"""
    from gangflow.cli.compacting import run_compact

    run_compact(journal, keep, keep_size, images)


def _later(name: str, what: str) -> None:
    @app.command(name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def refuse() -> None:
        console.print(f"gangflow {name}: {what} is not part of this version.", style="red", markup=False)
        raise typer.Exit(2)


for _name, _what in (
    ("plan", "planning before submission"),
    ("simulate", "the simulator"),
    ("init", "copying a recipe"),
):
    _later(_name, _what)


def main() -> None:
    """The entry point: every error of gangflow's becomes one message, its remedy, and its exit code."""
    try:
        app()
    except GroupEnded as error:
        console.print(error.message, style="red", markup=False)
        sys.exit(EXIT_CANCELLED if error.state == "CANCELLED" else error.exit_code)
    except GangflowError as error:
        Console(stderr=True).print(error.message, style="red", markup=False, highlight=False, soft_wrap=True)
        if error.advice:
            Console(stderr=True).print(f"→ {error.advice}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
