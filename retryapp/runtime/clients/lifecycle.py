"""What the Kafka clients of a worker's lanes share: settings, slow reconnects, and a bounded end.

Without a broker the client library's own `stop` never returns, and a cancelled `stop` leaks tasks and sockets. `end`
gives it a moment and then takes the client apart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from time import monotonic
from typing import Any

import aiokafka.client
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.client import CoordinationType
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    ProducerClosed,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.sender import BACKOFF_OVERRIDE, AddPartitionsToTxnHandler, SendProduceReqHandler
from mode.utils.logging import get_logger
from typing_extensions import override

from retryapp.core.lane_errors import MarkersLateError, TopicGoneError

logger = get_logger(__name__)

COMPRESSION = "zstd"  # if the app names none: headers repeat in each record, and the client's lz4 takes twice the time
MARKERS_S = 0.002
STOP_S = 0.3  # how long a client may take to stop by itself: what a closing lane has not committed is not needed
_FORCE_S = 1.0
_RECONNECT_S = 0.5
_LASTING_S = 2.0
TOO_FEW_COPIES = (NotEnoughReplicasError, NotEnoughReplicasAfterAppendError)
REFUSED_S = 12.0  # shorter than a transaction may last: its end would hide from the lane what it waited for
_UNKNOWN = UnknownTopicOrPartitionError.errno
MARKERS_LATE_S = 25.0  # shorter than the lane's own deadline of a commit, whose error would name no cause
_ending: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings that every client of a lane shares."""

    connection: Mapping[str, Any]
    """Address and security, as keyword arguments of aiokafka."""
    client_id: str
    request_timeout_ms: int
    max_batch_size: int
    """No more than the smallest `max.message.bytes` of our topics: the client never splits a batch."""
    max_request_size: int
    compression_type: str = COMPRESSION


