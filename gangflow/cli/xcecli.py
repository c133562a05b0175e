"""`xcecli`: what an XCE knows, in the manner of `bjobs` and `bhosts`: `-o`, `-json`, `-noheader`, `-l`, `-p0` to `-p3`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from gangflow.errors import GangflowError

if TYPE_CHECKING:
    from gangflow.cli.lsf_table import Table
    from gangflow.xce.rest.client import Client
    from gangflow.xce.rest.schema import GroupView

app = typer.Typer(
    name="xcecli",
    help="Groups, members, hosts and claims of an XCE, in LSF's manner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Columns = Annotated[
    str, typer.Option("-o", metavar="FIELDS", help="Columns: names, each with a :width if wanted; delimiter=c.")
]
Json = Annotated[bool, typer.Option("-json", "--json", help="JSON, as `bjobs -json` prints it.")]
NoHeader = Annotated[bool, typer.Option("-noheader", "--noheader", help="Without the line of column names.")]
Long = Annotated[bool, typer.Option("-l", help="Everything about each.")]
Group = Annotated[str, typer.Argument(help="A group's id or name.")]
Groups = Annotated[list[str] | None, typer.Argument(help="Groups, by id or name; all live ones if none is named.")]


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="The controller's URL; else GANGFLOW_URL, XCE_URL, or the home's.")] = "",
    token: Annotated[str, typer.Option(help="Bearer token; else GANGFLOW_TOKEN, XCE_TOKEN, or the home's.")] = "",
    home: Annotated[Path | None, typer.Option(help="A cluster's folder; ~/.gangflow/default by default.")] = None,
) -> None:
    """Groups, members, hosts and claims of an XCE, in LSF's manner."""
    context.obj = (url, token, home)


@app.command()
def groups(
    context: typer.Context,
    names: Groups = None,
    every: Annotated[bool, typer.Option("-a", help="Ended groups too.")] = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
) -> None:
    """Groups, as `bjobs` lists jobs."""
    from gangflow.cli.lsf_columns import GROUPS
    from gangflow.cli.lsf_long import RULE, group_lines

    with _client(context) as client:
        found = _groups(client, names, every)
    if not long:
        _show(GROUPS, found, columns, as_json, noheader)
        return
    for position, group in enumerate(found):
        if position:
            print(RULE)
        print("\n".join(group_lines(group)))


@app.command()
def members(
    context: typer.Context,
    names: Groups = None,
    every: Annotated[bool, typer.Option("-a", help="Of ended groups too.")] = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Annotated[bool, typer.Option("-l", help="A line for each slot.")] = False,
) -> None:
    """Members of groups with their slots counted by state, as `bjobs -A` lists arrays."""
    from gangflow.cli.lsf_columns import MEMBERS, SLOTS, members_of, slots_of

    with _client(context) as client:
        found = _groups(client, names, every)
    if long:
        _show(SLOTS, slots_of(found), columns, as_json, noheader)
    else:
        _show(MEMBERS, members_of(found), columns, as_json, noheader)


@app.command()
def hosts(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Hosts; all if none is named.")] = None,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
) -> None:
    """Hosts, as `bhosts` lists them."""
    from gangflow.cli.lsf_columns import HOSTS
    from gangflow.cli.lsf_long import host_lines
    from gangflow.errors import NotFound

    with _client(context) as client:
        known = _every(lambda cursor: client.hosts(cursor=cursor), "hosts")
    missing = [name for name in names or () if name not in {host.name for host in known}]
    if missing:
        raise NotFound(f"no host {', '.join(missing)}")
    found = [host for host in known if not names or host.name in names]
    if long:
        print("\n\n".join("\n".join(host_lines(host)) for host in found))
    else:
        _show(HOSTS, found, columns, as_json, noheader)


@app.command()
def claims(
    context: typer.Context,
    group: Annotated[str, typer.Argument(help="Of one group, by id or name.")] = "",
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
) -> None:
    """Claims."""
    from gangflow.cli.lsf_columns import CLAIMS
    from gangflow.cli.lsf_long import claim_lines

    with _client(context) as client:
        found = _every(lambda cursor: client.claims(group, cursor=cursor), "claims")
    if long:
        print("\n".join(line for claim in found for line in claim_lines(claim)))
    else:
        _show(CLAIMS, found, columns, as_json, noheader)


