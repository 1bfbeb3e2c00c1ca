"""``ledger``: topics written by hand, no worker anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from harness.operator import answered

from retryapp.core import marks
from retryapp.core.errors import TopicMissingError
from retryapp.core.headers import encode_metadata
from retryapp.core.lifecycle import Progress, Succeeded
from retryapp.core.record import Origin
from retryapp.core.row_keys import identity_of
from retryapp.core.rows import PendingRow, encode_row
from retryapp.core.settled import encode_settled
from retryapp.kafka import KafkaAdmin, Positions
from retryapp.kafka.positions import OpenTransactionError
from retryapp.ledger import Ledger, take_ledger
from retryapp.runtime.machine.clock import SystemClock


@dataclass
class _Book:
    """A handler's topics, written as its workers would have."""

    shop: Any

    def feed(self, partition: int, count: int, **timestamp: int) -> None:
        self.shop.operator.publish(self.shop.topology.main, *[b"{}"] * count, partition=partition, **timestamp)

    def retry(self, partition: int, offset: int, attempt: int, *, topic: str | None = None) -> None:
        """Publish a copy to the retry topic, and the row that goes with it."""
        headers = encode_metadata(self.shop.metadata(partition, offset, attempt=attempt))
        self.shop.publish(topic or self.shop.topology.retry_topics[0], partition, b"k", b"{}", headers)
        self.log(partition, offset, encode_row(PendingRow(b"k", b"{}", headers, attempt=attempt)))

    def log(self, partition: int, offset: int, row: bytes | None) -> None:
        """Write a row to the changelog, or take it away."""
        identity = identity_of(self.shop.metadata(partition, offset).origin)
        self.shop.publish(self.shop.topology.pending_changelog, partition, identity, row)

    def die(self, partition: int, offset: int, attempt: int) -> None:
        self.shop.bury(partition, offset, attempt=attempt)
        self.log(partition, offset, None)

    def succeed(self, partition: int, offset: int, attempt: int) -> None:
        metadata = self.shop.metadata(partition, offset)
        event = Succeeded(
            group=metadata.group,
            handler=metadata.handler,
            failure_id=metadata.failure_id,
            origin=metadata.origin.text,
            attempt=attempt,
            started_ms=1,
            ended_ms=2,
            lateness_ms=0,
        )
        self.shop.publish(self.shop.topology.events, partition, event.key, event.to_json())
        self.log(partition, offset, None)

    def count(self, partition: int, to_offset: int, *, failed: int) -> None:
        facts = {"group": self.shop.topology.group, "handler": "h", "main": self.shop.topology.main}
        event = Progress(
            **facts,
            partition=partition,
            from_offset=0,
            to_offset=to_offset,
            from_ms=1,
            to_ms=2,
            received=to_offset,
            first_try_ok=to_offset - failed,
            failed=failed,
        )
        self.shop.publish(self.shop.topology.events, partition, event.key, event.to_json())

    def commit(self, most: int = 1 << 62) -> None:
        """Set the group's offsets to the end of the main topic, or to `most`."""
        topology = self.shop.topology
        kept = KafkaAdmin(self.shop.operator.connection).offsets(topology.main)
        wanted = {(topology.main, number): min(each.stop, most) for number, each in kept.items()}
        self.shop.operator.set_offsets(topology.group, wanted)

    def write_down(self, partition: int, offset: int, *, topic_id: str, settled: str = "") -> None:
        """Leave the mark of a lane that had come so far on its changelog."""
        value = marks.progress_value({self.shop.topology.main: offset}, topic_id, settled=settled)
        self.shop.publish(self.shop.topology.pending_changelog, partition, marks.PROGRESS, value)

    def delete(self, topic: str, offset: int) -> None:
        self.shop.operator.delete_records(topic, 0, offset)

    def take(self, **options: Any) -> Ledger:
        return take_ledger(self.shop.operator.connection, self.shop.topology, **options)


@pytest.fixture
def book(shop) -> _Book:
    """A handler with three partitions: 0 has one record of each fate, the others none."""
    made = _Book(shop)
    made.feed(0, 6)
    for offset in (1, 2, 3):  # succeeds, waits, dies
        made.retry(0, offset, 1)
    made.retry(0, 2, 2)
    made.succeed(0, 1, 2)
    made.die(0, 3, 2)
    made.die(0, 4, 1)
    made.count(0, 6, failed=4)
    return made


