"""Failures of one batch are judged together, in member and slot order; the strongest action wins (design 3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gangflow.xce.core.blame import blame, of_batch
from gangflow.xce.core.changes import keeps
from gangflow.xce.core.claims import release_all
from gangflow.xce.core.counts import ACTIVE, RUNS, wanted
from gangflow.xce.core.events import BudgetSpent, FailureJudged, GroupChanged
from gangflow.xce.core.floors import floor_of
from gangflow.xce.core.index import in_order
from gangflow.xce.core.plan import MACHINE_CAUSES, Action, Cause, MemberKind
from gangflow.xce.core.policy import STRENGTH, TAKEN_BACK, Verdict, escalate, judge_one, scope
from gangflow.xce.core.state import Group, GroupState, Next, SlotState
from gangflow.xce.core.teardown import change, describe, drain, how_ended, stop, stop_all, unwanted
from gangflow.xce.core.turn import Failure, SlotId, Turn
from gangflow.xce.renew import replace

G, S = GroupState, SlotState


@dataclass(frozen=True, slots=True)
class Judged:
    """One failure with what the rules said to it."""

    key: SlotId
    failure: Failure
    verdict: Verdict

    @property
    def cause(self) -> Cause:
        return self.failure.exit.cause or Cause.APP_EXIT


def judge(turn: Turn) -> None:
    """Judge what this batch collected; groups in order of submission."""
    failures, turn.failures = turn.failures, {}
    for group_id in in_order(failures):
        group = turn.draft.groups[group_id]
        by_slot = {key: failures[group_id][key] for key in group.slots if key in failures[group_id]}
        if group.state not in ACTIVE:
            _record(turn, group, by_slot)
            continue
        # What was told to go before it failed, and does not come back, matches no rule; nor what was brought back already.
        done = {
            key: one for key, one in by_slot.items() if unwanted(group, slot := group.slots[key]) or slot.state is S.PENDING
        }
        _record(turn, group, done)
        by_slot = {key: one for key, one in by_slot.items() if key not in done}
        if not by_slot:
            continue
        hosts = of_batch(turn, group, by_slot.items())
        cases = _verdicts(turn, group, by_slot)
        strongest = max(cases, key=lambda case: STRENGTH[case.verdict.action])
        if strongest.verdict.action is Action.FAIL_GROUP:
            _fail(turn, group, cases, strongest)
        elif strongest.verdict.action is Action.RESTART_GROUP:
            _restart(turn, group, cases, strongest)
        else:
            _one_by_one(turn, group, cases)
        if turn.draft.groups[group_id].state is not G.STOPPING:
            blame(turn, group_id, hosts)


def _record(turn: Turn, group: Group, failures: Mapping[SlotId, Failure]) -> None:
    """These are wanted no more, or not for now: nothing matches, and each goes on to what it was told to become."""
    for key, failure in failures.items():
        slot = group.slots[key]
        cause = failure.exit.cause or Cause.APP_EXIT
        turn.emit(FailureJudged(group.id, *key, slot.incarnation, cause, -1, "", describe(failure.exit)))
        if slot.state in RUNS:
            # Scaled away in this very batch; its change had not told it yet.
            stop(turn, group.id, key, Next.SCALE if keeps(group, key) else Next.RETIRE, exit=failure.exit)


def _verdicts(turn: Turn, group: Group, failures: Mapping[SlotId, Failure]) -> list[Judged]:
    cases: list[Judged] = []
    paid: dict[tuple[int, str], None] = {}
    uses: dict[tuple[int, str, int], None] = {}
    leaving: dict[str, int] = {}
    for key, failure in failures.items():
        verdict = _infrastructure(group, failure)
        if verdict is None:
            verdict = _by_rule(turn, group, key, failure, paid, uses)
        if verdict.action is Action.TOLERATE:
            verdict = _within_floor(turn, group, key, verdict, leaving)
        cases.append(Judged(key, failure, verdict))
    return cases


def _infrastructure(group: Group, failure: Failure) -> Verdict | None:
    """Before the group was first RUNNING a machine's fault sends it back to placement, a bounded number of times."""
    if group.first_running_ms or failure.exit.cause not in MACHINE_CAUSES:
        return None
    last = failure.exit.cause.value not in TAKEN_BACK and group.attempt + 1 >= group.plan.barrier.max_attempts
    return Verdict(Action.FAIL_GROUP if last else Action.RESTART_GROUP, -1)


def _by_rule(
    turn: Turn,
    group: Group,
    key: SlotId,
    failure: Failure,
    paid: dict[tuple[int, str], None],
    uses: dict[tuple[int, str, int], None],
) -> Verdict:
    verdict = judge_one(group, *key, failure.exit, turn.now_ms, free=False)
    if verdict.rule < 0:
        return verdict
    rule = group.plan.rules[verdict.rule]
    use = (verdict.rule, *scope(rule.action, *key))
    same_host = (verdict.rule, failure.host)
    if (failure.host and same_host in paid) or use in uses:
        # One host's failures count once, and so does one restart of a role or group, however many it is for.
        verdict = judge_one(group, *key, failure.exit, turn.now_ms, free=True)
    elif verdict.spend is not None:
        paid[same_host] = None
        uses[use] = None
    return verdict


