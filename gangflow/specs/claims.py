"""Claims: storage that must be READY before the start (design 3.4). Only the `directory` provider is known so far."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from gangflow.specs.base import Flag, Name, Spec, Text, Word, check
from gangflow.specs.faults import Fault, nearest
from gangflow.specs.quantity import Duration

PROVIDERS = {"directory": ("path",)}
"""Provider → its parameters. `directory`: the folder under which the claim's own is made."""


class Claim(Spec):
    """A template claim: made for the group, or (in a member's `claims`) for each of its slots; tasks see `XCE_CLAIM_<NAME>`."""

    positional: ClassVar[tuple[str, ...]] = ("name",)
    not_yet: ClassVar[dict[str, str]] = {
        "standalone": "the use of claims that exist on their own",
        "claim": "the use of claims that exist on their own",
        "access": "exclusive access to a claim",
        "exclusive": "exclusive access to a claim",
    }

    name: Name
    provider: str = "directory"
    retain: Flag = False
    """Keep what was provisioned when the group ends."""
    timeout: Duration = 60_000
    """For provisioning."""
    parameters: dict[Word, Text] = Field(default_factory=dict)
    """For the provider."""

    if TYPE_CHECKING:

        def __init__(self, name: str, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _known_provider(self) -> Self:
        known = PROVIDERS.get(self.provider)
        if known is None:
            expected = "a known provider: " + ", ".join(PROVIDERS)
            check([Fault(("provider",), self.provider, expected, nearest(self.provider, PROVIDERS))])
            return self
        faults = [
            Fault(("parameters", key), value, f"a parameter of {self.provider}: " + ", ".join(known), nearest(key, known))
            for key, value in self.parameters.items()
            if key not in known
        ]
        where = self.parameters.get("path", "/")
        if not where.startswith("/"):
            faults.append(Fault(("parameters", "path"), where, "an absolute path"))
        check(faults)
        return self
