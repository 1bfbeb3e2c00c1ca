"""F1: workers end themselves with SIGKILL at named points on a record's way, life after life."""

from __future__ import annotations

import signal
from dataclasses import asdict, dataclass

from harness import Worker, wait_for

from chaos.act import Act

ROUND = 12
LIFE_S = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """A place on a record's way: the entry `crash` of the program's spec, with a name."""

    name: str
    point: str
    """Class and method: `KafkaTransport`, `Producer` (the client's) or `Table` (on RocksDB)."""
    moment: str = "after"
    holding: str = ""
    """Only calls for a transaction with some of these count: `offsets`, `publishes`, `puts`, `removes`."""


POINTS = (
    Point("transaction of a fire begun", "Producer.begin_transaction", "after", "removes"),
    Point("transaction of a failure begun", "Producer.begin_transaction", "after", "publishes"),
    Point("records of a fire sent, not acknowledged", "Producer.send_batch", "after", "removes"),
    Point("records of a failure sent, not acknowledged", "Producer.send_batch", "after", "publishes"),
    Point("before the offsets of a park", "Producer.send_offsets_to_transaction", "before", "puts"),
    Point("offsets of a failure in the transaction", "Producer.send_offsets_to_transaction", "after", "publishes"),
    Point("before the commit of a failure", "Producer.commit_transaction", "before", "publishes"),
    Point("before the commit of a park", "Producer.commit_transaction", "before", "puts"),
    Point("before the commit of a fire", "Producer.commit_transaction", "before", "removes"),
    Point("during the commit of a failure", "Producer.commit_transaction", "during", "publishes"),
    Point("during the commit of a fire", "Producer.commit_transaction", "during", "removes"),
    Point("after the commit of a failure", "Producer.commit_transaction", "after", "publishes"),
    Point("after the commit of a park", "Producer.commit_transaction", "after", "puts"),
    Point("after the commit of a fire", "Producer.commit_transaction", "after", "removes"),
    Point("fenced the former owner", "KafkaTransport.fence"),
    Point("store written after a park", "Table.write", "after", "puts"),
    Point("store written after a fire", "Table.write", "after", "removes"),
    Point("before the store learns of a fire", "KafkaTransport.apply", "before", "removes"),
    Point("store recovered", "Table.recover"),
    Point("offsets read at an opening", "KafkaTransport.committed"),
    Point("lane closing", "KafkaTransport.release", "before"),
)


def die_in_turn(act: Act, lives: int, number: int) -> None:
    """Lead a chain of lives, each of which ends at a point; then one that lives.

    Args:
        act: the group.
        lives: how many die.
        number: of the round: rounds go through the points in turn.
    """
    for life in range(act.some(lives)):
        point = POINTS[(number * lives + life) % len(POINTS)]
        spec = {name: value for name, value in asdict(point).items() if name != "name"}
        lost = act.rng.random() < 0.2
        act.app_options = {"datadir": str(act.folder / (f"data{life}" if lost else "data"))}
        opening = point.point in (
            "KafkaTransport.release",
            "KafkaTransport.fence",
            "KafkaTransport.committed",
            "Table.recover",
        )
        act.program(crash={**spec, "after": 0 if opening else act.rng.randrange(3)})
        act.publish(ROUND)
        worker = act.worker()
        if point.point == "KafkaTransport.release":  # a lane closes in good order when it is asked to
            wait_for(lambda w=worker: act.opened(w) > 0 or w.ended(), "lanes open", timeout_s=LIFE_S)  # type: ignore[misc]
            worker.signal(signal.SIGTERM)
        wait_for(lambda w=worker: _died(act, w), f"{worker.name} dies: {point.name}", timeout_s=LIFE_S, every_s=0.5)  # type: ignore[misc]
        ended = worker.wait(1)
        if ended != -signal.SIGKILL:
            raise AssertionError(f"life {life} ended with {ended}, not at {point.name}: {worker.log[-1500:]}")
        with act.fault(point.name):
            pass  # it has just happened
    act.app_options = {}
    act.program()
    act.publish(ROUND)
    act.revive(1)


def _died(act: Act, worker: Worker) -> bool:
    """Tell whether it has ended; else keep the records coming, for the point may need some more."""
    if not worker.ended() and act.opened(worker):
        act.publish(2)
    return worker.ended()
