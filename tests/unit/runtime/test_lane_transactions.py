"""What a lane asks of Kafka: proof of membership, a producer that fences, hand-offs in a transaction."""

from __future__ import annotations

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    IllegalGenerationError,
    IllegalOperation,
    KafkaError,
    MessageSizeTooLargeError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    ProducerFenced,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailed,
    UnknownMemberIdError,
)
from kafka_fakes import BATCH, DLQ, LOGGED, MAIN, PUBLISHED, RETRY, WRITTEN_DOWN, Kafka, MakeLane, Producer, progress

from retryapp.core.hops import Outgoing
from retryapp.core.lane_errors import CoordinatorAwayError, HandOffRefusedError, RightMissingError, TooFewCopiesError
from retryapp.core.publication import Destination, Publication, TopicLook
from retryapp.engine.lane.limits import LaneLimits
from retryapp.engine.lane.transport import NotMemberError, RebalancingError
from retryapp.kafka.positions import TRANSACTION_TIMEOUT_MS
from retryapp.ports import LaneBatch, LaneReceipt
from retryapp.runtime.clients.batches import DENIED
from retryapp.runtime.transport import KafkaTransport
from retryapp.testing import MemoryDestinations

# -- opening ----------------------------------------------------------------------------------------------------------


async def test_a_lane_proves_the_membership_of_its_own_assignment(lane: KafkaTransport, kafka: Kafka) -> None:
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
        (CoordinatorLoadInProgressError, CoordinatorAwayError),
        (CoordinatorNotAvailableError, CoordinatorAwayError),
        (NotCoordinatorError, CoordinatorAwayError),
        (GroupAuthorizationFailedError, GroupAuthorizationFailedError),
    ],
)
async def test_what_the_coordinator_answers_decides(
    lane: KafkaTransport, kafka: Kafka, answer: type[BaseException], raised: type[BaseException]
) -> None:
    """Who is no member must not open and waits for an assignment; with other errors the lane tries again."""
    kafka.answer = answer
    with pytest.raises(raised) as caught:
        await lane.prove()
    in_words = str(caught.value).startswith("no broker answers for group app now")
    assert in_words == (raised is CoordinatorAwayError), "an error's number names no group and no remedy"
    assert bool(kafka.heard_s) == (raised is RebalancingError), "who is to join again is a member still"


async def test_every_opening_has_a_new_producer_with_the_lanes_own_id(lane: KafkaTransport, kafka: Kafka) -> None:
    """Its start ends and fences what the former owner had open; login, sizes and patience are the worker's."""
    await lane.fence()
    await lane.fence()
    assert all(producer.started for producer in kafka.producers)
    first, second = (producer.options for producer in kafka.producers)
    assert first == second
    assert {
        "transactional_id": "app.orders.1",
        "security_protocol": "SSL",
        "client_id": "shop-app.orders.1",
        "request_timeout_ms": 1_234,
        "max_batch_size": 5_678,
        "max_request_size": 9_012,
    }.items() <= first.items()
    assert all(producer._txn_manager.error_transaction for producer in kafka.producers)
    await lane.commit(LaneBatch())
    assert lane._producer is kafka.producers[1]


# -- hand-offs in a transaction ---------------------------------------------------------------------------------------


async def test_hand_offs_rows_and_offsets_move_in_one_transaction(lane: KafkaTransport, kafka: Kafka) -> None:
    """Nothing of it outside, and the receipt tells where it came to lie."""
    await lane.fence()
    receipt = await lane.commit(BATCH)
    assert kafka.asked == ["begin", *PUBLISHED, *LOGGED, WRITTEN_DOWN, ("app", BATCH.offsets), "commit"]
    assert receipt == LaneReceipt([40, 41], 44)


async def test_a_receipt_tells_of_each_record_whatever_batches_they_went_in(lane: KafkaTransport, kafka: Kafka) -> None:
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


async def test_every_transaction_ends_with_the_progress(lane: KafkaTransport, kafka: Kafka) -> None:
    """The outcome of a row moves no offset; where offsets are gone, a reader finds them behind the last row."""
    await lane.fence()
    await lane.commit(LaneBatch(offsets={MAIN: 8}))
    await lane.commit(LaneBatch(rows=BATCH.rows[:1]))
    assert kafka.asked[-3:] == [LOGGED[0], progress({MAIN: 8}), "commit"]


async def test_nothing_is_committed_before_all_of_it_is_acknowledged(lane: KafkaTransport, kafka: Kafka) -> None:
    """And nothing at all where a record was refused."""
    kafka.acknowledged.clear()
    await lane.fence()
    committing = asyncio.create_task(lane.commit(BATCH))
    for _ in range(20):
        await asyncio.sleep(0)
    assert "commit" not in kafka.asked
    kafka.refused = NotEnoughReplicasError()
    kafka.acknowledged.set()
    with pytest.raises(TooFewCopiesError):
        await committing
    assert "commit" not in kafka.asked


