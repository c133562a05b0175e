"""The callback of a TRL trainer in a group: it beats, and makes each checkpoint of the trainer one of the group."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from transformers import TrainerCallback

from gangflow.member.context import Context

LOGGED: Final = ("reward", "reward_std", "loss", "kl", "entropy", "grad_norm", "learning_rate", "completions/mean_length")
"""What of the trainer's log goes into heartbeats, and so into views of the group."""
DRIFT: Final = "sampling/sampling_logp_difference/max"
"""TRL's measure of how far the engines' log-probabilities are from the trainer's."""
MEAN_DRIFT: Final = "sampling/sampling_logp_difference/mean"


class GroupCallback(TrainerCallback):
    """Of all ranks, only the first one speaks for the trainer."""

    def __init__(self, context: Context, max_drift: float | None = None, max_mean_drift: float | None = None) -> None:
        """Largest |trainer − engine| log-probability of a token, and in the mean, that is rounding; more fails the group."""
        self._context = context
        self._limits = {DRIFT: max_drift, MEAN_DRIFT: max_mean_drift}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """ValueError for settings with which no checkpoint could be resumed."""
        faults = settings_faults(args, list(self._context.claims.values()))
        if faults:
            raise ValueError("; ".join(faults))
        self._beat(state, step=state.global_step, steps=state.max_steps)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """A step is progress."""
        self._beat(state, step=state.global_step, steps=state.max_steps)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """So is a batch of an evaluation."""
        self._beat(state)

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Numbers for whoever looks at the group. PolicyMismatch when the engines' samples are of another policy."""
        logs = logs or {}
        self._beat(state, **{name.replace("/", "_"): logs[name] for name in LOGGED if _finite(logs.get(name))})
        for name, limit in self._limits.items():
            drift: Any = logs.get(name)
            if limit is not None and _finite(drift) and drift > limit and state.is_world_process_zero:
                how = " in the mean" if name == MEAN_DRIFT else ""
                said = f"log-probabilities of engine and trainer differ by {drift:g}{how}, {limit:g} is allowed"
                self._context.diverged(f"step {state.global_step}: {said}")

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The checkpoint is written: from here on it is what a restart goes on from."""
        if state.is_world_process_zero:
            self._context.checkpoint(state.global_step - 1, checkpoint_of(args, state))
            forget_ledgers(Path(args.output_dir))

    def _beat(self, state: Any, **fields: Any) -> None:
        if state.is_world_process_zero:
            self._context.heartbeat(**fields)


def checkpoint_of(args: Any, state: Any) -> Path:
    """Where a transformers trainer saves the checkpoint of its present step."""
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"


def forget_ledgers(folder: Path) -> None:
    """The trainer removes old checkpoints (`save_total_limit`) without the ledgers beside them."""
    for ledger in folder.glob("checkpoint-*.ledger.json"):
        if not ledger.with_name(ledger.name.removesuffix(".ledger.json")).is_dir():
            ledger.unlink(missing_ok=True)


def settings_faults(args: Any, claims: list[str]) -> list[str]:
    """What of the trainer's arguments would leave a restart without its checkpoint."""
    folder = Path(args.output_dir).resolve()
    faults = []
    if claims and not any(folder.is_relative_to(Path(claim).resolve()) for claim in claims):
        faults.append(f"output_dir: expected a folder in one of the group's claims ({', '.join(claims)}), got {folder}")
    if args.save_only_model:
        faults.append("save_only_model: expected False: a restart needs the optimizer, too")
    if args.save_total_limit is not None and args.save_total_limit < 2:
        faults.append(f"save_total_limit: expected 2 at least, got {args.save_total_limit}: the one before goes first")
    return faults


def _finite(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
