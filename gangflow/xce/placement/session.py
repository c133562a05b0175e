"""One run of the scheduler over one view, in numbered phases (design 3.6). A later phase is one more row of `PHASES`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gangflow.xce.core.asks import Ask, AskKind, Grant, Refusal, SlotAsk
from gangflow.xce.core.state import PendCode, Reason, Task
from gangflow.xce.placement.claimed import Claimed
from gangflow.xce.placement.compiled import Request, Requests
from gangflow.xce.placement.explain import explain
from gangflow.xce.placement.feasible import Fits
from gangflow.xce.placement.grant import slot_tasks
from gangflow.xce.placement.never import never_part
from gangflow.xce.placement.pack import Blocked, Heed, Placer, UnknownLevel
from gangflow.xce.placement.request import least_of
from gangflow.xce.placement.snapshot import ClusterView

SESSION_WORK = 4_096
"""Placement attempts in one session at most: a controller must answer while ten thousand groups wait. Asks of a shape that is
known not to fit cost none; those that are not reached wait their turn."""

GrantedSlot = tuple[str, int, tuple[Task, ...]]
SlotKey = tuple[str, int]
SlotKeys = tuple[SlotKey, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Failed:
    """An attempt that did not fit: what was tried, for the phase that says why."""

    request: Request
    blocked: Blocked | None


class Session:
    """The view, the asks, and what has been answered so far."""

    def __init__(
        self, requests: Requests, asks: Sequence[Ask], work: int = SESSION_WORK, claimed: Claimed | None = None
    ) -> None:
        self.requests = requests
        self.claimed = claimed if claimed is not None else Claimed()
        """Standalone claims, which groups take with their places."""
        self.fits = requests.fits
        self.view: ClusterView = requests.fits.view
        self.asks = asks
        self.work = work
        self.waiting: dict[AskKind, list[Ask]] = {}
        """Asks of each kind, in order; made by the order phase."""
        self.answers: list[Grant | Refusal] = []
        self.unexplained: list[tuple[Ask, SlotKeys, Failed | Reason]] = []
        self.stands: dict[str, list[tuple[str, str]]] = {}
        """(member, host) of what this session placed, per group: a group's later asks keep to it."""
        self.failed: dict[Request | tuple[object, ...], Failed] = {}
        """Requests, and shapes, that do not fit: within a session nothing comes free, so an equal ask is not tried again."""
        self.last = ""
        """The group that was tried last: whoever is not reached waits behind it."""
        self.late: Reason | None = None
        """What those are told who are not reached."""


def order_key(ask: Ask) -> tuple[int, int, int, str]:
    """Higher priority first, then the earlier submission, then the lower id (`g2` before `g10`)."""
    return (-ask.priority, ask.submitted_ms, len(ask.group), ask.group)


def put_in_order(session: Session) -> None:
    """Phase 2, done first because recovery goes by the same order."""
    for ask in sorted(session.asks, key=order_key):
        session.waiting.setdefault(ask.kind, []).append(ask)


def recover(session: Session) -> None:
    """Phase 1: lost slots of running groups, each on its own (or `together`), before anything else may take the room."""
    for ask in session.waiting.get(AskKind.RECOVERY, ()):
        if ask.together:
            _whole(session, ask)
        else:
            _one_by_one(session, ask)


def place_minima(session: Session) -> None:
    """Phase 3: all required slots of a group, or nothing; a later group may go where an earlier one does not fit."""
    seen, failed = session.requests.seen, session.failed
    for ask in session.waiting.get(AskKind.MINIMUM, ()):
        if ask.claims and (held := session.claimed.refused(ask)) is not None:
            session.unexplained.append((ask, tuple((slot.member, slot.index) for slot in ask.slots), held))
            continue
        request = seen(ask)
        if request is not None and request in failed and ask.group not in session.stands:
            # As `attempt` would say: where many wait, nearly all are such.
            session.unexplained.append((ask, request.keys, failed[request]))
        else:
            _whole(session, ask)


def place_surplus(session: Session) -> None:
    """Phase 7: replicas above the minimum, after every waiting minimum was tried."""
    for ask in session.waiting.get(AskKind.SURPLUS, ()):
        _one_by_one(session, ask)


