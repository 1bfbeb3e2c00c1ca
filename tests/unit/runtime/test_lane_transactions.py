"""What a lane asks of Kafka: proof of membership, a producer that fences, hand-offs with and without transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    IllegalGenerationError,
    NoError,
    NotEnoughReplicasError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
)

from retryapp.core.hops import Outgoing
from retryapp.core.publication import Destination, Publication, Seen
from retryapp.engine.lane import NotMemberError, RebalancingError
from retryapp.engine.transport import PROGRESS_MARK, progress_value
from retryapp.ports import LaneBatch, LaneReceipt, Removal, Row, TopicPartition
from retryapp.runtime import plain, publisher
from retryapp.runtime.clients import ClientSettings
from retryapp.runtime.plain import PlainLane
from retryapp.runtime.publisher import KafkaLane, LanePlace
from retryapp.runtime.store import StoreIdentity
from retryapp.testing import VirtualClock

MAIN, RETRY = TopicPartition("orders", 1), TopicPartition("app.orders.retry", 1)
REDELIVERY, DLQ = TopicPartition("app.orders.redelivery", 1), TopicPartition("app.orders.dlq", 1)
CHANGELOG = TopicPartition("app.orders.pending.changelog", 1)
BATCH = LaneBatch(
    publishes=[Outgoing(RETRY.topic, 1, b"k", b"late", ()), Outgoing(DLQ.topic, 1, b"k", b"dead", ())],
    puts=[Row(b"row", b"waits", "1m")],
    removes=[Removal(b"fired", "1m")],
    offsets={MAIN: 8, REDELIVERY: 3},
)
PUBLISHED = [(RETRY.topic, b"k", b"late"), (DLQ.topic, b"k", b"dead")]
LOGGED = [(CHANGELOG.topic, b"row", b"waits"), (CHANGELOG.topic, b"fired", None)]


def progress(offsets: Mapping[TopicPartition, int]) -> Any:
    """Return the changelog record that writes offsets down."""
    return CHANGELOG.topic, PROGRESS_MARK, progress_value({tp.topic: at for tp, at in offsets.items()}, "")


WRITTEN_DOWN = progress(BATCH.offsets)


@dataclass
class Kafka:
    """The broker as a lane's clients ask it, and the client library itself."""

    asked: list[Any] = field(default_factory=list)
    """Everything that was asked of producers and the coordinator, in order."""
    producers: list[Producer] = field(default_factory=list)
    acknowledged: asyncio.Event = field(default_factory=asyncio.Event)
    """Once set, records are acknowledged as they come."""
    refused: Exception | None = None
    """What happens to records instead."""
    answer: type[BaseException] = NoError
    """The coordinator's, to everything."""
    denied: set[str] | None = None
    """Topics that no transaction may have."""
    batch_records: int = 100
    """Room in a batch."""
    next_offset: int = 40
    timestamp_type: int = 1
    """Of our topics: when the broker appended a record."""
    held: list[TopicPartition] = field(default_factory=list)
    placed: list[Mapping[TopicPartition, int]] = field(default_factory=list)

    # the consumer that all lanes of a worker share, and its coordinator, which has rejoined since the assignment

    group_id = "app"
    generation = 9
    member_id = "rejoined"

    async def in_thread(self, function: Callable[[Any], Any]) -> Any:
        """See `RetryConsumer.in_thread`."""
        return await function(SimpleNamespace(_coordinator=self))

    async def hold(self, tps: list[TopicPartition]) -> None:
        """See `RetryConsumer.hold`."""
        self.held.extend(tps)

    async def reposition(self, starts: Mapping[TopicPartition, int]) -> None:
        """See `RetryConsumer.reposition`."""
        self.asked.append("flow")
        self.placed.append(starts)

    async def ensure_coordinator_known(self) -> None:
        """Find the coordinator."""

    async def _send_req(self, request: Any) -> Any:
        fields = {name.removeprefix("_"): value for name, value in vars(request).items()}
        self.asked.append((type(request).__name__, fields))
        code: int = self.answer.errno  # type: ignore[attr-defined]
        return SimpleNamespace(error_code=code, topics=[(MAIN.topic, [(1, NoError.errno), (1, code)])])


@dataclass
class Batch:
    """A batch of the client library."""

    room: int
    records: list[tuple[Any, Any]] = field(default_factory=list)

    def append(self, *, timestamp: None, key: Any, value: Any, headers: list[Any]) -> object | None:
        """Take a record where there is room."""
        if len(self.records) == self.room:
            return None
        self.records.append((key, value))
        return self


