"""Who owns a handler's topics.

Topic names join group and main topic with dots, so group ``a.b`` with main topic ``c`` and group ``a`` with main topic
``b.c`` make the same names. An owner mark, a record in partition 0 of the pending table's changelog, tells them apart.
It is written while the partition is empty; its key is unique and longer than a row's key, so it is never taken for a
row and never compacted away. The mark with the lowest offset decides: of two rivals the later one refuses to start.

Layout: key ``retryapp-owner-mark:`` + 32 hexadecimal digits; value JSON ``{"version": 1, "group": …, "main": …}``.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import Final

from retryapp.core.hops import Outgoing
from retryapp.kafka.connection import KafkaConnection
from retryapp.kafka.errors import OwnerMismatchError
from retryapp.kafka.reader import read_topic
from retryapp.kafka.writer import write_records

KEY_PREFIX: Final = b"retryapp-owner-mark:"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class OwnerMark:
    """The handler that a changelog belongs to."""

    group: str
    main: str

    @property
    def text(self) -> str:
        """``group+main``; no topic name has a plus sign."""
        return f"{self.group}+{self.main}"


def encode_owner_mark(mark: OwnerMark, nonce: str) -> tuple[bytes, bytes]:
    """Return key and value of a mark; ``nonce`` (hexadecimal) makes the key its own."""
    value = json.dumps({"version": VERSION, "group": mark.group, "main": mark.main}, separators=(",", ":"))
    return KEY_PREFIX + nonce.encode("ascii"), value.encode()


def decode_owner_mark(key: bytes | None, value: bytes | None) -> OwnerMark | None:
    """Return the mark that a changelog record is; None when it is another record."""
    if key is None or value is None or not key.startswith(KEY_PREFIX):
        return None
    try:
        fields = json.loads(value)
        return OwnerMark(group=str(fields["group"]), main=str(fields["main"]))
    except (ValueError, KeyError, TypeError):
        return None


def read_owner_mark(connection: KafkaConnection, changelog: str) -> OwnerMark | None:
    """Return the deciding mark of an existing changelog topic, normally its first record; None when it has none."""
    for record in read_topic(connection, changelog, partitions=[0]):
        mark = decode_owner_mark(record.key, record.value)
        if mark is not None:
            return mark
    return None


def claim_owner_mark(connection: KafkaConnection, changelog: str, mark: OwnerMark) -> None:
    """Make an existing changelog topic ours, or refuse. Safe to repeat, and to run in many workers at once.

    Raises:
        OwnerMismatchError: another handler owns it.
    """
    owner = read_owner_mark(connection, changelog)
    if owner is None:
        marked = Outgoing(changelog, 0, *encode_owner_mark(mark, secrets.token_hex(16)), ())
        write_records(connection, changelog, [marked])
        owner = read_owner_mark(connection, changelog)  # of two rivals the later one refuses
    if owner is not None and owner != mark:
        raise OwnerMismatchError(changelog, owner.text, mark.text)
