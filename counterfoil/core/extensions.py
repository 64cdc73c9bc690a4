"""Extensions: values of this process that travel with a result, for hooks and tracing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar, cast

T = TypeVar("T")


class Extensions:
    """In-process values, at most one for each Python type; immutable."""

    __slots__ = ("_values",)

    def __init__(self, *values: object) -> None:
        self._values: dict[type, object] = {type(v): v for v in values}

    def get(self, kind: type[T]) -> T | None:
        """The value of exactly this type, or None."""
        return cast("T | None", self._values.get(kind))

    def __getitem__(self, kind: type[T]) -> T:
        return cast("T", self._values[kind])

    def __contains__(self, kind: object) -> bool:
        return kind in self._values

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[object]:
        return iter(self._values.values())

    def __copy__(self, _memo: object = None) -> Extensions:
        return self  # nobody can change it, and what it holds need not be copyable

    __deepcopy__ = __copy__

    def __reduce__(self) -> tuple[object, ...]:
        return Extensions, ()  # never stored, never sent: a pickled copy is empty

    def __repr__(self) -> str:
        return f"Extensions({', '.join(t.__name__ for t in self._values)})"


NO_EXTENSIONS = Extensions()
