"""Quantities as people write them, kept as integers: milliseconds, MiB, milli-CPU, thousandths of a GPU.

No decision depends on a float, so each is converted once, here, exactly or not at all.
"""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer

from gangflow.specs.base import wrong

MAX_MS = 10 * 365 * 86_400_000
"""Ten years: no timeout means more than that."""
MAX_AMOUNT = 10**12
"""Of any resource, in its smallest unit: sums over a cluster stay inside 64 bits."""

_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(?:\d{1,15}(?:\.\d{1,6})?(?:ms|s|m|h|d))+")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DECIMAL = re.compile(r"\d{1,15}(?:\.\d{1,9})?")
_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Za-z]*)")

KIB_OF_UNIT = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3, "P": 1024**4, "E": 1024**5}
"""KiB of a memory unit's first letter. All units are 1024-based, as LSF's are."""

DURATION_RULE = "a duration: 10m, 500ms, 1h30m, or a number of seconds"
MEMORY_RULE = "memory in whole MiB: 64GiB, 512MiB, or a number of MiB"
CPU_RULE = "CPUs: 2, 0.5 or 500m"
GPU_RULE = "GPUs: a whole number, or a fraction below 1 of one device (in thousandths)"


def exact(value: object) -> Fraction | None:
    """A number as a fraction; None when it is none. A float means its shortest decimal form: 0.1 is one tenth."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int):
        return Fraction(value)
    text = repr(float(value))
    return None if text in ("inf", "-inf", "nan") else Fraction(text)


def _bounded(amount: Fraction, rule: str, limit: int) -> int:
    if amount.denominator != 1 or not 0 <= amount <= limit:
        raise wrong(rule)
    return int(amount)


def duration_ms(value: object) -> int:
    """`10m`, `500ms`, `1h30m`, a timedelta, or a number of seconds → milliseconds."""
    if isinstance(value, timedelta):
        return _bounded(Fraction(value // timedelta(microseconds=1), 1000), DURATION_RULE, MAX_MS)
    number = exact(value)
    if number is not None:
        return _bounded(number * 1000, DURATION_RULE, MAX_MS)
    if not isinstance(value, str) or not _DURATION.fullmatch(value) or not value.isascii():
        raise wrong(DURATION_RULE)
    total = sum((Fraction(n) * _UNIT_MS[unit] for n, unit in _DURATION_PART.findall(value)), Fraction(0))
    return _bounded(total, DURATION_RULE, MAX_MS)


def render_duration(ms: int) -> str:
    """Milliseconds → the shortest of the forms that `duration_ms` reads back: `90s`, `500ms`, `2h`."""
    for unit in ("d", "h", "m", "s"):
        if ms and ms % _UNIT_MS[unit] == 0:
            return f"{ms // _UNIT_MS[unit]}{unit}"
    return f"{ms}ms" if ms else "0s"


def memory_mib(value: object) -> int:
    """`64GiB`, `512MiB`, `2GB` (1024-based, as in LSF) or a number of MiB → MiB; a fraction of a MiB is an error."""
    number = exact(value)
    if number is not None:
        return _bounded(number, MEMORY_RULE, MAX_AMOUNT)
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) and value.isascii() else None
    if not match or not match[2]:
        raise wrong(MEMORY_RULE)
    unit = match[2]
    # A lone `G` is 10^9 to one reader and 2^30 to another: refused here. (LSF's own strings read it as 2^30.)
    if unit[0].upper() not in KIB_OF_UNIT or unit[1:] not in ("i", "iB", "B"):
        raise wrong(MEMORY_RULE)
    return _bounded(Fraction(match[1]) * KIB_OF_UNIT[unit[0].upper()] / 1024, MEMORY_RULE, MAX_AMOUNT)


def render_memory(mib: int) -> str:
    """MiB → `64GiB` or `512MiB`."""
    return f"{mib // 1024}GiB" if mib and mib % 1024 == 0 else f"{mib}MiB"


def cpu_milli(value: object) -> int:
    """2, 0.5, `500m` → milli-CPU."""
    number = exact(value)
    if number is not None:
        return _bounded(number * 1000, CPU_RULE, MAX_AMOUNT)
    if isinstance(value, str) and value.isascii():
        if value.endswith("m") and value[:-1].isdecimal() and len(value) <= 16:
            return _bounded(Fraction(value[:-1]), CPU_RULE, MAX_AMOUNT)
        if _DECIMAL.fullmatch(value):
            return _bounded(Fraction(value) * 1000, CPU_RULE, MAX_AMOUNT)
    raise wrong(CPU_RULE)


def render_cpu(milli: int) -> int | str:
    """milli-CPU → a whole number of CPUs, or `500m`."""
    return milli // 1000 if milli % 1000 == 0 else f"{milli}m"


def gpu_milli(value: object) -> int:
    """1, 8, 0.5 → thousandths of a GPU. A fraction stays on one device, so it is below 1."""
    number = exact(value)
    if number is None and isinstance(value, str) and value.isascii() and _DECIMAL.fullmatch(value):
        number = Fraction(value)
    if number is None or (number.denominator != 1 and number > 1):
        raise wrong(GPU_RULE)
    return _bounded(number * 1000, GPU_RULE, MAX_AMOUNT)


def render_gpu(milli: int) -> int | float:
    """Thousandths → a number of GPUs."""
    return milli // 1000 if milli % 1000 == 0 else milli / 1000


Duration = Annotated[int, BeforeValidator(duration_ms), PlainSerializer(render_duration)]
"""Milliseconds; written as `10m`, `500ms` or seconds."""
Memory = Annotated[int, BeforeValidator(memory_mib), PlainSerializer(render_memory)]
"""MiB; written as `64GiB`, `512MiB` or MiB."""
Cpu = Annotated[int, BeforeValidator(cpu_milli), PlainSerializer(render_cpu)]
"""milli-CPU; written as 2, 0.5 or `500m`."""
Gpu = Annotated[int, BeforeValidator(gpu_milli), PlainSerializer(render_gpu)]
"""Thousandths of a GPU; written as 1 or 0.5."""
