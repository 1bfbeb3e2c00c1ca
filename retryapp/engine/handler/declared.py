"""Arguments of a declaration, checked in one place for `Retries.handler` and for `MemoryPartition`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from retryapp.core.batch import Batch
from retryapp.core.checks import check_count, check_kind, check_word
from retryapp.core.circuit import CircuitBreaker
from retryapp.core.deduplicate import rule_of
from retryapp.core.holding import Holding
from retryapp.core.rates import RateLimit, parse_rate
from retryapp.engine.handler.handler import Order

_WORDS: Final[Mapping[str, Any]] = {"order": Order, "payload": ("copy", "reference"), "redelivery": ("direct", "main")}
_COUNTS: Final = ("concurrency", "max_in_flight", "max_crashes", "max_concurrent")
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
    for name in _COUNTS:
        if name in fields and (name != "max_concurrent" or fields[name] is not None):
            check_count(name, fields[name])
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


def _circuits(given: Any) -> dict[str, CircuitBreaker]:
    check_kind("circuits", given or {}, Mapping, _CIRCUITS)
    circuits = dict(given or {})
    for name, breaker in circuits.items():
        check_kind("circuits", name, str, _CIRCUITS)
        check_kind("circuits", breaker, CircuitBreaker, _CIRCUITS)
    return circuits
