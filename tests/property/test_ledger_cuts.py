"""A ledger of a lane that does not stand still: whatever was read later than what, it is that of one moment.

A model lane runs transactions: deliver, park, fire, redeliver. Then a cut is taken as `ledger.bounds` takes it: floors
from before the moment, the group's offsets at the moment, the changelog some transactions later, each topic some later
still. The count of it has to be what the model knew at the moment, and to find fault with nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.lifecycle import Progress
from retryapp.ledger.count import PartitionCount
from retryapp.ledger.journey import WHOLE, Cut, Fault
from retryapp.ledger.traces import Station, Told, Topics, Trace

TOPICS = Topics("app", ("orders", "retry", "redelivery", "dlq", "events", "changelog"))
RETRY, REDELIVERY, DLQ, EVENTS, CHANGELOG = 1, 2, 3, 4, 5
STATION_OF = {
    RETRY: Station.RETRY, REDELIVERY: Station.REDELIVERY, DLQ: Station.DEAD, EVENTS: Station.SUCCEEDED,
}  # fmt: skip
ID = "kq8G0bTz"
GONE = "gone"


@dataclass
class Lane:
    """The model: what was published by which transaction, and what the group's offsets and the fates were then."""

    records: int
    published: dict[int, list[tuple[int, int, int]]] = field(default_factory=lambda: {t: [] for t in STATION_OF})
    """Topic → (transaction, main offset, attempt), by offset."""
    rows: list[tuple[int, tuple[int, int], int | str]] = field(default_factory=list)
    """(transaction, row, offset of its tier record or that it is gone)."""
    offsets: list[tuple[int, int, int]] = field(default_factory=list)
    """After each transaction: main, retry, redelivery."""
    fates: list[dict[int, str]] = field(default_factory=list)
    """After each transaction, of those received."""
    counts: list[tuple[int, Progress]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Before the first transaction."""
        self._now = [0, 0, 0]
        self._fate: dict[int, str] = {}
        self._waiting: list[tuple[int, int]] = []
        self._counted = 0
        self._end()

    def run(self, choice: str, number: int, outcomes: list[str]) -> None:
        """Run one transaction, of a few records."""
        now = len(self.offsets)
        if choice == "deliver":
            ahead = range(self._now[0], min(self._now[0] + number, self.records))
            for offset, outcome in zip(ahead, outcomes, strict=False):
                self._settle(now, offset, 0, outcome)
                self._now[0] = offset + 1
        elif choice == "park":
            for at in range(self._now[1], min(self._now[1] + number, len(self.published[RETRY]))):
                _, offset, attempt = self.published[RETRY][at]
                self.rows.append((now, (offset, attempt), at))
                self._waiting.append((offset, attempt))
                self._now[1] = at + 1
        elif choice == "fire":
            for _ in range(min(number, len(self._waiting))):
                row = self._waiting.pop(0)
                self.rows.append((now, row, GONE))
                self.published[REDELIVERY].append((now, *row))
        elif choice == "redeliver":
            fired = self.published[REDELIVERY][self._now[2] : self._now[2] + number]
            for (_, offset, attempt), outcome in zip(fired, outcomes, strict=False):
                self._settle(now, offset, attempt, outcome)
                self._now[2] += 1
        elif self._now[0] > self._counted:
            self._count(now)
        self._end()

    def _settle(self, now: int, offset: int, attempt: int, outcome: str) -> None:
        topic = {"dead": DLQ, "fails": RETRY}.get(outcome, EVENTS)
        self._fate[offset] = {"dead": "dead", "fails": "pending"}.get(outcome, "done")
        if outcome != "fine" or attempt:
            self.published[topic].append((now, offset, attempt + 1))

    def _count(self, now: int) -> None:
        failed = {offset for topic in (RETRY, DLQ) for _, offset, attempt in self.published[topic] if attempt == 1}
        start, stop = self._counted, self._now[0]
        bad = len([offset for offset in failed if start <= offset < stop])
        facts = {"group": "app", "handler": "h", "main": "orders", "partition": 0, "from_ms": 0, "to_ms": 0}
        told = Progress(
            **facts,
            from_offset=start,
            to_offset=stop,
            received=stop - start,
            first_try_ok=stop - start - bad,
            failed=bad,
        )
        self.counts.append((now, told))
        self._counted = stop

    def _end(self) -> None:
        main, retry, redelivery = self._now
        self.offsets.append((main, retry, redelivery))
        self.fates.append(dict(self._fate))


TRANSACTION = st.tuples(
    st.sampled_from(["deliver", "park", "fire", "redeliver", "progress"]),
    st.integers(1, 4),
    st.lists(st.sampled_from(["fine", "fails", "dead"]), min_size=4, max_size=4),
)


def count_at(lane: Lane, moment: int, skews: list[int], *, without: tuple[int, int] | None = None) -> PartitionCount:
    """Take a cut at a moment and count it.

    Args:
        lane: what has happened.
        moment: after this transaction the group's offsets were asked for.
        skews: how many transactions before that the floors were, and later the changelog, and the topics, were read.
        without: topic and offset of a record that has been taken out.
    """
    last = len(lane.offsets) - 1
    floor, changelog = max(0, moment - skews[0]), min(last, moment + skews[1])
    reads = {topic: min(last, changelog + skew) for topic, skew in zip(STATION_OF, skews[2:], strict=True)}
    count = PartitionCount(partition=0, topics=TOPICS, topic_id=ID)
    for topic, copies in lane.published.items():
        for at, (when, offset, attempt) in enumerate(copies):
            if when <= reads[topic] and (topic, at) != without:
                count.tell(Told(Trace(0, attempt, STATION_OF[topic], topic, at, when), ID, offset))
    table: dict[tuple[int, int], tuple[int, int]] = {}
    for at, (when, row, tier) in enumerate(lane.rows):
        if when <= changelog:
            table[row] = (at, tier) if isinstance(tier, int) else (-1, -1)
    for (offset, attempt), (at, _) in table.items():
        if at >= 0:
            count.tell(Told(Trace(0, attempt, Station.ROW, CHANGELOG, at, 1), ID, offset))
    for when, told in lane.counts:
        if when <= reads[EVENTS]:
            count.note(told, "events")
    floors = [0, *(sum(when <= floor for when, _, _ in lane.published[topic]) for topic in STATION_OF), 0]
    cut = Cut(partition=0, topics=TOPICS, committed=lane.offsets[moment], floor=floors, kept_from_ms=[WHOLE] * 6)
    count.judge(cut)
    for offset in range(lane.offsets[moment][0]):
        count.see(offset, 1)
    count.close(first_kept=0)
    return count


@given(
    st.integers(1, 12),
    st.lists(TRANSACTION, min_size=1, max_size=40),
    st.floats(0, 1),
    st.lists(st.integers(0, 12), min_size=6, max_size=6),
)
def test_a_cut_of_a_running_lane_is_one_moment_of_it(records, transactions, share, skews):
    """Nothing is lost, nothing is there twice, and every fate is that of the moment."""
    lane = Lane(records)
    for choice, number, outcomes in transactions:
        lane.run(choice, number, outcomes)
    moment = round(share * (len(lane.offsets) - 1))
    count = count_at(lane, moment, skews)
    fates = list(lane.fates[moment].values())
    assert count.problems == []
    found = count.balance
    assert (found.received, found.done, found.pending, found.dead) == (
        lane.offsets[moment][0],
        fates.count("done"),
        fates.count("pending"),
        fates.count("dead"),
    )
    assert (found.unknown, found.lost) == (0, 0)


@given(st.integers(1, 12), st.lists(TRANSACTION, min_size=1, max_size=60), st.data())
def test_a_copy_taken_out_is_missed_at_rest(records, transactions, data):
    """Whichever it is, unless its record never failed before and nobody counted yet."""
    lane = Lane(records)
    for choice, number, outcomes in transactions:
        lane.run(choice, number, outcomes)
    lane.run("progress", 1, [])
    copies = [(topic, at) for topic, found in lane.published.items() for at in range(len(found))]
    if not copies:
        return
    out = data.draw(st.sampled_from(copies))
    topic, at = out
    _, offset, _ = lane.published[topic][at]
    count = count_at(lane, len(lane.offsets) - 1, [0] * 6, without=out)
    assert {problem.fault for problem in count.problems} <= {Fault.LOST, Fault.GAP}
    named = {problem.offset for problem in count.problems}
    waits_unread = (topic == RETRY and at >= lane.offsets[-1][1]) or (topic == REDELIVERY and at >= lane.offsets[-1][2])
    if waits_unread and topic == REDELIVERY:
        assert named == {offset}, "its row is gone"
    else:
        assert named in ({offset}, {None}, {offset, None}), "by name, or by the workers' counts"
