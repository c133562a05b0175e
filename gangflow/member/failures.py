"""What can go wrong inside a member, and the three classes of a failed request for samples.

INFRA is dispatched again elsewhere, DATA is skipped within a budget, POLICY ends the run. What nobody can classify is DATA:
it is bounded, and never scored as a reward of 0.
"""

from __future__ import annotations

from enum import StrEnum

from gangflow.errors import GangflowError


class FailureClass(StrEnum):
    """Why samples did not come."""

    INFRA = "infra"
    """The engine or the way to it: another eligible rollout can do it."""
    DATA = "data"
    """The prompt, or nobody knows what."""
    POLICY = "policy"
    """The engine's weights are not what was published under their id, or disagree with the reference."""


class NotAMember(GangflowError):
    """`gangflow.context()` was called in a process that no XCE started."""

    code = "not_a_member"
    exit_code = 2
    remedy = "start the script as a member: `gangflow run my.yaml`, or set XCE_URL, XCE_TOKEN, XCE_GROUP, XCE_MEMBER by hand"


class PolicyMismatch(GangflowError):
    """Samples were made with weights that this actor never published under that id: training on them would be wrong."""

    code = "policy_mismatch"


class DataBudgetSpent(GangflowError):
    """More prompts failed for their own sake than the budget of skips allows."""

    code = "data_budget"


class InfraExhausted(GangflowError):
    """A prompt failed on every attempt although rollouts were eligible."""

    code = "infra_exhausted"


class CheckpointDamaged(GangflowError):
    """The newest checkpoint's files are not what was saved under its name."""

    code = "checkpoint_damaged"
    remedy = "restore the named file; the run must not go on from weights that nobody saved"
