"""A user's whole program, copied into the folder of a test as `app.py`; `spec.json` next to it says what differs."""

from __future__ import annotations

import asyncio
import base64
import functools
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import aiohttp
import faust

from retryapp import Batch, CircuitBreaker, Delivery, Reject, Retries, RetryLater, RetryPolicy, Unavailable, pausing

SPEC: dict[str, Any] = json.loads(Path("spec.json").read_text())
SPEC["bootstrap"] = os.environ.get("STAGE_BOOTSTRAP", SPEC["bootstrap"])  # a worker may have a way of its own
TYPES = {"bytes": bytes, "dict": dict}
AS_GIVEN = (
    "tiers", "concurrency", "max_crashes", "deduplicate", "order", "on_dead", "payload", "redelivery", "rate_limit",
    "max_concurrent",
)  # fmt: skip
"""Settings of a handler that are arguments as they are."""

app = faust.App(
    SPEC["group"],
    broker=f"kafka://{SPEC['bootstrap']}",
    store="rocksdb://",
    broker_session_timeout=SPEC["session_timeout_s"],
    broker_heartbeat_interval=0.3,
    topic_partitions=SPEC["partitions"],
    topic_replication_factor=1,
    **SPEC["app_options"],
)
retries = Retries(app, **SPEC["options"])
sessions: list[aiohttp.ClientSession] = []


class ServiceError(Exception):
    """The service refused, for now."""


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else base64.b64encode(raw).decode()


async def call_service(topic: str, delivery: dict[str, Any]) -> None:
    """Report a delivery to the service and raise what its answer means."""
    if not sessions:
        sessions.append(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)))
    async with sessions[0].post(SPEC["service"], json={"topic": topic, "pid": os.getpid(), **delivery}) as response:
        if response.status == 422:
            raise Reject("the service will never take it")
        if "Retry-After" in response.headers:
            raise RetryLater(after=response.headers["Retry-After"])
        if response.status != 200:
            raise ServiceError(f"{response.status} from the service")


def _facts(delivery: Delivery) -> dict[str, Any]:
    return {
        "failure_id": delivery.failure_id,
        "attempt": delivery.attempt,
        "hot_attempt": delivery.hot_attempt,
        "replays": delivery.replays,
        "idempotency_key": delivery.idempotency_key,
        "fence": delivery.fence,
        "key": _text(delivery.key),
        "value": _text(delivery.raw_value),
        "headers": [(name, _text(raw)) for name, raw in delivery.headers],
        "timestamp_ms": delivery.timestamp_ms,
        "due_at_ms": delivery.due_at_ms,
    }


def declare(wanted: dict[str, Any]) -> None:

    async def handle(value: Any, delivery: Delivery) -> None:
        if wanted["value"] == "bytes" and value != delivery.raw_value:
            raise RuntimeError("a handler of bytes gets the bytes")
        if wanted["publishes"]:
            result = {"id": value["id"], "attempt": delivery.attempt, "idempotency_key": delivery.idempotency_key}
            delivery.publish(value.get("to", wanted["publishes"]), result, key=delivery.key)
        if isinstance(value, dict) and value.get("waits"):
            raise RetryLater(after=value["waits"])  # without asking: for very many that only have to wait
        try:
            await call_service(wanted["topic"], _facts(delivery))
        except ServiceError as error:
            if isinstance(value, dict) and value.get("needs"):
                raise Unavailable(value["needs"]) from error
            raise
        if isinstance(value, dict) and value.get("kills") == delivery.attempt:
            os.kill(os.getpid(), signal.SIGKILL)  # as a record does on which the process runs out of memory
        if isinstance(value, dict) and value.get("blocks_s") and delivery.attempt == 1:
            time.sleep(value["blocks_s"])  # noqa: ASYNC251 - holds the whole event loop, as a careless handler does

    async def handle_list(values: list[Any], deliveries: list[Delivery]) -> None:
        async def handle_one(value: Any, delivery: Delivery) -> None:
            try:
                await handle(value, delivery)
            except Exception as error:
                if value.get("poison"):
                    raise
                delivery.fail(error)

        await asyncio.gather(*(handle_one(*both) for both in zip(values, deliveries, strict=True)))

    batch, rules = wanted["batch"], [pausing(ServiceError)] if wanted["pauses"] else []
    declared = retries.handler(
        wanted["topic"],
        value=TYPES[wanted["value"]],
        policy=RetryPolicy(wanted["policy"], timeout=wanted["timeout"], hot=wanted["hot"], on=rules),
        circuit=CircuitBreaker(**wanted["circuit"]) if wanted["circuit"] else None,
        circuits={name: CircuitBreaker(**more) for name, more in wanted["circuits"].items()},
        publishes=[wanted["publishes"]] if wanted["declares"] else [],
        batch=Batch(batch, "200ms") if batch else None,
        **wanted["caps"],
        **{name: wanted[name] for name in AS_GIVEN},
    )
    declared(handle_list if batch else handle)


