"""Publish records of handlers in the turn of their record, all or none.

Life of a publication:

1. `Publishing.publish`, in the handler, from its task or from any thread, checks what can be checked at once; the
   record waits in the run's `Outbox`.
2. The handler fails: the outbox is closed and dropped. It succeeds: the outbox is closed and emptied (`Outbox.take`);
   topics without a recent look are looked at, outside any transaction; a record that its topic does not take fails the
   attempt.
3. The records join the record's turn, so they become visible with its offset or not at all.
4. If the turn is dropped (the lane failed, the partition moved), their topics are doubted, since one of them may be the
   cause: the next publish to them begins with a look.

An outbox belongs to one run and takes nothing after its end: it would belong to no record.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple

from pydantic_core import PydanticSerializationError, to_json

from retryapp.core.errors import (
    DestinationError,
    InvalidTopicNameError,
    LatePublishError,
    PublishRefusedError,
    RetryAppError,
)
from retryapp.core.hops import record_size
from retryapp.core.publication import Destination, Publication
from retryapp.core.record import Headers
from retryapp.core.topology import check_name
from retryapp.ports import Clock, DestinationReader, Event, Observation, Random

MAX_RECORDS: Final = 10_000
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_DESTINATIONS: Final = 10_000


class LateFailError(RetryAppError):
    """A task or thread that outlived its handler says that a record has failed: that attempt is over."""

    def __init__(self, failure_id: str) -> None:
        self.failure_id = failure_id
        super().__init__(f"the run of the handler that was given {failure_id} is over: await in the handler what fails")


class Destinations:
    """The topics that the handlers of a worker publish to, each looked at from time to time."""

    def __init__(self, reader: DestinationReader, clock: Clock, ours: Callable[[], Collection[str]]) -> None:
        self.lock = threading.Lock()
        """Held while an outbox takes a record or is closed."""
        self._reader = reader
        self._clock = clock
        self._ours = ours
        self._known: dict[str, Destination] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}

    def of(self, topic: str) -> Destination:
        """Return a destination, looked at or not, or raise `PublishRefusedError`. Thread-safe."""
        found = self._known.get(topic)
        if found is None:
            try:
                check_name(topic)
            except (InvalidTopicNameError, TypeError) as exc:
                raise PublishRefusedError(topic, f"no name of a topic: {exc}") from None
            if topic in self._ours():
                raise PublishRefusedError(topic, "this topic is retryapp's own; its records would be taken for ours")
            with self.lock:
                while len(self._known) >= MAX_DESTINATIONS:
                    del self._known[next(iter(self._known))]
                found = self._known.setdefault(topic, Destination(topic))
        return found

    def fresh(self, destination: Destination) -> bool:
        """Tell whether the last look is still valid; raise a known problem as `DestinationError`."""
        if not destination.fresh(self._clock.monotonic_s()):
            return False
        if destination.problem is not None:
            raise DestinationError(destination.topic, destination.problem)
        return True

    async def look(self, destination: Destination) -> None:
        """Look at a topic, or raise `DestinationError`; concurrent callers share one look."""
        topic = destination.topic
        task = self._looks.get(topic)
        if task is None:
            task = self._looks[topic] = asyncio.create_task(self._look(destination), name=f"look-at-{topic}")
            task.add_done_callback(lambda _: self._looks.pop(topic, None))
        await asyncio.shield(task)  # a cancelled caller leaves the look to the others
        if destination.problem is not None:
            raise DestinationError(topic, destination.problem)

    async def _look(self, destination: Destination) -> None:
        """Look; on an error, an earlier look without contradiction stays valid a little longer."""
        try:
            seen = await self._reader.look(destination.topic)
        except Exception as exc:  # noqa: BLE001 - the edge of a client library: whatever it is, the attempt has failed
            if destination.doubted or not destination.partitions:
                destination.deny(f"it could not be looked at ({exc})", self._clock.monotonic_s())
            else:
                destination.prolong(self._clock.monotonic_s())
            return
        destination.see(seen, self._clock.monotonic_s())


class _Wish(NamedTuple):
    destination: Destination
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    size: int


class Outbox:
    """What one run of a handler publishes."""

    __slots__ = ("_closed", "_destinations", "_max_bytes", "_size", "_wishes", "failed", "name", "published")

    def __init__(self, destinations: Destinations | None, name: str, max_bytes: int) -> None:
        self.name = name
        self.published: tuple[Publication, ...] = ()
        """Its content, once its run has succeeded."""
        self.failed: BaseException | None = None
        """What its handler says that its record failed with."""
        self._destinations = destinations
        self._max_bytes = max_bytes
        self._wishes: list[_Wish] | None = None
        self._size = 0
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # None in a copy or another process

    def put(
        self, topic: str, value: Any, key: bytes | None, headers: Iterable[tuple[str, bytes | None]], partition: Any
    ) -> None:
        """Take a record, in any thread. See `Publishing.publish`."""
        if self._destinations is None:
            raise PublishRefusedError(
                topic, "this handler runs without a worker (retryapp.testing has MemoryPartition)"
            )
        destination = self._destinations.of(topic)
        wish = _wish(destination, value, key, headers, partition)
        if wish.size > self._max_bytes:
            raise PublishRefusedError(
                topic, f"the record takes {wish.size} bytes, and a lane's producer takes at most {self._max_bytes}"
            )
        if self._destinations.fresh(destination):
            _check(wish)
        with self._destinations.lock:
            if self._closed:  # looked at here only: the run may end while a thread is on its way to this line
                raise LatePublishError(
                    topic,
                    f"the run of the handler that was given {self.name} is over, and what it published has its fate. "
                    f"Await in the handler what publishes",
                )
            if self._wishes is None:
                self._wishes = []
            if len(self._wishes) >= MAX_RECORDS:
                raise PublishRefusedError(topic, f"one attempt publishes at most {MAX_RECORDS} records")
            if self._wishes and self._size + wish.size > MAX_BYTES:
                raise PublishRefusedError(topic, f"one attempt publishes at most {MAX_BYTES} bytes")
            self._wishes.append(wish)
            self._size += wish.size

    def fail(self, error: BaseException) -> None:
        """Take what the record has failed with, in any thread."""
        if self._destinations is None:
            self.failed = error
            return
        with self._destinations.lock:
            if self._closed:
                raise LateFailError(self.name)
            self.failed = error

    def close(self) -> bool:
        """Take nothing more; tell whether there is content."""
        if self._destinations is None:
            return False
        with self._destinations.lock:
            self._closed = True
        return self._wishes is not None

    def drop(self) -> None:
        """Take nothing more, and forget what was taken: the call has raised."""
        self.close()
        self.failed = None  # it may hold its caller, whose variables hold this: a ring, as in `DeliveryPool._call`

    @property
    def empty(self) -> bool:
        """Whether a closed box has nothing to say."""
        return self._wishes is None and self.failed is None

    async def take(self, random: Random) -> None:
        """Set `published` from the closed box, in order, each with its partition, or raise `PublishError`."""
        wishes, self._wishes = self._wishes, None
        if self._destinations is None or wishes is None:
            return
        for destination in {wish.destination.topic: wish.destination for wish in wishes}.values():
            if not self._destinations.fresh(destination):
                await self._destinations.look(destination)
        self.published = tuple([_publication(wish, random) for wish in wishes])


class Publishing:
    """The part of a `Delivery` that lets its handler publish; none of its data."""

    __slots__ = ("outbox",)
    outbox: Outbox | None

    def publish(
        self,
        topic: str,
        value: Any,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
        partition: int | None = None,
    ) -> None:
        """Publish a record in the transaction of this attempt's success, or not at all. Returns at once; thread-safe.

        Args:
            topic: an existing topic that is not retryapp's own.
            value: bytes; None for a null value (a tombstone); or a pydantic model, dict or list, sent as the JSON that
                `value=` of a handler reads. Text is refused: pass `text.encode()`.
            key: bytes or None.
            headers: pairs of name and bytes.
            partition: its number; None: that of the key (as Kafka's default partitioner chooses), or any.

        Raises:
            PublishRefusedError: this record cannot be published.
            DestinationError: the topic does not take it. Found after the handler has ended, this fails the attempt.
            LatePublishError: the handler has ended.
        """
        outbox: Outbox | None = getattr(self, "outbox", None)
        if outbox is None:
            raise PublishRefusedError(
                topic, "no worker has made this delivery (retryapp.testing has MemoryPartition for tests)"
            )
        outbox.put(topic, value, key, headers, partition)

    def fail(self, error: BaseException) -> None:
        """Have the record fail with an error as if it had been raised, and others of its batch not. Thread-safe.

        Raises:
            LateFailError: the handler has ended.
            TypeError: that is no exception.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"fail() takes an exception, not {type(error).__qualname__}")
        outbox: Outbox | None = getattr(self, "outbox", None)
        if outbox is None:
            raise error  # no worker has made this delivery: a test sees it
        caller = inspect.currentframe()
        if error.__traceback__ is None and caller is not None and (caller := caller.f_back) is not None:
            # never raised: people and causes go by the line that says so, not by ours that raises it later
            error.__traceback__ = TracebackType(None, caller, caller.f_lasti, caller.f_lineno)
        outbox.fail(error)


