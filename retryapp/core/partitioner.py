"""Which partition a key belongs to: Kafka's default partitioner, so that our records lie where other producers' do.

Source: ``Utils.murmur2`` and ``BuiltInPartitioner`` of Apache Kafka's Java client. librdkafka calls it
``murmur2_random``.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_M: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of bytes, with the seed that Kafka's clients use.

    >>> hex(murmur2(b"orders"))
    '0xc29dda9c'
    """
    length = len(data)
    whole = length & ~3
    digest = _SEED ^ length
    for at in range(0, whole, 4):
        k = (int.from_bytes(data[at : at + 4], "little") * _M) & _MASK
        k = ((k ^ (k >> 24)) * _M) & _MASK
        digest = ((digest * _M) & _MASK) ^ k
    if whole < length:
        digest = ((digest ^ int.from_bytes(data[whole:], "little")) * _M) & _MASK
    digest = ((digest ^ (digest >> 13)) * _M) & _MASK
    return digest ^ (digest >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition of a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