@app.command()
def queue(context: typer.Context, columns: Columns = "", as_json: Json = False, noheader: NoHeader = False) -> None:
    """Groups that wait for a place, in the order in which they are tried."""
    from gangflow.cli.lsf_columns import QUEUE

    with _client(context) as client:
        found = _every(lambda cursor: client.queue(cursor=cursor), "groups")
    _show(QUEUE, found, columns, as_json, noheader)


@app.command()
def why(
    context: typer.Context,
    group: Group,
    p0: Annotated[bool, typer.Option("-p0", help="How many hosts for which reason.")] = False,
    p1: Annotated[bool, typer.Option("-p1", help="The single key reason (default).")] = False,
    p2: Annotated[bool, typer.Option("-p2", help="Reasons of candidate hosts.")] = False,
    p3: Annotated[bool, typer.Option("-p3", help="Reasons of all hosts.")] = False,
    as_json: Json = False,
) -> None:
    """Why a group waits, in the levels of `bjobs -p`."""
    from gangflow.cli.lsf_columns import GROUPS
    from gangflow.cli.lsf_columns import as_json as document
    from gangflow.cli.lsf_table import Layout

    chosen = [level for level, given in enumerate((p0, p1, p2, p3)) if given]
    if len(chosen) > 1:
        raise typer.BadParameter("-p0, -p1, -p2 and -p3 exclude each other")
    with _client(context) as client:
        view = client.why(group, chosen[0] if chosen else 1)
        shown = client.group(view.id)
    if as_json:
        print(document(view))
        return
    print(GROUPS.text([shown], Layout(GROUPS.default)))
    print("\n".join(view.lines))


@app.command()
def events(
    context: typer.Context,
    group: Annotated[str, typer.Argument(help="Of one group, by id or name.")] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they come.")] = False,
    after: Annotated[int | None, typer.Option(help="After this seq; else from the beginning of what is kept.")] = None,
    as_json: Json = False,
) -> None:
    """The journal's durable records; with -f, as they come (Ctrl-C ends it)."""
    from gangflow.cli.lsf_long import event_line

    with _client(context) as client:
        now = client.healthz()
        start = now.horizon if after is None else after
        # Ctrl-C is how a followed stream is meant to end.
        with contextlib.suppress(KeyboardInterrupt):
            for event in client.events(start, group, None if follow else now.seq):
                print(event.model_dump_json() if as_json else event_line(event), flush=True)


def _later(name: str, what: str) -> None:
    @app.command(name, hidden=True, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
    def refuse() -> None:
        Console(stderr=True).print(f"xcecli {name}: {what} is not part of this version.", style="red", markup=False)
        raise typer.Exit(2)


_later("plan", "planning before submission")


def _client(context: typer.Context) -> Client:
    from gangflow.cli.reach import find
    from gangflow.xce.rest.client import Client

    url, token = find(*context.obj)
    return Client(url, token, patience=3)


def _groups(client: Client, names: Sequence[str] | None, every: bool) -> list[GroupView]:
    if names:
        return [client.group(name) for name in names]
    return _every(lambda cursor: client.groups([] if every else ["live"], cursor=cursor), "groups")


def _every(page_after: Callable[[str], Any], name: str) -> list[Any]:
    """The entries of every page of a list."""
    found: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = page_after(cursor)
        found += getattr(page, name)
        cursor = page.next
    return found


def _show(table: Table[Any], views: Sequence[Any], columns: str, as_json: bool, noheader: bool) -> None:
    layout = table.choose(columns)
    if as_json:
        print(table.document(views, layout))
    elif views:
        print(table.text(views, layout, header=not noheader))
    else:
        # As LSF does: nothing to list is said where it is in nobody's way.
        print(f"No {table.command.split()[1]} found", file=sys.stderr)


def main() -> None:
    """The entry point: every error of gangflow's becomes one message, its remedy, and its exit code."""
    try:
        app()
    except GangflowError as error:
        errors = Console(stderr=True)
        errors.print(error.message, style="red", markup=False, highlight=False, soft_wrap=True)
        if error.advice:
            errors.print(f"→ {error.advice}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.exit(0)


if __name__ == "__main__":
    main()
