"""gangflow for programs with an event loop: the same names, the same meaning, awaited.

    run = await gf.aio.launch(group)                  # an AsyncRun: the methods of gf.Run
    run = await gf.aio.attach("grpo")
    ctx = gf.aio.context()                            # in a member: the methods of gf.context()

What waits for XCE waits on the event loop, and can be cancelled. What has no asynchronous form (starting processes, files) is
done in a thread that a cancellation waits for, so that nothing goes on behind it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gangflow.aio.runs import AsyncRun, attach, launch
    from gangflow.member.async_context import AsyncContext, context

_HOME_OF = {
    "AsyncRun": "gangflow.aio.runs",
    "attach": "gangflow.aio.runs",
    "launch": "gangflow.aio.runs",
    "AsyncContext": "gangflow.member.async_context",
    "context": "gangflow.member.async_context",
}

__all__ = ["AsyncContext", "AsyncRun", "attach", "context", "launch"]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'gangflow.aio' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME_OF])
