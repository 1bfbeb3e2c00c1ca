"""What a `MemoryPartition` takes from a declaration, and what it refuses of its own arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, Protocol

from retryapp.core.errors import InvalidSettingError, shown
from retryapp.engine.handler.handler import Handler

_OF_A_WORKER: Final = ("function", "policy", "destinations")
"""Fields of a declared handler that are given in another way."""
_DECLARED: Final = ("policy", "group")
"""Arguments that a declared handler has already: its topics follow from them."""


class Declares(Protocol):
    """A `Retries`."""

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The declared handlers."""


def declared_handler(retries: Declares, main: str, more: Mapping[str, Any]) -> tuple[Handler, dict[str, Any]]:
    """Return the handler of a topic, and what a partition of it takes, with `more` in place of what is declared.

    Raises:
        TypeError: it is no `Retries`, as the app that it extends.
        LookupError: no handler of this topic is declared.
        InvalidSettingError: an argument is the declaration's; or its value type has a name that is not defined.
    """
    if not hasattr(retries, "handlers"):
        raise TypeError(f"expected the Retries that declares the handler, got {shown(retries)}")
    declared = {handler.main: handler for handler in retries.handlers}
    if main not in declared:
        others = f"only of {', '.join(declared)}" if declared else "nor of any other topic"
        raise LookupError(f"no handler of {main!r} is declared, {others}")
    handler = declared[main]
    for name in _DECLARED:
        if name in more:
            problem = "expected in the declaration; a partition with another one is MemoryPartition(function, policy)"
            raise InvalidSettingError(name, more[name], problem)
    handler.values.check()
    names = [field.name for field in fields(handler) if field.init and field.name not in _OF_A_WORKER]
    options = {name: getattr(handler, name) for name in names}
    return handler, {**options, "value_type": handler.values.value_type, **more}


def check_place(partition: object, random: object) -> None:
    """Check the number of a partition, and what gives random numbers: records would be dead as damaged by them.

    Raises:
        InvalidSettingError: one is none.
    """
    if type(partition) is not int or partition < 0:
        raise InvalidSettingError("partition", partition, "expected the number of a partition, 0 or more")
    if random is not None and not callable(getattr(random, "random", None)):
        problem = "expected what has a method random(), as ScriptedRandom(0.5) or random.Random(7)"
        raise InvalidSettingError("random", random, problem)
