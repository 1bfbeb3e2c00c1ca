"""What the pages read of large tables: a bounded number of rows, whatever waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.core.jobs import LetterFilter
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of, row_key
from retryapp.core.rows import PendingRow, encode_row
from retryapp.core.topology import HandlerTopology
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.handler.handler import Order
from retryapp.engine.handler.orphans import MIN_ORPHANS, Orphans
from retryapp.engine.lane.lane import LaneState
from retryapp.ports import Event, Observation, Row
from retryapp.runtime.observe import metrics
from retryapp.runtime.observe.metrics import Gauges, MetricsObserver
from retryapp.runtime.stores.pending import RocksPendingTable
from retryapp.runtime.stores.store import Store, StoreIdentity
from retryapp.runtime.view import RuntimeView
from retryapp.testing import RecordingObserver, VirtualClock
from retryapp.web.due import MOST, DueCounts
from retryapp.web.lists import SCAN_ROWS, waiting_here
from retryapp.web.query import Question

NOW_MS = 1_760_000_000_000
ROWS = 20_000
PARTITIONS = 16


def identity(number: int, offset: int) -> bytes:
    return identity_of(Origin("orders", "kq8G0bTz", number, offset))


def rows_of(number: int, dues_ms: Iterable[int]) -> list[Row]:
    """Return rows of a partition, one for each due time."""
    rows = enumerate(dues_ms)
    return [Row(identity(number, n), encode_row(PendingRow(b"k", b"x" * 100, (), due)), "1m") for n, due in rows]


def placed(table: RocksPendingTable) -> Any:
    """Return a partition whose lane is open."""
    return SimpleNamespace(
        engine=SimpleNamespace(
            running=0,
            commands=None,
            in_flight=0,
            release_lag_ms=0,
            blocked=None,
            looked_ms=NOW_MS,
            sources=(),
            begun_rows=(),
            context=SimpleNamespace(pace=Pace()),
        ),
        lane=SimpleNamespace(state=LaneState.OPEN, session=1, last_error=None, refusal=None),
        transport=SimpleNamespace(pending=table, dead={}, letters_counted=False),
    )


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RocksPendingTable]]:
    """One partition with 20,000 rows, a second and a half apart, and fifteen with 20."""
    folder: Path = tmp_path_factory.mktemp("tables")
    made = []
    for number in range(PARTITIONS):
        store = StoreIdentity(topic="c", topic_id="i", partition=number)
        table = RocksPendingTable(folder / str(number), store, now_ms=NOW_MS, max_age_ms=None)
        rows = ROWS if number == 0 else 20
        table.write(rows_of(number, (NOW_MS + n * 1_500 for n in range(rows))), rows)
        made.append(table)
    yield made
    for table in made:
        table.close()


@pytest.fixture
def view(tables: list[RocksPendingTable]) -> RuntimeView:
    clock = VirtualClock(NOW_MS)
    policy = SimpleNamespace(max_attempts=5)
    topology = HandlerTopology("app", "orders")
    handler = SimpleNamespace(orphans=Orphans(MIN_ORPHANS), topology=topology, policy=policy, order=Order.NONE)
    served = {"orders": SimpleNamespace(partitions=PARTITIONS, lacking=(), topic_id="kq8G0bTz", handler=handler)}
    runtime: Any = SimpleNamespace(
        app=SimpleNamespace(conf=SimpleNamespace(canonical_url="http://127.0.0.1:6066")),
        clock=clock,
        observer=RecordingObserver(),
        served=served,
        placed={("orders", number): placed(table) for number, table in enumerate(tables)},
        plan=None,
        behind=lambda _main, _number: (0, 0),
        contact=SimpleNamespace(silence=lambda: None, silent_s=float, refused=lambda _: None),
    )
    return RuntimeView(runtime)


@pytest.fixture
def rows_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted = [0]

    def counting(read: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def count(*args: Any, **options: Any) -> Iterator[Any]:
            for each in read(*args, **options):
                counted[0] += 1
                yield each

        return count

    monkeypatch.setattr(Store, "items", counting(Store.items))
    monkeypatch.setattr(Store, "keys", counting(Store.keys))
    return counted


def test_numbers_of_partitions_read_one_row_each(view: RuntimeView, rows_read: list[int]) -> None:
    """The next due time is the head of the table; counts are kept."""
    infos = view.partitions("orders")
    assert sum(info.pending for info in infos) == ROWS + 20 * (PARTITIONS - 1)
    assert rows_read[0] <= 2 * PARTITIONS


@pytest.mark.parametrize("after", [None, row_key(NOW_MS + 10_000 * 1_500, identity(0, 10_000))])
def test_a_page_reads_its_own_rows_and_a_few_of_each_partition(
    view: RuntimeView, rows_read: list[int], after: bytes | None
) -> None:
    """From the beginning as from the middle: the cost is that of the page."""
    page = list(view.pending_page("orders", after=after, limit=50))
    assert [entry.key for entry in page] == sorted(entry.key for entry in page)
    assert len(page) == 50
    assert rows_read[0] <= 50 * 2 + 8 * PARTITIONS


def test_a_search_reads_the_rows_that_it_looks_at_once(view: RuntimeView, rows_read: list[int]) -> None:
    """It read twice as many, and looked for its place in each partition after every page."""
    question = Question(main="orders", wanted=LetterFilter(key="another"))
    listing = waiting_here(view, view.partitions("orders"), question, NOW_MS, None)
    assert (listing.scanned, listing.lines) == (SCAN_ROWS, [])
    assert rows_read[0] <= SCAN_ROWS + 60 * PARTITIONS


async def test_numbers_are_remembered_a_few_at_a_time(view: RuntimeView, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of hundreds of partitions it would hold the event loop for long, every two seconds."""
    looks, look = list[int](), view.partition
    monkeypatch.setattr(view, "partition", lambda main, number: looks.append(number) or look(main, number))
    task = asyncio.create_task(view.remember())
    await asyncio.sleep(0)
    assert looks == [*range(10)]
    await task
    assert looks == [*range(PARTITIONS)]
    assert len(view._known) == PARTITIONS


