"""A ledger of a lane that does not stand still: whatever was read later than what, it is that of one moment.

A model lane runs transactions: first deliveries, due rows, replays. Then a cut is taken as `ledger.bounds` takes it:
floors, some transactions later the group's offset, then an end of the changelog, which may lie within a transaction,
and the topics after that one's end. The count of it has to be what the changelog says at its end, and to find fault
with nothing. At rest, whatever is taken out or doubled is found.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from retryapp.core.lifecycle import Progress
from retryapp.ledger.count import PartitionCount
from retryapp.ledger.journey import WHOLE, Cut, Fault
from retryapp.ledger.traces import Station, Told, Topics, Trace

TOPICS = Topics("app", ("orders", "retry", "dlq", "events", "changelog"))
RETRY, DLQ, EVENTS, CHANGELOG = 1, 2, 3, 4
STATION_OF = {RETRY: Station.RETRY, DLQ: Station.DEAD, EVENTS: Station.SUCCEEDED}
ENDS = {"fine": (EVENTS, "done"), "dead": (DLQ, "dead"), "fails": (RETRY, "pending"), "free": (RETRY, "pending")}
ID = "kq8G0bTz"
Step = tuple[int, int, int]  # delivery, attempt, replays


@dataclass
class Lane:
    """The model: what was published by which transaction, and how far the group was then."""

    records: int
    published: dict[int, list[tuple[int, int, Step]]] = field(default_factory=lambda: {t: [] for t in STATION_OF})
    """Topic → (transaction, main offset, step), by offset."""
    changelog: list[tuple[int, int, Step | None, str]] = field(default_factory=list)
    """(transaction, main offset, row or that it is gone, fate), by offset."""
    first: list[str] = field(default_factory=list)
    """Fates after the first delivery, by main offset."""
    received: list[int] = field(default_factory=lambda: [0])
    """After each transaction."""
    counts: list[tuple[int, Progress]] = field(default_factory=list)
    replayed: bool = False

    def __post_init__(self) -> None:
        self._rows: dict[int, Step] = {}
        self._dead: dict[int, Step] = {}
        self._counted = 0

    def run(self, choice: str, number: int, outcomes: list[str]) -> None:
        """Run one transaction, of a few records."""
        now = len(self.received)
        if choice == "deliver":
            for offset in range(len(self.first), min(len(self.first) + number, self.records)):
                outcome = outcomes[offset % len(outcomes)].replace("free", "fails")  # a failure, and it spends one
                self.first.append(ENDS[outcome][1])
                if outcome != "fine":
                    self._settle(now, offset, (1, 1, 0), outcome)
        elif choice == "due":
            for (offset, row), outcome in zip([*self._rows.items()][:number], outcomes, strict=False):
                delivery, attempt, replays = row
                self._settle(now, offset, (delivery + 1, attempt + (outcome != "free"), replays), outcome)
        elif choice == "replay":
            for offset in [*self._dead][:number]:
                self.replayed = True
                delivery, _, replays = self._dead[offset]
                self._settle(now, offset, (delivery + 1, 0, replays + 1), "fails")
        elif len(self.first) > self._counted:
            self._count(now)
        self.received.append(len(self.first))

    def _settle(self, now: int, offset: int, step: Step, outcome: str) -> None:
        topic, fate = ENDS[outcome]
        self.published[topic].append((now, offset, step))
        row = self._rows.pop(offset, None)
        self._dead.pop(offset, None)
        if fate == "pending":
            self._rows[offset] = step
        elif fate == "dead":
            self._dead[offset] = step
        if row is not None or fate == "pending":
            self.changelog.append((now, offset, self._rows.get(offset), fate))

    def _count(self, now: int) -> None:
        start, stop = self._counted, len(self.first)
        bad = len([fate for fate in self.first[start:] if fate != "done"])
        facts = {"group": "app", "handler": "h", "main": "orders", "partition": 0, "from_ms": 0, "to_ms": 0}
        counts = {"received": stop - start, "first_try_ok": stop - start - bad, "failed": bad}
        self.counts.append((now, Progress(**facts, from_offset=start, to_offset=stop, **counts)))
        self._counted = stop

    def rows(self, end: int) -> dict[int, tuple[int, Step]]:
        """Return the table before an offset of the changelog: main offset → offset there, row."""
        table = {offset: (at, row) for at, (_, offset, row, _) in enumerate(self.changelog[:end])}
        return {offset: (at, row) for offset, (at, row) in table.items() if row is not None}

    def fates(self, received: int, end: int) -> list[str]:
        """Return the fates of the records received, before an offset of the changelog."""
        told = {offset: fate for _, offset, _, fate in self.changelog[:end]}
        return [told.get(offset, fate) for offset, fate in enumerate(self.first[:received])]


TRANSACTION = st.tuples(
    st.sampled_from(["deliver", "due", "due", "replay", "progress"]),
    st.integers(1, 4),
    st.lists(st.sampled_from(["fails", "fine", "free", "dead"]), min_size=4, max_size=4),
)
WAY = st.lists(TRANSACTION, min_size=12, max_size=40)
"""Long enough that much happens before and after a cut."""


def run(records: int, transactions: list[tuple[str, int, list[str]]]) -> Lane:
    lane = Lane(records)
    for transaction in transactions:
        lane.run(*transaction)
    return lane


def trace(step: Step, station: Station, topic: int, offset: int, when: int) -> Trace:
    delivery, *numbers = step
    return Trace(delivery, station, topic, *numbers, offset, when)


def count_at(lane: Lane, *, floor: int, received: int, end: int, reads: dict[int, int]) -> PartitionCount:
    """Count a cut.

    Args:
        lane: what has happened.
        floor: after this transaction the floors were asked for.
        received: the group's offset.
        end: of the changelog.
        reads: topic → transaction up to which it is read.
    """
    count = PartitionCount(partition=0, topics=TOPICS, topic_id=ID)
    for topic, copies in lane.published.items():
        for at, (when, offset, step) in enumerate(copies):
            if when <= reads[topic]:
                count.tell(Told(trace(step, STATION_OF[topic], topic, at, when), ID, offset))
    for offset, (at, row) in lane.rows(end).items():
        count.tell(Told(trace(row, Station.ROW, CHANGELOG, at, 1), ID, offset))
    for when, told in lane.counts:
        if when <= reads[EVENTS]:
            count.note(told, "events")
    floors = [0, *(sum(when <= floor for when, _, _ in copies) for copies in lane.published.values()), 0]
    count.judge(Cut(partition=0, topics=TOPICS, received=received, floor=floors, kept_from_ms=[WHOLE] * 5))
    for offset in range(received):
        count.see(offset, 1)
    count.close(first_kept=0)
    return count


def count_at_rest(lane: Lane) -> PartitionCount:
    last = len(lane.received) - 1
    reads = dict.fromkeys(STATION_OF, last)
    return count_at(lane, floor=last, received=lane.received[-1], end=len(lane.changelog), reads=reads)


@given(
    st.integers(1, 12),
    WAY,
    st.integers(0, 24),
    st.lists(st.integers(0, 12), min_size=5, max_size=5),
)
def test_a_cut_of_a_running_lane_is_one_moment_of_it(records, transactions, behind, skews):
    """Nothing is lost, nothing is there twice, and every fate is that of the moment."""
    lane = run(records, transactions)
    last = len(lane.received) - 1
    asked = max(0, last - behind)
    received = lane.received[asked]
    before = sum(when <= asked for when, *_ in lane.changelog)
    end = min(len(lane.changelog), before + skews[1])
    moment = max([asked, *(when for when, *_ in lane.changelog[:end])])
    reads = {topic: min(last, moment + skew) for topic, skew in zip(STATION_OF, skews[2:], strict=True)}
    count = count_at(lane, floor=max(0, asked - skews[0]), received=received, end=end, reads=reads)
    fates = lane.fates(received, end)
    assert count.problems == []
    found = count.balance
    assert (found.received, found.pending, found.unknown, found.lost) == (received, fates.count("pending"), 0, 0)
    assert found.done + found.dead == fates.count("done") + fates.count("dead")
    if not lane.replayed:  # one that began and ended after the floors may be newer than the moment
        assert found.dead == fates.count("dead")


@given(st.integers(1, 12), WAY, st.data())
def test_a_copy_taken_out_is_missed_at_rest(records, transactions, data):
    """Whichever it is: by name, or by the workers' counts where its record has left nothing else."""
    lane = run(records, [*transactions, ("progress", 1, [])])
    copies = [(topic, at) for topic, found in lane.published.items() for at in range(len(found))]
    if not copies:
        return
    topic, at = data.draw(st.sampled_from(copies))
    _, offset, _ = lane.published[topic].pop(at)
    problems = count_at_rest(lane).problems
    assert {problem.fault for problem in problems} in ({Fault.LOST}, {Fault.GAP})
    assert {problem.offset for problem in problems} in ({offset}, {None})


@given(st.integers(1, 12), WAY, st.data())
def test_a_row_taken_out_is_lost_and_a_copy_twice_is_found(records, transactions, data):
    """At rest, whichever it is."""
    lane = run(records, transactions)
    if lane.changelog and (rows := lane.rows(len(lane.changelog))):
        offset = data.draw(st.sampled_from([*rows]))
        lane.changelog.append((0, offset, None, "lost"))
        (problem,) = count_at_rest(lane).problems
        assert (problem.fault, problem.offset) == (Fault.LOST, offset)
        lane.changelog.pop()
    topic = data.draw(st.sampled_from([topic for topic in lane.published if lane.published[topic]] or [RETRY]))
    if copies := lane.published[topic]:
        copies.append(data.draw(st.sampled_from(copies)))
        (problem,) = count_at_rest(lane).problems
        assert (problem.fault, problem.offset) == (Fault.TWICE, copies[-1][1])
