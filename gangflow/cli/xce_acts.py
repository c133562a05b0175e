"""`xcecli`'s commands that change something, each with its counterpart in LSF; they say what was accepted, in LSF's words."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gangflow.cli import xce_app
from gangflow.cli.paging import every
from gangflow.cli.xce_app import Message, app, each_of
from gangflow.errors import GangflowError

if TYPE_CHECKING:
    from gangflow.cli.names import Name
    from gangflow.xce.rest.client import Client
    from gangflow.xce.rest.schema import ChangeView, GroupView

GroupNames = Annotated[list[str], typer.Argument(metavar="GROUPS...", help="Groups, by id or name.")]
AnyNames = Annotated[
    list[str], typer.Argument(metavar="NAMES...", help="Groups, members or slots: g1, g1.rollout, g1.rollout[2].")
]
HostNames = Annotated[list[str], typer.Argument(metavar="HOSTS...", help="Hosts, by name; h[0-3] for several, all for all.")]
Delegation = Annotated[
    list[str] | None,
    typer.Option(envvar="GANGFLOW_DELEGATION", help="A delegation token of an owner whom it names; may be repeated."),
]
_NUMBER = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?")
Document = Annotated[Path, typer.Argument(help="A YAML file; - reads from stdin.")]


def read_document(path: Path) -> str:
    """The text of a YAML file, or of stdin. SpecError if there is no such file."""
    from gangflow.errors import Problem, UsageError

    if str(path) == "-":
        return sys.stdin.read()
    try:
        return path.expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError([Problem("file", repr(str(path)), f"a text file that can be read ({error})")]) from error


# --- groups -----------------------------------------------------------------------------------------------------------


@app.command()
def submit(context: typer.Context, file: Document, delegation: Delegation = None) -> None:
    """Submit a group, or a plain job or replica set (bsub). A coordinator is not started: `gangflow run` does that."""
    from gangflow.errors import Problem, UsageError
    from gangflow.runs import here
    from gangflow.specs.document import load
    from gangflow.specs.group import CoStartGroup

    spec: CoStartGroup = load(read_document(file))
    if spec.coordinator is not None:
        raise UsageError(
            [Problem("coordinator", spec.coordinator.kind, "none: `gangflow run FILE --address` starts one beside the group")]
        )
    with xce_app.client(context) as xce:
        submitted = xce.submit(here(spec), delegation=delegation or ())
    print(f"Job <{submitted.id}> is submitted.")


class _Groups:
    """The groups that words name, each asked for once; and what a word that names none may mean."""

    def __init__(self, xce: Client, words: Sequence[str]) -> None:
        self._xce = xce
        self._words = words
        self._views: dict[str, GroupView] = {}

    def one(self, text: str, instead: str = "") -> GroupView:
        """The group of that name. SpecError for a member or a slot, NotFound."""
        from gangflow.cli.names import group_only

        return self.of(group_only(text, instead))

    def of(self, name: Name) -> GroupView:
        """The group that a name begins with, where the member and the slot that it goes on with exist. NotFound."""
        from gangflow.cli.names import slots_named

        if name.group not in self._views:
            self._views[name.group] = self._xce.group(name.group)
        view = self._views[name.group]
        if not name.is_group:
            slots_named(view, name)
        return view

    def hint(self, position: int) -> str:
        """What the word there most likely means."""
        from gangflow.cli.names import meant

        return meant(self._words, position, self._views)


@app.command()
def suspend(context: typer.Context, groups: GroupNames, message: Message = "") -> None:
    """Suspend groups: they give everything back, and wait for `resume` (bstop)."""
    with xce_app.client(context) as xce:
        known = _Groups(xce, groups)

        def act(view: GroupView) -> Iterator[str]:
            moved = xce.suspend(view.id, message)
            yield f"Job <{moved.id}> is suspended" if moved.state == "SUSPENDED" else f"Job <{moved.id}> is being stopped"

        each_of(groups, "Job", lambda text: known.one(text, "`xcecli stop` is for a member"), act, known.hint)


@app.command()
def resume(context: typer.Context, groups: GroupNames) -> None:
    """Resume suspended groups: they wait for a place again, with their first submission time (bresume)."""
    with xce_app.client(context) as xce:
        known = _Groups(xce, groups)

        def act(view: GroupView) -> Iterator[str]:
            yield f"Job <{xce.resume(view.id).id}> is being resumed"

        each_of(groups, "Job", known.one, act, known.hint)


def kill(context: typer.Context, names: AnyNames) -> None:
    """Cancel groups, or stop members for good (bkill)."""
    from gangflow.cli.names import parse
    from gangflow.errors import Problem, UsageError

    with xce_app.client(context) as xce:
        known = _Groups(xce, names)

        def find(text: str) -> tuple[GroupView, Name]:
            name = parse(text)
            if name.is_slot:
                expected = "a group or a member; of one slot `xcecli restart` or `xcecli drain`, or `xcecli scale` for one less"
                raise UsageError([Problem("name", repr(text), expected, f"{name.group}.{name.member}")])
            return known.of(name), name

        def act(found: tuple[GroupView, Name]) -> Iterator[str]:
            view, name = found
            if name.is_group:
                xce.cancel(view.id)
            else:
                xce.stop_member(view.id, name.member)
            yield f"Job <{name}> is being terminated"

        each_of(names, "Job", find, act, known.hint)


app.command("kill")(kill)
app.command("cancel", hidden=True)(kill)


@app.command()
def stop(context: typer.Context, names: Annotated[list[str], typer.Argument(metavar="MEMBERS...", help="g1.rollout")]) -> None:
    """Stop members for good; the rest of their groups goes on. Restarting a slot brings its member back."""
    from gangflow.cli.names import parse
    from gangflow.errors import Problem, UsageError

    with xce_app.client(context) as xce:
        known = _Groups(xce, names)

        def find(text: str) -> tuple[GroupView, Name]:
            name = parse(text)
            view = known.of(name)
            if name.is_group or name.is_slot:
                raise UsageError([Problem("name", repr(text), "a member, as g1.rollout; `xcecli suspend` is for a group")])
            return view, name

        def act(found: tuple[GroupView, Name]) -> Iterator[str]:
            view, name = found
            xce.stop_member(view.id, name.member)
            yield f"Member <{name}> is being stopped"

        each_of(names, "Member", find, act, known.hint)


@app.command()
def restart(context: typer.Context, names: AnyNames, message: Message = "") -> None:
    """Restart groups, or slots, outside rules and budgets (brequeue)."""
    from gangflow.cli.names import parse, slots_meant

    with xce_app.client(context) as xce:
        known = _Groups(xce, names)

        def find(text: str) -> tuple[GroupView, Name]:
            name = parse(text)
            return known.of(name), name

        def act(found: tuple[GroupView, Name]) -> Iterator[str]:
            view, name = found
            if name.is_group:
                yield f"Job <{xce.restart_group(view.id, message).id}> is being restarted"
                return
            for slot in slots_meant(view, name):
                xce.restart(view.id, slot.member, slot.index, slot.incarnation)
                yield f"Job <{view.id}.{slot.member}[{slot.index}]> is being restarted"

        each_of(names, "Job", find, act, known.hint)


@app.command()
def fail(
    context: typer.Context,
    groups: GroupNames,
    cause: Annotated[str, typer.Option(help="One word, as `app_exit`.")] = "user",
    message: Message = "",
) -> None:
    """End groups as FAILED."""
    with xce_app.client(context) as xce:
        known = _Groups(xce, groups)

        def act(found: tuple[GroupView, str]) -> Iterator[str]:
            view, name = found
            xce.fail(view.id, cause, message)
            yield f"Job <{name}> is being failed"

        each_of(groups, "Job", lambda text: (known.one(text), text), act, known.hint)


def targets_of(words: Sequence[str]) -> dict[str, int]:
    """`rollout=4 …` → targets. SpecError for anything else."""
    from gangflow.errors import Problem, UsageError

    targets: dict[str, int] = {}
    problems = []
    for word in words:
        member, equals, count = word.partition("=")
        if not (member and equals and count.isascii() and count.isdigit() and len(count) <= 9) or member in targets:
            problems.append(Problem("targets", repr(word), "member=N, each member once"))
        else:
            targets[member] = int(count)
    if problems:
        raise UsageError(problems)
    return targets


def seconds_of(duration: str) -> float | None:
    """`10m` → 600.0; None for nothing. SpecError for what is no duration."""
    from gangflow.errors import Problem, UsageError
    from gangflow.specs.quantity import DURATION_RULE, duration_ms

    if not duration:
        return None
    try:
        return duration_ms(float(duration) if _NUMBER.fullmatch(duration) else duration) / 1000
    except Exception as error:
        raise UsageError([Problem("--timeout", repr(duration), DURATION_RULE)]) from error


def accepted_text(group: str, change: ChangeView | None) -> str:
    """What is said of a change that was accepted, or was none."""
    from gangflow.cli.lsf_columns import moved_text

    if change is None:
        return f"Job <{group}> has these targets already"
    ended = f": {change.message}" if change.message else ""
    return f"Job <{group}> resize request <{change.id}> is {change.state}: {moved_text(change)}{ended}"


@app.command()
def scale(
    context: typer.Context,
    group: Annotated[str, typer.Argument(help="A group, by id or name.")],
    targets: Annotated[list[str], typer.Argument(metavar="MEMBER=N...", help="How many replicas of which member.")],
    timeout: Annotated[str, typer.Option(help="After this what stands becomes the target, e.g. 10m; else the group's.")] = "",
) -> None:
    """Change how many replicas members have (bresize): one durable change, accepted when it is proved to fit."""
    from gangflow.cli.names import group_only

    wanted, limit = targets_of(targets), seconds_of(timeout)
    with xce_app.client(context) as xce:
        answer = xce.scale(group_only(group).group, wanted, limit)
    print(accepted_text(answer.id, answer.change))


@app.command()
def lift(
    context: typer.Context,
    group: Annotated[str, typer.Argument(help="A group, by id or name.")],
    hosts: HostNames,
) -> None:
    """Let a group use hosts again that it was excluded from after failures."""
    from gangflow.cli.names import group_only

    name = group_only(group)
    with xce_app.client(context) as xce:

        def act(host: str) -> Iterator[str]:
            xce.lift_exclusion(name.group, host)
            yield f"Host <{host}> is no longer excluded for job <{name}>"

        each_of(hosts, "Host", str, act)


# --- hosts ------------------------------------------------------------------------------------------------------------


@app.command()
def drain(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="NAMES...", help="Hosts, or slots: h3, h[0-3], all, g1.rollout[2].")],
    message: Message = "",
) -> None:
    """Empty hosts (close them, and let what runs there go), or drain and stop single slots; the rules decide what follows."""
    from gangflow.cli.names import hosts_named, parse, slots_meant

    with xce_app.client(context) as xce:
        known, there = _Groups(xce, names), _host_names(xce)

        def find(text: str) -> tuple[GroupView, Name] | list[str]:
            try:
                return hosts_named(text, there)
            except GangflowError:
                # `g1.rollout[2]` may be a host's name as well as a slot's: there is none of that name.
                if not (re.fullmatch(r"[^.]+\..+\[\d+\]", text) and parse(text).is_slot):
                    raise
            name = parse(text)
            return known.of(name), name

        def act(found: tuple[GroupView, Name] | list[str]) -> Iterator[str]:
            if isinstance(found, list):
                for host in found:
                    yield f"Drain <{xce.close_host(host, True, message).host}> ...... done"
                return
            view, name = found
            for slot in slots_meant(view, name):
                xce.drain_slot(view.id, slot.member, slot.index, slot.incarnation)
                yield f"Job <{view.id}.{slot.member}[{slot.index}]> is being drained"

        each_of(names, "Drain", find, act, known.hint)


@app.command()
def close(context: typer.Context, hosts: HostNames, message: Message = "") -> None:
    """Close hosts: what runs there runs on, and nothing new is placed there (badmin hclose)."""
    from gangflow.cli.names import hosts_named

    with xce_app.client(context) as xce:
        there = _host_names(xce)

        def act(found: list[str]) -> Iterator[str]:
            for host in found:
                yield f"Close <{xce.close_host(host, False, message).host}> ...... done"

        each_of(hosts, "Close", lambda text: hosts_named(text, there), act)


@app.command("open")
def open_(context: typer.Context, hosts: HostNames) -> None:
    """Open closed hosts again (badmin hopen)."""
    from gangflow.cli.names import hosts_named

    with xce_app.client(context) as xce:
        there = _host_names(xce)

        def act(found: list[str]) -> Iterator[str]:
            for host in found:
                moved = xce.open_host(host)
                rest = "" if moved.state == "UP" else f" (it is {moved.state})"
                yield f"Open <{moved.host}> ...... done{rest}"

        each_of(hosts, "Open", lambda text: hosts_named(text, there), act)


def _host_names(xce: Client) -> list[str]:
    return [host.name for host in every(lambda cursor: xce.hosts(cursor=cursor), "hosts")]


# --- claims and tokens ------------------------------------------------------------------------------------------------

claim = typer.Typer(help="Make and delete standalone claims.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(claim, name="claim")


@claim.command("create")
def create_claim(context: typer.Context, file: Document, delegation: Delegation = None) -> None:
    """Make a standalone claim, as a YAML file says: `name`, `provider`, `parameters`."""
    from gangflow.errors import SpecError
    from gangflow.specs.claims import StandaloneClaim
    from gangflow.specs.document import load

    try:
        spec = load(read_document(file), StandaloneClaim)
        with xce_app.client(context) as xce:
            made = xce.create_claim(spec, delegation=delegation or ())
    except SpecError as error:
        if error.advice == SpecError.remedy:  # `gangflow render` is for groups
            error.advice = "correct the named paths"
        raise
    print(f"Claim <{made.id}> is created.")


@claim.command("delete")
def delete_claim(
    context: typer.Context, names: Annotated[list[str], typer.Argument(metavar="CLAIMS...", help="By id.")]
) -> None:
    """Release standalone claims that no live group uses."""
    with xce_app.client(context) as xce:

        def act(name: str) -> Iterator[str]:
            xce.delete_claim(name)
            yield f"Claim <{name}> is being released"

        each_of(names, "Claim", lambda name: xce.claim(name).id, act)


@app.command()
def token(
    context: typer.Context,
    owner: Annotated[str, typer.Argument(help="Whose; your own name if it is left out.")] = "",
    delegation: Annotated[
        bool, typer.Option("--delegation", help="Whoever holds it may name that owner in a submission, and nothing else.")
    ] = False,
    ttl: Annotated[str, typer.Option(help="How long it is good for, e.g. 8h.")] = "24h",
) -> None:
    """Make a token: the admin an owner's, an owner one by which others may name him. It is printed this once."""
    seconds = seconds_of(ttl)
    assert seconds is not None, "it has a default"
    with xce_app.client(context) as xce:
        made = xce.make_token(owner, "delegation" if delegation else "owner", seconds)
    until = time.strftime("%b %d %H:%M", time.localtime(made.expires_ms / 1000))
    print(f"{made.kind} token of {made.owner}, good until {until}", file=sys.stderr)
    print(made.token)


ALIASES: Mapping[str, Any] = {
    "bsub": submit, "bstop": suspend, "bresume": resume, "bkill": kill, "brequeue": restart, "bresize": scale,
    "hclose": close, "hopen": open_,
}  # fmt: skip
"""Under LSF's own names, too."""
for _name, _command in ALIASES.items():
    app.command(_name, hidden=True)(_command)