def test_what_adds_up_ends_with_0(retryapp: Callable[..., Any], shop, book: _Book):
    """Every record has one fate, by partition and in all."""
    book.commit()
    done = retryapp("ledger", *shop.place, "--json")
    told = done.json
    (handler,) = told["handlers"]
    assert handler["problems"] == []
    assert (done.code, told["adds_up"], handler["main"]) == (0, True, shop.topology.main)
    shares = {"received": 6, "done": 3, "recovered": 1, "pending": 1, "dead": 2, "lost": 0}
    assert {name: handler["total"][name] for name in shares} == shares
    assert [part["received"] for part in handler["partitions"]] == [6, 0, 0]
    text = retryapp("ledger", *shop.place).out
    assert "6 received = 3 done + 1 pending + 2 dead" in text
    assert "everything adds up" in text


def test_what_does_not_add_up_is_named_and_ends_with_1(retryapp: Callable[..., Any], shop, book: _Book):
    """A row that is gone, one that is too many, one letter twice, and one record that went to nowhere at once."""
    book.retry(1, 0, 1)
    book.log(1, 0, None)
    book.retry(2, 0, 1)
    shop.bury(2, 0, attempt=2)
    book.die(0, 4, 1)
    book.feed(1, 2)
    book.feed(2, 1)
    book.count(1, 2, failed=2)
    book.commit()
    done = retryapp("ledger", *shop.place, "--json")
    (handler,) = done.json["handlers"]
    assert (done.code, handler["adds_up"]) == (1, False)
    twice, untold, lost, both = sorted(
        handler["problems"], key=lambda problem: (problem["partition"], problem["offset"] or -1)
    )
    topology = shop.topology
    assert (twice["fault"], twice["failure_id"]) == ("twice", shop.failure_id(0, 4))
    assert twice["where"] == [f"{topology.dlq}[0]@1", f"{topology.dlq}[0]@2"]
    assert (lost["fault"], lost["failure_id"]) == ("lost", shop.failure_id(1, 0))
    assert (lost["record"], lost["station"]) == (f"{topology.main}[1]@0", "retry topic, attempt 1 failed")
    assert lost["where"] == [f"{topology.retry_topics[0]}[1]@0"]
    assert (both["fault"], both["record"], both["station"]) == (
        "twice", f"{topology.main}[2]@0", "pending table, attempt 1 failed"
    )  # fmt: skip
    assert both["where"] == [f"{topology.pending_changelog}[2]@0", f"{topology.dlq}[2]@0"]
    assert (untold["fault"], untold["failure_id"], untold["where"]) == ("lost", None, [f"{topology.events}[1]@0"])
    parts = handler["partitions"]
    assert [(part["lost"], part["pending"]) for part in parts] == [(0, 1), (2, 0), (0, 1)]
    assert all(
        part["received"] == sum(part[fate] for fate in ("done", "pending", "dead", "unknown", "lost")) for part in parts
    )
    text = retryapp("ledger", *shop.place)
    assert text.code == 1
    assert "4 things do not add up:" in text.out
    assert f"lost: {shop.failure_id(1, 0)}: " in text.out
    assert "9 received = 3 done + 2 pending + 2 dead + 2 lost" in text.out


def test_what_the_main_topic_no_longer_keeps_is_unknown(retryapp: Callable[..., Any], shop, book: _Book):
    """The offsets are told, failed records among them have their fate, and nothing is guessed."""
    book.commit()
    book.delete(shop.topology.main, 4)
    ledger = book.take()
    assert ledger.problems == ()
    whole = ledger.total
    assert (whole.received, whole.done, whole.pending, whole.dead, whole.expired_offsets) == (5, 2, 1, 2, 1)
    assert (
        f"unknown (expired): 1 offset at the start of {shop.topology.main}, no longer kept;"
        in retryapp("ledger", *shop.place).out
    )
    book.delete(shop.topology.retry_topics[0], 4)
    ledger = book.take()
    assert ledger.problems == (), "copies are history"
    assert ledger.total == whole
    book.delete(shop.topology.events, 2)
    ledger = book.take()
    assert ledger.problems == (), "what followed may have been deleted"
    whole = ledger.total
    assert (whole.received, whole.done, whole.pending, whole.dead, whole.unknown) == (4, 0, 1, 2, 1)


