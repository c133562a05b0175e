"""Who this process is: the environment that XCE gave it (design 3.10), read once and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gangflow.member.failures import NotAMember


def variable(prefix: str, name: str) -> str:
    """The environment variable of a port, claim or member: `XCE_PORT_` + `my-port` → `XCE_PORT_MY_PORT`."""
    return prefix + "".join(letter if letter.isalnum() else "_" for letter in name.upper())


@dataclass(frozen=True, slots=True)
class Identity:
    """One task of one incarnation of one slot."""

    url: str
    token: str = field(repr=False)
    group: str
    member: str
    slot: int = 0
    slots: int = 1
    task: int = 0
    tasks: int = 1
    incarnation: int = 1
    epoch: int = 1
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> Identity:
        """From `XCE_*`; NotAMember names every variable that is missing or is not a number."""
        wrong = [f"{name} is not set" for name in ("XCE_URL", "XCE_GROUP", "XCE_MEMBER") if not environment.get(name)]
        numbers: dict[str, int] = {}
        for name, default in _NUMBERS.items():
            text = environment.get(name) or str(default)
            try:
                numbers[name] = int(text)
            except ValueError:
                wrong.append(f"{name} is not a number: {text!r}")
        if wrong:
            raise NotAMember("this process is not a member of a group: " + "; ".join(wrong))
        return cls(
            url=environment["XCE_URL"],
            token=environment.get("XCE_TOKEN", ""),
            group=environment["XCE_GROUP"],
            member=environment["XCE_MEMBER"],
            slot=numbers["XCE_SLOT"],
            slots=numbers["XCE_SLOTS"],
            task=numbers["XCE_TASK"],
            tasks=numbers["XCE_TASKS"],
            incarnation=numbers["XCE_INCARNATION"],
            epoch=numbers["XCE_GROUP_EPOCH"],
            environment={name: value for name, value in environment.items() if name.startswith("XCE_")},
        )

    def port(self, name: str) -> int:
        """The number of this task's port; KeyError names the ports that there are."""
        return int(self._lookup("XCE_PORT_", name, "port"))

    def claim(self, name: str) -> str:
        """The path of a claim; KeyError names the claims that there are."""
        return self._lookup("XCE_CLAIM_", name, "claim")

    def addresses(self, member: str, port: str) -> tuple[str, ...]:
        """`ip:number` of each slot of a member at this start; later changes are in `Context.endpoints`."""
        text = self._lookup("XCE_ADDRS_", f"{member}_{port}", "address list")
        return tuple(part for part in text.split(",") if part)

    def _lookup(self, prefix: str, name: str, what: str) -> str:
        try:
            return self.environment[variable(prefix, name)]
        except KeyError:
            known = sorted(key.removeprefix(prefix).lower() for key in self.environment if key.startswith(prefix))
            raise KeyError(f"no {what} named {name!r}; there are: {', '.join(known) or 'none'}") from None


_NUMBERS = {"XCE_SLOT": 0, "XCE_SLOTS": 1, "XCE_TASK": 0, "XCE_TASKS": 1, "XCE_INCARNATION": 1, "XCE_GROUP_EPOCH": 1}


class Claims(Mapping[str, str]):
    """The claims of this member by name: `context.claims["ckpt"]` is a path."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity

    def __getitem__(self, name: str) -> str:
        return self._identity.claim(name)

    def __iter__(self) -> Iterator[str]:
        prefix = "XCE_CLAIM_"
        return iter(sorted(key.removeprefix(prefix).lower() for key in self._identity.environment if key.startswith(prefix)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class Placed:
    """Who a context's task is and where: the same in both forms of a context."""

    identity: Identity
    claims: Claims

    @property
    def group(self) -> str:
        return self.identity.group

    @property
    def member(self) -> str:
        return self.identity.member

    @property
    def slot(self) -> int:
        return self.identity.slot

    @property
    def task(self) -> int:
        return self.identity.task

    @property
    def incarnation(self) -> int:
        return self.identity.incarnation

    @property
    def epoch(self) -> int:
        return self.identity.epoch

    def port(self, name: str) -> int:
        """The number of this task's own port."""
        return self.identity.port(name)

    def addresses(self, member: str, port: str) -> tuple[str, ...]:
        """`ip:number` in slot order, as it was at this start; `endpoints` is live."""
        return self.identity.addresses(member, port)
