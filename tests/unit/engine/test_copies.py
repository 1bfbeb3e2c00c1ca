"""Copies that a crash leaves without transactions: dropped before the handler, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from retryapp.core.lifecycle import Succeeded
from retryapp.core.record import Record
from retryapp.engine import copies
from retryapp.engine.copies import ENDED, KNOWN, Outcomes, place_of, read_outcomes
from retryapp.engine.site import LaneSite
from retryapp.ports import Event, Sink, TopicPartition
from retryapp.testing import MemoryPartition, Script, Step

MAIN = TopicPartition("orders", 0)
RETRY, REDELIVERY, DLQ, EVENTS = (
    TopicPartition(f"app.orders.{name}", 0) for name in ("retry", "redelivery", "dlq", "events")
)
ORIGIN = b"orders@kq8G0bTz/0/0"
FIRST = (ORIGIN, b"", b"")


def partition(script: Script, policy: str = "1m 1m", **options: Any) -> MemoryPartition:
    """Return a partition without transactions."""
    return MemoryPartition(script, policy, **{"delivery": "at_least_once", **options})


def attempts(script: Script) -> list[int]:
    """Return which attempts were begun."""
    return [seen.attempt for seen in script.calls]


def dropped(orders: MemoryPartition) -> list[tuple[str | None, int | None]]:
    """Return what was passed over: where it lay, and which attempt it was."""
    return [(seen.topic, seen.attempt) for seen in orders.observer.of(Event.COPY_DROPPED)]


@pytest.mark.parametrize(("script", "ends"), [(["fail"], [1, 2]), (["reject"], [1])])
async def test_a_first_delivery_is_not_repeated_when_its_outcome_is_there(script: list[str], ends: list[int]) -> None:
    """The worker dies between hand-off and offset: the record is read again, and its handler is not called."""
    charge = Script(*script)
    async with partition(charge) as orders:
        moving = orders.transport.pause(Step.MOVE)
        await orders.send(b"order 1")
        assert moving.reached
    async with partition(charge, transport=orders.transport) as orders:
        await orders.advance(1_000)
        assert dropped(orders) == [("orders", 1)]
        assert orders.transport.offsets[MAIN] == 1
        await orders.to_rest()
    assert attempts(charge) == ends
    assert len(orders.dead_letters) == (script == ["reject"])


async def test_a_row_that_fires_twice_is_handled_once() -> None:
    """The worker dies between the redelivery and the removal of the row; both copies are read in one session."""
    charge = Script("fail")
    async with partition(charge) as orders:
        await orders.send(b"order 1")
        logging = orders.transport.pause(Step.LOG)
        await orders.advance(60_000)
        assert logging.reached
    async with partition(charge, transport=orders.transport) as orders:
        await orders.to_rest()
        await orders.advance(1_000)
        assert len(orders.records("app.orders.redelivery")) == 2
        assert dropped(orders) == [("app.orders.redelivery", 2)]
    assert attempts(charge) == [1, 2, 2], "the second was under way when the first worker died"


async def test_a_copy_behind_one_that_runs_waits_for_its_outcome() -> None:
    """It is passed over behind it: a worker that dies meanwhile leaves both, and the next one runs the first again."""
    charge = Script("fail", "hang")
    async with partition(charge, concurrency=4) as orders:
        await orders.send(b"order 1")
        await orders.advance(60_000)
        copy = orders.records("app.orders.redelivery")[0]
        orders.transport.append(REDELIVERY, copy.key, copy.value, copy.headers)
        await orders.settle()
        await orders.advance(1_000)
        assert dropped(orders) == []
        assert orders.transport.offsets[REDELIVERY] == 0
    async with partition(charge, transport=orders.transport, concurrency=4) as orders:
        await orders.to_rest()
        await orders.advance(1_000)
        assert dropped(orders) == [("app.orders.redelivery", 2)]
    assert attempts(charge) == [1, 2, 2, 3]


async def test_what_a_session_has_taken_up_is_forgotten_with_it() -> None:
    """Its lane failed before the outcome was durable, and opens again in the same process."""
    charge = Script("fail")
    async with partition(charge) as orders:
        await orders.send(b"order 1")
        orders.transport.fail(Step.PUBLISH, ConnectionError("gone"), after=1)  # the event of the success
        await orders.advance(60_000)
        await orders.to_rest()
        await orders.advance(10_000)
        assert dropped(orders) == []
    assert attempts(charge) == [1, 2, 2]


async def test_a_tier_record_that_is_there_twice_is_parked_once() -> None:
    """Beside its copy, while that waits, and after a new start: the row says so, whatever is remembered."""
    charge = Script("fail")
    async with partition(charge) as orders:
        await orders.send(b"order 1")
        tier = orders.records("app.orders.retry")[0]
        later = tuple((n, b"%d" % (int(v) + 5) if n == "retry-due-ms" and v else v) for n, v in tier.headers)
        for _ in range(2):
            orders.transport.append(RETRY, tier.key, tier.value, later)
        await orders.settle()
        await orders.advance(1_000)
        assert dropped(orders) == [("app.orders.retry", 1)] * 2
        assert orders.waiting == {"1m": 1}
    async with partition(charge, transport=orders.transport) as orders:
        for _ in range(KNOWN + 1):
            orders.transport.outcomes.note((b"other", b"%d" % _, b"r"), 1)  # type: ignore[union-attr]
        orders.transport.append(RETRY, tier.key, tier.value, later)
        await orders.settle()
        await orders.advance(1_000)
        assert dropped(orders) == [("app.orders.retry", 1)]
        await orders.to_rest()
        assert len(orders.records("app.orders.redelivery")) == 1
    assert attempts(charge) == [1, 2]


async def test_an_old_copy_of_what_has_ended_is_not_handled() -> None:
    """Of a record that succeeded in an earlier life: the events topic tells."""
    charge = Script("fail")
    async with partition(charge) as orders:
        await orders.send(b"order 1")
        await orders.to_rest()
        await orders.advance(1_000)
        tier, copy = orders.records("app.orders.retry")[0], orders.records("app.orders.redelivery")[0]
    orders.transport.append(REDELIVERY, copy.key, copy.value, copy.headers)
    orders.transport.append(RETRY, tier.key, tier.value, tier.headers)
    async with partition(charge, transport=orders.transport) as orders:
        await orders.advance(120_000)
        assert sorted(dropped(orders)) == [("app.orders.redelivery", 2), ("app.orders.retry", 1)]
    assert attempts(charge) == [1, 2]


async def test_a_replay_is_no_copy_of_what_it_replays() -> None:
    """Nor is another replay of the same dead letter."""
    charge = Script("reject", "reject", "reject")
    async with partition(charge) as orders:
        await orders.send(b"order 1")
        letter = orders.records("app.orders.dlq")[0]
        for replay in (b"a", b"b"):
            told = {"retry-attempt": b"0", "retry-replays": b"1", "retry-replay-id": replay, "retry-due-ms": b"1"}
            kept = {name: value for name, value in letter.headers if name != "retry-reason"}
            orders.transport.append(RETRY, letter.key, letter.value, tuple({**kept, **told}.items()))
            await orders.to_rest()
            await orders.advance(1_000)
        assert dropped(orders) == []
    assert attempts(charge) == [1, 1, 1]


async def test_with_transactions_nobody_looks() -> None:
    """There are no copies; what somebody else has put there is handled."""
    charge = Script("fail")
    async with partition(charge, delivery="exactly_once") as orders:
        await orders.send(b"order 1")
        await orders.to_rest()
        copy = orders.records("app.orders.redelivery")[0]
        orders.transport.append(REDELIVERY, copy.key, copy.value, copy.headers)
        await orders.settle()
        await orders.advance(1_000)
        assert dropped(orders) == []
    assert attempts(charge) == [1, 2, 2]


def headers(**more: bytes | None) -> tuple[tuple[str, bytes | None], ...]:
    """Return headers of a hand-off."""
    ours = {"version": b"1", "group": b"app", "origin": ORIGIN, "attempt": b"1", "due_ms": b"1", **more}
    return tuple((f"retry-{name.replace('_', '-')}", value) for name, value in ours.items())


def test_what_a_hand_off_says_of_itself() -> None:
    """Its record, with the replay, and how far it has come."""
    assert place_of(b"app", headers()) == (FIRST, 1, b"")
    assert place_of(b"app", headers(reason=b"exhausted")) == (FIRST, 1, b"exhausted")
    assert place_of(b"app", headers(replays=b"2", replay_id=b"r")) == ((ORIGIN, b"2", b"r"), 1, b"")


@pytest.mark.parametrize(
    "told",
    [
        (), headers()[1:], headers(version=b"2"), headers(group=b"other"), headers(attempt=b"-1"), headers(attempt=b""),
        headers(attempt=b"1" * 9), headers(origin=None), headers(replays=b"1"), (*headers(), *headers()),
    ],
)  # fmt: skip
def test_what_cannot_be_told_for_sure_is_no_copy(told: tuple[tuple[str, bytes | None], ...]) -> None:
    """Damage, another format, another group, a replay without a name: such a record goes the usual way."""
    assert place_of(b"app", told) is None


def test_what_is_known_only_rises_and_is_bounded() -> None:
    """Those of which nothing was heard for longest are forgotten."""
    outcomes = Outcomes()
    outcomes.note(FIRST, 4)
    outcomes.note(FIRST, 2)
    assert outcomes.rank(FIRST) == 4
    for at in range(KNOWN):
        outcomes.note((b"%d" % at, b"", b""), 1)
        outcomes.note((b"kept", b"", b""), at)
    assert (len(outcomes), outcomes.rank(FIRST)) == (KNOWN, -1)
    assert outcomes.rank((b"kept", b"", b"")) == KNOWN - 1


class Topics:
    """`ports.TopicReader` over lists; each read is noted."""

    def __init__(self, **records: Sequence[Record]) -> None:
        self.records = {TopicPartition(f"app.orders.{name}", 0): [*each] for name, each in records.items()}
        self.read_from: list[tuple[str, int]] = []
        self.error: BaseException | None = None

    async def bounds(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """See `ports.TopicReader.bounds`."""
        return {tp: (0, len(self.records.get(tp, ()))) for tp in tps}

    async def read(self, tp: TopicPartition, start: int, sink: Sink, *, background: bool = False) -> int:
        """See `ports.TopicReader.read`."""
        self.read_from.append((tp.topic, start))
        if self.error is not None:
            raise self.error
        for at in range(start, len(self.records[tp])):
            if sink([self.records[tp][at]], at + 1):
                break
        return len(self.records[tp])


def site() -> LaneSite:
    """Return where the lane belongs."""
    return LaneSite(
        name="app.orders.0", group="app", partition=0, sources=(MAIN, RETRY, REDELIVERY), main=MAIN, dlq=DLQ,
        changelog=TopicPartition("app.orders.pending.changelog", 0), events=EVENTS, delivering=(MAIN, REDELIVERY),
    )  # fmt: skip


def record(tp: TopicPartition, offset: int, value: bytes = b"", **more: bytes | None) -> Record:
    """Return a hand-off of the record with this number."""
    told = headers(**{"origin": b"orders@kq8G0bTz/0/%d" % offset, **more})
    return Record(tp.topic, 0, offset, 0, None, value, told)


def place(offset: int) -> tuple[bytes, bytes, bytes]:
    """Return the same of it."""
    return b"orders@kq8G0bTz/0/%d" % offset, b"", b""


async def test_each_topic_says_how_far_a_record_has_come() -> None:
    """A dead letter that is damaged may name another record's origin, and an event of a replay does not say which."""
    told: dict[str, Any] = {"group": "app", "handler": "h", "failure_id": "f", "attempt": 2}
    told |= {"started_ms": 0, "ended_ms": 1, "lateness_ms": 0}
    events = [
        Succeeded(origin=f"orders@kq8G0bTz/0/{at}", replays=replays, **told).to_json()
        for at, replays in ((6, 0), (7, 1))
    ]
    topics = Topics(
        retry=[record(RETRY, 1, attempt=b"2")],
        redelivery=[record(REDELIVERY, 2)],
        dlq=[record(DLQ, 3, reason=b"exhausted"), record(DLQ, 4, reason=b"damaged")],
        events=[Record(EVENTS.topic, 0, at, 0, None, event, ()) for at, event in enumerate([*events, b"?"])],
    )
    known = await read_outcomes(site(), topics, set_by_hand=False)
    assert [known.rank(place(at)) for at in range(1, 8)] == [4, 3, ENDED, -1, -1, ENDED, -1]
    assert known.complete