async def test_a_topic_that_a_transaction_may_not_have_is_noted(lane: KafkaTransport, kafka: Kafka) -> None:
    """The next publish to it fails in the handler; the lane would fail for ever."""
    destination = Destination("payments")
    destination.see(TopicLook(2), 0.0)
    kafka.acknowledged.clear()
    kafka.offsets_error = TopicAuthorizationFailedError({"payments"})
    await lane.fence()
    with pytest.raises(HandOffRefusedError, match=r"payments.* it needs WRITE"):
        await lane.commit(
            LaneBatch(publishes=[Publication("payments", 1, None, b"v", (), destination)], offsets={MAIN: 8})
        )
    kafka.acknowledged.set()
    assert destination.fresh(1.0)
    assert destination.problem == DENIED


async def test_offsets_that_may_not_be_committed_name_topic_and_right(lane: KafkaTransport, kafka: Kafka) -> None:
    """The client ends its sender, and says only "Unexpected error during batch delivery"."""
    await lane.fence()
    kafka.offsets_error = KafkaError("Unexpected error during batch delivery")
    kafka.offsets_error.__cause__ = TopicAuthorizationFailedError()
    with pytest.raises(RightMissingError, match=f"group app .* of {MAIN.topic}: this login needs READ there"):
        await lane.commit(LaneBatch(offsets={MAIN: 8}))


async def test_a_transactional_id_that_may_not_be_used_names_the_right(
    lane: KafkaTransport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker refuses the fence with an error number. The error names the missing right."""

    async def refused(_: object) -> None:
        raise TransactionalIdAuthorizationFailed(lane.place.name)

    monkeypatch.setattr(Producer, "start", refused)
    with pytest.raises(RightMissingError, match=f"transactional id {lane.place.name} .* needs WRITE on it"):
        await lane.fence()


async def test_a_request_that_gets_no_answer_is_repeated_within_its_transaction(
    lane: KafkaTransport, kafka: Kafka
) -> None:
    """The broker ends a transaction, and the lane a commit, later than the client gives a request up."""
    lane.settings = replace(lane.settings, request_timeout_ms=30_000)
    await lane.fence()
    wait_ms = kafka.producers[0].options["request_timeout_ms"]
    assert 2 * wait_ms <= TRANSACTION_TIMEOUT_MS < LaneLimits().commit_s * 1000


async def test_a_transaction_is_not_ended_twice(
    lane: KafkaTransport, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client would repeat the request, and the first one, on its way still, end the next transaction."""
    lane.settings = replace(lane.settings, request_timeout_ms=20)
    await lane.fence()
    never = asyncio.Event()
    monkeypatch.setattr(kafka.producers[0], "commit_transaction", never.wait)
    with pytest.raises(TimeoutError, match="the end of a transaction took longer than"):
        await lane.commit(LaneBatch(offsets={MAIN: 5}))


async def test_a_lane_goes_on_after_a_refusal_as_if_it_had_not_tried(make_lane: MakeLane, kafka: Kafka) -> None:
    """With a new producer, whose start ends that transaction; it writes down the offsets that are committed."""
    lane = make_lane(topics=MemoryDestinations({RETRY.topic: TopicLook(1, max_bytes=7)}))
    await lane.fence()
    await lane.commit(LaneBatch(offsets={MAIN: 5}))
    kafka.refused = MessageSizeTooLargeError()
    with pytest.raises(HandOffRefusedError) as raised:
        await lane.commit(BATCH)
    explained = await lane.explain(raised.value)
    assert str(explained).startswith(f"{RETRY.topic} refuses a hand-off: MessageSizeTooLargeError; the largest record")
    assert str(explained).endswith("the topic at most 7 (max.message.bytes)")
    kafka.refused = None
    await lane.renew()
    assert (len(kafka.producers), kafka.producers[1].started) == (2, True)
    kafka.asked.clear()
    await lane.commit(LaneBatch(rows=BATCH.rows))
    assert progress({MAIN: 5}) in kafka.asked


async def test_a_topic_that_is_denied_while_records_are_sent_is_a_refusal_too(
    lane: KafkaTransport, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client says then that there is no transaction, and leaves the reason with its end."""
    await lane.fence()
    kafka.producers[0].over.set_exception(TopicAuthorizationFailedError({DLQ.topic}))

    async def ended(*_: Any, **__: Any) -> None:
        raise IllegalOperation("Can't send messages while not in transaction")

    monkeypatch.setattr(kafka.producers[0], "send_batch", ended)
    with pytest.raises(HandOffRefusedError, match=f"{DLQ.topic}.* it needs WRITE"):
        await lane.commit(BATCH)


async def test_a_fenced_transaction_leaves_no_traceback_behind(lane: KafkaTransport, kafka: Kafka) -> None:
    """The event loop would complain of each record whose error nothing retrieves."""
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context["message"]))
    kafka.refused = kafka.offsets_error = ProducerFenced  # a class: an instance would keep the frames alive
    await lane.fence()
    with pytest.raises(ProducerFenced):
        await lane.commit(BATCH)
    for _ in range(3):
        await asyncio.sleep(0)
    gc.collect()
    assert complaints == []
