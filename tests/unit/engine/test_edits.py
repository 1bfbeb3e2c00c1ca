"""Edited replays: the record's new bytes, and what tells of the old ones."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any, Final

import pytest
from doubles import CONTROL, DLQ, events_of, serving
from test_commands import FIRST, Calls, marks

from retryapp.core.control import MAX_COMMAND_BYTES, Command, Edit, MarkKind, Verb, mark_of
from retryapp.core.errors import ConfigurationError
from retryapp.core.lifecycle import Commanded
from retryapp.core.record import idempotency_key
from retryapp.engine.handler.handler import Order
from retryapp.testing import MemoryPartition

OLD: Final = sha256(b"\xff old").hexdigest()


async def test_an_edited_replay_has_the_new_bytes_and_tells_of_the_original() -> None:
    """To the byte, also where it fails again; the letter stays. The idempotency key is kept, or has a suffix."""
    calls, seen = Calls(), list[Any]()

    async def handler(value: bytes, delivery: Any) -> None:
        seen.append((delivery.key, delivery.raw_value, delivery.headers, delivery.edited))
        await calls(value, delivery)

    async with MemoryPartition(handler, "1s") as orders:
        own = (("trace", b"7"), ("retry-attempt", b"mine"), ("tenant", None), ("trace", b"8"), ("left", b"1"))
        await orders.send(b"\xff old", key=b"k", headers=own)
        await orders.to_rest()
        changes: dict[str, Any] = {"value": b"\xfe new", "key": b"k2"}
        edit = Edit.of("keep", **changes, headers={"trace": b"9", "retry-tier": b"x"}, drop=("left",))
        outcome = await orders.command("replay", 0, edit=edit, by="ann")
        original = f"{DLQ}[0]@0 sha256:{OLD}"
        assert (outcome["refused"], outcome["edited"], outcome["original"]) == (None, "value, key, headers", original)
        assert (marks(orders)[0].edited, marks(orders)[0].original) == ("value, key, headers", original)
        await orders.to_rest()
        headers = (("trace", b"9"), ("retry-attempt", b"mine"), ("tenant", None), ("retry-tier", b"x"))
        assert seen[2:] == [(b"k2", b"\xfe new", headers, 0)] * 2
        first, second = (record for record in orders.records(DLQ) if mark_of(record.headers, record.value) is None)
        assert (first.key, first.value, second.key, second.value) == (b"k", b"\xff old", b"k2", b"\xfe new")
        assert {call[3] for call in calls.seen} == {idempotency_key(FIRST)}
        for number in (1, 2):
            await orders.command("replay", 0, edit=Edit.of("new", value=b"%d" % number))
            await orders.to_rest()
            assert seen[-1][1:] == (b"%d" % number, headers, number)
            assert calls.seen[-1][3] == f"{idempotency_key(FIRST)}-e{number}"
        calls.failing = False
        await orders.command("replay", 0)
        assert calls.seen[-1] == (b"2", 1, 4, f"{idempotency_key(FIRST)}-e2"), "what was edited stays so"
        assert [mark.mark for mark in marks(orders)][-1] == MarkKind.RECOVERED


async def test_a_part_that_is_sent_as_it_was_is_not_called_edited() -> None:
    """A page sends the whole value, and a header that is to go may have another name."""
    async with serving(Calls(), "1s", b"old", key=b"k", headers=(("trace", b"7"),)) as (orders, _):
        for change, edited in (
            (Edit.of("new", value=b"old", headers={"trace": b"8"}), "headers"),
            (Edit.of("new", value=b"old", key=b"k", headers={"trace": b"8"}, drop=("trase",)), "nothing"),
        ):
            await orders.to_rest()
            assert (await orders.command("replay", 0, edit=change))["edited"] == edited


async def test_null_and_empty_values_are_edited_apart() -> None:
    """A null value becomes bytes, and stays null where other parts are edited."""
    async with serving(Calls(), "1s", None, value_type=bytes) as (orders, calls):
        await orders.to_rest()
        outcome = await orders.command("replay", 0, edit=Edit.of("keep", headers={"a": b"1"}))
        assert outcome["original"].endswith("@0 null")
        await orders.to_rest()
        await orders.command("replay", 0, edit=Edit.of("keep", value=b""))
        assert [call[0] for call in calls.seen] == [None, None, None, None, b""]


@pytest.mark.parametrize("order", ["key", "partition", "latest"])
async def test_the_key_of_a_record_in_order_is_not_edited(order: str) -> None:
    """It would leave its line; its value may be."""
    async with serving(Calls(), "1s", b"one", key=b"k", order=Order(order)) as (orders, _):
        await orders.to_rest()
        facts: dict[str, Any] = {"force": True}
        assert (await orders.command("replay", 0, edit=Edit.of("keep", key=b"l"), **facts))["refused"] == "ordered"
        assert (await orders.command("replay", 0, edit=Edit.of("keep", value=b"2"), **facts))["refused"] is None


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"idempotency": "maybe", "value": b"1"}, "idempotency='maybe': expected keep or new"),
        ({}, "edit=None: expected a value, a key, headers or drop"),
        ({"value": "4711"}, "value=<class 'str'>: expected bytes"),
        ({"key": 4711}, "key=<class 'int'>: expected bytes"),
        ({"headers": [("tenant", b"4711")]}, "headers=<class 'list'>: expected the bytes of each by its name"),
        ({"headers": {"tenant": "4711"}}, "headers=<class 'dict'>: expected the bytes of each by its name"),
        ({"drop": "trace"}, "drop='trace': expected names of headers"),
        ({"drop": (7,)}, r"drop=\(7,\): expected names of headers"),
    ],
)
def test_an_edit_of_what_is_none_names_it(given: dict[str, Any], problem: str) -> None:
    """In our words, and without a payload: errors are logged. Also as the ValueError that it was before."""
    for kind in (ConfigurationError, ValueError):
        with pytest.raises(kind, match=problem) as refused:
            Edit.of(**{"idempotency": "keep", **given})
        assert "pydantic" not in str(refused.value)
        assert "4711" not in str(refused.value)
    assert Edit.of("keep", drop=["trace"]) == Edit.of("keep", drop=("trace",))


async def test_an_edit_that_cannot_be_done_changes_nothing() -> None:
    """Without a choice of the idempotency key, of nothing, of what a newer version knows, of bytes that are none."""
    async with serving(Calls(), "1s", b"one") as (orders, _):
        await orders.to_rest()
        for number, edit in enumerate(
            (
                {"value": "x"},
                {"idempotency": "keep"},
                {"idempotency": "keep", "value": "x", "topic": "other"},
                {"idempotency": "keep", "value": "?", "encoding": "base64"},
                {"idempotency": "keep", "value": "x" * MAX_COMMAND_BYTES},
            )
        ):
            sent = {"v": 1, "id": f"e{number}", "verb": "replay", "failure_id": FIRST, "edit": edit}
            orders.transport.append(CONTROL, None, json.dumps(sent).encode())
        await orders.settle()
        assert [each.refused for each in events_of(orders, Commanded)] == ["malformed"] * 5
        assert orders.waiting == {}
    with pytest.raises(ValueError, match=r"takes 2\d+ bytes, and a command at most 262144"):
        Command(id="x", verb=Verb.REPLAY, failure_id=FIRST, edit=Edit.of("keep", value=b"x" * MAX_COMMAND_BYTES))
    with pytest.raises(ValueError, match="edit belongs to replay"):
        Command(id="x", verb=Verb.DISCARD, failure_id=FIRST, edit=Edit.of("keep", value=b"x"))


async def test_an_edited_record_that_fits_no_longer_is_refused() -> None:
    """Before anything is written."""
    async with serving(Calls(), "1s", b"one") as (orders, _):
        await orders.to_rest()
        object.__setattr__(orders.engine.context, "max_bytes", 3_000)
        outcome = await orders.command("replay", 0, edit=Edit.of("keep", value=b"x" * 3_000))
        assert (outcome["refused"], marks(orders)) == ("too-large", [])


async def test_an_edited_record_of_a_handler_by_reference_waits_as_a_copy() -> None:
    """The main topic does not have it: each later retry has the edited bytes, too."""
    async with serving(Calls(), "1s*2", b"one" * 1_000, by_reference=True) as (orders, calls):
        await orders.to_rest()
        await orders.command("replay", 0, edit=Edit.of("new", value=b"two" * 1_000))
        await orders.to_rest()
        assert [call[0] for call in calls.seen] == [b"one" * 1_000] * 3 + [b"two" * 1_000] * 3