@pytest.mark.parametrize(("size", "far"), [(0, 3_000), (8 << 10, 3_976), (1 << 20, None)])
async def test_an_opening_reads_no_more_than_this(size: int, far: int | None) -> None:
    """So many records, or so many bytes; the last few in any case."""
    topics = Topics(retry=[record(RETRY, at, b"v" * size if at >= 4_980 else b"") for at in range(5_000)])
    known = await read_outcomes(site(), topics, set_by_hand=False)
    assert ("app.orders.retry", 4_980) in topics.read_from
    if far is None:
        assert (len(topics.read_from), len(known)) == (1, 20)
    else:
        first = topics.read_from[1][1]
        assert far <= first < far + 100
        assert len(known) == 5_000 - first
    assert known.rank(place(4_999)) == 2


@pytest.mark.parametrize("error", [ConnectionError("gone"), TimeoutError()])
async def test_a_lane_opens_also_where_the_ends_cannot_be_read(error: BaseException) -> None:
    """What is not known is handled once more."""
    topics = Topics(retry=[record(RETRY, 1)])
    topics.error = error
    known = await read_outcomes(site(), topics, set_by_hand=False)
    assert (known.complete, len(known)) == (False, 0)


async def test_reading_takes_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that does not answer must not keep a lane shut."""
    monkeypatch.setattr(copies, "_TAIL_S", 0.0)
    topics = Topics(retry=[record(RETRY, 1)])
    never: Callable[..., Any] = lambda *_what, **_how: asyncio.Event().wait()  # noqa: E731
    monkeypatch.setattr(topics, "read", never)
    assert not (await read_outcomes(site(), topics, set_by_hand=False)).complete


async def test_an_offset_that_somebody_has_set_back_is_obeyed() -> None:
    """The records behind it are to be handled again, whatever became of them."""
    charge = Script("fail")
    async with partition(charge) as orders:
        await orders.send(b"order 1")
        await orders.to_rest()
        await orders.advance(1_000)
        station, table, outcomes = orders.engine.station, orders.transport.pending, Outcomes()
        outcomes.note(FIRST, ENDED)
        outcomes.main_end = 1
        first = orders.records("orders")[0]
        assert table is not None
        assert copies.Copies(station, outcomes, table).first(first) is not None
        outcomes.set_by_hand = True
        assert copies.Copies(station, outcomes, table).first(first) is None


def test_only_first_deliveries_of_before_the_opening_are_looked_at() -> None:
    """Those behind them cost nothing."""

    class Nothing:
        def find(self, offset: int) -> None:
            asked.append(offset)

    asked: list[int] = []
    outcomes = Outcomes()
    outcomes.main_end = 3
    looks = copies.Copies(partition(Script()).engine.station, outcomes, Nothing())  # type: ignore[arg-type]
    for at in range(10):
        assert looks.first(Record("orders", 0, at, 0, None, b"", ())) is None
    assert asked == [0, 1, 2]
