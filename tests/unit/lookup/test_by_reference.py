"""A record that waits by reference is shown with what the main topic has, if that is the same record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from retryapp.lookup.records import pending_detail, pending_value, place_of, whole_entry
from retryapp.ports import PendingEntry, TopicPartition
from retryapp.testing import MemoryPartition, Script


@pytest.mark.parametrize("value", [b"large", None])
async def test_its_value_is_that_of_the_main_topic(value: bytes | None) -> None:
    """With the user's headers; of another record nothing is shown, and it says so."""
    async with MemoryPartition(Script("fail"), "1h", by_reference=True) as orders:
        await orders.send(value, key=b"k", headers=(("trace", b"1"),))
        assert orders.transport.pending is not None
        ((key, row),) = orders.transport.pending.page(None, 2)
        (record,) = orders.transport.read(TopicPartition("orders", 0))
    entry = PendingEntry(partition=0, key=key, value=row)
    assert place_of(entry, "orders") == ("orders", 0, 0)
    whole = whole_entry(entry, record)
    shown = pending_detail(whole)
    assert (pending_value(whole), place_of(whole, "orders"), shown["unread"]) == (value or b"", None, None)
    assert shown["value"].kind == ("null" if value is None else "text")
    assert shown["headers"] == [{"name": "trace", "value": "1"}]
    for found in (None, replace(record, value=b"other")):
        assert whole_entry(entry, found) == entry
    assert pending_value(entry) is None
    assert pending_detail(entry)["unread"] == "the main topic does not have it any more"
    assert pending_detail(entry, unread="no leader")["unread"] == "no leader"
