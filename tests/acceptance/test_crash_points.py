"""Workers that die of SIGKILL at a chosen call on a record's way, one after the other, on a real broker.

Several groups at once lead a chain of lives each: a round of records comes, a worker starts, dies at its point and is
followed by the next one; the last one lives. Then the topics, read as a committed reader, have to say that nothing was
lost, early or handed on twice. (`tests/unit/engine/test_crashes.py` dies at every point there is, in memory.)
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import pytest
from harness import Evidence, HandlerSpec, Stage, Worker

from retryapp.ledger import take_ledger

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.timeout(150)]

POLICY = "200ms 400ms"
WAITS_MS = (200, 400)
ROUND = 12
"""Records published before each life: a quarter each fails never, once, twice, always."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Where a worker dies: the entry `crash` of the program's spec."""

    point: str
    """Class and method: `KafkaTransport`, `PlainLane`, `Producer` (the client's) or `Table` (on RocksDB)."""
    moment: str = "after"
    """`before` the call, `after` it, or `during` it: a moment after it has begun, if it is not over by then."""
    holding: str = ""
    """Only calls for a transaction that has some of these count: `offsets`, `publishes`, `puts`, `removes`."""
    after: int = 0
    """So many such calls go well before."""

    def __str__(self) -> str:
        return "-".join(filter(None, [self.moment, self.point, self.holding, str(self.after or "")]))


@dataclass(frozen=True, slots=True)
class Chain:
    """What befalls the workers of a group."""

    delivery: str
    crashes: tuple[Crash, ...]
    lose_store: bool = False
    """Each worker begins without a local store."""


@dataclass(slots=True)
class Lived:
    """A group that has been through its chain."""

    chain: Chain
    stage: Stage
    topic: str
    ends: list[tuple[int | None, str]] = field(default_factory=list)
    """Of each worker but the last: how it ended (None: not by itself), and what it had said."""

    def start(self) -> Worker:
        """Publish a round of records and start the next worker."""
        n = len(self.ends)
        more = {"crash": asdict(self.chain.crashes[n])} if n < len(self.chain.crashes) else {}
        self.stage.program(
            # as many kills in a row as a chain has, and no record is to blame for one (rule 15 has a test of its own)
            HandlerSpec(topic=self.topic, policy=POLICY, max_crashes=len(self.chain.crashes) + 1),
            options={"delivery": self.chain.delivery},
            app_options={"datadir": str(self.stage.folder / (f"data{n}" if self.chain.lose_store else "data"))},
            **more,
        )
        self.stage.produce(self.topic, [{"id": i, "fail": i % 4} for i in range(n * ROUND, (n + 1) * ROUND)])
        return self.stage.worker(f"life{n}", ready=False)

    def see_die(self, worker: Worker) -> None:
        """Wait for the end of a worker."""
        try:
            self.ends.append((worker.wait(30), worker.log))
        except AssertionError:
            worker.kill()
            self.ends.append((None, worker.log))


CHAINS = {
    "transactions": Chain(
        "exactly_once",
        (
            Crash("Producer.begin_transaction", holding="removes"),
            Crash("Producer.send_batch", holding="removes"),
            Crash("Producer.send_offsets_to_transaction", "before", "puts"),
            Crash("Producer.send_offsets_to_transaction", holding="publishes"),
            Crash("Producer.commit_transaction", "before", "removes"),
            Crash("Producer.commit_transaction", "before", "publishes", after=3),
        ),
    ),
    "commits": Chain(
        "exactly_once",
        (
            Crash("Producer.commit_transaction", "during", "removes"),
            Crash("Producer.commit_transaction", holding="removes"),
            Crash("Producer.commit_transaction", holding="puts"),
            Crash("Producer.commit_transaction", "during", "publishes", after=2),
            Crash("Table.write", holding="removes"),
            Crash("KafkaTransport.apply", holding="puts", after=1),
        ),
    ),
    "openings": Chain(
        "exactly_once",
        (
            Crash("KafkaTransport.fence"),
            Crash("KafkaTransport.committed", after=1),
            Crash("KafkaTransport.recover", "before"),
            Crash("Table.recover"),
            Crash("KafkaTransport.release", "before", after=1),
            Crash("KafkaTransport.release"),
        ),
        lose_store=True,
    ),
    "without transactions": Chain(
        "at_least_once",
        (
            Crash("Producer.send_batch", holding="removes"),
            Crash("PlainLane._publish", holding="removes"),
            Crash("PlainLane._log", holding="puts"),
            Crash("PlainLane._commit_offsets", "before", "publishes"),
            Crash("PlainLane._commit_offsets", holding="puts"),
            Crash("KafkaTransport.apply", "before", "removes"),
        ),
    ),
}
POINTS = [
    pytest.param(name, n, id=f"{name}: {crash}") for name in CHAINS for n, crash in enumerate(CHAINS[name].crashes)
]