class Producer:
    """A producer of the client library; see `Kafka` for what it does."""

    def __init__(self, kafka: Kafka, **options: Any) -> None:
        self.options = options
        self.started = False
        self.client = SimpleNamespace(_get_conn=None)
        self._kafka = kafka
        kafka.producers.append(self)

    async def start(self) -> None:
        """Connect; with a transactional id this is what fences."""
        self.started = True

    async def stop(self) -> None:
        """End."""

    async def begin_transaction(self) -> None:
        """Begin."""
        self._kafka.asked.append("begin")

    async def partitions_for(self, _topic: str) -> set[int]:
        """Return the partitions that it knows of a topic."""
        return {0, 1}

    def create_batch(self) -> Batch:
        """Begin a batch."""
        return Batch(self._kafka.batch_records)

    async def send_batch(self, batch: Batch, topic: str, *, partition: int) -> asyncio.Future[Any]:
        """Take a batch; it is acknowledged when the broker likes, and its records lie one behind the other."""
        assert partition == 1
        self._kafka.asked.extend((topic, key, value) for key, value in batch.records)
        offset = self._kafka.next_offset
        self._kafka.next_offset += len(batch.records)
        return asyncio.ensure_future(self._acknowledge(offset))

    async def _acknowledge(self, offset: int) -> Any:
        await self._kafka.acknowledged.wait()
        if self._kafka.refused is not None:
            raise self._kafka.refused
        return SimpleNamespace(offset=offset, timestamp=7_000 + offset, timestamp_type=self._kafka.timestamp_type)

    async def send_offsets_to_transaction(self, offsets: dict[Any, Any], group: str) -> None:
        """Take offsets."""
        if self._kafka.denied is not None:
            raise TopicAuthorizationFailedError(self._kafka.denied)
        self._kafka.asked.append((group, {TopicPartition(*tp): found.offset for tp, found in offsets.items()}))

    async def commit_transaction(self) -> None:
        """Commit."""
        self._kafka.asked.append("commit")


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    """A broker that acknowledges at once."""
    made = Kafka()
    made.acknowledged.set()
    for module in (publisher, plain):
        monkeypatch.setattr(module, "AIOKafkaProducer", lambda **options: Producer(made, **options))
    return made


@pytest.fixture
def make_lane(kafka: Kafka, tmp_path: Path) -> Callable[..., KafkaLane]:
    """Make a lane, whose assignment was that of generation 3."""

    def make(kind: type[KafkaLane] = KafkaLane) -> KafkaLane:
        identity = StoreIdentity(topic=CHANGELOG.topic, topic_id="c", partition=1)
        anything: Any = kafka
        return kind(
            place=LanePlace(
                name="app.orders.1",
                group="app",
                partition=1,
                sources=[MAIN, RETRY, REDELIVERY],
                main=MAIN,
                changelog=CHANGELOG,
                dlq=DLQ,
                pending_identity=identity,
                dead_identity=identity,
                store_dir=tmp_path,
                max_store_age_ms=1,
            ),
            settings=ClientSettings(
                connection={"bootstrap_servers": "kafka:9092", "security_protocol": "SSL"},
                client_id="shop",
                request_timeout_ms=1_234,
                max_batch_size=5_678,
                max_request_size=9_012,
            ),
            consumer=anything,
            reader=anything,
            clock=VirtualClock(),
            generation=3,
            member_id="assigned",
        )

    return make


MakeLane = Callable[..., KafkaLane]


@pytest.fixture
def lane(make_lane: MakeLane) -> KafkaLane:
    """A lane with transactions."""
    return make_lane()


# -- opening ----------------------------------------------------------------------------------------------------------


async def test_a_lane_proves_the_membership_of_its_own_assignment(lane: KafkaLane, kafka: Kafka) -> None:
    """A zombie may have rejoined: the client's own generation and member id of the moment would prove that only."""
    await lane.prove()
    assert kafka.asked == [
        ("HeartbeatRequest", {"group": "app", "generation_id": 3, "member_id": "assigned"}),
    ]


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (UnknownMemberIdError, NotMemberError),
        (IllegalGenerationError, NotMemberError),
        (RebalanceInProgressError, RebalancingError),
        (CoordinatorNotAvailableError, CoordinatorNotAvailableError),
    ],
)
async def test_what_the_coordinator_answers_decides(
    lane: KafkaLane, kafka: Kafka, answer: type[BaseException], raised: type[BaseException]
) -> None:
    """Who is no member must not open and waits for an assignment; with other errors the lane tries again."""
    kafka.answer = answer
    with pytest.raises(raised):
        await lane.prove()


