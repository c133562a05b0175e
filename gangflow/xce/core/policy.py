"""The failure policy: which rule speaks of a failure, and what it allows now. It changes nothing; `judge` acts on it."""

from __future__ import annotations

from dataclasses import dataclass

from gangflow.xce.core.plan import MACHINE_CAUSES, Action, BackoffPlan, Cause, RulePlan
from gangflow.xce.core.state import BudgetUse, Exit, Group

HOST_CLOSED = "host_closed"
"""Why a try is void when a host of it was closed before the release."""
TAKEN_BACK = frozenset({HOST_CLOSED, Cause.DRAINED.value})
"""Causes of a void try that are an operator's doing: such a try does not count against the group."""
STRENGTH = {action: strength for strength, action in enumerate(Action)}
RESTARTS = frozenset({Action.RESTART_MEMBER, Action.RESTART_ROLE, Action.RESTART_GROUP})
THEN = -2
"""Index of the budget that a rule's `then` spends."""
GROWTH_MAX = 64
"""Steps after which any backoff has reached its maximum; also keeps the integers small."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rules say to one failure."""

    action: Action
    rule: int
    """Its number; -1: no rule matched."""
    backoff_ms: int = 0
    spend: BudgetUse | None = None
    """The budget as it is once this restart was paid; None: it is free."""


def matches(rule: RulePlan, member: str, index: int, exit: Exit) -> bool:
    """Whether the rule speaks of this failure."""
    if rule.member not in ("", member) or rule.slot not in (-1, index):
        return False
    if rule.causes and exit.cause not in rule.causes:
        return False
    if not rule.exit_codes:
        return True
    # Codes speak of application exits only; another cause matches when the rule names it beside them.
    return exit.code in rule.exit_codes if exit.cause is Cause.APP_EXIT else bool(rule.causes)


def find_rule(group: Group, member: str, index: int, exit: Exit) -> int:
    """The number of the first rule that matches; -1 if none does."""
    for number, rule in enumerate(group.plan.rules):
        if matches(rule, member, index, exit):
            return number
    return -1


def grow(backoff: BackoffPlan, restarts: int) -> int:
    """The backoff before the next restart after so many: initial × factor ** restarts, at most max; integers only."""
    wait = min(backoff.initial_ms, backoff.max_ms)
    for _ in range(min(restarts, GROWTH_MAX)):
        if wait >= backoff.max_ms:
            break
        wait = min(backoff.max_ms, wait * backoff.factor_milli // 1_000)
    return wait


def scope(action: Action, member: str, index: int) -> tuple[str, int]:
    """Whose budget an action spends: the slot's, or the rule's own for role and group actions."""
    return (member, index) if action is Action.RESTART_MEMBER else ("", -1)


def budget(group: Group, rule: int, key: tuple[str, int]) -> BudgetUse:
    """What was spent of a rule's budget by this slot, or by all."""
    for use in group.budgets:
        if use.rule == rule and (use.member, use.index) == key:
            return use
    return BudgetUse(rule, key[0], key[1])


def recent(rule: RulePlan, use: BudgetUse, now_ms: int) -> tuple[int, ...]:
    """The restarts that still count in the sliding window."""
    return tuple(at for at in use.spent_ms if at > now_ms - rule.window_ms)


def spent(rule: RulePlan, use: BudgetUse, now_ms: int) -> bool:
    """Whether nothing is left of it: in number within the window, or in time since the first."""
    counted = recent(rule, use, now_ms)
    if rule.max_restarts >= 0 and len(counted) >= rule.max_restarts:
        return True
    return bool(counted) and rule.max_elapsed_ms > 0 and now_ms - use.first_ms > rule.max_elapsed_ms


def pay(rule: RulePlan, use: BudgetUse, now_ms: int) -> BudgetUse:
    """The budget after one more restart."""
    counted = recent(rule, use, now_ms)
    first = use.first_ms if counted and use.first_ms else now_ms
    return BudgetUse(use.rule, use.member, use.index, (*counted, now_ms), first)


def judge_one(group: Group, member: str, index: int, exit: Exit, now_ms: int, *, free: bool) -> Verdict:
    """What the first matching rule says, its budget considered. `free`: this restart was already paid by the same host."""
    number = find_rule(group, member, index, exit)
    if number < 0:
        return Verdict(Action.FAIL_GROUP, -1)
    rule = group.plan.rules[number]
    if rule.action not in RESTARTS:
        return Verdict(rule.action, number)
    use = budget(group, number, scope(rule.action, member, index))
    wait = grow(rule.backoff, len(recent(rule, use, now_ms)))
    if free or (exit.cause in MACHINE_CAUSES and not rule.count_machine_losses):
        return Verdict(rule.action, number, wait)
    if spent(rule, use, now_ms):
        return escalate(group, number, now_ms)
    return Verdict(rule.action, number, wait, pay(rule, use, now_ms))


def escalate(group: Group, number: int, now_ms: int) -> Verdict:
    """The rule's `then`: its budget is spent or its floor broken. A `then` that restarts has the same budget once more."""
    rule = group.plan.rules[number]
    if rule.then not in RESTARTS:
        return Verdict(rule.then, number)
    use = budget(group, number, ("", THEN))
    if rule.then is rule.action or spent(rule, use, now_ms):
        return Verdict(Action.FAIL_GROUP, number)
    return Verdict(rule.then, number, grow(rule.backoff, len(recent(rule, use, now_ms))), pay(rule, use, now_ms))
