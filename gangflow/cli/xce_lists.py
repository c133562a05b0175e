"""`xcecli`'s lists: groups, jobs, members, slots, hosts, claims, queue, changes, owners, why, events."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from gangflow.cli import xce_app
from gangflow.cli.paging import every
from gangflow.cli.xce_app import Columns, Json, Listing, Long, NoHeader, Wide, app, groups_named, show

if TYPE_CHECKING:
    from gangflow.xce.rest.client import Client
    from gangflow.xce.rest.schema import ChangeView, ClaimView, GroupView

Names = Annotated[list[str] | None, typer.Argument(metavar="[NAMES]...", help="By id or name; all live ones if none is named.")]
Ended = Annotated[bool, typer.Option("-a", help="Ended ones too.")]


@app.command(cls=Listing)
def groups(
    context: typer.Context,
    names: Names = None,
    ended: Ended = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Groups, as `bjobs` lists jobs."""
    from gangflow.cli.lsf_columns import GROUPS
    from gangflow.cli.lsf_long import group_lines

    with xce_app.client(context) as xce:
        found = groups_named(xce, names, ended)
        if long and not names:
            found = [xce.group(view.id) for view in found]
    width = 0 if wide else xce_app.terminal_width()
    show(GROUPS, found, columns, as_json, noheader, wide=wide, long=(lambda g: group_lines(g, width)) if long else None)


