"""Keys and values as the user's decoder shows them to people and to searches. Handlers never get what it returns.

A call runs in a daemon thread, and is waited for `LIMIT_S` at most: a schema registry that does not answer holds no
page up for longer, and no process alive.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Final

from confluent_kafka.serialization import MessageField, SerializationContext
from pydantic_core import PydanticSerializationError, to_jsonable_python

from retryapp.core.errors import InvalidSettingError, RetryAppError
from retryapp.core.foreign import split_headers, unshield
from retryapp.core.masking import UNMASKED, Mask, free
from retryapp.core.record import Headers
from retryapp.core.text import cut_text
from retryapp.core.topology import HandlerTopology
from retryapp.core.traces import plain_text
from retryapp.lookup.payloads import Payload, payload_of

LIMIT_S: Final = 2.0
"""How long a call may take."""
MOST_OVERDUE: Final = 4
"""While so many calls have taken longer and go on, there are no others."""
MAX_PROBLEM_BYTES: Final = 500
KEY: Final = MessageField.KEY
VALUE: Final = MessageField.VALUE

Decoder = Callable[[bytes, SerializationContext], object]
"""Returns text, bytes, or what JSON can show; None: the bytes are shown as they are."""
Show = Callable[[bytes | None, MessageField, Headers], Payload]
"""Shows a key or a value of a record with these headers."""

logger = logging.getLogger(__name__)


class DecoderFailedError(RetryAppError):
    """A user's decoder raised an error, took too long, or returned what cannot be shown."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        """Name of the error's type; empty: the decoder raised none."""
        self.text = text
        super().__init__(f"decoder failed: {': '.join(filter(None, (kind, text)))}")


def undecoded(raw: bytes | None, _field: MessageField, _headers: Headers) -> Payload:
    """Show a key or a value by its bytes alone."""
    return payload_of(raw)


class Decoding:
    """Calls a user's decoder, from any thread.

    `topologies` tells of which main topic dead letters are: the decoder is given that one.

    Raises:
        InvalidSettingError: the decoder is no plain function.
    """

    def __init__(self, decoder: Decoder, topologies: Callable[[], Iterable[HandlerTopology]] = tuple) -> None:
        given: object = decoder  # callers without type checks pass anything here
        if not callable(given) or iscoroutinefunction(given):
            raise InvalidSettingError("decoder", decoder, "expected a plain function of the bytes and their context")
        self._decoder = decoder
        self._topologies = topologies
        self._overdue: list[threading.Thread] = []

    def shows(self, main: str, mask: Mask = UNMASKED) -> Show:
        """Return what shows keys and values of a handler; nothing of it has a masked header's text.

        Fields are masked later, where a payload is shown. The text of an error may quote any: it is left out if fields
        are masked.
        """
        return partial(self._payload, main, mask)

    def _payload(self, main: str, mask: Mask, raw: bytes | None, field: MessageField, headers: Headers) -> Payload:
        plain = payload_of(raw)
        own = _own(headers)
        try:
            found = self.decode(main, raw, field, own) if raw else None
        except DecoderFailedError as error:
            text = free(str(error), mask.secrets((own, None, None)))
            if error.kind and mask.pointers:
                text = f"decoder failed: {error.kind}, with a text that may have masked fields"
            return replace(plain, problem=cut_text(text, MAX_PROBLEM_BYTES))
        if found is None:
            return plain
        if mask.headers:
            text = free(found.decode("utf-8", "surrogateescape"), mask.secrets((own, None, None)))
            found = text.encode("utf-8", "surrogateescape")
        return replace(plain, decoded=payload_of(found))

    def decode(self, main: str, raw: bytes, field: MessageField, headers: Headers) -> bytes | None:
        """Return what the decoder makes of a key or value, as text or JSON; None: it leaves the bytes as they are.

        Raises:
            DecoderFailedError: it raised an error, took longer than `LIMIT_S`, or returned something else.
        """
        self._overdue = [thread for thread in self._overdue if thread.is_alive()]
        if len(self._overdue) >= MOST_OVERDUE:
            raise DecoderFailedError("", f"{len(self._overdue)} calls go on since more than {LIMIT_S:g} s")
        letters_of = (topology.letters_of for topology in self._topologies() if topology.main == main)
        about = SerializationContext(next(letters_of, None) or main, field, [*headers])
        ended: list[bytes | BaseException | None] = []

        def call() -> None:
            try:
                ended.append(_bytes_of(self._decoder(raw, about)))
            except BaseException as error:  # noqa: BLE001 - the edge to user code: pages show the error
                ended.append(error)

        thread = threading.Thread(target=call, name="decoder", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the process has too many
            raise DecoderFailedError("", str(error)) from error
        thread.join(LIMIT_S)
        if not ended:
            self._overdue.append(thread)
            logger.warning("retryapp.decoder_slow", extra={"topic": about.topic, "field": str(field)})
            raise DecoderFailedError("", f"it takes longer than {LIMIT_S:g} s")
        if isinstance(ended[0], BaseException):
            raise DecoderFailedError(type(ended[0]).__name__, plain_text(ended[0]))
        return ended[0]


class Searching:
    """Returns the value of a record in which a search looks for a field: decoded, if the decoder decodes it."""

    def __init__(self, decoding: Decoding, main: str) -> None:
        self._decoding = decoding
        self._main = main
        self.undecoded = 0
        """Values that could not be decoded: no field is found in them."""

    def __call__(self, record: Any) -> bytes | None:
        if not record.value:
            return None
        try:
            found = self._decoding.decode(self._main, record.value, VALUE, _own(record.headers))
        except DecoderFailedError:
            self.undecoded += 1
            return None
        return record.value if found is None else found


def _own(headers: Headers) -> Headers:
    return tuple(unshield(split_headers(headers)[0]))


def _bytes_of(found: Any) -> bytes | None:
    if found is None or isinstance(found, bytes):
        return found
    if isinstance(found, str):
        return found.encode("utf-8", "backslashreplace")
    try:
        return json.dumps(found, default=_plain, ensure_ascii=False).encode("utf-8", "backslashreplace")
    except PydanticSerializationError as error:
        raise TypeError(f"it returned {type(found).__name__}; expected text, or what JSON can show: {error}") from error


def _plain(value: object) -> object:
    """Return bytes as text, so that a masked header is found in it, and other values as pydantic writes them."""
    with suppress(UnicodeDecodeError):
        return value.decode() if isinstance(value, bytes) else to_jsonable_python(value, bytes_mode="utf8")
    return to_jsonable_python(value, bytes_mode="hex")