def test_offsets_that_the_broker_has_forgotten_are_those_that_lanes_wrote_down(
    retryapp: Callable[..., Any], shop, book: _Book
):
    """Nobody was in the group for a week. Marks of a main topic that was made anew since do not count."""
    (state,) = KafkaAdmin(shop.operator.connection).describe_topics([shop.topology.main]).values()
    book.write_down(0, 1, topic_id=state.topic_id)
    book.write_down(0, 6, topic_id=state.topic_id)
    book.write_down(1, 4, topic_id="of another")
    done = retryapp("ledger", *shop.place, "--json")
    (handler,) = done.json["handlers"]
    assert (done.code, handler["problems"], handler["forgotten"]) == (0, [], [0])
    whole = handler["total"]
    assert (whole["received"], whole["done"], whole["pending"], whole["dead"]) == (6, 3, 1, 2)
    said = retryapp("ledger", *shop.place).out
    assert "the broker has expired the committed offsets of partitions 0" in said
    book.commit(3)
    told = book.take()
    assert (told.forgotten, told.total.received) == ((), 3), "what the group has goes before"


def test_a_damaged_progress_record_is_named(retryapp: Callable[..., Any], shop, book: _Book):
    """With its place: another program has written it. It looked like a fault of ours."""
    changelog = shop.topology.pending_changelog
    shop.publish(changelog, 1, marks.PROGRESS, b"{")
    done = retryapp("ledger", *shop.place)
    assert (done.code, f"{changelog}[1]@0" in done.err) == (3, True)


def test_what_is_settled_beyond_the_offset_contradicts_nothing(shop, book: _Book):
    """A record that runs for long is at the offset; those after it wait or are dead, and the offset says so."""
    main = shop.topology.main
    (state,) = KafkaAdmin(shop.operator.connection).describe_topics([main]).values()
    note = encode_settled({2: False, 3: False, 4: False}, Origin(main, state.topic_id, 0, 2))
    shop.operator.set_offsets(shop.topology.group, {(main, 0): 2})
    assert {problem.offset for problem in book.take().problems} == {2, 3, 4}, "without a note they would come again"
    book.write_down(0, 2, topic_id=state.topic_id, settled=note)
    book.write_down(0, 5, topic_id=state.topic_id)
    ledger = book.take()
    assert (ledger.problems, ledger.total.received) == ((), 2), "also when the lane has gone on meanwhile"


def test_since_begins_at_a_time(retryapp: Callable[..., Any], shop, book: _Book):
    """By the main topic's timestamps; a length counts back from now."""
    now = datetime.fromtimestamp(SystemClock().wall_ms() / 1_000, UTC)
    book.feed(2, 2, timestamp=int((now - timedelta(days=3)).timestamp() * 1_000))  # within the topic's retention
    book.feed(2, 3)
    book.commit()

    def received(*options: str) -> int:
        done = retryapp("ledger", *shop.place, "--json", *options)
        assert done.code == 0, done.out
        return int(done.json["handlers"][0]["total"]["received"])

    assert received() == 11
    assert received("--since", "1h") == 9
    assert received("--since", f"{now - timedelta(days=4):%Y-%m-%d}") == 11
    assert received("--since", f"{now - timedelta(days=2):%Y-%m-%dT%H:%M}") == 9
    assert received("--since", "2200-01-01") == 0
    wrong = retryapp("ledger", *shop.place, "--since", "soon")
    assert wrong.code == 2
    assert "--since" in wrong.err


def test_retry_topics_of_other_delays_are_found(shop, book: _Book):
    """A policy that had one topic for each delay has left them; what merely begins alike is not ours."""
    prefix = shop.topology.prefix
    for name in (f"{prefix}.retry.5m", f"{prefix}.retry.60m", f"{prefix}.retry.old"):
        answered(shop.operator.admin.create_topics([NewTopic(name, num_partitions=3, replication_factor=1)]))
    book.retry(0, 0, 1, topic=f"{prefix}.retry.5m")
    book.retry(0, 5, 1, topic=f"{prefix}.retry.60m")
    book.commit()
    ledger = book.take()
    assert (ledger.total.received, ledger.total.pending) == (6, 3)
    failed, missing = ledger.problems
    assert (failed.fault, failed.text) == (
        "counts",
        f"4 records failed in {shop.topology.main}[0]@0 to 5, 6 with traces of a failure",
    )
    assert (missing.fault, missing.offset) == ("gap", 5)


