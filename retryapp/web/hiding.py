"""What a reader may not see is taken out of facts, on every page, by the names of fields.

Who only looks sees metadata: where records are, when they failed and are due, types of errors and names of causes,
which have no values of records in them. Keys, values, headers and messages are for operators.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from retryapp.core.jobs import LetterFilter
from retryapp.core.masking import MASKED, UNMASKED, Mask
from retryapp.lookup.payloads import Kind, Payload
from retryapp.lookup.records import CUT, Facts
from retryapp.web.access import Role
from retryapp.web.errors import PageError

PRIVATE: Final = frozenset(
    {"error_message", "error_trace", "field", "header", "headers", "key", "message", "retry_headers", "value"}
)
"""Names of facts that only operators see, also of a job's filter; of a payload its size is left."""


def hidden_from(role: Role, facts: Facts, mask: Mask, *, decodes: bool) -> Facts:
    """Return facts as a role sees them: what is hidden is None, and named in `hidden`; what is masked, nobody sees.

    `decodes`: the app has a decoder, so bytes that are no text may have masked fields.
    """
    if role >= Role.OPERATE:
        return facts if mask == UNMASKED else _each(facts, lambda name, value: _masked(name, value, mask, decodes))
    names: set[str] = set()
    shown: Facts = _each(facts, lambda name, value: _hidden(name, value, names))
    return {**shown, "hidden": sorted(names)} if names else shown


def check_search(wanted: LetterFilter, mask: Mask, *, decodes: bool) -> None:
    """Raise `PageError` for a search by what is masked: its answer would tell what that is."""
    header, pointer = (None if text is None else text.partition("=")[0] for text in (wanted.header, wanted.field))
    is_key = wanted.key is not None and _key_seen(wanted.key, mask, decodes) != wanted.key
    if is_key or mask.covers(header, pointer):
        name = "the key" if is_key else header or pointer
        raise PageError(403, "masked", f"{name} is masked", "Search by something else")


def _each(value: Any, change: Callable[[str, Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: _each(change(name, each), change) for name, each in value.items()}
    return [_each(change("", each), change) for each in value] if isinstance(value, (list, tuple)) else value


def _hidden(name: str, value: Any, names: set[str]) -> Any:
    if name not in PRIVATE or value is None or (isinstance(value, Payload) and value.kind is Kind.NULL):
        return value
    names.add(name)
    return _without(value) if isinstance(value, Payload) else None


def _masked(name: str, value: Any, mask: Mask, decodes: bool) -> Any:
    if isinstance(value, dict) and str(value.get("name")).lower() in mask.headers and "value" in value:
        return {**value, "value": MASKED}
    if isinstance(value, dict) and value.get("damaged") and isinstance(value.get("value"), Payload):
        return {**value, "value": _without(value["value"])}  # of a damaged row it is the row, with its headers
    payload = value if isinstance(value, Payload) else None
    if payload and mask.pointers and (payload.decoded or payload.problem):  # its bytes have the same fields
        decoded = payload.decoded and _decoded(payload.decoded, mask)
        return replace(_without(payload), decoded=decoded, problem=payload.problem)
    if payload and payload.kind is Kind.BINARY:
        return _without(payload) if mask.pointers and _may_have_fields(payload.content) else value
    if payload is None:
        return _key_seen(value, mask, decodes) if name == "key" and isinstance(value, str) else value
    shown = _seen(payload.text, mask)
    return _without(payload) if shown == MASKED else payload if shown == payload.text else replace(payload, text=shown)


def _key_seen(text: str, mask: Mask, decodes: bool) -> str:
    """Return a key as lists and filters have it, masked."""
    return MASKED if decodes and mask.pointers and text.startswith("0x") else _seen(text, mask)


def _decoded(payload: Payload, mask: Mask) -> Payload:
    """Return what a decoder makes of bytes with its fields masked; without any text in which they cannot be found."""
    shown = mask.json(payload.text) if payload.kind is Kind.JSON else None
    return _without(payload) if shown is None else replace(payload, text=shown)


def _seen(text: str, mask: Mask) -> str:
    """Return a text with its fields masked; `MASKED` for one that cannot be looked into and may have some."""
    if not mask.pointers:
        return text
    shown = mask.json(text)
    if shown is None:  # it is no JSON, was cut, is too deep, or stands after something else
        return MASKED if _may_have_fields(_bytes_of(text)) else text
    return shown


def _may_have_fields(content: bytes) -> bool:
    """Tell whether there is an object or a list in bytes, in any encoding that has ASCII's."""
    return b"{" in content or b"[" in content


def _bytes_of(text: str) -> bytes:
    """Return the bytes of a text, or of a key that lists show in hexadecimal (`lookup.records.key_text`)."""
    text = text.removesuffix(CUT)
    with suppress(ValueError):
        return bytes.fromhex(text.removeprefix("0x")) if text.startswith("0x") else text.encode()
    return text.encode("utf-8", "replace")


def _without(payload: Payload) -> Payload:
    return Payload(Kind.HIDDEN, payload.size_bytes, b"", "")
