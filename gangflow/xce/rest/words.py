"""Amounts as people read them: milli-CPU as CPU, MiB as GiB, thousandths of GPUs as GPUs. Pure; for server and CLI."""

from __future__ import annotations

_MILLI = frozenset({"cpu", "gpus"})


def amount_text(name: str, amount: int) -> str:
    """An amount in the unit that people use, as the texts of pend reasons have it: `1.5` (CPU, GPUs), `512MiB`, `2GiB`."""
    if name in _MILLI:
        return f"{amount / 1_000:g}"
    if name == "mem":
        return f"{amount // 1_024}GiB" if amount % 1_024 == 0 else f"{amount}MiB"
    return str(amount)
