"""Amounts as people read them: milli-CPU as CPU, MiB as GiB, thousandths of GPUs as GPUs. Pure; for server and CLI."""

from __future__ import annotations

_MILLI = frozenset({"cpu", "gpus"})


def amount_text(name: str, amount: int) -> str:
    """An amount of a resource in the unit that people use for it: `1.5` (CPU, GPUs), `512 MiB`, `2 GiB`."""
    if name in _MILLI:
        return f"{amount / 1_000:g}"
    if name == "mem":
        return f"{amount / 1_024:g} GiB" if abs(amount) >= 1_024 else f"{amount} MiB"
    return str(amount)