def note_reasons(session: Session) -> None:
    """Phase 8: why each refused ask waits, as things stand after everything was placed."""
    found: dict[tuple[str, Failed], Reason] = {}
    refused: dict[tuple[str, AskKind], list[tuple[Reason, SlotKeys]]] = {}
    for ask, keys, failed in session.unexplained:
        whole = ask.kind is AskKind.MINIMUM
        reason: Reason | None
        if isinstance(failed, Reason):
            reason = failed
        else:
            # A group that holds nothing itself gets the same answer as any other of its shape.
            key = ("" if whole and not ask.held else ask.group, failed)
            reason = found.get(key)
            if reason is None:
                part = failed.request.part
                never = None if ask.excluded else never_part(session.fits, part)
                reason = found[key] = never or explain(session.fits, part, ask.group, failed.blocked)
        if whole:
            session.answers.append(Refusal(ask.group, reason, keys))
        else:
            _add(refused.setdefault((ask.group, ask.kind), []), reason, keys)
    for (group, _), told in refused.items():
        session.answers.extend([Refusal(group, reason, keys) for reason, keys in told])


def _add(told: list[tuple[Reason, SlotKeys]], reason: Reason, keys: SlotKeys) -> None:
    """Slots of one group that wait for the same reason are told so together."""
    for position, (known, before) in enumerate(told):
        if known is reason or known == reason:
            told[position] = (known, before + keys)
            return
    told.append((reason, keys))


PHASES: tuple[tuple[int, Callable[[Session], None]], ...] = (
    (2, put_in_order),
    (1, recover),
    (3, place_minima),
    (7, place_surplus),
    (8, note_reasons),
)
"""Numbered as in the design, listed in the order in which they run."""


def _whole(session: Session, ask: Ask) -> None:
    outcome = attempt(session, ask, ask.slots)
    if isinstance(outcome, tuple):
        session.answers.append(Grant(ask.group, outcome))
        session.requests.placed(ask.group)
        session.claimed.take(ask)
    else:
        known = session.view.topology.size
        keys = session.requests.whole(ask).keys if known else tuple((slot.member, slot.index) for slot in ask.slots)
        session.unexplained.append((ask, keys, outcome))


def _one_by_one(session: Session, ask: Ask) -> None:
    placed: list[GrantedSlot] = []
    for slot in ask.slots:
        outcome = attempt(session, ask, (slot,))
        if isinstance(outcome, tuple):
            placed.extend(outcome)
        else:
            session.unexplained.append((ask, ((slot.member, slot.index),), outcome))
    if placed:
        session.answers.append(Grant(ask.group, tuple(placed)))


def attempt(session: Session, ask: Ask, slots: tuple[SlotAsk, ...]) -> tuple[GrantedSlot, ...] | Failed | Reason:
    """Place some slots of an ask together, or nothing; the view keeps what was granted and nothing else."""
    if not slots:
        return ()
    view = session.view
    if not view.topology.size:
        return Reason(PendCode.WAITING_CAPACITY, "the cluster has no hosts yet", tuple(least_of(slots).items()))
    stands = session.stands.get(ask.group)
    if slots is ask.slots and not stands:
        request = session.requests.whole(ask)
    else:
        request = session.requests.part(ask, slots, stands or ())
    keys = request.keys
    failed = session.failed.get(request) or session.failed.get(request.shape) if session.failed else None
    if failed is not None:
        return failed
    if session.work <= 0:
        if session.late is None:
            text = f"not reached in this session, which ended after {session.last}"
            session.late = Reason(PendCode.WAITING_TURN, text, blocker=session.last)
        return session.late
    session.work -= 1
    session.last = ask.group
    session.fits.refresh(request.fits, sums=request.part.pack is not None and len(request.fits) > 1)
    try:
        placer = _placed(session.fits, request)
    except UnknownLevel as error:
        return Reason(PendCode.MISCONFIGURED, str(error))
    if not placer.done:
        failed = session.failed[request] = session.failed[request.shape] = Failed(request, placer.blocked)
        return failed
    tasks = slot_tasks(view, placer.placed)
    tasks_on: dict[int, int] = {}
    for _, _, _, chunk in placer.placed:
        tasks_on[chunk.host] = tasks_on.get(chunk.host, 0) + chunk.bundles * chunk.need.tasks
    view.expect(ask.group, tasks, tasks_on, placer.draft.takes())
    if ask.pack is not None or ask.pack_members:
        session.stands.setdefault(ask.group, []).extend((key[0], task.host) for key, found in tasks.items() for task in found)
    return tuple([(key[0], key[1], tasks[key]) for key in keys])


def _placed(fits: Fits, request: Request) -> Placer:
    """With every packing; if that fails, with the required ones only, so that no preference keeps a group waiting."""
    placer = Placer(fits)
    if all(fit.total >= count for fit, count in request.part.demands):
        for heed in (Heed.ALL, Heed.REQUIRED) if request.prefers else (Heed.ALL,):
            placer = Placer(fits, heed)
            if placer.try_whole(request.part):
                break
    return placer