@pytest.fixture(scope="module")
def groups(bootstrap: str, make_stage: Callable[[str], Stage]) -> dict[str, Lived]:
    """Let all groups live, side by side."""
    made: dict[str, Lived] = {}
    for name, chain in CHAINS.items():
        stage = make_stage(bootstrap)
        made[name] = Lived(chain, stage, stage.main_topic())
    while dying := [group for group in made.values() if len(group.ends) < len(group.chain.crashes)]:
        for group, worker in [(group, group.start()) for group in dying]:
            group.see_die(worker)
    for group in made.values():
        group.start()
    return made


@pytest.mark.parametrize(("name", "n"), POINTS)
def test_a_worker_died_at_its_point(groups: dict[str, Lived], name: str, n: int) -> None:
    """Of the signal that it sent to itself there."""
    returncode, said = groups[name].ends[n]
    assert returncode == -signal.SIGKILL, said[-3000:]
    assert f"crash: {asdict(CHAINS[name].crashes[n])}" in said


@pytest.mark.parametrize("name", CHAINS)
def test_every_record_has_one_fate(groups: dict[str, Lived], name: str) -> None:
    """Done or dead, with all that it leaves behind on the way: once, or without transactions at least once."""
    group = groups[name]
    stage, topic = group.stage, group.topic
    stage.wait_settled(topic)
    count = (len(group.chain.crashes) + 1) * ROUND
    visits = stage.service.of(topic)
    ids = {visit.failure_id: visit.facts["id"] for visit in visits}
    left = copies(stage.evidence(topic), ids)
    expected = Counter((station, i, attempt) for i in range(count) for station, attempt in leaves(i % 4))
    if group.chain.delivery == "exactly_once":
        assert left == expected
    else:
        assert set(left) == set(expected)
    assert stage.service.done(topic) == {i for i in range(count) if i % 4 < 3}
    ledger = take_ledger(stage.connection, stage.topology(topic), copies_allowed=stage.copies_allowed)
    assert (ledger.total.received, ledger.total.done, ledger.total.dead) == (count, count * 3 // 4, count // 4)
    assert not stage.workers[-1].ended(), "the last one lives"


@pytest.mark.parametrize("name", CHAINS)
def test_no_attempt_began_early(groups: dict[str, Lived], name: str) -> None:
    """By the outside service's own clock; and each wait that was written down is the policy's."""
    stage, topic = groups[name].stage, groups[name].topic
    stage.wait_settled(topic)
    retries = stage.evidence(topic).retries()
    assert all((m.due_at_ms or 0) - m.last_failed_ms == WAITS_MS[m.attempt - 1] for _, m in retries)
    due = {(m.failure_id, m.attempt + 1, m.due_at_ms) for _, m in retries}
    later = [visit for visit in stage.service.of(topic) if visit.attempt > 1]
    assert all(visit.at_ms >= (visit.due_at_ms or 0) for visit in later)
    begun = {(visit.failure_id, visit.attempt, visit.due_at_ms) for visit in later}
    assert begun == due or (stage.copies_allowed and begun < due), "a copy with a due time of its own may be dropped"


def leaves(fails: int) -> list[tuple[str, int]]:
    """Return what a record leaves that fails so often: stations and the attempts that ended there."""
    retried = [(station, n) for n in range(1, min(fails, 2) + 1) for station in ("retry", "redelivery")]
    end = [] if fails == 0 else [("dead", 3)] if fails == 3 else [("succeeded", fails + 1)]
    return retried + end


def copies(evidence: Evidence, ids: dict[str, int]) -> Counter[tuple[str, int, int]]:
    """Return what a committed reader sees: (station, id, attempt) and how often."""
    found = Counter(("retry", ids[m.failure_id], m.attempt) for _, m in evidence.retries())
    found.update(("redelivery", ids[m.failure_id], m.attempt) for _, m in evidence.redeliveries())
    found.update(("dead", ids[m.failure_id], m.attempt) for _, m in evidence.dead())
    found.update(("succeeded", ids[event.failure_id], event.attempt) for event in evidence.succeeded())
    return found
