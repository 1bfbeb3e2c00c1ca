"""The plain loop: aiokafka, one retry topic of one fixed delay, pause the partition until its head is due.

1. main: fetch a batch, call the handler; what fails is sent to the retry topic with its due time in a header; wait for
   the acknowledgements; commit;
2. retry: fetch; a record that is not due yet: pause its partition, seek back to it, resume when it is due; else call
   the handler, send what fails again, commit.

At least once. One delay per topic, because a partition's records must be due in their order; no look-up, no other
delay by record, no attempts limit, no dead letters.
"""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from benchmarks.peers.handler import DownError, handle, spec


async def attempt(producer: Any, record: Any) -> Any:
    """Call the handler; return the acknowledgement to wait for when it failed."""
    try:
        await handle(record.value)
    except DownError:
        due_ms = time.time_ns() // 1_000_000 + spec.delay_ms
        return await producer.send(
            spec.retry_topic,
            record.value,
            key=record.key,
            partition=record.partition,
            headers=[("due-ms", b"%d" % due_ms)],
        )
    return None


async def work_main(consumer: Any, producer: Any) -> None:
    """Take the main topic in."""
    while True:
        batches = await consumer.getmany(timeout_ms=200, max_records=1000)
        sends = [await attempt(producer, record) for batch in batches.values() for record in batch]
        await asyncio.gather(*(send for send in sends if send is not None))
        if batches:
            await consumer.commit()


async def work_retries(consumer: Any, producer: Any) -> None:
    """Take the retry topic in, each record when it is due."""
    loop = asyncio.get_running_loop()
    while True:
        batches = await consumer.getmany(timeout_ms=50, max_records=1000)
        done: dict[TopicPartition, int] = {}
        sends = []
        for tp, batch in batches.items():
            for record in batch:
                wait_s = (int(record.headers[0][1]) - time.time_ns() // 1_000_000) / 1000
                if wait_s > 0:
                    consumer.pause(tp)
                    consumer.seek(tp, record.offset)
                    loop.call_later(wait_s, consumer.resume, tp)
                    break
                sends.append(await attempt(producer, record))
                done[tp] = record.offset + 1
        await asyncio.gather(*(send for send in sends if send is not None))
        if done:
            await consumer.commit(done)


def consumer_of(topic: str, group: str) -> Any:
    return AIOKafkaConsumer(
        topic,
        bootstrap_servers=spec.bootstrap,
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )


async def main() -> None:
    producer = AIOKafkaProducer(bootstrap_servers=spec.bootstrap, acks="all", enable_idempotence=True, linger_ms=5)
    main_topic = consumer_of(spec.topics[0], spec.group)
    retry_topic = consumer_of(spec.retry_topic, f"{spec.group}-again")
    clients = (producer, main_topic, retry_topic)
    for client in clients:
        await client.start()
    tasks: list[asyncio.Task[Any]] = [
        asyncio.create_task(work_main(main_topic, producer)),
        asyncio.create_task(work_retries(retry_topic, producer)),
    ]
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    ended, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in reversed(clients):
        await client.stop()
    for task in ended:
        task.result()


if __name__ == "__main__":
    asyncio.run(main())
