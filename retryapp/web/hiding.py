"""What a reader may not see is taken out of facts, on every page, by the names of fields.

Who only looks sees metadata: where records are, when they failed and are due, types of errors and names of causes,
which have no values of records in them. Keys, values, headers and messages are for operators.
"""

from __future__ import annotations

from typing import Any, Final

from retryapp.lookup.payloads import Kind, Payload
from retryapp.lookup.records import Facts
from retryapp.web.access import Role

PRIVATE: Final = frozenset({"error_message", "error_trace", "headers", "key", "message", "retry_headers", "value"})
"""Names of facts that only operators see; of a payload its size is left."""


def hidden_from(role: Role, facts: Facts) -> Facts:
    """Return facts as a role sees them: what is hidden is None, and named in `hidden`."""
    if role >= Role.OPERATE:
        return facts
    names: set[str] = set()
    shown: Facts = _without(facts, names)
    return {**shown, "hidden": sorted(names)} if names else shown


def _without(value: Any, names: set[str]) -> Any:
    if isinstance(value, dict):
        return {name: _hidden(name, each, names) for name, each in value.items()}
    return [_without(each, names) for each in value] if isinstance(value, (list, tuple)) else value


def _hidden(name: str, value: Any, names: set[str]) -> Any:
    if name not in PRIVATE:
        return _without(value, names)
    if value is None or (isinstance(value, Payload) and value.kind is Kind.NULL):
        return value
    names.add(name)
    return Payload(Kind.HIDDEN, value.size_bytes, b"", "") if isinstance(value, Payload) else None
