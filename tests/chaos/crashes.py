"""F1: workers end themselves with SIGKILL at named points on a record's way, life after life."""

from __future__ import annotations

import signal

from harness import Worker, wait_for

from chaos.act import Act

ROUND = 12
LIFE_S = 60.0


POINTS: tuple[tuple[str, ...], ...] = (
    ("transaction of a first failure begun", "Producer.begin_transaction", "after", "first failure"),
    ("records of a first failure sent, not acknowledged", "Producer.send_batch", "after", "first failure"),
    ("before the offsets of a first failure", "Producer.send_offsets_to_transaction", "before", "first failure"),
    ("offsets of a first failure sent", "Producer.send_offsets_to_transaction", "after", "first failure"),
    ("before the commit of a first failure", "Producer.commit_transaction", "before", "first failure"),
    ("during the commit of a first failure", "Producer.commit_transaction", "during", "first failure"),
    ("after the commit of a first failure", "Producer.commit_transaction", "after", "first failure"),
    ("before the store learns of a first failure", "KafkaTransport.apply", "before", "first failure"),
    ("store written after a first failure", "Table.write", "after", "first failure"),
    ("row claimed, handler not called", "Scheduler.begun", "before", ""),
    ("handler of a due row called", "Program.call_service", "before", "due row"),
    ("handler of a due row ended", "Program.call_service", "after", "due row"),
    ("transaction of an outcome begun", "Producer.begin_transaction", "after", "outcome"),
    ("records of an outcome sent, not acknowledged", "Producer.send_batch", "after", "outcome"),
    ("before the commit of an outcome", "Producer.commit_transaction", "before", "outcome"),
    ("during the commit of an outcome", "Producer.commit_transaction", "during", "outcome"),
    ("after the commit of an outcome", "Producer.commit_transaction", "after", "outcome"),
    ("before the store learns of an outcome", "KafkaTransport.apply", "before", "outcome"),
    ("store written after an outcome", "Table.write", "after", "outcome"),
    ("fenced the former owner", "KafkaTransport.fence", "after", ""),
    ("store recovered", "Table.recover", "after", ""),
    ("offsets read at an opening", "KafkaTransport.committed", "after", ""),
    ("lane closing", "KafkaTransport.release", "before", ""),
)
"""Name, point, moment, and what a call must be about to count: see `arm` of `harness.user_app`. An outcome is that of a
due row."""
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
