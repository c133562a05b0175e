"""The failure policy as a pure question: which rule, within which budget."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gangflow.xce.core.plan import Action, BackoffPlan, Cause, RulePlan
from gangflow.xce.core.policy import escalate, find_rule, grow, judge_one, matches
from gangflow.xce.core.state import Exit, Group
from tests.unit.xce.core.plans import job, plan, replicas

NOW = 10_000_000


def group_with(*rules: RulePlan) -> Group:
    made = plan(job(), replicas())
    return Group("g1", replace(made, rules=rules))


def exit_of(cause: Cause, code: int | None = None) -> Exit:
    return Exit(cause, 1, NOW, code)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (RulePlan(Action.TOLERATE), True),
        (RulePlan(Action.TOLERATE, member="rollout", slot=1, causes=(Cause.APP_EXIT,), exit_codes=(3, 4)), True),
        (RulePlan(Action.TOLERATE, member="actor"), False),
        (RulePlan(Action.TOLERATE, slot=0), False),
        (RulePlan(Action.TOLERATE, causes=(Cause.OOM,)), False),
        (RulePlan(Action.TOLERATE, exit_codes=(4,)), False),
    ],
)
def test_a_rule_matches_by_member_slot_cause_and_code(rule: RulePlan, expected: bool) -> None:
    assert matches(rule, "rollout", 1, exit_of(Cause.APP_EXIT, 3)) is expected


def test_exit_codes_speak_of_application_exits_only() -> None:
    rule = RulePlan(Action.TOLERATE, exit_codes=(3,))
    assert not matches(rule, "rollout", 0, exit_of(Cause.HOST_LOST))
    assert matches(replace(rule, causes=(Cause.APP_EXIT, Cause.HOST_LOST)), "rollout", 0, exit_of(Cause.HOST_LOST))


def test_the_first_match_wins_and_no_match_fails_the_group() -> None:
    group = group_with(RulePlan(Action.TOLERATE, member="rollout"), RulePlan(Action.RESTART_GROUP))
    assert find_rule(group, "rollout", 0, exit_of(Cause.OOM)) == 0
    assert find_rule(group, "actor", 0, exit_of(Cause.OOM)) == 1
    verdict = judge_one(group_with(), "actor", 0, exit_of(Cause.OOM), NOW, free=False)
    assert (verdict.action, verdict.rule) == (Action.FAIL_GROUP, -1)


def test_the_backoff_grows_in_integers_up_to_its_maximum() -> None:
    backoff = BackoffPlan(1_000, 1_500, 5_000)
    assert [grow(backoff, n) for n in range(6)] == [1_000, 1_500, 2_250, 3_375, 5_000, 5_000]
    assert grow(backoff, 10**9) == 5_000
    assert grow(BackoffPlan(7_000, 2_000, 5_000), 0) == 5_000


def spend(group: Group, member: str, index: int, cause: Cause, at_ms: int) -> tuple[Group, Action]:
    """One failure judged and paid."""
    verdict = judge_one(group, member, index, exit_of(cause), at_ms, free=False)
    if verdict.spend is None:
        return group, verdict.action
    spent = verdict.spend
    kept = [use for use in group.budgets if (use.rule, use.member, use.index) != (spent.rule, spent.member, spent.index)]
    return replace(group, budgets=(*kept, spent)), verdict.action


def test_a_budget_counts_per_slot_in_a_sliding_window() -> None:
    """Scenario 37: after so many restarts the rule's `then` applies; the window forgets old ones."""
    rule = RulePlan(Action.RESTART_MEMBER, max_restarts=2, window_ms=60_000, then=Action.FAIL_GROUP)
    group, actions = group_with(rule), []
    for at_ms in (0, 10_000, 20_000, 61_000):
        group, action = spend(group, "rollout", 0, Cause.APP_EXIT, NOW + at_ms)
        actions.append(action)
    assert actions == [Action.RESTART_MEMBER, Action.RESTART_MEMBER, Action.FAIL_GROUP, Action.RESTART_MEMBER]
    _, other = spend(group, "rollout", 1, Cause.APP_EXIT, NOW + 20_000)
    assert other is Action.RESTART_MEMBER, "another slot has a budget of its own"


def test_a_role_or_group_action_has_one_budget_for_all_slots() -> None:
    group = group_with(RulePlan(Action.RESTART_ROLE, max_restarts=1))
    group, first = spend(group, "rollout", 0, Cause.APP_EXIT, NOW)
    group, second = spend(group, "rollout", 1, Cause.APP_EXIT, NOW + 1)
    assert (first, second) == (Action.RESTART_ROLE, Action.FAIL_GROUP)


def test_a_budget_ends_in_count_or_in_time_whichever_is_first() -> None:
    """Scenario 22: give up after six hours of failing, however few restarts it were."""
    hour = 3_600_000
    group = group_with(RulePlan(Action.RESTART_MEMBER, max_restarts=100, window_ms=2 * hour, max_elapsed_ms=6 * hour))
    actions = []
    for n in range(8):
        group, action = spend(group, "rollout", 0, Cause.APP_EXIT, NOW + n * hour)
        actions.append(action)
    assert actions == [Action.RESTART_MEMBER] * 7 + [Action.FAIL_GROUP]


def test_losses_by_machines_do_not_spend_unless_the_rule_says_so() -> None:
    rule = RulePlan(Action.RESTART_MEMBER, max_restarts=0)
    assert spend(group_with(rule), "rollout", 0, Cause.HOST_LOST, NOW)[1] is Action.RESTART_MEMBER
    counting = replace(rule, count_machine_losses=True)
    assert spend(group_with(counting), "rollout", 0, Cause.HOST_LOST, NOW)[1] is Action.FAIL_GROUP


def test_then_has_the_same_budget_once_more_and_never_loops() -> None:
    rule = RulePlan(Action.RESTART_MEMBER, max_restarts=0, then=Action.RESTART_GROUP)
    group = group_with(replace(rule, max_restarts=1))
    first = escalate(group, 0, NOW)
    assert first.action is Action.RESTART_GROUP
    assert first.spend is not None
    assert escalate(replace(group, budgets=(first.spend,)), 0, NOW + 1).action is Action.FAIL_GROUP
    assert escalate(group_with(rule), 0, NOW).action is Action.FAIL_GROUP
    same = RulePlan(Action.RESTART_MEMBER, then=Action.RESTART_MEMBER)
    assert escalate(group_with(same), 0, NOW).action is Action.FAIL_GROUP
