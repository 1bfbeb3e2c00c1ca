"""F1: workers end themselves with SIGKILL at named points on a record's way, life after life."""

from __future__ import annotations

import signal

from harness import Worker, wait_for

from chaos.act import Act

ROUND = 12
LIFE_S = 60.0


POINTS: tuple[tuple[str, ...], ...] = (
    ("transaction of a fire begun", "Producer.begin_transaction", "after", "removes"),
    ("transaction of a failure begun", "Producer.begin_transaction", "after", "publishes"),
    ("records of a fire sent, not acknowledged", "Producer.send_batch", "after", "removes"),
    ("records of a failure sent, not acknowledged", "Producer.send_batch", "after", "publishes"),
    ("before the offsets of a park", "Producer.send_offsets_to_transaction", "before", "puts"),
    ("offsets of a failure in the transaction", "Producer.send_offsets_to_transaction", "after", "publishes"),
    ("before the commit of a failure", "Producer.commit_transaction", "before", "publishes"),
    ("before the commit of a park", "Producer.commit_transaction", "before", "puts"),
    ("before the commit of a fire", "Producer.commit_transaction", "before", "removes"),
    ("during the commit of a failure", "Producer.commit_transaction", "during", "publishes"),
    ("during the commit of a fire", "Producer.commit_transaction", "during", "removes"),
    ("after the commit of a failure", "Producer.commit_transaction", "after", "publishes"),
    ("after the commit of a park", "Producer.commit_transaction", "after", "puts"),
    ("after the commit of a fire", "Producer.commit_transaction", "after", "removes"),
    ("fenced the former owner", "KafkaTransport.fence", "after", ""),
    ("store written after a park", "Table.write", "after", "puts"),
    ("store written after a fire", "Table.write", "after", "removes"),
    ("before the store learns of a fire", "KafkaTransport.apply", "before", "removes"),
    ("store recovered", "Table.recover", "after", ""),
    ("offsets read at an opening", "KafkaTransport.committed", "after", ""),
    ("lane closing", "KafkaTransport.release", "before", ""),
)
"""Name; class and method: `KafkaTransport`, `Producer` (the client's) or `Table` (on RocksDB); moment; and what a
transaction has to hold for its calls to count: `offsets`, `publishes`, `puts`, `removes`, or anything."""
OPENING = ("KafkaTransport.release", "KafkaTransport.fence", "KafkaTransport.committed", "Table.recover")


def die_in_turn(act: Act, lives: int, number: int) -> None:
    """F1: a chain of lives, each of which ends at the next point, from one round to the next; then one that lives."""
    for life in range(act.some(lives)):
        name, point, moment, holding = POINTS[(number * lives + life) % len(POINTS)]
        lost = act.rng.random() < 0.2
        act.app_options = {"datadir": str(act.folder / (f"data{life}" if lost else "data"))}
        after = 0 if point in OPENING else act.rng.randrange(3)
        act.program(crash={"point": point, "moment": moment, "holding": holding, "after": after})
        act.publish(ROUND)
        worker = act.worker()
        if point == "KafkaTransport.release":  # a lane closes in good order when it is asked to
            wait_for(lambda w=worker: act.opened(w) > 0 or w.ended(), "lanes open", timeout_s=LIFE_S)  # type: ignore[misc]
            worker.signal(signal.SIGTERM)
        wait_for(lambda w=worker: _died(act, w), f"{worker.name} dies: {name}", timeout_s=LIFE_S, every_s=0.5)  # type: ignore[misc]
        if worker.exit_code != -signal.SIGKILL:
            raise worker.failure(f"ended with {worker.exit_code}, not at {name}")
        with act.fault(name):
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
