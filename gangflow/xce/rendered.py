"""A group as a cluster would run it, as YAML: profiles merged in, requirements written out, with comments where from; and the
failure rules that hold where none of the group's matches."""

from __future__ import annotations

from collections.abc import Iterator

from gangflow.specs.cluster import ClusterSpec
from gangflow.specs.document import dump, read
from gangflow.specs.faults import Loc
from gangflow.specs.group import CoStartGroup
from gangflow.specs.profiles import Merged
from gangflow.specs.quantity import render_duration
from gangflow.specs.resreq import render
from gangflow.xce.admission import admit, default_rules
from gangflow.xce.admission_checks import ClusterDefaults, defaults_of, merged_members, requirement
from gangflow.xce.core.plan import Action


def rendered(group: CoStartGroup, cluster: ClusterSpec | ClusterDefaults) -> str:
    """The text; it reads back as a group without profiles that runs the same.

    Raises SpecError for what this cluster would refuse.
    """
    known = defaults_of(cluster) if isinstance(cluster, ClusterSpec) else cluster
    admit(group, known)
    merged = merged_members(group, known)
    members = {name: _as_it_runs(one, group, known) for name, one in merged.items()}
    text = dump(group.model_copy(update={"members": members}))
    _, line = read(text)
    lines = text.splitlines()
    for loc, note in reversed([*_notes(group, merged)]):
        row = line(loc) - 1
        lines.insert(row, f"{' ' * (len(lines[row]) - len(lines[row].lstrip()))}# {note}")
    lines += ["# Where no rule of the group's matches a failure:", *(f"#   {line}" for line in _defaults(merged))]
    return "\n".join(lines) + "\n"


def _defaults(merged: dict[str, Merged]) -> Iterator[str]:
    """The default rules of each member, in words."""
    for name, one in merged.items():
        rules = default_rules(name, one.member)
        for rule in rules:
            causes = ", ".join(rule.causes) or ("anything" if rule is rules[0] else "anything else")
            words = rule.action.value
            if rule.max_restarts >= 0:
                words += f", {rule.max_restarts} in {render_duration(rule.window_ms)}, then {rule.then.value}"
            if rule.then is Action.TOLERATE and rule.floor > 0:
                words += f" while {rule.floor} remain{'s' if rule.floor == 1 else ''}, else {Action.FAIL_GROUP.value}"
            yield f"{name}, {causes}: {words}"


def _as_it_runs(merged: Merged, group: CoStartGroup, cluster: ClusterDefaults) -> object:
    member = merged.member
    defaults = {name: value for name, value in merged.defaults if name not in group.environment}
    resreq = None if member.resreq is None else render(requirement(member, cluster))
    # Merged twice, a wrapper would stand there twice.
    return member.model_copy(update={"environment": {**defaults, **member.environment}, "resreq": resreq, "profile": None})


def _notes(group: CoStartGroup, merged: dict[str, Merged]) -> Iterator[tuple[Loc, str]]:
    """(path, comment), in the order of the text."""
    for name, one in merged.items():
        member = group.members[name]
        if member.profile is None:
            continue
        at: Loc = (member.tag,) if group.plain else ("members", name, member.tag)
        fields = list(type(member).model_fields)
        for key, origin in sorted(one.origins, key=lambda pair: fields.index(pair[0])):
            note = f"{key}: {origin} {member.profile!r}"
            if key == "environment":
                taken = [v for v, _ in one.defaults if v not in member.environment and v not in group.environment]
                if not taken:
                    continue
                note = f"environment: {', '.join(taken)} of profile {member.profile!r}"
            yield (*at, key), note
