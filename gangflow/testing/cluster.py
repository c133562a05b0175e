"""`gangflow.testing.cluster`: a whole gangflow cluster in this process, for tests of one's own programs."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any, TypeVar

from gangflow import clusters
from gangflow.errors import Conflict
from gangflow.member.io import IoThread
from gangflow.runs import Run, launch
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.testing.checks import Checks
from gangflow.testing.faults import Faults, known
from gangflow.testing.machines import Machines
from gangflow.testing.transport import Served
from gangflow.testing.xce import FakeXCE
from gangflow.xce.core.state import Group, GroupState, Slot, TaskKey
from gangflow.xce.inventory import host_facts
from gangflow.xce.rest.aclient import AsyncClient
from gangflow.xce.rest.client import Client
from gangflow.xce.rest.server import create_app, end_streams
from gangflow.xce.rest.tokens import Tokens

if TYPE_CHECKING:
    from gangflow.member.context import Context
    from gangflow.member.wire import Wire
    from gangflow.specs.coordinator import RLCoordinator
    from gangflow.specs.group import CoStartGroup
    from gangflow.xce.rest.schema import GroupView

T = TypeVar("T")
URL = "http://xce.test"
TOKEN = "the admin of a cluster for tests"  # noqa: S105 - it opens nothing but this
IO_THREAD = "gangflow-testing"
_numbers = itertools.count(1)


class FakeCluster(Faults, Checks):
    """A cluster without processes: the production core, placement and REST service, a clock that you move, hosts that obey.

    What is submitted is decided, placed and started at once, and then stands still until you do something: `advance` the
    clock, `fail` a slot, `lose_host`. Nothing runs: a job is done when you `finish` it. Any thread may call it, an event loop's
    too. `address` stands for it in `gangflow.launch` and `attach`, while it is open.
    """

    def __init__(self, spec: ClusterSpec, *, ready: bool = True, coordinate: bool = True) -> None:
        self.spec = spec
        self.name = self.address = f"testing:{next(_numbers)}"
        self.folder = Path(mkdtemp(prefix="gangflow-testing-"))
        """Where claims are, and whatever a test wants to put there; gone when the cluster is closed."""
        self._coordinates = coordinate
        self._closed = False
        self._io = IoThread(IO_THREAD)
        self.xce: FakeXCE = self.do(lambda: FakeXCE(Machines(host_facts(spec), self.folder, ready=ready), spec.levels))
        """The controller itself. Only for what has no method here, inside `do`."""
        self._app = create_app(self.xce, admin_token=TOKEN, cluster=spec)
        self._served = Served(self._app, self._io)
        self._tokens = Tokens(TOKEN)
        self._client = self.client()
        clusters.IN_PROCESS[self.address] = self

    def do(self, work: Callable[[], T]) -> T:
        """Do something with `xce` in its own thread; returns (or raises) what that does. Not from within another `do`."""

        async def doing() -> T:
            return work()

        if self._closed:
            raise RuntimeError(f"{self.name} was closed")
        if threading.current_thread().name == IO_THREAD:
            raise RuntimeError("what runs inside `do` uses `xce`; the methods of the cluster would wait for themselves")
        return self._io.submit(doing()).result()

    # --- as `gangflow.launch` sees it

    def client(self) -> Client:
        """A client with the admin's token."""
        return self.client_of(TOKEN)

    def aclient(self) -> AsyncClient:
        """The same for an event loop."""
        return self.aclient_of(TOKEN)

    def client_of(self, token: str) -> Client:
        """A client with another token."""
        return Client(URL, token, patience=1.0, transport=self._served.sync())

    def aclient_of(self, token: str) -> AsyncClient:
        """The same for an event loop."""
        return AsyncClient(URL, token, patience=1.0, transport=self._served.asynchronous())

    def coordinate(self, group: str) -> None:
        """A stand-in coordinates the group: every READY rollout serves the newest weights, and is eligible, at once."""
        from gangflow.member.endpoints import coordinator_facts

        document = self._client.group(group).document
        facts = coordinator_facts(document)
        if self._coordinates and facts is not None:
            port = str((document or {})["coordinator"].get("port", "http"))

            def take_over() -> None:
                self.xce.standin.coordinate(group, facts, port)
                self.xce.feed()

            self.do(take_over)

    def stop(self) -> None:
        """Somebody else keeps it: the `with` statement that opened it."""

    def launch(self, group: CoStartGroup, coordinator: RLCoordinator | None = None) -> Run:
        """`gangflow.launch` into this cluster; as soon as it returns, everything that can start has started."""
        return launch(group, coordinator, address=self.address)

    # --- looking

    def group(self, name: str = "") -> GroupView:
        """A group as it is now: by id or name; without one, the only live one (else the newest)."""
        return self._client.group(self.do(lambda: self._group(name)).id)

    def now_ms(self) -> int:
        """The cluster's clock, in milliseconds since the Unix epoch."""
        return self.do(self.xce.now_ms)

    def environment(self, member: str, index: int = 0, *, task: int = 0, group: str = "") -> dict[str, str]:
        """The whole environment that a task of the newest incarnation is started with."""

        def find() -> dict[str, str]:
            key = self._task(group, member, index, task)
            launch = self.xce.machines.launches.get(key)
            if launch is None:
                raise ValueError(f"{member}[{index}] was not prepared yet: it is {self._slot(group, member, index).state}")
            return {**dict(launch.environment), "XCE_URL": URL, "XCE_TOKEN": self._tokens.task_token(key)}

        return self.do(find)

    def context(self, member: str, index: int = 0, *, task: int = 0, group: str = "", wire: Wire | None = None) -> Context:
        """What `gangflow.context()` is in a task of the newest incarnation; the caller closes it. `wire` answers `generate`."""
        from gangflow.member.context import Context
        from gangflow.member.identity import Identity

        identity = Identity.read(self.environment(member, index, task=task, group=group))
        return Context(identity, self.client_of(identity.token), aclient=lambda: self.aclient_of(identity.token), wire=wire)

    # --- time

    def advance(self, seconds: float) -> None:
        """Let time pass; every deadline on the way (a backoff, a timeout, a fence) is met at its own moment."""
        self.do(lambda: self.xce.advance(round(seconds * 1000)))

    def until(self, reached: str | Callable[[GroupView], bool], *, within: float = 86_400.0, group: str = "") -> GroupView:
        """Let time pass until the group is in a state, or as a function wants it. Else AssertionError.

        ValueError when there is no such state.
        """
        if isinstance(reached, str):
            known(reached, GroupState, "state of groups")
        limit = self.now_ms() + round(within * 1000)
        while True:
            view = self.group(group)
            if view.state == reached if isinstance(reached, str) else reached(view):
                return view
            deadline = self.do(self.xce.next_deadline)
            if deadline is None or deadline > limit:
                raise AssertionError(
                    f"not reached, and nothing more happens by itself within {within:g} s\n{self.story(group)}"
                )
            self.advance(max(1, deadline - self.now_ms()) / 1000)

    def forget_events(self) -> None:
        """As retention does in a long life: records up to now are not kept any more; watching from before them is `Gone`."""
        self.do(self.xce.forget_records)

    # --- its end

    def close(self) -> None:
        """End it. Clients and streams end, and its folder is removed."""
        clusters.IN_PROCESS.pop(self.address, None)

        async def end() -> None:
            end_streams(self._app)

        if self._closed:
            return
        self._closed = True
        self._io.submit(end()).result()
        self._served.close()
        self._client.close()
        self._io.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> FakeCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside

    def _group(self, name: str) -> Group:
        if name:
            return self.xce.group(name)
        groups = list(self.xce.state.groups.values())
        live = [group for group in groups if not group.state.terminal]
        if len(live) > 1:
            raise ValueError(f"name one of the groups: {', '.join(f'{each.id} ({each.plan.name})' for each in live)}")
        if not groups:
            raise ValueError("nothing was submitted yet")
        return (live or groups)[-1]

    def _slot(self, group: str, member: str, index: int) -> Slot:
        found = self._group(group)
        slot = found.slots.get((member, index))
        if slot is None:
            known = ", ".join(f"{name}[{number}]" for name, number in found.slots)
            raise ValueError(f"there is no slot {member}[{index}] in {found.plan.name}; there are: {known}")
        return slot

    def _task(self, group: str, member: str, index: int, task: int) -> TaskKey:
        slot = self._slot(group, member, index)
        return TaskKey(self._group(group).id, slot.epoch, member, index, slot.incarnation, task)

    def _tell(self, command: Any) -> None:
        (reply,) = self.xce.feed(command)
        if reply is not None and not reply.ok:
            raise Conflict(reply.message, status=reply.status, problem=reply.code)


@contextmanager
def cluster(
    hosts: int | Sequence[HostSpec] | ClusterSpec = 4,
    *,
    cpu: int | str = 8,
    mem: int | str = "32GiB",
    gpus: int = 8,
    ports: int = 32,
    ready: bool = True,
    coordinate: bool = True,
) -> Iterator[FakeCluster]:
    """A cluster for a test: so many equal hosts `h0`, `h1`, … (or those of a description, which must say what they have).

    `ready`: probes succeed as soon as a task runs; False: when you say `ready(member, index)`. `coordinate`: a stand-in plays
    the coordinator of groups that have one; False: nobody does.
    """
    if isinstance(hosts, int):
        hosts = [HostSpec(f"h{number}", cpu=cpu, mem=mem, gpus=gpus, ports=ports) for number in range(hosts)]
    spec = hosts if isinstance(hosts, ClusterSpec) else ClusterSpec("testing", hosts=tuple(hosts))
    made = FakeCluster(spec, ready=ready, coordinate=coordinate)
    try:
        yield made
    finally:
        made.close()
