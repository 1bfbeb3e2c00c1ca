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
from acceptance.books import check_books
from harness import Evidence, HandlerSpec, Stage, Worker

from retryapp.ledger import take_ledger
from retryapp.stage import ChildFailedError

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(150)]

POLICY = "200ms 400ms"
WAITS_MS = (200, 400)
ROUND = 12
"""Records published before each life: a quarter each fails never, once, twice, always."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Where a worker dies: the entry `crash` of the program's spec."""

    point: str
    """Class and method: `KafkaTransport`, `Producer` (the client's) or `Table` (on RocksDB)."""
    moment: str = "after"
    """`before` the call, `after` it, or `during` it: a moment after it has begun, if it is not over by then."""
    holding: str = ""
    """Only calls for a transaction that has some of these count: `offsets`, `publishes`, `puts`, `removes`."""
    after: int = 0
    """So many such calls go well before."""

    def __str__(self) -> str:
        return "-".join(filter(None, [self.moment, self.point, self.holding, str(self.after or "")]))


@dataclass(slots=True)
class Lived:
    """A group that has been through its chain of crashes."""

    crashes: tuple[Crash, ...]
    lose_store: bool
    """Each worker begins without a local store."""
    stage: Stage
    topic: str
    ends: list[tuple[int | None, str]] = field(default_factory=list)
    """Of each worker but the last: how it ended (None: not by itself), and what it had said."""

    def start(self) -> Worker:
        """Publish a round of records and start the next worker."""
        n = len(self.ends)
        more = {"crash": asdict(self.crashes[n])} if n < len(self.crashes) else {}
        self.stage.program(
            # as many kills in a row as a chain has, and no record is to blame for one (rule 15 has a test of its own)
            HandlerSpec(topic=self.topic, policy=POLICY, max_crashes=len(self.crashes) + 1),
            app_options={"datadir": str(self.stage.folder / (f"data{n}" if self.lose_store else "data"))},
            **more,
        )
        self.stage.produce(self.topic, [{"id": i, "fail": i % 4} for i in range(n * ROUND, (n + 1) * ROUND)])
        return self.stage.worker(f"life{n}", ready=False)

    def see_die(self, worker: Worker) -> None:
        """Wait for the end of a worker."""
        try:
            self.ends.append((worker.wait(30), worker.log))
        except ChildFailedError:
            worker.kill()
            self.ends.append((None, worker.log))


CHAINS = {
    "transactions": (
        Crash("Producer.begin_transaction", holding="removes"),
        Crash("Producer.send_batch", holding="removes"),
        Crash("Producer.send_offsets_to_transaction", "before", "puts"),
        Crash("Producer.send_offsets_to_transaction", holding="publishes"),
        Crash("Producer.commit_transaction", "before", "removes"),
        Crash("Producer.commit_transaction", "before", "publishes", after=3),
    ),
    "commits": (
        Crash("Producer.commit_transaction", "during", "removes"),
        Crash("Producer.commit_transaction", holding="removes"),
        Crash("Producer.commit_transaction", holding="puts"),
        Crash("Producer.commit_transaction", "during", "publishes", after=2),
        Crash("Table.write", holding="removes"),
        Crash("KafkaTransport.apply", holding="puts", after=1),
    ),
    "openings": (
        Crash("KafkaTransport.fence"),
        Crash("KafkaTransport.committed", after=1),
        Crash("KafkaTransport.recover", "before"),
        Crash("Table.recover"),
        Crash("KafkaTransport.release", "before", after=1),
        Crash("KafkaTransport.release"),
    ),
}
LOSE_STORE = "openings"
"""The chain whose workers each begin without a local store."""


@pytest.fixture(scope="module")
def groups(bootstrap: str, make_stage: Callable[[str], Stage]) -> dict[str, Lived]:
    """Let all groups live, side by side."""
    made: dict[str, Lived] = {}
    for name, crashes in CHAINS.items():
        stage = make_stage(bootstrap)
        made[name] = Lived(crashes, name == LOSE_STORE, stage, stage.main_topic())
    while dying := [group for group in made.values() if len(group.ends) < len(group.crashes)]:
        for group, worker in [(group, group.start()) for group in dying]:
            group.see_die(worker)
    for group in made.values():
        group.start()
    return made


@pytest.mark.parametrize("name", CHAINS)
def test_every_record_has_one_fate(groups: dict[str, Lived], name: str) -> None:
    """Each worker died at its point; each record is done or dead, and left each trace once, none early."""
    group = groups[name]
    for crash, (returncode, log) in zip(group.crashes, group.ends, strict=True):
        assert returncode == -signal.SIGKILL, log[-3000:]
        assert f"crash: {asdict(crash)}" in log
    stage, topic = group.stage, group.topic
    stage.wait_settled(topic)
    count = (len(group.crashes) + 1) * ROUND
    check_books(stage, topic, count, WAITS_MS)
    ids = {visit.failure_id: visit.facts["id"] for visit in stage.service.of(topic)}
    expected = Counter((station, i, attempt) for i in range(count) for station, attempt in leaves(i % 4))
    assert copies(stage.evidence(topic), ids) == expected
    ledger = take_ledger(stage.connection, stage.topology(topic))
    assert (ledger.total.received, ledger.total.done, ledger.total.dead) == (count, count * 3 // 4, count // 4)
    assert not stage.workers[-1].ended(), "the last one lives"


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
