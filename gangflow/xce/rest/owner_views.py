"""What each owner's members hold now. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict

from gangflow.xce.core.state import State
from gangflow.xce.rest.host_views import amounts
from gangflow.xce.rest.schema import OwnerView


def owner_views(state: State) -> tuple[OwnerView, ...]:
    """Owners of live groups, of their members and of standalone claims, by name; nobody's are left out."""
    groups: Counter[str] = Counter()
    members: Counter[str] = Counter()
    slots: Counter[str] = Counter()
    held: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for group in state.groups.values():
        if group.state.terminal:
            continue
        groups[group.plan.owner] += 1
        owner_of = {member.name: member.owner or group.plan.owner for member in group.plan.members}
        members.update(owner_of.values())
        for slot in group.slots.values():
            if slot.tasks:
                owner = owner_of[slot.member]
                slots[owner] += 1
                for task in slot.tasks:
                    held[owner].update(amounts(task))
    claims = Counter(claim.owner for claim in state.claims.values() if not claim.group)
    return tuple(
        OwnerView(
            owner=owner,
            groups=groups[owner],
            members=members[owner],
            slots=slots[owner],
            held={name: amount for name, amount in held[owner].items() if amount},
            claims=claims[owner],
        )
        for owner in sorted({*groups, *members, *claims} - {""})
    )