@pytest.fixture
def writer(shop) -> Producer:
    made = Producer({"bootstrap.servers": shop.operator.bootstrap, "transactional.id": f"t-{shop.topology.group}"})
    made.init_transactions(10)
    made.begin_transaction()
    return made


def commits(writer: Producer, waits: list[str]) -> Callable[[str], None]:
    """Return an `on_wait` that ends the transaction when it is first called."""

    def on_wait(what: str) -> None:
        if not waits:
            writer.commit_transaction(10)
        waits.append(what)

    return on_wait


def test_an_open_transaction_is_waited_for(shop, book: _Book, writer: Producer):
    """What it publishes is in the ledger once it has ended; one that does not end is an error of the environment."""
    book.commit()
    writer.produce(shop.topology.events, partition=2, value=b"no event")
    writer.flush(10)
    with pytest.raises(OpenTransactionError, match="events") as caught:
        Positions(shop.operator.connection, transaction_s=0.3).settled_ends([(shop.topology.events, 2)])
    assert caught.value.exit_code == 3
    waits: list[str] = []
    ledger = book.take(on_step=commits(writer, waits))
    assert f"{shop.topology.events}[2]" in waits[0]
    assert (ledger.unread_events, ledger.problems) == (1, ())


def test_offsets_that_a_transaction_moves_are_waited_for(shop, book: _Book, writer: Producer):
    """The moment of the cut is one at which none is under way: then what it hands over and its offset go together."""
    book.commit(5)
    main, group = shop.topology.main, shop.topology.group
    member = Consumer({"bootstrap.servers": shop.operator.bootstrap, "group.id": group})
    writer.send_offsets_to_transaction([TopicPartition(main, 0, 6)], member.consumer_group_metadata(), 10)
    waits: list[str] = []
    places = [(main, 0), (main, 1)]
    found = Positions(shop.operator.connection).group_offsets(group, places, commits(writer, waits))
    member.close()
    assert found == {(main, 0): 6, (main, 1): 0}
    assert f"{main}[0]" in waits[0]


def test_without_their_topic_records_may_be_dead(retryapp: Callable[..., Any], shop, book: _Book):
    """The ledger took a handler whose dead-letter topic was deleted for one that has none: its records were lost."""
    book.commit()
    shop.operator.delete_topic(letters := shop.topology.dlq)
    done = retryapp("ledger", *shop.place, "--json")
    (handler,) = done.json["handlers"]
    assert (done.code, handler["adds_up"], handler["missing_topics"]) == (1, False, [letters])
    shares = {"received": 6, "done": 3, "pending": 1, "dead": 0, "unknown": 2, "lost": 0}
    assert {name: handler["total"][name] for name in shares} == shares
    counted, failed = sorted(handler["problems"], key=lambda problem: problem["offset"] or -1)
    assert {counted["fault"], failed["fault"]} == {"missing"}
    assert (counted["failure_id"], failed["failure_id"]) == (None, shop.failure_id(0, 3))
    assert failed["text"].endswith(f"; a dead letter may have been on {letters}, which is not there")
    said = retryapp("ledger", *shop.place).out
    assert f"\n{letters} is not there: its handler keeps no dead letters" in said
    assert "-A MODULE, in place of --broker, says which it is" in said
    with pytest.raises(TopicMissingError, match=letters):
        book.take()


def test_a_missing_topic_is_named(retryapp: Callable[..., Any], shop):
    """Without its events there is no ledger."""
    shop.operator.delete_topic(shop.topology.events)
    done = retryapp("ledger", *shop.place)
    assert done.code == 3
    assert shop.topology.events in done.err
    nowhere = retryapp("ledger", "--broker", shop.operator.bootstrap, "--group", "no-group")
    assert nowhere.code == 3