def test_one_partition_is_found_without_the_others(view: RuntimeView, rows_read: list[int]) -> None:
    """A record's page asks for its partition only."""
    assert view.pending_find(Origin("orders", "kq8G0bTz", 0, 15_000)) is not None
    info = view.partition("orders", 0)
    assert info is not None
    assert info.pending == ROWS
    assert view.partition("orders", PARTITIONS) is None
    assert rows_read[0] <= 2


async def test_due_rows_are_counted_exactly_up_to_a_bound_without_blocking_the_loop(
    view: RuntimeView, rows_read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread reads; at the bound the reading ends, and the count is kept for a moment."""
    readers: set[int] = set()
    due_times = view.due_times

    def watched(main: str, partition: int, **span: int) -> Sequence[int]:
        readers.add(threading.get_ident())
        return due_times(main, partition, **span)

    monkeypatch.setattr(view, "due_times", watched)
    counts = DueCounts(view)
    here = await counts.here("orders", view.partitions("orders"), NOW_MS)
    assert readers.isdisjoint({threading.get_ident()})
    minute, hour = 40 + 15 * 20, 2_400 + 15 * 20
    assert [here.due[name].count for name in ("overdue", "minute", "hour", "day")] == [0, minute, hour, MOST]
    assert [here.due[name].more for name in ("hour", "day")] == [False, True]
    assert rows_read[0] <= 11_000
    before = rows_read[0]
    assert await counts.here("orders", view.partitions("orders"), NOW_MS + 4_999) is here
    assert rows_read[0] - before <= 2 * PARTITIONS


async def test_metrics_are_written_without_blocking_the_loop(
    view: RuntimeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop takes the numbers, another thread writes the text."""
    runtime: Any = view._runtime
    runtime.connection = SimpleNamespace(bootstrap="127.0.0.1:9092")
    runtime.contact.silence = lambda: "no broker answers"
    threads: dict[str, int] = {}

    def told(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            threads[name] = threading.get_ident()
            return call(*args)

        return note

    runtime.metrics = MetricsObserver()
    gauges = told("read", lambda _lags: Gauges(partitions={"orders": view.partitions("orders")}))
    monkeypatch.setattr(view, "gauges", gauges)
    monkeypatch.setattr(view, "causes", told("count", view.causes))
    monkeypatch.setattr(metrics, "generate_latest", told("write", metrics.generate_latest))
    text = await view.metrics_text()
    assert b"retryapp_rebalance_seconds" in text
    assert f'retryapp_partitions{{handler="orders"}} {PARTITIONS}'.encode() in text
    assert threads["read"] == threading.get_ident() != threads["write"]
    assert threads["count"] == threads["write"], "a partition may have hundreds of causes"


async def test_many_rows_due_at_one_instant_are_counted(tmp_path: Path) -> None:
    """More of them than one chunk reads."""
    store = StoreIdentity(topic="c", topic_id="i", partition=0)
    table = RocksPendingTable(tmp_path / "0", store, now_ms=NOW_MS, max_age_ms=None)
    table.write(rows_of(0, [NOW_MS + 5] * 2_500), 1)
    one: Any = SimpleNamespace(due_times=lambda _main, _number, **span: table.due_times(*span.values()))
    info: Any = SimpleNamespace(partition=0, state="open", pending=2_500)
    due = (await DueCounts(one).here("orders", [info], NOW_MS)).due
    assert (due["minute"].count, due["minute"].more) == (2_500, False)
    table.close()


def test_since_when_and_what_closed_it_last(view: RuntimeView) -> None:
    """Times are those of what the lane told; an error stays when the lane is open again."""
    clock: Any = view._runtime.clock
    clock.advance(1_000)
    failed = Observation(
        event=Event.LANE_FAILED, handler="orders", partition=0, error_type="TimeoutError", message="no answer"
    )
    view._runtime.observer.observe(failed)
    clock.advance(500)
    view._runtime.observer.observe(Observation(event=Event.LANE_OPENED, handler="orders", partition=0))
    clock.advance(250)
    info = view.partition("orders", 0)
    assert info is not None
    assert (info.state, info.since_ms) == ("open", NOW_MS + 1_500)
    assert (info.last_error, info.last_error_ms) == ("TimeoutError: no answer", NOW_MS + 1_000)
    other = view.partition("orders", 1)
    assert other is not None
    assert (other.since_ms, other.last_error) == (NOW_MS + 1_750, None)
