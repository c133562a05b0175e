"""What all commands of `xcecli` share: the application, its options, the way to the controller, and how lists are printed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from typer.core import TyperCommand

from gangflow.errors import GangflowError

if TYPE_CHECKING:
    from gangflow.cli.lsf_table import Table
    from gangflow.xce.rest.client import Client
    from gangflow.xce.rest.schema import GroupView

T = TypeVar("T")

app = typer.Typer(
    name="xcecli",
    help="Groups, members, slots, hosts and claims of an XCE, in LSF's manner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rollout[2] is no markup
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Listing(TyperCommand):
    """A command that lists something: its help names the columns that there are."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """The names for `-o`, which are read only when help is asked for."""
        from gangflow.cli import lsf_columns

        table: Table[Any] = getattr(lsf_columns, str(ctx.command.name).upper())
        with formatter.section("FIELDS"):
            formatter.write_text(", ".join(table.fields))


Columns = Annotated[
    str, typer.Option("-o", metavar="FIELDS", help="Columns: names, each with a :width if wanted; delimiter=c.")
]
Json = Annotated[bool, typer.Option("-json", "--json", help="JSON, as `bjobs -json` prints it.")]
NoHeader = Annotated[bool, typer.Option("-noheader", "--noheader", help="Without the line of column names.")]
Long = Annotated[bool, typer.Option("-l", help="Everything about each.")]
Wide = Annotated[bool, typer.Option("-w", help="Do not cut anything to the width of the terminal.")]
Message = Annotated[str, typer.Option("-C", "--message", help="Why, for the record.")]
LISTED = 40
"""Columns that a terminal has at least: below that nothing is cut any more."""


@app.callback()
def options(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="The controller's URL; else GANGFLOW_URL, XCE_URL, or the home's.")] = "",
    token: Annotated[str, typer.Option(help="Bearer token; else GANGFLOW_TOKEN, XCE_TOKEN, or the home's.")] = "",
    home: Annotated[Path | None, typer.Option(help="A cluster's folder; ~/.gangflow/default by default.")] = None,
) -> None:
    """Groups, members, slots, hosts and claims of an XCE, in LSF's manner. A name is g1, g1.rollout or g1.rollout[2]; a group's
    name may stand for its id."""
    context.obj = (url, token, home)


def client(context: typer.Context) -> Client:
    """A client of the controller that the options name."""
    from gangflow.cli.reach import find
    from gangflow.xce.rest.client import Client

    url, token = find(*context.obj)
    return Client(url, token, patience=3)


def groups_named(xce: Client, names: Sequence[str] | None, ended: bool) -> list[GroupView]:
    """The groups that are named (or whose members or slots are), each once; all live ones (or all) if none is."""
    from gangflow.cli.names import parse
    from gangflow.cli.paging import every

    if names:
        found = [xce.group(parse(name).group) for name in names]
        return list({view.id: view for view in found}.values())
    return every(lambda cursor: xce.groups([] if ended else ["live"], cursor=cursor), "groups")


def terminal_width() -> int:
    """Of the terminal that is printed to; 0: it is none, and nothing is cut."""
    return max(shutil.get_terminal_size().columns, LISTED) if sys.stdout.isatty() else 0


def show(
    table: Table[Any],
    views: Sequence[Any],
    columns: str,
    as_json: bool,
    noheader: bool,
    *,
    wide: bool = False,
    long: Callable[[Any], Iterable[str]] | None = None,
) -> None:
    """Print a list; `long`: the paragraph of each instead."""
    layout = table.choose(columns)
    if as_json:
        print(table.document(views, layout))
    elif not views:
        # As LSF does: nothing to list is said where it is in nobody's way.
        what = table.command.split()[1]
        print("No group waits" if what == "queue" else f"No {what} found", file=sys.stderr)
    elif long is not None:
        paragraphs(long(view) for view in views)
    else:
        print(table.text(views, layout, header=not noheader, width=0 if wide else terminal_width()))


def paragraphs(each: Iterable[Iterable[str]]) -> None:
    """Print paragraphs with a rule between them."""
    from gangflow.cli.lsf_long import RULE

    for position, lines in enumerate(each):
        if position:
            print(RULE)
        print("\n".join(lines))


def each_of(
    names: Sequence[str],
    what: str,
    find: Callable[[str], T],
    act: Callable[[T], Iterator[str]],
    hint: Callable[[int], str] = lambda _position: "",
) -> None:
    """Find all that is named, then do something with each and print what it says.

    Where one is not found (or is of the wrong kind) nothing is done with any. One that is refused afterwards does not keep the
    others from it. Ends with the exit code of the first refusal. `what`: `Job`, `Host`, …, as LSF begins its messages; `hint`:
    what the name at a position most likely means.
    """
    found: list[tuple[str, T]] = []
    code = 0
    for position, name in enumerate(names):
        try:
            found.append((name, find(name)))
        except GangflowError as error:
            near = hint(position)
            _refused(what, name, error, f"; did you mean {near!r}?" if near else "")
            code = code or error.exit_code
    if code and found:
        print("Nothing was done with the others.", file=sys.stderr, flush=True)
    for name, thing in found if not code else ():
        try:
            for line in act(thing):
                print(line, flush=True)
        except GangflowError as error:
            _refused(what, name, error)
            code = code or error.exit_code
    if code:
        raise typer.Exit(code)


def _refused(what: str, name: str, error: GangflowError, hint: str = "") -> None:
    print(f"{what} <{name}>: {error.message}{hint}", file=sys.stderr, flush=True)
    if error.advice:
        print(f"→ {error.advice}", file=sys.stderr, flush=True)