def give_up(publications: Sequence[Publication]) -> Callable[[bool, tuple[int, ...]], None]:
    """Return the `Turn.on_settled` that doubts the topics of a dropped turn."""

    def settled(committed: bool, _offsets: tuple[int, ...]) -> None:
        if not committed:
            for publication in publications:
                publication.destination.doubt(publication.partition)

    return settled


def announced(handler: str, publications: Sequence[Publication]) -> tuple[Observation, ...]:
    """Return one observation for each topic, for a committed turn."""
    if not publications:  # as of most deliveries
        return ()
    counts = Counter(publication.topic for publication in publications)
    return tuple(
        Observation(event=Event.PUBLISHED, handler=handler, topic=topic, count=count) for topic, count in counts.items()
    )


def _wish(
    destination: Destination,
    value: Any,
    key: bytes | None,
    headers: Iterable[tuple[str, bytes | None]],
    partition: Any,
) -> _Wish:
    topic = destination.topic
    if key is not None and not isinstance(key, bytes):
        raise PublishRefusedError(topic, f"key is {type(key).__qualname__}, expected bytes or None")
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise PublishRefusedError(topic, f"partition is {partition!r}, expected a number from 0 on, or None")
    content, pairs = _bytes(topic, value), _pairs(topic, headers)
    return _Wish(destination, partition, key, content, pairs, record_size(key, content, pairs))


