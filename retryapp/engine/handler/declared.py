"""Arguments of a declaration, checked in one place for `Retries.handler` and for `MemoryPartition`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel

from retryapp.core.batch import Batch
from retryapp.core.checks import check_count, check_kind, check_word
from retryapp.core.circuit import CircuitBreaker
from retryapp.core.deduplicate import rule_of
from retryapp.core.errors import InvalidSettingError
from retryapp.core.holding import Holding
from retryapp.core.policy import RetryPolicy
from retryapp.core.rates import RateLimit, parse_rate
from retryapp.core.topology import Tiers
from retryapp.engine.handler.handler import Delivery, Handler, HandlerSignatureError, Order, body_of, unwrapped
from retryapp.engine.handler.value_reader import type_text

_WORDS: Final[Mapping[str, Any]] = {"order": Order, "payload": ("copy", "reference"), "redelivery": ("direct", "main")}
MAX_CONCURRENCY: Final = 10_000
"""Runs of a handler at once: a worker has a task for each, from its start on."""
_COUNTS: Final[Mapping[str, int | None]] = {
    "concurrency": MAX_CONCURRENCY,
    "max_in_flight": None,
    "max_crashes": None,
    "max_concurrent": MAX_CONCURRENCY,
}
"""Each with the most that it may be; None: no bound."""
_HOLDING: Final = ("on_dead", "overflow", "max_sequences", "max_sequence_size")
_CIRCUITS: Final = 'a CircuitBreaker() for each name, as {"ledger": CircuitBreaker()}'
_CALLED_OTHERWISE: Final = {"value": "value_type"}


def handler_fields(**given: Any) -> dict[str, Any]:
    """Return the fields of a `Handler` that arguments of a declaration stand for; further fields stay as they are.

    Raises:
        InvalidSettingError: an argument is none: callers without type checks pass anything here.
    """
    fields = {_CALLED_OTHERWISE.get(name, name): value for name, value in given.items()}
    for name, words in _WORDS.items():
        if name in fields:
            check_word(name, fields[name], words)
    for name, most in _COUNTS.items():
        if name in fields and (name != "max_concurrent" or fields[name] is not None):
            check_count(name, fields[name], most)
    if "max_in_flight" in fields and fields["max_in_flight"] < (least := fields.get("concurrency", 1)):
        raise InvalidSettingError("max_in_flight", fields["max_in_flight"], f"expected at least concurrency={least}")
    for name, kind in (("batch", Batch), ("circuit", CircuitBreaker)):
        if fields.get(name) is not None:
            check_kind(name, fields[name], kind, f"a {kind.__name__}(...), or None")
    if "circuits" in fields:
        fields["circuits"] = _circuits(fields["circuits"])
    if "order" in fields:
        fields["order"] = Order(fields["order"])
    if "payload" in fields:
        fields["by_reference"] = fields.pop("payload") == "reference"
    if "redelivery" in fields:
        fields["through_main"] = fields.pop("redelivery") == "main"
    if (rate := fields.get("rate_limit")) is not None and not isinstance(rate, RateLimit):
        fields["rate_limit"] = parse_rate(rate)
    if "deduplicate" in fields:
        fields["deduplicate"] = rule_of(fields["deduplicate"])
    holding = {name: value for name in _HOLDING if (value := fields.pop(name, None)) is not None}
    if holding:
        fields["holding"] = replace(fields.get("holding", Holding()), **holding)
    return fields


def topology_fields(
    policy: RetryPolicy,
    settings: Mapping[str, Any],
    *,
    tiers: Any = Tiers.SINGLE,
    publishes: Any = (),
    dead_letters: Any = "topic",
) -> dict[str, Any]:
    """Return what arguments of a declaration say of a handler's topics; `settings`: its `handler_fields`.

    Raises:
        InvalidSettingError: an argument is none, or the policy contradicts it.
    """
    check_word("dead_letters", dead_letters, ("topic", "drop"))
    check_word("tiers", tiers, Tiers)
    if isinstance(publishes, str) or not isinstance(publishes, Iterable):
        raise InvalidSettingError("publishes", publishes, "expected a list of topics: publishes=['receipts']")
    publishes = tuple(publishes)
    for each in publishes:
        check_kind("publishes", each, str, "names of topics, as text")
    if dead_letters == "drop" and policy.dead_letters:
        named = ", ".join(policy.dead_letters)
        problem = "a rule names it, and with dead_letters='drop' there is no dead-letter topic: remove one of them"
        raise InvalidSettingError("dead_letters", named, problem)
    rule = settings.get("deduplicate")
    return {
        "tiers": Tiers(tiers),
        "publishes": tuple(dict.fromkeys(publishes)),
        "drop": dead_letters == "drop",
        "delays_ms": policy.delays_ms,
        "dead_letters": policy.dead_letters,
        "seen_window_ms": None if rule is None else rule.window_ms,
        "reference_ms": policy.longest_ms if settings.get("by_reference") else None,
        "through_main": settings.get("through_main", False),
    }


def check_value(handler: Handler) -> None:
    """Refuse what pydantic takes for a type and no value is of, and a function that says it takes another class.

    Each record would be dead, or use up its attempts. The latter only where both classes are sure: annotations may be
    anything, pydantic makes other things of some types, and a decorator may hand on what it has made of the value.
    """
    made = handler.value_type
    if made is None or inspect.isroutine(made):
        problem = "expected a type; bytes gives values as they are, and what a function decodes the handler decodes"
        raise InvalidSettingError("value", made, problem)
    if any(hasattr(each, "__wrapped__") for each in (unwrapped(handler.function), body_of(handler.function))):
        return
    try:
        parameters = inspect.signature(handler.function, eval_str=True).parameters.values()
    except Exception:  # noqa: BLE001 - what cannot be evaluated says nothing
        return
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    if not positional:
        return
    first, *others = positional
    takes, of = first.annotation, get_origin(first.annotation)
    if _is_delivery(takes) and getattr(made, "__name__", "") != Delivery.__name__:
        raise HandlerSignatureError(handler.name, "its first argument says that it takes the delivery")
    if handler.takes_delivery and others:
        _check_second(handler, others[0])
    if handler.batch is not None and made in (takes, of) and not _fits_list(made):
        problem = f"with batch= the function {handler.name} takes a list: annotate it as list[{type_text(made)}]"
        raise InvalidSettingError("value", made, f"{problem}; value= is the type of one record")
    if not isinstance(made, type) or not (made in (bytes, dict) or issubclass(made, BaseModel) or is_dataclass(made)):
        return
    try:
        if handler.batch is not None:
            takes = get_args(takes)[0] if isinstance(of, type) and issubclass(of, Iterable) else first.empty
        if get_origin(takes) in (Union, UnionType):
            members = [member for member in get_args(takes) if member is not NoneType]
            takes = members[0] if len(members) == 1 else takes
        of_model = getattr(takes, "__pydantic_generic_metadata__", {}).get("origin")
        takes = of_model or get_origin(takes) or takes
        # a name that is evaluated may be found in the module, where the function has a class of this name around it
        known = takes not in (first.empty, Any, Annotated, Union, UnionType) and takes.__name__ != made.__name__
        differs = known and not issubclass(made, takes) and not issubclass(takes, made)
    except Exception:  # noqa: BLE001 - what cannot be evaluated or compared is no class: nothing is known
        return
    if differs:
        problem = f"the function {handler.name} takes {takes.__qualname__}: write value={takes.__qualname__}"
        raise InvalidSettingError("value", made, f"{problem}, or mend its annotation")


def _check_second(handler: Handler, second: inspect.Parameter) -> None:
    """Refuse a second argument that says it is another class than what it gets."""
    takes = _bare(second.annotation)
    gets, kind = (Delivery, "the delivery") if handler.batch is None else (list, "the list of deliveries")
    of = get_origin(takes) or takes
    if not isinstance(of, type) or of in (second.empty, Any, UnionType) or getattr(of, "_is_protocol", False):
        return
    try:
        # a name that is evaluated may be found in the module, as that of the first argument
        fits = issubclass(gets, of) or issubclass(of, gets) or of.__name__ == gets.__name__
    except Exception:  # noqa: BLE001 - what cannot be compared is no class
        return
    if not fits:
        problem = f"its second argument gets {kind}, and {second.name} is annotated as {type_text(takes)}: bind what "
        raise HandlerSignatureError(handler.name, f"{problem}else it needs, as functools.partial does")


def _bare(annotation: Any) -> Any:
    """Return an annotation without what is said beside the type, and without None; a choice of types as it is."""
    while get_origin(annotation) in (Annotated, Union, UnionType):
        members = [member for member in get_args(annotation) if member is not NoneType]
        if get_origin(annotation) is not Annotated and len(members) > 1:
            break
        annotation = members[0]
    return annotation


def _is_delivery(annotation: Any) -> bool:
    annotation = _bare(annotation)
    return annotation is Delivery or (get_origin(annotation) is list and get_args(annotation) == (Delivery,))


def _fits_list(annotation: Any) -> bool:
    """Return whether a list is what an annotation says, whatever is in it; True: that is not known."""
    of = get_origin(annotation) or annotation
    if of in (Union, UnionType):
        return any(map(_fits_list, get_args(annotation)))
    try:
        return of is Any or not isinstance(of, type) or (not get_args(annotation) and issubclass(list, of))
    except Exception:  # noqa: BLE001 - what cannot be compared is no class
        return True


def _circuits(given: Any) -> dict[str, CircuitBreaker]:
    check_kind("circuits", given or {}, Mapping, _CIRCUITS)
    circuits = dict(given or {})
    for name, breaker in circuits.items():
        check_kind("circuits", name, str, _CIRCUITS)
        check_kind("circuits", breaker, CircuitBreaker, _CIRCUITS)
    return circuits
