"""What bounds changes of the members' targets: a budget of GPUs, ratios, and how long a change may take."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from gangflow.specs.base import NAME, Name, Spec, Whole, check, wrong
from gangflow.specs.faults import Fault
from gangflow.specs.quantity import Duration, exact

MAX_TERM = 10**6
PROPORTION_RULE = f"a proportion: 1/4, 2 or 0.5, its terms at most {MAX_TERM}"


def proportion(value: object) -> tuple[int, int]:
    """`1/4`, `2`, 0.5 → a reduced fraction of integers; a validation error for what is none."""
    if isinstance(value, (tuple, list)):  # as it is kept
        value = "/".join(str(part) for part in value)
    number = exact(value)
    if number is None and isinstance(value, str) and value.isascii() and len(value) <= 30:
        try:
            number = Fraction("".join(value.split()))
        except (ValueError, ZeroDivisionError):
            number = None
    if number is None or not 0 <= number <= MAX_TERM or number.denominator > MAX_TERM or number.numerator > MAX_TERM:
        raise wrong(PROPORTION_RULE)
    return number.numerator, number.denominator


def render_proportion(value: tuple[int, int]) -> str | int:
    """`1/4`, or a whole number."""
    return value[0] if value[1] == 1 else f"{value[0]}/{value[1]}"


Proportion = Annotated[tuple[int, int], BeforeValidator(proportion), PlainSerializer(render_proportion)]
"""A fraction of integers, reduced; written as `1/4`, 2 or 0.5."""


class Scale(Spec):
    """Limits of `gangflow scale` and `PATCH …/members`."""

    max_gpus: Annotated[Whole, Field(ge=1, le=10**6)] | None = None
    """GPUs that all members' targets together may ask for."""
    timeout: Annotated[Duration, Field(ge=1)] = 600_000
    """How long a change may take before what stands becomes the target."""


class Ratio(Spec):
    """Binds the targets of two replica sets: `min ≤ member / to ≤ max`. It binds targets, not failures.

    `{prefill: decode, min: 1/4, max: 1/2}` is short for `{member: prefill, to: decode, min: 1/4, max: 1/2}`.
    """

    positional: ClassVar[tuple[str, ...]] = ("member", "to")

    member: Name
    """A replica set."""
    to: Name
    """Another one."""
    min: Proportion | None = None
    """The least that `member / to` may be; no bound when left out."""
    max: Proportion | None = None
    """The most that `member / to` may be; no bound when left out."""

    if TYPE_CHECKING:

        def __init__(self, member: str, to: str, **fields: Any) -> None: ...

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        faults = []
        if self.min is None and self.max is None:
            faults.append(Fault(("min",), None, "a `min` or a `max`"))
        if self.max is not None and not self.max[0]:
            faults.append(Fault(("max",), 0, "more than 0"))
        elif self.min is not None and self.max is not None and self.min[0] * self.max[1] > self.max[0] * self.min[1]:
            faults.append(Fault(("max",), render_proportion(self.max), f"at least `min`, {render_proportion(self.min)}"))
        if self.member == self.to:
            faults.append(Fault(("to",), self.to, "another member"))
        check(faults)
        return self

    def holds(self, replicas: int, to: int) -> bool:
        """Whether these targets keep it."""
        low = self.min is None or self.min[0] * to <= replicas * self.min[1]
        return low and (self.max is None or replicas * self.max[1] <= self.max[0] * to)

    def __str__(self) -> str:
        low = f"{render_proportion(self.min)} ≤ " if self.min is not None else ""
        high = f" ≤ {render_proportion(self.max)}" if self.max is not None else ""
        return f"{low}{self.member}/{self.to}{high}"


def _short(value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    # The pair is the key whose value is a name, too: another unknown key is a slip of `min` or `max`.
    names = [key for key, to in value.items() if key not in Ratio.model_fields and isinstance(to, str) and NAME.fullmatch(to)]
    if len(names) != 1 or "member" in value or "to" in value:
        return value
    return {"member": names[0], "to": value[names[0]], **{key: value[key] for key in value if key != names[0]}}


def _several(value: object) -> object:
    return (value,) if isinstance(value, (Mapping, Ratio)) else value


Ratios = Annotated[tuple[Annotated[Ratio, BeforeValidator(_short)], ...], BeforeValidator(_several)]
"""One ratio or a list of them."""