class _FirstRefusals(logging.Filter):
    """Passes "not enough replicas" warnings only if they last for `_LASTING_S`.

    A broker also answers so when a transaction begins before the former's markers are written (KIP-890).
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[object, tuple[float, float]] = {}

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if not isinstance(record.args, tuple) or NotEnoughReplicasError not in record.args:
            return True
        first_s, last_s = self._seen.get(record.args[0], (record.created, 0.0))
        if record.created - last_s > 1.0:
            first_s = record.created
        self._seen[record.args[0]] = (first_s, record.created)
        return record.created - first_s > _LASTING_S


logging.getLogger("aiokafka.producer.sender").addFilter(_FirstRefusals())


def survive_failed_logins() -> None:
    """Have all clients of this process try again after any error of a login; may be called again.

    The library expects errors of its own and of the system. Another one, as of the app's token provider, ends its task
    that refreshes metadata, silently: a partition whose leader moves is not read any more.
    """
    aiokafka.client.create_conn = _connect


async def _connect(*args: Any, **options: Any) -> Any:
    connection = AIOKafkaConnection(*args, **options)  # an error of it would come each time
    try:
        await connection.connect()
    except (OSError, KafkaError):
        raise
    except Exception as exc:
        raise KafkaConnectionError(f"could not connect: {exc!r}") from exc
    return connection


def reconnect_slowly(producer: AIOKafkaProducer) -> None:
    """Pause after a failed connection: the short back-off of transactions would try 100 times a second."""
    connect = producer.client._get_conn

    async def patient(*args: Any, **kwargs: Any) -> Any:
        found = await connect(*args, **kwargs)
        if found is None:
            await asyncio.sleep(_RECONNECT_S)
        return found

    producer.client._get_conn = patient


def begin_promptly(producer: AIOKafkaProducer) -> None:
    """Ask every `MARKERS_S` whether the former transaction's markers are written; the client's 20 ms are for all.

    Measured with transactions one after the other: p50 12 ms instead of 30. Most are not: a lane rests in between.
    Markers that are not written after `MARKERS_LATE_S` fail the transaction with `MarkersLateError`; so does, after
    `REFUSED_S`, a topic that is not there, with `TopicGoneError`: the client would ask for it again without end.
    """
    sender = producer._sender
    waiting_for: str | None = None
    waiting_since_s = 0.0

    async def add_partitions(tps: Any) -> Any:
        name = sender._txn_manager.transactional_id
        node_id = await sender._find_coordinator(CoordinationType.TRANSACTION, name)
        handler = AddPartitionsToTxnHandler(sender, tps)
        answer = handler.handle_response

        def answered(response: Any) -> Any:
            nonlocal waiting_for, waiting_since_s
            pause_s = answer(response)
            gone = [topic for topic, answers in response.errors if any(code == _UNKNOWN for _, code in answers)]
            if not gone and pause_s != BACKOFF_OVERRIDE:
                waiting_for = None
                return pause_s
            now_s, what = monotonic(), gone[0] if gone else "markers"
            if waiting_for != what:
                waiting_for, waiting_since_s = what, now_s
            if now_s - waiting_since_s > (REFUSED_S if gone else MARKERS_LATE_S):
                sender._txn_manager.error_transaction(TopicGoneError(what) if gone else MarkersLateError(name))
                return None
            return pause_s if gone else MARKERS_S

        handler.handle_response = answered
        return await handler.do(node_id)

    sender._do_add_partitions_to_txn = add_partitions


def give_up_on_few_copies(producer: AIOKafkaProducer) -> None:
    """Fail a batch that is refused for `REFUSED_S` because too few copies are in sync.

    The client tries again without end, until the broker ends the transaction and the lane hears that it was fenced.
    """
    sender = producer._sender

    async def send(node_id: int, batches: Mapping[Any, Any]) -> None:
        handler = SendProduceReqHandler(sender, batches)
        can_retry = handler._can_retry
        handler._can_retry = lambda error, batch: (
            can_retry(error, batch)
            and not (isinstance(error, TOO_FEW_COPIES) and monotonic() - batch._ctime > REFUSED_S)
        )
        await handler.do(node_id)
        sender._in_flight.remove(node_id)
        sender._muted_partitions.difference_update(batches)

    sender._send_produce_req = send


def send_nothing_unannounced(producer: AIOKafkaProducer) -> None:
    """Never send records for partitions that a failed transaction has not announced.

    The client library releases them when the transaction fails. Where the markers of the former transaction are not
    written yet, a broker takes them for records of that one, and they are committed with it.
    """
    sender, manager = producer._sender, producer._txn_manager
    fail = manager.error_transaction

    def error_transaction(exc: Exception) -> None:
        sender._muted_partitions.update(manager.partitions_to_add())
        fail(exc)

    manager.error_transaction = error_transaction


def end(client: AIOKafkaProducer | AIOKafkaConsumer, name: str) -> asyncio.Task[None]:
    """Start a task that ends a client, whatever its state.

    It takes at most `STOP_S` and a second, never fails, and goes on when its waiter is cancelled.
    """
    task = asyncio.create_task(_end(client, name), name=f"end-{name}")
    _ending.add(task)  # the loop itself holds no task
    task.add_done_callback(_ending.discard)
    return task


async def _end(client: AIOKafkaProducer | AIOKafkaConsumer, name: str) -> None:
    stopping = asyncio.create_task(client.stop(), name=f"stop-{name}")
    await asyncio.wait({stopping}, timeout=STOP_S)
    if not stopping.done():
        why = f"not done after {STOP_S:g} s"
    elif stopping.cancelled():
        why = "cancelled by a task of its own"
    elif (error := stopping.exception()) is not None:
        why = repr(error)
    else:
        if isinstance(client, AIOKafkaProducer):  # one that was fenced or refused has failed what it had not sent
            _fail_batches(client._message_accumulator)
        return
    logger.info("Client %s did not stop by itself (%s): it is taken apart", name, why)
    stopping.cancel()
    try:
        async with asyncio.timeout(_FORCE_S):
            await (_dismantle_producer if isinstance(client, AIOKafkaProducer) else _dismantle_consumer)(client)
            await _outlive({stopping})
    except Exception as exc:  # noqa: BLE001 - a library in an unknown state
        logger.info("Client %s left something behind: %r", name, exc)


async def _dismantle_producer(producer: AIOKafkaProducer) -> None:
    sender: asyncio.Task[None] | None = producer._sender.sender_task
    if sender is not None:
        sender.remove_done_callback(producer._sender._fail_all)  # of its transaction, which nothing awaits any more
        sender.cancel()
    try:
        await _disconnect(producer.client)
        await _outlive({sender} if sender is not None else set())
    finally:
        _fail_batches(producer._message_accumulator)  # last: a request that ends puts its batch back


def _fail_batches(accumulator: Any) -> None:
    """Fail all records that were not sent, without log lines for those that nothing awaits."""
    batches = [*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches]
    accumulator._pending_batches.update(batches)  # a batch that was put back takes itself out of there when it is done
    accumulator.fail_all(ProducerClosed())
    for batch in batches:
        for future in (batch.future, batch._drain_waiter, *(future for future, _ in batch._msg_futures)):
            if future.done() and not future.cancelled():
                future.exception()


async def _dismantle_consumer(consumer: AIOKafkaConsumer) -> None:
    tasks: set[asyncio.Task[Any]] = set()
    if consumer._fetcher is not None:
        tasks |= {consumer._fetcher._fetch_task, *consumer._fetcher._pending_tasks}
    coordinating = getattr(consumer._coordinator, "_reset_committed_task", None)  # that of a consumer without a group
    if coordinating is not None:
        tasks.add(coordinating)
    for task in tasks:
        task.cancel()
    await _disconnect(consumer._client)
    await _outlive(tasks)


async def _disconnect(client: Any) -> None:
    """Close all connections for good: a task of the client that asks for one again ends as cancelled."""

    async def refuse(*_: Any, **_named: Any) -> Any:
        raise asyncio.CancelledError

    def no_update() -> asyncio.Future[bool]:
        refused: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        refused.cancel()
        return refused

    client._get_conn = refuse
    client.force_metadata_update = no_update
    try:
        await client.close()
    finally:
        if client._md_update_fut is not None:
            client._md_update_fut.cancel()  # its waiters would never end


async def _outlive(tasks: set[asyncio.Task[Any]]) -> None:
    """Wait until cancelled tasks are done; one that swallowed it is cancelled again."""
    while tasks:
        done, tasks = await asyncio.wait(tasks, timeout=_FORCE_S / 10)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved, or asyncio logs it
        for task in tasks:
            task.cancel()