async def test_every_opening_has_a_new_producer_with_the_lanes_own_id(lane: KafkaLane, kafka: Kafka) -> None:
    """Its start ends and fences what the former owner had open; the id belongs to one handler and partition."""
    await lane.fence()
    await lane.fence()
    first, second = kafka.producers
    assert first.options["transactional_id"] == second.options["transactional_id"] == "app.orders.1"
    assert (first.started, second.started) == (True, True)
    await lane.commit(LaneBatch())
    assert lane._producer is second


async def test_a_lane_holds_its_own_partitions_only(lane: KafkaLane, kafka: Kafka) -> None:
    """One that cannot open stops no other."""
    await lane.hold()
    assert kafka.held == [MAIN, RETRY, REDELIVERY]


@pytest.mark.parametrize("kind", [KafkaLane, PlainLane])
async def test_a_producer_has_the_settings_of_the_worker(
    make_lane: MakeLane, kafka: Kafka, kind: type[KafkaLane]
) -> None:
    """Login, client id, sizes and compression; what the app is told holds for every client that is opened for it."""
    await make_lane(kind).fence()
    (producer,) = kafka.producers
    assert {
        "bootstrap_servers": "kafka:9092",
        "security_protocol": "SSL",
        "client_id": "shop-app.orders.1",
        "request_timeout_ms": 1_234,
        "max_batch_size": 5_678,
        "max_request_size": 9_012,
        "compression_type": "lz4",
    }.items() <= producer.options.items()


async def test_a_transaction_that_nobody_ends_is_soon_aborted(lane: KafkaLane, kafka: Kafka) -> None:
    """With all workers dead, committed readers wait that long: not the client library's minute."""
    await lane.fence()
    assert kafka.producers[0].options["transaction_timeout_ms"] == 15_000


# -- the broker's time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KafkaLane, PlainLane])
@pytest.mark.parametrize("batch", [BATCH, LaneBatch(puts=BATCH.puts)])
async def test_acknowledgements_tell_the_brokers_time(
    make_lane: MakeLane, kafka: Kafka, kind: type[KafkaLane], batch: LaneBatch
) -> None:
    """The first of each hand-off, between what our own clock said before it was sent and when it was there."""
    lane = make_lane(kind)
    clock = the_clock(lane)
    began_ms = clock.counted_ms()
    kafka.acknowledged.clear()
    await lane.fence()
    committing = asyncio.create_task(lane.commit(batch))
    await asyncio.sleep(0)
    clock.advance(30)
    kafka.acknowledged.set()
    await committing
    (sent_ms, acked_ms, appended_ms), *_ = clock.anchors
    assert (sent_ms, acked_ms) == (began_ms, began_ms + 30)
    assert appended_ms == 7_040


async def test_a_time_that_we_sent_ourselves_tells_nothing(lane: KafkaLane, kafka: Kafka) -> None:
    """A topic that keeps the producer's time gives it back."""
    kafka.timestamp_type = 0
    await lane.fence()
    await lane.commit(BATCH)
    assert the_clock(lane).anchors == []


async def test_a_record_that_was_refused_tells_nothing(lane: KafkaLane, kafka: Kafka) -> None:
    """There is no time in it."""
    kafka.refused = NotEnoughReplicasError()
    await lane.fence()
    with pytest.raises(NotEnoughReplicasError):
        await lane.commit(BATCH)
    assert the_clock(lane).anchors == []


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_lane_asks_for_the_time_before_records_flow(lane: KafkaLane, kafka: Kafka, trusted: bool) -> None:
    """Due times begin with it; once a worker knows it, its other lanes do not ask."""
    clock = the_clock(lane)
    clock.trusted = trusted
    await lane.fence()
    await lane.release({MAIN: 4})
    asked = [] if trusted else ["begin", (CHANGELOG.topic, b"clock", b""), "commit"]
    assert kafka.asked == [*asked, "flow"]
    assert len(clock.anchors) == (not trusted)
    assert kafka.placed == [{MAIN: 4}]


