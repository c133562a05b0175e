"""vLLM's own command, quicker to start; run by the Python of vLLM's environment.

    python quick_vllm.py serve MODEL …        as `vllm serve MODEL …`: engine core and worker are forked from the server instead
                                              of importing everything once more (one import instead of three)
    python quick_vllm.py --nursery SOCKET     imports once, then forks a whole server for each request at that unix socket

What runs is vLLM as it is, in its three processes; only how they are started differs, for tests on a machine of two cores.
A request to the nursery is one line of JSON, {"argv": [...], "env": {...}, "log": PATH}; its answer is {"pid": N}. The nursery
ends with the process that started it; the servers are that process's to end.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import multiprocessing
import os
import signal
import socket
import sys
import threading
from multiprocessing import popen_fork, util
from typing import ClassVar

NEEDED = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.scale_out",
    "vllm.model_executor.models.qwen3",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.cpu_worker",
)


class Forked(popen_fork.Popen):  # type: ignore[misc]
    """A forked child that holds no end of its ancestors' pipes.

    A parent sees a child's end by a pipe of which only the child has the other end. Whatever the child forks would have it too,
    and a server would not notice that its engine core is dead as long as the worker lives; a spawned worker has no such thing.
    """

    _of_ancestors: ClassVar[list[int]] = []

    def _launch(self, process_obj: multiprocessing.process.BaseProcess) -> None:
        parent_r, child_w = os.pipe()
        child_r, parent_w = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                for fd in (parent_r, parent_w, *self._of_ancestors):
                    os.close(fd)
                self._of_ancestors[:] = [child_w]
                code = process_obj._bootstrap(parent_sentinel=child_r)
            finally:
                os._exit(code)
        os.close(child_w)
        os.close(child_r)
        self.finalizer = util.Finalize(self, util.close_fds, (parent_r, parent_w))
        self.sentinel = parent_r


def import_all() -> None:
    """What a server, its engine core and its worker import, and fork as the way to start them."""
    import vllm.utils.system_utils as system

    context = multiprocessing.get_context("fork")
    context.Process._Popen = staticmethod(Forked)  # type: ignore[method-assign]

    def forking() -> multiprocessing.context.ForkContext:
        return context

    # The CPU platform insists on spawn, as OpenMP does not survive a fork once it runs: nothing is computed before these forks.
    system.get_mp_context = forking
    for name in NEEDED:
        importlib.import_module(name)
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    # A worker spins on a core for so long after each message: by itself a whole second, which is for hosts of many cores. Not
    # at all would not do: of messages that come close together it is not woken up for each.
    SpinCondition.__init__.__defaults__ = (0.05,)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("vllm.") and hasattr(module, "get_mp_context"):
            module.get_mp_context = forking
    os.register_at_fork(after_in_child=let_go_of_the_port)


def let_go_of_the_port() -> None:
    """A spawned child has no copy of the server's socket, so that the port is free as soon as the server is gone."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            # On a copy: closing the socket object here must not close a number that Python still counts on.
            with socket.socket(fileno=os.dup(int(name))) as found:
                serves = found.family in (socket.AF_INET, socket.AF_INET6) and found.getsockname()[1] and not _peer(found)
        except OSError:
            continue
        if serves:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, int(name))
            os.close(null)


def _peer(found: socket.socket) -> bool:
    try:
        return bool(found.getpeername())
    except OSError:
        return False


def serve(argv: list[str]) -> None:
    """`vllm ARGV`; does not return."""
    from vllm.entrypoints.cli.main import main

    sys.argv = ["vllm", *argv]
    main()
    sys.exit(0)


def birth(request: dict[str, object], listener: socket.socket, connection: socket.socket) -> int:
    """Fork one server in a session of its own; its pid."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener.close()
    connection.close()
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.update(request["env"])  # type: ignore[call-overload]
    try:
        serve(request["argv"])  # type: ignore[arg-type]
    except SystemExit as end:
        os._exit(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


def nursery(address: str) -> None:
    """Fork servers on request until the owner is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # The dead are not kept: their owner looks at /proc.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        # Only one thread may live when a server is forked: the owner's end is told by the kernel, not by a thread.
        while True:
            connection, _ = listener.accept()
            with connection:
                request = json.loads(connection.makefile().readline())
                assert threading.active_count() == 1, threading.enumerate()
                connection.sendall(json.dumps({"pid": birth(request, listener, connection)}).encode())


if __name__ == "__main__":
    if sys.argv[1] == "--nursery":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        import_all()
        nursery(sys.argv[2])
    else:
        import_all()
        serve(sys.argv[1:])
