"""Keys lie where Kafka's own clients put them."""

from __future__ import annotations

from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.publication import partition_of


@given(st.binary(max_size=40), st.integers(1, 1_000))
def test_a_key_has_the_partition_that_the_client_library_gives_it(key: bytes, partitions: int) -> None:
    """Whatever its length leaves over."""
    assert partition_of(key, partitions) == DefaultPartitioner()(key, list(range(partitions)), [])