def the_clock(lane: KafkaLane) -> VirtualClock:
    """Return the clock of a lane."""
    assert isinstance(lane.clock, VirtualClock)
    return lane.clock


# -- hand-offs in a transaction ---------------------------------------------------------------------------------------


async def test_hand_offs_rows_and_offsets_move_in_one_transaction(lane: KafkaLane, kafka: Kafka) -> None:
    """Nothing of it outside, and the receipt tells where it came to lie."""
    await lane.fence()
    receipt = await lane.commit(BATCH)
    assert kafka.asked == ["begin", *PUBLISHED, *LOGGED, WRITTEN_DOWN, ("app", BATCH.offsets), "commit"]
    assert receipt == LaneReceipt([40, 41], 44)


async def test_a_receipt_tells_of_each_record_whatever_batches_they_went_in(lane: KafkaLane, kafka: Kafka) -> None:
    """Records of one partition travel together, in their order; a batch that is full is followed by another."""
    kafka.batch_records = 2
    names = "ababa"
    await lane.fence()
    receipt = await lane.commit(
        LaneBatch(publishes=[Outgoing(name, 1, None, b"%d" % number, ()) for number, name in enumerate(names)])
    )
    sent = [(topic, value) for topic, _, value in kafka.asked[1:-1]]
    assert sent == [("a", b"0"), ("a", b"2"), ("a", b"4"), ("b", b"1"), ("b", b"3")]
    assert [40 + sent.index((name, b"%d" % number)) for number, name in enumerate(names)] == receipt.published_offsets


async def test_offsets_alone_move_in_a_transaction_too(lane: KafkaLane, kafka: Kafka) -> None:
    """A plain commit could come late, and move them back or past an open transaction."""
    await lane.fence()
    receipt = await lane.commit(LaneBatch(offsets={MAIN: 8}))
    assert kafka.asked == ["begin", progress({MAIN: 8}), ("app", {MAIN: 8}), "commit"]
    assert receipt == LaneReceipt([], 40)


async def test_a_lane_writes_down_all_that_it_has_come_to(lane: KafkaLane, kafka: Kafka) -> None:
    """Compaction leaves the last of these records: it has to tell of every source."""
    await lane.fence()
    await lane.commit(LaneBatch(offsets={MAIN: 8}))
    await lane.commit(LaneBatch(offsets={RETRY: 2}))
    assert kafka.asked[-3] == progress({MAIN: 8, RETRY: 2})


async def test_nothing_is_committed_before_all_of_it_is_acknowledged(lane: KafkaLane, kafka: Kafka) -> None:
    """And nothing at all where a record was refused."""
    kafka.acknowledged.clear()
    await lane.fence()
    committing = asyncio.create_task(lane.commit(BATCH))
    for _ in range(20):
        await asyncio.sleep(0)
    assert "commit" not in kafka.asked
    kafka.refused = NotEnoughReplicasError()
    kafka.acknowledged.set()
    with pytest.raises(NotEnoughReplicasError):
        await committing
    assert "commit" not in kafka.asked


async def test_a_topic_that_a_transaction_may_not_have_is_noted(lane: KafkaLane, kafka: Kafka) -> None:
    """The next publish to it fails in the handler; the lane would fail for ever."""
    destination = Destination("payments")
    destination.see(Seen(2), 0.0)
    kafka.acknowledged.clear()
    kafka.denied = {"payments"}
    await lane.fence()
    with pytest.raises(TopicAuthorizationFailedError):
        await lane.commit(
            LaneBatch(publishes=[Publication("payments", 1, None, b"v", (), destination)], offsets={MAIN: 8})
        )
    kafka.acknowledged.set()
    assert destination.fresh(1.0)
    assert destination.problem == "this login may not write to it; it needs WRITE"


async def test_a_lane_without_a_producer_commits_nothing(lane: KafkaLane, kafka: Kafka) -> None:
    """No turn outlives its producer."""
    await lane.fence()
    await lane.close()
    with pytest.raises(RuntimeError, match="has no producer"):
        await lane.commit(BATCH)
    assert kafka.asked == []


# -- hand-offs without transactions -----------------------------------------------------------------------------------


@pytest.fixture
def plain_lane(make_lane: MakeLane) -> KafkaLane:
    """A lane without transactions."""
    return make_lane(PlainLane)


def commits(kafka: Kafka) -> Iterator[Any]:
    """Return the requests among what was asked."""
    return (asked[1] for asked in kafka.asked if asked[0] == "OffsetCommitRequest")


