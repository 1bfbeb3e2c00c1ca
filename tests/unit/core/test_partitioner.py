"""Keys lie where Kafka's own clients put them."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.publication import murmur2, partition_of


@given(st.binary(max_size=40), st.integers(1, 1_000))
def test_a_key_has_the_partition_that_the_client_library_gives_it(key: bytes, partitions: int) -> None:
    """Whatever its length leaves over."""
    assert partition_of(key, partitions) == DefaultPartitioner()(key, list(range(partitions)), [])


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_hashes_are_those_of_kafkas_own_tests(data: bytes, digest: int) -> None:
    """The cases of `UtilsTest.testMurmur2` of the Java client, whose numbers have a sign."""
    assert murmur2(data) == digest & 0xFFFFFFFF