@app.command(cls=Listing)
def jobs(
    context: typer.Context,
    names: Names = None,
    ended: Ended = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Plain jobs and replica sets (groups of one), as `bjobs` lists jobs."""
    from gangflow.cli.lsf_columns import JOBS
    from gangflow.cli.lsf_long import group_lines

    with xce_app.client(context) as xce:
        if names:
            found = groups_named(xce, names, ended)
        else:
            found = every(lambda cursor: xce.jobs([] if ended else ["live"], cursor=cursor), "groups")
    width = 0 if wide else xce_app.terminal_width()
    show(JOBS, found, columns, as_json, noheader, wide=wide, long=(lambda g: group_lines(g, width)) if long else None)


@app.command(cls=Listing)
def members(
    context: typer.Context,
    names: Names = None,
    ended: Ended = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Members of groups with their slots counted by state, as `bjobs -A` lists arrays."""
    from gangflow.cli.lsf_columns import MEMBERS, members_of
    from gangflow.cli.lsf_long import member_lines
    from gangflow.cli.names import member_of, parse

    with xce_app.client(context) as xce:
        if names:
            wanted = [(xce.group(name.group), name) for name in map(parse, names)]
            found = [
                (group, member)
                for group, name in wanted
                for member in (group.members if name.is_group else [member_of(group, name)])
            ]
        else:
            found = members_of(groups_named(xce, None, ended))
    width = 0 if wide else xce_app.terminal_width()
    show(
        MEMBERS,
        found,
        columns,
        as_json,
        noheader,
        wide=wide,
        long=(lambda row: member_lines(row[0], row[1], width)) if long else None,
    )


@app.command(cls=Listing)
def slots(
    context: typer.Context,
    names: Names = None,
    ended: Ended = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Slots: where each is, in which state and why. Those that were scaled away: with -a, or by name."""
    from gangflow.cli.lsf_columns import SLOTS, stands
    from gangflow.cli.lsf_long import slot_lines
    from gangflow.cli.names import parse, slots_named

    with xce_app.client(context) as xce:
        if names:
            wanted = [(xce.group(name.group), name) for name in map(parse, names)]
        else:
            wanted = [(group, parse(group.id)) for group in groups_named(xce, None, ended)]
    found = [
        (group, slot) for group, name in wanted for slot in slots_named(group, name) if name.is_slot or ended or stands(slot)
    ]
    show(SLOTS, found, columns, as_json, noheader, wide=wide, long=(lambda row: slot_lines(row[0], row[1])) if long else None)


@app.command(cls=Listing)
def hosts(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="Hosts; all if none is named.")] = None,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Hosts, as `bhosts` lists them."""
    from gangflow.cli.lsf_columns import HOSTS, HOSTS_WITH_GPUS
    from gangflow.cli.lsf_long import host_lines
    from gangflow.cli.names import hosts_named

    with xce_app.client(context) as xce:
        known = every(lambda cursor: xce.hosts(cursor=cursor), "hosts")
    wanted = {host for name in names or ["all"] for host in hosts_named(name, [host.name for host in known])}
    found = [host for host in known if host.name in wanted]
    # A cluster of GPUs is looked at for them.
    table = HOSTS_WITH_GPUS if any(host.counters.get("gpus") for host in known) else HOSTS
    show(table, found, columns, as_json, noheader, wide=wide, long=host_lines if long else None)


@app.command(cls=Listing)
def claims(
    context: typer.Context,
    names: Annotated[
        list[str] | None, typer.Argument(help="Groups whose claims, or claims by id; all if none is named.")
    ] = None,
    gone: Annotated[bool, typer.Option("-a", help="Those that are GONE, too.")] = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Claims of groups and standalone ones. Those that are GONE: with -a, or by id."""
    from gangflow.cli.lsf_columns import CLAIMS
    from gangflow.cli.lsf_long import claim_lines

    with xce_app.client(context) as xce:
        found = [claim for name in names for claim in _claims(xce, name)] if names else _claims(xce, "")
    found = [claim for claim in found if gone or claim.state != "GONE" or claim.id in (names or ())]
    show(CLAIMS, found, columns, as_json, noheader, wide=wide, long=claim_lines if long else None)


def _claims(xce: Client, name: str) -> list[ClaimView]:
    """Those of a group, or the one of that id; all of them without a name."""
    from gangflow.errors import NotFound

    if name:
        # A standalone claim and a group may have the same name: the claim is what was asked for here.
        with contextlib.suppress(NotFound):
            return [xce.claim(name)]
    return every(lambda cursor: xce.claims(name, cursor=cursor), "claims")


@app.command(cls=Listing)
def queue(
    context: typer.Context,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Groups that wait for a place, in the order in which they are tried."""
    from gangflow.cli.lsf_columns import QUEUE
    from gangflow.cli.lsf_long import queue_lines

    with xce_app.client(context) as xce:
        found = every(lambda cursor: xce.queue(cursor=cursor), "groups")
    show(QUEUE, found, columns, as_json, noheader, wide=wide, long=queue_lines if long else None)


@app.command(cls=Listing)
def changes(
    context: typer.Context,
    names: Names = None,
    ended: Ended = False,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """Changes of targets (`xcecli scale`), the newest last."""
    from gangflow.cli.lsf_columns import CHANGES
    from gangflow.cli.lsf_long import change_lines

    with xce_app.client(context) as xce:
        found = [(group, change) for group in groups_named(xce, names, ended) for change in group.changes]

    def told(row: tuple[GroupView, ChangeView]) -> list[str]:
        return [f"Job <{row[0].id}>, Job Name <{row[0].name}>", *change_lines(row[1])]

    show(CHANGES, found, columns, as_json, noheader, wide=wide, long=told if long else None)


@app.command(cls=Listing)
def owners(
    context: typer.Context,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Long = False,
    wide: Wide = False,
) -> None:
    """What each owner's members hold, as `busers` lists users."""
    from gangflow.cli.lsf_columns import OWNERS
    from gangflow.cli.lsf_long import owner_lines

    with xce_app.client(context) as xce:
        found = every(lambda cursor: xce.owners(cursor=cursor), "owners")
    show(OWNERS, found, columns, as_json, noheader, wide=wide, long=owner_lines if long else None)


@app.command()
def why(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A group (or what is part of one), by id or name.")],
    p0: Annotated[bool, typer.Option("-p0", help="How many hosts for which reason.")] = False,
    p1: Annotated[bool, typer.Option("-p1", help="The single key reason (default).")] = False,
    p2: Annotated[bool, typer.Option("-p2", help="Reasons of candidate hosts.")] = False,
    p3: Annotated[bool, typer.Option("-p3", help="Reasons of all hosts.")] = False,
    as_json: Json = False,
    noheader: NoHeader = False,
) -> None:
    """Why a group, or a slot of one, waits, in the levels of `bjobs -p`."""
    from gangflow.cli.lsf_columns import GROUPS, SLOTS
    from gangflow.cli.lsf_columns import as_json as document
    from gangflow.cli.lsf_table import Layout
    from gangflow.cli.names import parse, slots_named

    chosen = [level for level, given in enumerate((p0, p1, p2, p3)) if given]
    if len(chosen) > 1:
        raise typer.BadParameter("-p0, -p1, -p2 and -p3 exclude each other")
    named = parse(name)
    with xce_app.client(context) as xce:
        view = xce.why(named.group, chosen[0] if chosen else 1)
        shown = xce.group(view.id)
    if as_json:
        print(document(view))
        return
    width = xce_app.terminal_width()
    if named.is_group:
        print(GROUPS.text([shown], Layout(GROUPS.default), header=not noheader, width=width))
    else:
        rows = [(shown, slot) for slot in slots_named(shown, named)]
        print(SLOTS.text(rows, Layout(SLOTS.default), header=not noheader, width=width))
    print("\n".join(view.lines))


@app.command(cls=Listing)
def events(
    context: typer.Context,
    group: Annotated[str, typer.Argument(help="Of one group, by id or name.")] = "",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as they come.")] = False,
    after: Annotated[int | None, typer.Option(help="After this seq; else from the beginning of what is kept.")] = None,
    columns: Columns = "",
    as_json: Json = False,
    noheader: NoHeader = False,
    long: Annotated[bool, typer.Option("-l", help="Nothing is cut; nor is it where it is not printed to a terminal.")] = False,
) -> None:
    """The journal's durable records; with -f, as they come (Ctrl-C ends it)."""
    from gangflow.cli.lsf_columns import EVENTS, UNCUT
    from gangflow.cli.lsf_long import EVENT_HEADER, event_line
    from gangflow.cli.names import parse

    layout = EVENTS.choose(columns)
    longest = 120 if xce_app.terminal_width() and not long else UNCUT
    named = parse(group) if group else None
    with xce_app.client(context) as xce:
        now = xce.healthz()
        start = now.horizon if after is None else after
        if not (as_json or noheader):
            print(EVENTS.text([], layout) if columns else EVENT_HEADER, flush=True)
        # Ctrl-C is how a followed stream is meant to end.
        with contextlib.suppress(KeyboardInterrupt):
            for event in xce.events(start, named.group if named else "", None if follow else now.seq):
                if named is not None and not named.is_group and not _of(event.data, named.member, named.index):
                    continue
                if as_json:
                    print(event.model_dump_json(), flush=True)
                elif columns:
                    print(EVENTS.text([event], layout, header=False), flush=True)
                else:
                    print(event_line(event, longest), flush=True)


def _of(data: dict[str, object], member: str, index: int) -> bool:
    """Whether a record is about a member, or a slot of it."""
    told = data.get("task") or data.get("claim") or data
    if not isinstance(told, dict) or told.get("member") != member:
        return False
    return index < 0 or told.get("index") == index
