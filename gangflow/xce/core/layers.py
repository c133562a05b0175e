"""A large immutable mapping of which a step changes little: a base that many states share, and what differs from it.

A step that touches one group of a thousand copies the few entries that differ, not the thousand. Reading is two look-ups;
iterating makes one plain dict of both, once. Order is that of a dict: a changed entry keeps its place, a new one comes last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, Final, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")
PLAIN_MAX = 48
"""Up to so many entries a plain dict is copied at once: that is as fast."""
LAYER_MAX = 64
"""So many entries differ at most; then base and layer become one."""
GONE: Final[Any] = object()
"""In a layer: the base has it, and it was deleted."""
MISSING: Final[Any] = object()


class Layers(Mapping[K, V]):
    """The immutable form. Equal to any mapping with the same entries."""

    __slots__ = ("_base", "_over", "_size")

    def __init__(self, base: dict[K, V], over: dict[K, V], size: int) -> None:
        """`over`: what differs from `base` (GONE: deleted). Neither is changed any more; `size` is the number of entries."""
        self._base = base
        self._over = over
        self._size = size

    def __getitem__(self, key: K) -> V:
        found = self._over.get(key, MISSING)
        if found is MISSING:
            return self._base[key]
        if found is GONE:
            raise KeyError(key)
        return cast(V, found)

    def get(self, key: K, default: Any = None) -> Any:
        found = self._over.get(key, MISSING)
        if found is MISSING:
            return self._base.get(key, default)
        return default if found is GONE else found

    def __contains__(self, key: object) -> bool:
        found = self._over.get(key, MISSING)  # type: ignore[arg-type]
        return key in self._base if found is MISSING else found is not GONE

    def __len__(self) -> int:
        return self._size

    def flat(self) -> dict[K, V]:
        """All of it as one dict, which must not be changed."""
        if self._over:
            # Both forms say the same, so it does not matter who makes it, or when.
            self._base, self._over = joined(self._base, self._over), {}
        return self._base

    def __iter__(self) -> Iterator[K]:
        return iter(self.flat())

    def keys(self) -> Any:
        return self.flat().keys()

    def values(self) -> Any:
        return self.flat().values()

    def items(self) -> Any:
        return self.flat().items()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, Layers):
            return self.flat() == other.flat()
        return self.flat() == other if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self.flat())

    def layer(self) -> Layer[K, V]:
        return Layer(self._base, self._over.copy(), self._size)


class Layer(Layers[K, V], MutableMapping[K, V]):
    """The same while it is being changed: the base is never touched."""

    __slots__ = ()

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self:
            if self._over.get(key) is GONE:
                # Again there: it comes last, as in a dict, and not where it was.
                self.flat()
            self._size += 1
        self._over[key] = value

    def __delitem__(self, key: K) -> None:
        if key not in self:
            raise KeyError(key)
        self._size -= 1
        if key in self._base:
            self._over[key] = GONE
        else:
            del self._over[key]

    def freeze(self) -> Mapping[K, V]:
        """The immutable form; what comes after goes into a layer of its own."""
        if len(self._over) > LAYER_MAX:
            self.flat()
        return Layers(self._base, self._over, self._size)


def joined(base: dict[K, V], over: dict[K, V]) -> dict[K, V]:
    """One dict of both, in order."""
    found = {**base, **over}
    if GONE in over.values():
        found = {key: value for key, value in found.items() if value is not GONE}
    return found


def changeable(mapping: Mapping[K, V]) -> MutableMapping[K, V]:
    """A copy that may be changed: a plain dict of what is small, a layer over what is large."""
    if len(mapping) <= PLAIN_MAX:
        return dict(mapping)
    if isinstance(mapping, Layers):
        return mapping.layer()
    return Layer(cast("dict[K, V]", mapping if type(mapping) is dict else dict(mapping)), {}, len(mapping))


def first(mapping: Mapping[K, V]) -> tuple[K, V] | None:
    """The first entry, without making one dict of all; None of an empty mapping."""
    if isinstance(mapping, Layers):
        for key, value in mapping._base.items():
            if key not in mapping._over:
                return key, value
            break
    return next(iter(mapping.items()), None)


def differing(new: Mapping[K, V], old: Mapping[K, V]) -> list[K] | None:
    """Keys whose entries are not the same object in both, if that can be told without comparing all; else None."""
    if not isinstance(new, Layers):
        return None
    base, over = (old._base, old._over) if isinstance(old, Layers) else (old, {})
    if new._base is not base:
        return None
    return [key for key in {**over, **new._over} if new.get(key) is not old.get(key)]


def frozen(mapping: MutableMapping[K, V]) -> Mapping[K, V]:
    """What `changeable` gave, as it may be shared from now on."""
    return mapping.freeze() if isinstance(mapping, Layer) else mapping
