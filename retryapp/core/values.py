"""Value types that are created several times for every record: frozen for the type checker only.

`dataclass(frozen=True)` sets each field through `object.__setattr__`: 4.4 us for an object of 17 fields instead of 1.1,
in all a tenth of a worker's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def value_type(cls: type[T]) -> type[T]:
    """Make a class a value: slots, compared and hashed by its fields."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def keyword_value_type(cls: type[T]) -> type[T]:
    """Make a class a value whose fields are given by name."""
    return dataclass(slots=True, unsafe_hash=True, kw_only=True)(cls)
