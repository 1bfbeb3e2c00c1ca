"""Parts of records that are not shown: headers by name, and fields of JSON keys and values by pointer (RFC 6901).

Pages and the API show ``***`` in their place. Messages and tracebacks of errors are freed of their values when a record
fails, before these are logged or published. The record itself stays as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Final

from retryapp.core.errors import InvalidSettingError
from retryapp.core.record import Headers, Record

MASKED: Final = "***"
LEAST_CHARS: Final = 3
"""Shorter values are not looked for in messages: they would be found in any."""
_EVERY: Final = "*"
_LITERAL: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
"""A string in JSON."""
_WRONG: Final = re.compile(r"\A/.*(~|[;\s]/)|\A[^/].*[/;]")
"""An escape that is none, or something else than a comma between entries."""


@dataclass(frozen=True, slots=True)
class Mask:
    """What is masked."""

    headers: frozenset[str] = frozenset()
    """Names in lower case."""
    pointers: tuple[tuple[str, ...], ...] = ()

    def json(self, text: str) -> str | None:
        """Return JSON with its fields masked, written anew if there is one; None for what is not plainly JSON."""
        try:
            found = json.loads(text, object_pairs_hook=_once)
        except (ValueError, RecursionError):
            return None
        places = [place for pointer in self.pointers for place in places_of(found, pointer)]
        for container, key in places:
            container[key] = MASKED
        return json.dumps(found, ensure_ascii=False) if places else text

    def is_in(self, value: bytes | None, headers: Mapping[str, bytes]) -> bool:
        """Tell whether what somebody sends has `MASKED` where something is masked: they were shown it."""
        masked = MASKED.encode()
        if value == masked or any(data == masked for name, data in headers.items() if name.lower() in self.headers):
            return self != UNMASKED
        with suppress(ValueError, RecursionError):
            found = json.loads(value) if self.pointers and value else None
            places = (place for pointer in self.pointers for place in places_of(found, pointer))
            return any(container[key] == MASKED for container, key in places)
        return False

    def covers(self, header: str | None, pointer: str | None) -> bool:
        """Tell whether a search by a header's name, or by a field, would tell what is masked."""
        parts = () if pointer is None else parts_of(pointer)
        masked = (zip(parts, each, strict=False) for each in self.pointers if parts)
        return (header or "").lower() in self.headers or any(
            all(_EVERY in pair or pair[0] == pair[1] for pair in pairs) for pairs in masked
        )

    def freeing(self, records: Sequence[Record]) -> Callable[[str], str]:
        """Return what frees texts of what is masked in any of some records.

        They are looked into at the first text, once. A text is freed once: many records of a call may have one error.
        """
        secrets = cache(lambda: self.secrets(*((each.headers, each.key, each.value) for each in records)))
        return lru_cache(maxsize=16)(lambda text: free(text, secrets()))

    def secrets(self, *records: tuple[Headers, bytes | None, bytes | None]) -> list[str]:
        """Return what is masked in headers, keys and values, the longest first.

        Also as its sender has escaped it in JSON, and as Python or JSON quote it.
        """
        every = (header for headers, _, _ in records for header in headers)
        raws = [raw for name, raw in every if raw and name.lower() in self.headers]
        secrets = {text for raw in raws for text in (raw.decode("utf-8", "replace"), repr(raw)[2:-1])}
        secrets |= {secret.partition(" ")[2] for secret in secrets}  # a token without its scheme
        for payload in (each for _, *both in records for each in both if each and self.pointers):
            with suppress(ValueError, RecursionError):  # it is no JSON, or is nested too deep to be looked into
                text = payload.decode(json.detect_encoding(payload), "surrogatepass")
                found = json.loads(text)
                places = [place for pointer in self.pointers for place in places_of(found, pointer)]
                leaves = {leaf for container, key in places for leaf in _leaves(container[key])}
                secrets |= leaves | _as_sent(text, leaves)
        for quote in (json.dumps, partial(json.dumps, ensure_ascii=False), repr, _bytes_quoted):
            secrets |= {quote(secret)[1:-1] for secret in secrets}
        return sorted((secret for secret in secrets if len(secret) >= LEAST_CHARS), key=len, reverse=True)


UNMASKED: Final = Mask()


def free(text: str, secrets: Iterable[str]) -> str:
    """Return a text with `MASKED` in the place of secrets, which come the longest first."""
    for secret in secrets:
        text = text.replace(secret, MASKED)
    return text


def parse_mask(text: str) -> Mask:
    """Read the setting: names of headers and pointers (``/customer/email``, ``/items/*/card``), commas between.

    Raises:
        InvalidSettingError: a pointer with an escape that is none, or several entries without a comma.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    for entry in entries:
        if _WRONG.search(entry.replace("~0", "").replace("~1", "")):
            expected = "expected names of headers and JSON pointers, in which ~ is written as ~0 and / as ~1, with "
            raise InvalidSettingError(
                "RETRYAPP_MASK", entry, f"{expected}commas between: authorization, /customer/email"
            )
    return Mask(
        headers=frozenset(_unescaped(entry).lower() for entry in entries if entry[0] != "/"),
        pointers=tuple(parts_of(entry) for entry in entries if entry[0] == "/"),
    )


def parts_of(pointer: str) -> tuple[str, ...]:
    """Return the names of a pointer (RFC 6901), one for each level."""
    return tuple(map(_unescaped, pointer[1:].split("/")))


def _unescaped(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def places_of(value: Any, pointer: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """Yield container and key of what a pointer points to; `*` is every element of a list."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = [pointer[0]] if pointer[0] in value else []
    elif isinstance(value, list):
        keys = [n for n in range(len(value)) if pointer[0] in (_EVERY, str(n))]
    for key in keys:
        if len(pointer) == 1:
            yield value, key
        else:
            yield from places_of(value[key], pointer[1:])


def _bytes_quoted(text: str) -> str:
    return repr(text.encode("utf-8", "surrogatepass"))[1:]  # JSON may have half a pair


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice, and what the first one has would be shown")
    return found


def _as_sent(text: str, strings: set[str]) -> set[str]:
    r"""Return how a JSON text has some strings: there is more than one way to escape, as ``\/`` and ``\u002F``."""
    if not strings or "\\" not in text:
        return set()
    literals = [each for each in _LITERAL.findall(text) if "\\" in each]
    read = json.loads(f"[{','.join(literals)}]")  # all at once: there may be very many
    return {literal[1:-1] for literal, string in zip(literals, read, strict=True) if string in strings}


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, (dict, list)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)
    elif not isinstance(value, bool) and value is not None:
        yield value if isinstance(value, str) else json.dumps(value)