def _bytes(topic: str, value: Any) -> bytes | None:
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        raise PublishRefusedError(topic, "value is str: say value.encode() for text, or give a dict or model for JSON")
    try:
        return to_json(value)
    except (PydanticSerializationError, ValueError, RecursionError) as exc:  # its message may quote the value
        raise PublishRefusedError(
            topic,
            f"value is {type(value).__qualname__}, expected bytes, None or what becomes JSON ({type(exc).__name__})",
        ) from None


def _pairs(topic: str, headers: Iterable[Any]) -> Headers:
    pairs = []
    for pair in headers:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise PublishRefusedError(topic, "headers are pairs of a name and bytes: (('trace', b'1'),)")
        name, content = pair
        if not isinstance(name, str) or not (content is None or isinstance(content, bytes)):
            raise PublishRefusedError(topic, f"header {name!r} is not a text with bytes or None")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise PublishRefusedError(topic, f"header name {name!r} is not UTF-8, and no client sends it") from None
        pairs.append((name, content))
    return tuple(pairs)


def _check(wish: _Wish) -> None:
    objection = wish.destination.objection(wish.key, wish.partition, wish.size)
    if objection is not None:
        raise PublishRefusedError(wish.destination.topic, objection)


def _publication(wish: _Wish, random: Random) -> Publication:
    _check(wish)
    destination, partition = wish.destination, wish.partition
    if partition is None:
        partition = destination.partition_for(wish.key, random.random() if wish.key is None else 0.0)
    if (why := destination.closed.get(partition)) is not None:
        raise DestinationError(destination.topic, f"partition {partition} takes no records now: {why}")
    return Publication(destination.topic, partition, wish.key, wish.value, wish.headers, destination)
