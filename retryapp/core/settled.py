"""Which records beyond a committed offset are settled, as text for the offset's metadata.

A record that runs for long holds the offset, not the outcomes of those after it: they are settled, and this says so to
the next lane, or it would run them again. The text is

    b1:<offset>:<payload>:<check>

The payload is base64 of one number for each settled record, in the order of offsets: twice the number of offsets
between it and the one before, or the committed offset, plus 1 if it failed. Seven bits are in a byte, the lowest first;
the highest bit says that another byte follows. Nearly all take one byte.

The check covers topic, topic id, partition and offset too: a text that was cut, or copied to another place, is not
read, and its records run again. None is ever skipped by mistake.

The payload of a subset is never longer than that of the whole, nor that of the rest after the offset has moved. So what
fits when it is handed to the lane fits in every transaction, whichever of the turns were committed by then.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from retryapp.core.record import Origin

PREFIX: Final = "b1:"
MAX_PAYLOAD_BYTES: Final = 1_100
"""Of the 4,096 bytes that a broker takes for all metadata (`offset.metadata.max.bytes`), the text has up to 1,499."""
_TEXT = re.compile(r"b1:(0|[1-9]\d{0,18}):([0-9A-Za-z_-]+={0,2}):([0-9A-Za-z_-]{8})", re.ASCII)


def encode_settled(settled: Mapping[int, bool], committed: Origin) -> str:
    """Return the text; empty where nothing is settled.

    Args:
        settled: whether each record succeeded, by offset; none of them before the committed offset.
        committed: the committed offset, as the origin of the record there.
    """
    if not settled:
        return ""
    payload = urlsafe_b64encode(_pack(settled, committed.offset)).decode()
    return f"{PREFIX}{committed.offset}:{payload}:{_check(payload, committed)}"


def decode_settled(text: str, committed: Origin) -> dict[int, bool]:
    """Return whether each settled record succeeded, by offset; empty where the text is none, or is about others."""
    match = _TEXT.fullmatch(text)
    if match is None or int(match[1]) != committed.offset or match[3] != _check(match[2], committed):
        return {}
    settled: dict[int, bool] = {}
    offset, number, shift = committed.offset, 0, 0
    for byte in urlsafe_b64decode(match[2]):
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            offset += number >> 1
            settled[offset] = not number & 1
            offset, number, shift = offset + 1, 0, 0
    return settled


def that_fit(settled: Mapping[int, bool], committed: int, offsets: Iterable[int]) -> list[int]:
    """Return the first of more offsets, in order, whose records may be settled too without exceeding the bound.

    An offset between others splits a gap: the second part takes no more than the whole did, the first no more than the
    way from the committed offset.
    """
    room = MAX_PAYLOAD_BYTES - len(_pack(settled, committed))
    fitting: list[int] = []
    for offset in offsets:
        room -= len(_number(2 * (offset - committed) + 1))
        if room < 0:
            break
        fitting.append(offset)
    return fitting


def _pack(settled: Mapping[int, bool], committed: int) -> bytes:
    payload, after = bytearray(), committed
    for offset in sorted(settled):
        payload += _number(2 * (offset - after) + (not settled[offset]))
        after = offset + 1
    return bytes(payload)


def _number(number: int) -> bytes:
    packed = bytearray()
    while number > 0x7F:
        packed.append(number & 0x7F | 0x80)
        number >>= 7
    packed.append(number)
    return bytes(packed)


def _check(payload: str, committed: Origin) -> str:
    return urlsafe_b64encode(blake2b(f"{committed.text} {payload}".encode(), digest_size=6).digest()).decode()