def arm(crash: dict[str, Any]) -> None:
    """Have this process end itself with SIGKILL at a call on a record's way.

    Args:
        crash: `point`: class or module (as in `places`) and function; `moment`: `before`, `during` or `after` the call;
            `holding`: what a call must be about to count: a transaction with a `first failure`, with the `outcome` of
            a due row, with the `mark` of suspects beside an offset that has moved, or with a record of the topic of
            this name; a handler's `due row`; or nothing; `after`: so many calls that count go well before.
    """
    from aiokafka import AIOKafkaProducer

    from retryapp.core.rows import decode_row
    from retryapp.engine.partition.scheduler import Scheduler
    from retryapp.ports import LaneBatch
    from retryapp.runtime.stores.pending import RocksPendingTable
    from retryapp.runtime.transport import KafkaTransport

    places: dict[str, Any] = {
        "KafkaTransport": KafkaTransport, "Producer": AIOKafkaProducer, "Table": RocksPendingTable,
        "Scheduler": Scheduler, "Program": sys.modules[__name__],
    }  # fmt: skip
    batch: ContextVar[Any] = ContextVar("batch", default=None)
    passed = 0

    def die() -> None:
        os.write(1, f"crash: {crash}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)

    def holds(wanted: str, arguments: tuple[Any, ...]) -> bool:
        if wanted == "due row":
            return bool(arguments[-1]["attempt"] > 1)
        made: Any = batch.get() or LaneBatch()
        firsts = [row.value is not None and decode_row(row.value).delivery == 1 for row in made.rows]
        mark = any(note[:1] in {"g", "s"} and made.offsets[tp] for tp, note in made.notes.items())
        found = {"": True, "first failure": any(firsts), "outcome": not all(firsts), "mark": mark}
        return found[wanted] if wanted in found else wanted in {out.topic for out in made.publishes}

    def counts(arguments: tuple[Any, ...]) -> bool:
        nonlocal passed
        held = holds(crash["holding"], arguments)
        passed += held
        return held and passed > crash["after"]

    @contextmanager
    def dying(arguments: tuple[Any, ...]) -> Iterator[None]:
        now = counts(arguments)
        if now and crash["moment"] == "before":
            die()
        if now and crash["moment"] == "during":
            asyncio.get_running_loop().call_later(0.002, die)
        yield
        if now:
            die()

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def plain(*args: Any, **options: Any) -> Any:
            with dying(args):
                return call(*args, **options)

        @functools.wraps(call)
        async def waiting(*args: Any, **options: Any) -> Any:
            with dying(args):
                return await call(*args, **options)

        return waiting if inspect.iscoroutinefunction(call) else plain

    commit = KafkaTransport.commit

    async def noted(self: Any, made: Any) -> Any:
        batch.set(made)
        return await commit(self, made)

    KafkaTransport.commit = noted  # type: ignore[method-assign]
    place, _, name = crash["point"].partition(".")
    setattr(places[place], name, wrap(getattr(places[place], name)))


if "crash" in SPEC:
    arm(SPEC["crash"])

for _wanted in SPEC["handlers"]:
    declare(_wanted)
