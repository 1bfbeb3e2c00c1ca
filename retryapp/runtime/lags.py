"""How far the group has come on a main topic: what the broker says of the partitions here."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import TopicPartition as ClientTopicPartition
from aiokafka.errors import KafkaError

from retryapp.core.errors import BrokerUnreachableError
from retryapp.engine.lane.lane import LaneState
from retryapp.engine.worker.placement import Placed
from retryapp.ports import PartitionLag, TopicPartition
from retryapp.runtime.app import Runtime

TIMEOUT_S: Final = 2.0  # how long a page waits for the broker's offsets


async def ask_lags(runtime: Runtime, main: str, placed: Mapping[int, Placed]) -> Sequence[PartitionLag]:
    """Ask the brokers for the lag of partitions, those here by number; of one without a leader nobody knows it.

    Raises:
        BrokerUnreachableError: no broker has answered for a while, or none does in time.
    """
    # one that does not open lags most
    here = [number for number, each in placed.items() if each.lane.state in {LaneState.OPEN, LaneState.OPENING}]
    if not here:
        return []
    if (silence := runtime.contact.silence()) is not None:
        raise _unreachable(runtime, silence)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            offsets = await _offsets(runtime, main, [ClientTopicPartition(main, number) for number in here])
    except TimeoutError as exc:
        raise _unreachable(runtime, f"offsets did not come within {TIMEOUT_S:g} s") from exc
    except (KafkaError, RuntimeError) as exc:  # RuntimeError: the consumer has ended meanwhile
        raise _unreachable(runtime, str(exc) or type(exc).__name__) from exc
    return [
        _lag(runtime, main, number, offsets) for number in here if ClientTopicPartition(main, number) in offsets.ends
    ]


def _unreachable(runtime: Runtime, problem: str) -> BrokerUnreachableError:
    return BrokerUnreachableError(runtime.connection.bootstrap, problem)


class _Offsets(NamedTuple):
    """What the broker says of partitions of a main topic, by partition."""

    committed: Mapping[ClientTopicPartition, int]
    ends: Mapping[ClientTopicPartition, int]
    positions: Mapping[ClientTopicPartition, int]
    young: Mapping[ClientTopicPartition, int]
    """The first offset whose record is younger than half of the topic's retention; empty where it keeps all."""


async def _offsets(runtime: Runtime, main: str, client_tps: Sequence[ClientTopicPartition]) -> _Offsets:
    retention_ms = runtime.served[main].deletes_after_ms
    # looked at here: before the consumer's thread answers, a rebalance may have taken them away
    moving = {tp for tp in client_tps if runtime.placed[tp.topic, tp.partition].lane.state is LaneState.OPEN}

    async def ask(client: Any) -> _Offsets:
        cluster = client._client.cluster  # noqa: SLF001 - there is no other way to ask
        # with one that has no leader the client would ask for all of them until it has one
        led = [tp for tp in client_tps if cluster.leader_for_partition(tp) not in (None, -1)]
        if not led:
            return _Offsets({}, {}, {}, {})
        # the public call for committed offsets asks for one partition at a time
        committed = await client._coordinator.fetch_committed_offsets(led)  # noqa: SLF001
        ends = await client.end_offsets(led)  # of committed records: the consumer reads no others
        mine = client.assignment() & moving  # others may have none yet
        positions = {tp: await client.position(tp) for tp in led if tp in mine}
        young: dict[ClientTopicPartition, int] = {}
        if retention_ms is not None:
            half_ms = runtime.clock.wall_ms() - retention_ms // 2
            first = await client.offsets_for_times(dict.fromkeys(led, half_ms))
            young = {tp: ends[tp] if at is None else at.offset for tp, at in first.items()}
        return _Offsets({tp: at.offset for tp, at in committed.items() if at.offset >= 0}, ends, positions, young)

    found: _Offsets = await runtime.consumer.in_thread(ask)
    return found


def _lag(runtime: Runtime, main: str, number: int, offsets: _Offsets) -> PartitionLag:
    committed, ends, positions, young = offsets
    tp, placed = TopicPartition(main, number), runtime.placed.get((main, number))
    client_tp = ClientTopicPartition(*tp)
    end, at = int(ends.get(client_tp, 0)), committed.get(client_tp)
    is_open = placed is not None and placed.lane.state is LaneState.OPEN
    idle = placed is not None and not placed.engine.in_flight and placed.lane.refusal is None
    done = is_open and idle and not runtime.intake.waiting(tp) and positions.get(client_tp, -1) >= end
    lag = 0 if done else max(0, end - int(at or 0))
    expiring = bool(lag) and at is not None and at < young.get(client_tp, 0)
    return PartitionLag(partition=number, committed=at, main=lag, expiring=expiring)
