"""The lives of a main topic: it may be deleted and made again, with another id and offsets from 0 (I31).

The judge knows records by partition and offset, where the offsets of each life begin `SPAN` after those of the one
before. Ids tell lives apart, in names, rows and notes. What the former topic had not handed off goes with it; what it
had, ends. A worker that runs on may read the new one by what it knows of the former one, and name its records like
those: that counts for nothing, they are to be delivered under their own names.
"""

from __future__ import annotations

import re
from typing import Final

from retryapp.core.record import Origin as Place
from retryapp.core.row_keys import OFFSET_AT, identity_of

SPAN: Final = 10_000
LIVES: Final = 3
"""Main topics that one name has in a history, at most."""
FIRST_ID: Final = "simulated"
_MOST: Final = 9
_PLACE: Final = re.compile(r"(?P<id>[^/@]+)/(?P<partition>\d+)/(?P<offset>\d+)$")
_MAIN: Final = re.compile(r"^m:(\S+)")


def id_of(life: int) -> str:
    return f"again{life}" if life else FIRST_ID


def life_of(topic_id: str) -> int:
    return int(topic_id.removeprefix("again")) if topic_id.startswith("again") else 0


def key_of(topic_id: str, partition: int, offset: int) -> tuple[int, int]:
    """Return how the judge knows a record."""
    return partition, offset + SPAN * life_of(topic_id)


def key_in(text: str) -> tuple[int, int]:
    """Return the same of a record's name."""
    if (found := _PLACE.search(text)) is None:
        raise ValueError(f"{text!r} names no record")
    return key_of(found["id"], int(found["partition"]), int(found["offset"]))


def life_in(note: str, now: int) -> int:
    """Return the life that an offset's note names; `now`: the present one, where it names none."""
    found = _MAIN.match(note)
    return now if found is None else life_of(found[1])


def base_of(identity: bytes) -> int:
    """Return where the offsets of a row's life begin."""
    return _BASES.get(identity[1 : OFFSET_AT - 4], 0)


def _hash(topic: str, life: int) -> bytes:
    return identity_of(Place(topic, id_of(life), 0, 0))[1 : OFFSET_AT - 4]


_BASES: Final = {_hash(topic, life): SPAN * life for topic in ("orders", "refunds") for life in range(1, _MOST)}
