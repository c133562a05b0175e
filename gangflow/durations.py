"""Durations in texts for people. Pure, and of no room: the core, the coordinators, the agents and the CLI say them alike."""

from __future__ import annotations

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


def lasting(ms: int) -> str:
    """Milliseconds, from 0, as `8s`, `1h30m` or `500ms`; `0s` for none."""
    parts = []
    for unit, size in _UNITS:
        count, ms = divmod(ms, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"