def _within_floor(turn: Turn, group: Group, key: SlotId, verdict: Verdict, leaving: dict[str, int]) -> Verdict:
    """A replica may be given up only while enough of them are left, unless a grace watches over that."""
    member = group.plan.member(key[0])
    if member.kind is MemberKind.JOB or verdict.rule < 0:
        return verdict
    rule = group.plan.rules[verdict.rule]
    leaving[member.name] = leaving.get(member.name, 0) + 1
    if rule.floor_grace_ms or wanted(group, member) - leaving[member.name] >= floor_of(member, rule):
        return verdict
    leaving[member.name] -= 1
    broken = escalate(group, verdict.rule, turn.now_ms)
    return replace(broken, action=Action.FAIL_GROUP) if broken.action is Action.TOLERATE else broken


def _note(turn: Turn, group: Group, case: Judged, action: str) -> None:
    slot = group.slots[case.key]
    turn.emit(
        FailureJudged(group.id, *case.key, slot.incarnation, case.cause, case.verdict.rule, action, describe(case.failure.exit))
    )


def _pay(turn: Turn, group: Group, case: Judged) -> None:
    if case.verdict.spend is not None:
        turn.emit(BudgetSpent(group.id, case.verdict.spend))


def message(case: Judged) -> str:
    """Who failed, and how, in one line. The cause is told beside it."""
    return f"{case.key[0]}[{case.key[1]}]: {how_ended(case.failure.exit) or case.cause.value}"


def _fail(turn: Turn, group: Group, cases: list[Judged], strongest: Judged) -> None:
    for case in cases:
        _note(turn, group, case, strongest.verdict.action.value)
        stop(turn, group.id, case.key, Next.END, exit=case.failure.exit)
    end_group(turn, group.id, GroupState.FAILED, strongest.cause.value, message(strongest))


def _restart(turn: Turn, group: Group, cases: list[Judged], strongest: Judged) -> None:
    to_placement = strongest.verdict.rule < 0
    following = Next.PLACE if to_placement else Next.RESTART
    for case in cases:
        _note(turn, group, case, strongest.verdict.action.value)
    _pay(turn, group, strongest)
    turn.emit(
        GroupChanged(
            group.id,
            group.state,
            G.RESTARTING,
            strongest.cause.value,
            message(strongest),
            until_ms=0 if to_placement else turn.now_ms + strongest.verdict.backoff_ms,
        )
    )
    stop_all(turn, group.id, following, {case.key: case.failure.exit for case in cases})


def _one_by_one(turn: Turn, group: Group, cases: list[Judged]) -> None:
    roles: dict[str, Judged] = {}
    for case in cases:
        if case.verdict.action is Action.RESTART_ROLE:
            roles.setdefault(case.key[0], case)
    for case in cases:
        role = roles.get(case.key[0])
        _note(turn, group, case, (role or case).verdict.action.value)
        if role is None or role is case:
            _pay(turn, group, case)
        until = turn.now_ms + (role or case).verdict.backoff_ms
        following = Next.BACKOFF
        if role is None and case.verdict.action is Action.TOLERATE:
            following, until = Next.RETIRE, 0
        down = drain if case.cause is Cause.DRAINED else stop
        down(turn, group.id, case.key, following, until_ms=until, exit=case.failure.exit)
    for member, case in roles.items():
        restart_role(turn, group.id, member, turn.now_ms + case.verdict.backoff_ms)


def restart_role(turn: Turn, group_id: str, member: str, until_ms: int) -> None:
    """Restart all slots of a member: those that run, and those that were given up. What is on its way up already is."""
    group = turn.draft.groups[group_id]
    for key, slot in list(group.slots.items()):
        if key[0] != member:
            continue
        if slot.state in (S.STARTING, S.RUNNING, S.READY):
            stop(turn, group_id, key, Next.BACKOFF, until_ms=until_ms)
        elif slot.state is S.RETIRED and not unwanted(group, slot):
            stop(turn, group_id, key, Next.PLACE)


def end_group(turn: Turn, group_id: str, goal: GroupState, cause: str, text: str, *, delay_ms: int = 0) -> None:
    """Take the whole group down towards a terminal state; slots that run get `delay_ms` first."""
    group = turn.draft.groups[group_id]
    if group.state is not G.STOPPING:
        if group.state in (G.PENDING, G.SUSPENDED) and not any(slot.tasks for slot in group.slots.values()):
            for key in list(group.slots):
                stop(turn, group_id, key, Next.END)
            turn.emit(GroupChanged(group_id, group.state, goal, cause, text))
            release_all(turn, turn.draft.groups[group_id])
            return
        turn.emit(GroupChanged(group_id, group.state, G.STOPPING, cause, text, goal))
    for key in list(group.slots):
        slot = turn.draft.groups[group_id].slots[key]
        if delay_ms and slot.state in (S.RUNNING, S.READY):
            change(turn, group, slot, S.DRAINING, next=Next.END, until_ms=turn.now_ms + delay_ms)
        else:
            stop(turn, group_id, key, Next.END)
