"""Quantities: what people write, as integers; nothing is rounded."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from pydantic_core import PydanticCustomError

from gangflow.specs.quantity import cpu_milli, duration_ms, gpu_milli, memory_mib, render_duration, render_gpu, render_memory


@pytest.mark.parametrize(
    ("read", "written", "amount"),
    [
        (duration_ms, "10m", 600_000),
        (duration_ms, "500ms", 500),
        (duration_ms, "1h30m", 5_400_000),
        (duration_ms, "1.5s", 1_500),
        (duration_ms, "2d", 172_800_000),
        (duration_ms, 3, 3_000),
        (duration_ms, 0.1, 100),
        (duration_ms, timedelta(milliseconds=20), 20),
        (memory_mib, "64GiB", 65_536),
        (memory_mib, "512MiB", 512),
        (memory_mib, "1GB", 1_024),
        (memory_mib, "1Gi", 1_024),
        (memory_mib, "0.5GiB", 512),
        (memory_mib, "2048KiB", 2),
        (memory_mib, "1TiB", 1_048_576),
        (memory_mib, 12, 12),
        (cpu_milli, 2, 2_000),
        (cpu_milli, 0.5, 500),
        (cpu_milli, "500m", 500),
        (cpu_milli, "1.5", 1_500),
        (gpu_milli, 8, 8_000),
        (gpu_milli, 0.25, 250),
        (gpu_milli, "1", 1_000),
    ],
)
def test_an_amount_is_read(read: Callable[[object], int], written: object, amount: int) -> None:
    assert read(written) == amount


@pytest.mark.parametrize(
    ("read", "written"),
    [
        *(
            (duration_ms, bad)
            for bad in ("", "10", "m", "10 m", "-1s", "1x", -1, float("nan"), float("inf"), 0.0001, True, None, "1e3s")
        ),
        *((duration_ms, bad) for bad in ("99999999999d", 10**12, "٣s")),
        *((memory_mib, bad) for bad in ("64G", "64", "1KiB", "x", "1XiB", -1, 1.5, True, None, "1 Gibi")),
        *((cpu_milli, bad) for bad in ("x", "0.5m", 0.0001, -1, "-1", True, None, "٣m")),
        *((gpu_milli, bad) for bad in (1.5, "a", -1, 0.0001, None, float("inf"))),
    ],
)
def test_what_is_no_amount_is_refused(read: Callable[[object], int], written: object) -> None:
    with pytest.raises(PydanticCustomError):
        read(written)


def test_amounts_are_written_short() -> None:
    assert [render_duration(ms) for ms in (0, 1, 90_000, 600_000, 7_200_000, 86_400_000)] == [
        "0s",
        "1ms",
        "90s",
        "10m",
        "2h",
        "1d",
    ]
    assert [render_memory(mib) for mib in (0, 512, 65_536)] == ["0MiB", "512MiB", "64GiB"]
    assert [render_gpu(milli) for milli in (0, 250, 8_000)] == [0, 0.25, 8]
