"""Handlers that hang, in a real worker: their neighbours are done, they end dead, and the worker ends when told to."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import HandlerSpec, Stage, open_stage, wait_for
from harness.operator import Operator

RESTART = 4
HANGING = 7
"""More than the event loop's executor has threads on a small machine; twice as many runs, fewer than the limit."""
MORE = 20
"""More than a handler may have."""

PROGRAM = """
import asyncio
import threading

import faust
from retryapp import Retries, RetryPolicy
from retryapp.engine.handler import orphans

orphans.HUNG_S = 3.0

app = faust.App({group!r}, broker="kafka://{bootstrap}", store="rocksdb://", broker_session_timeout=6.0)
retries = Retries(app, grace="1s", drain="1s", start_timeout="30s")
policy = RetryPolicy("200ms", timeout="500ms")


@retries.handler({plain!r}, value=bytes, policy=policy, concurrency=4)
def plain(value: bytes) -> None:
    if value == b"hang":
        threading.Event().wait()


@retries.handler({stubborn!r}, value=bytes, policy=policy, concurrency=4)
async def stubborn(value: bytes) -> None:
    if value == b"hold":
        threading.Event().wait(4)
    while value == b"hang":
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@pytest.fixture
def stage(bootstrap: str, tmp_path: Path) -> Iterator[Stage]:
    """A stage with the program; its handlers are `plain` and `stubborn`."""
    with open_stage(bootstrap, tmp_path) as made:
        topics = {name: made.main_topic(name, 1) for name in ("plain", "stubborn")}
        made.handlers = {topic: HandlerSpec(topic=topic, policy="200ms") for topic in topics.values()}
        (tmp_path / "app.py").write_text(PROGRAM.format(group=made.group, bootstrap=bootstrap, **topics))
        yield made


def test_hanging_handlers_cost_their_own_records_and_nothing_else(stage: Stage) -> None:
    """Each of their records is dead after its attempts, all others are done, and SIGTERM ends the worker."""
    worker, operator = stage.worker(), Operator(stage.bootstrap)
    for topic in stage.handlers:
        operator.publish(topic, *[b"hang", b"fine"] * HANGING, partition=0)

    def reasons(topic: str) -> Counter[tuple[bytes | None, str | None]]:
        return Counter((record.value, metadata.reason) for record, metadata in stage.evidence(topic).dead())

    wanted = Counter({(b"hang", "exhausted"): HANGING})
    wait_for(lambda: all(reasons(topic) == wanted for topic in stage.handlers), "all that hang are dead", timeout_s=50)
    for topic in stage.handlers:
        stage.wait_settled(topic)
    assert "lane_failed" not in worker.log
    assert worker.log.count("retryapp.run_abandoned") == 2 * 2 * HANGING
    _, stubborn = stage.handlers
    operator.publish(stubborn, b"hold", partition=0)
    wait_for(lambda: "retryapp.loop_held" in worker.log, "the coroutine that blocks is named", timeout_s=20)
    assert "in stubborn" in next(line for line in worker.log.splitlines() if "retryapp.loop_held" in line)
    began_s = time.monotonic()
    assert worker.stop() == 0
    assert time.monotonic() - began_s < 12, "the stop does not wait for calls that hang"


def test_a_worker_whose_handler_can_run_nothing_more_ends_to_be_started_again(stage: Stage) -> None:
    """It is not ready at once; then it ends with the restart code, and the log names the records that hang."""
    worker, operator = stage.worker(), Operator(stage.bootstrap)
    plain, stubborn = stage.handlers
    operator.publish(plain, *[b"hang"] * MORE, partition=0)
    operator.publish(stubborn, b"fine", partition=0)
    stalled: list[str] = []

    def is_stalled() -> bool:
        stalled.append(worker.get("/retries/ready")[1])
        return "given up and going on" in stalled[-1]

    wait_for(is_stalled, "it is not ready", timeout_s=50)
    assert plain in stalled[-1]
    assert worker.wait(30) == RESTART
    (last,) = [line for line in worker.log.splitlines() if "ends with exit code 4; restart it" in line]
    assert f"{stage.group}/{plain}@" in last