async def test_without_transactions_the_steps_are_the_same(plain_lane: KafkaLane, kafka: Kafka) -> None:
    """What a record becomes, then the rows, then its offset: every crash in between repeats, none loses."""
    await plain_lane.fence()
    assert "transactional_id" not in kafka.producers[0].options
    assert kafka.producers[0].options["enable_idempotence"]
    receipt = await plain_lane.commit(BATCH)
    assert kafka.asked[:-1] == [*PUBLISHED, *LOGGED, WRITTEN_DOWN]
    assert [sorted(asked["topics"]) for asked in commits(kafka)] == [
        [(REDELIVERY.topic, [(1, 3, "")]), (MAIN.topic, [(1, 8, "")])]
    ]
    assert receipt == LaneReceipt([40, 41], 44)


@pytest.mark.parametrize(
    ("batch", "first"),
    [(BATCH, PUBLISHED), (LaneBatch(puts=BATCH.puts, offsets=BATCH.offsets), [*LOGGED[:1], WRITTEN_DOWN])],
)
async def test_without_transactions_each_step_waits_for_the_one_before(
    plain_lane: KafkaLane, kafka: Kafka, batch: LaneBatch, first: list[Any]
) -> None:
    """A record that was refused leaves its row and its offset where they are."""
    kafka.acknowledged.clear()
    await plain_lane.fence()
    committing = asyncio.create_task(plain_lane.commit(batch))
    for _ in range(20):
        await asyncio.sleep(0)
    assert kafka.asked == first
    kafka.refused = NotEnoughReplicasError()
    kafka.acknowledged.set()
    with pytest.raises(NotEnoughReplicasError):
        await committing
    assert kafka.asked == first


async def test_without_transactions_a_commit_says_of_which_assignment_it_is(
    plain_lane: KafkaLane, kafka: Kafka
) -> None:
    """There is no other fence: a former owner that has rejoined must not move offsets back."""
    await plain_lane.fence()
    await plain_lane.commit(BATCH)
    (request,) = commits(kafka)
    assert (request["consumer_group"], request["consumer_group_generation_id"]) == ("app", 3)
    assert request["consumer_id"] == "assigned"


async def test_without_transactions_a_refused_commit_ends_the_session(plain_lane: KafkaLane, kafka: Kafka) -> None:
    """One partition's refusal is enough."""
    kafka.answer = IllegalGenerationError
    await plain_lane.fence()
    with pytest.raises(NotMemberError):
        await plain_lane.commit(BATCH)


# -- what stands beside offsets ---------------------------------------------------------------------------------------


@pytest.fixture
def marking(make_lane: MakeLane) -> KafkaLane:
    """A lane without transactions, whose requests show what stands beside offsets."""
    lane = make_lane(PlainLane)
    lane.place.delivering = (MAIN, REDELIVERY)
    lane.life = "this"
    return lane


def notes(kafka: Kafka) -> list[dict[str, str]]:
    """Return what was written beside offsets, by topic, of each commit."""
    return [{topic: note for topic, ((_, _, note),) in asked["topics"]} for asked in commits(kafka)]


async def test_offsets_say_whose_life_moved_them(marking: KafkaLane, kafka: Kafka) -> None:
    """Those behind which records run; a record that starts alone is marked before it does."""
    await marking.fence()
    await marking.commit(LaneBatch(offsets={MAIN: 8, RETRY: 2}))
    await marking.commit(LaneBatch(offsets={MAIN: 9, REDELIVERY: 3}, notes={MAIN: "s1:this"}))
    assert notes(kafka) == [
        {MAIN.topic: "r0:this", RETRY.topic: ""},
        {MAIN.topic: "s1:this", REDELIVERY.topic: "r0:this"},
    ]


async def test_a_lane_that_is_let_go_in_order_says_so(marking: KafkaLane, kafka: Kafka) -> None:
    """Where it stands, and nothing beside it."""
    await marking.fence()
    await marking.commit(LaneBatch(offsets={MAIN: 8, RETRY: 2, REDELIVERY: 3}))
    await marking.rest()
    assert notes(kafka)[-1] == {MAIN.topic: "", REDELIVERY.topic: ""}
    offsets = {topic: offset for topic, ((_, offset, _),) in [*commits(kafka)][-1]["topics"]}
    assert offsets == {MAIN.topic: 8, REDELIVERY.topic: 3}
