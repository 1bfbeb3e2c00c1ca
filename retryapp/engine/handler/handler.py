"""A handler: the user's function, its policy, its value type and its topics."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from types import MethodType, MethodWrapperType
from typing import Any, Final

from retryapp.core.batch import Batch
from retryapp.core.circuit import Circuit, CircuitBreaker, check_names
from retryapp.core.control import token_of
from retryapp.core.deduplicate import Deduplicate
from retryapp.core.errors import ConfigurationError, InvalidSettingError
from retryapp.core.holding import Holding
from retryapp.core.letters import Letter
from retryapp.core.masking import Mask
from retryapp.core.policy import RetryPolicy
from retryapp.core.rates import RateLimit
from retryapp.core.record import Headers, Origin, idempotency_key
from retryapp.core.text import counted
from retryapp.core.topology import HandlerTopology
from retryapp.core.values import keyword_value_type
from retryapp.engine.handler.orphans import MIN_ORPHANS, Orphans
from retryapp.engine.handler.places import Places
from retryapp.engine.handler.publish import Destinations, Publishing
from retryapp.engine.handler.results import check_result, discard, parts
from retryapp.engine.handler.threads import Ended, Threads
from retryapp.engine.handler.value_reader import ValueReader

logger = logging.getLogger("retryapp.events")

HandlerFunction = Callable[..., Any]


class Order(StrEnum):
    """Which records of a partition wait for those before them; see `engine.partition.sequences`."""

    NONE = "none"
    KEY = "key"
    LATEST = "latest"
    PARTITION = "partition"


class HandlerSignatureError(ConfigurationError):
    """A handler cannot be called with `(value)` or `(value, delivery)`."""

    def __init__(self, name: str, problem: str) -> None:
        self.name = name
        super().__init__(
            f"handler {name}: {problem}. Write it as `async def {name.rsplit('.', 1)[-1]}(value)`, or with a "
            f"second argument for the delivery"
        )


@keyword_value_type
class Delivery(Publishing):
    """What a handler may know of the record: declare a second argument to get it. It also publishes: see `publish`."""

    failure_id: str
    """`group/topic@id/partition/offset` of the first delivery; the same at every attempt. See `idempotency_key`."""
    attempt: int
    """Number of the attempt, counting what the policy counts; the first is 1. The same again after a delivery that
    spends none, and 1 anew after a replay."""
    number: int = 1
    """Number of this delivery of the record: it rises with each, whatever that spends, and never starts again."""
    fence: int = 0
    """Rises each time that a worker opens the partition; the same for all that it delivers until the next time.

    A worker that was stopped or cut off may still call a service when another one has its partition. A service that
    keeps the greatest one of each `origin.partition`, and refuses smaller ones, refuses it. It tells nothing of the
    order of records or attempts. It is an offset on the handler's changelog: numbers of another group or handler, or
    from before somebody has made that topic again, are not to be compared. Conditions of rules see 0 where the
    function takes no delivery.
    """
    hot_attempt: int = 1
    """Number of this try within the delivery; the first is 1, others follow with ``RetryPolicy(hot=…)``."""
    origin: Origin
    """Where the record was first delivered."""
    timestamp_ms: int
    """Original timestamp of the record, epoch milliseconds."""
    key: bytes | None
    raw_value: bytes | None
    """The value as it came, before decoding."""
    headers: Headers
    """The user's own headers, in order, duplicates kept."""
    due_at_ms: int | None = None
    """When this attempt was due, epoch milliseconds; None at the first attempt."""
    started_ms: int = 0
    """Begin of this attempt, epoch milliseconds."""
    first_failed_ms: int | None = None
    last_failed_ms: int | None = None
    last_error_type: str | None = None
    last_error_message: str | None = None
    replays: int = 0
    """How often the record was replayed from the dead-letter topic."""
    edited: int | None = None
    """Somebody has edited the record for a replay: how often with a new idempotency key; None: nobody has."""
    letter: Letter | None = None
    """Why the record died, for a handler of dead letters."""
    released: bool = False
    """The last delivery has raised `Defer`, and somebody has released the record since."""

    @property
    def idempotency_key(self) -> str:
        """36 ASCII characters (a UUID), the same at every attempt and in every replay, on every worker.

        ``-e1`` follows where somebody has edited the record and asked for a new key.
        Pass it to the services that the handler calls, so that a repeated attempt changes nothing twice. To act again
        in each replay, append `replays`.
        """
        return idempotency_key(self.failure_id, self.edited)

    @property
    def token(self) -> str:
        """What releases the record once this delivery has raised `Defer`; safe in a URL.

        Whoever has it may use it before that, too: the release is kept until the delivery has ended.
        """
        return token_of(self.failure_id, self.number)

    @property
    def lateness_ms(self) -> int | None:
        """Time from due to start in milliseconds; None at the first attempt."""
        return None if self.due_at_ms is None else self.started_ms - self.due_at_ms


DURATION_BOUNDS_S: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of the buckets of `Durations`, in seconds."""


class Durations:
    """How long a worker's deliveries were in the handler."""

    __slots__ = ("counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        """By bucket; the last one has no bound."""
        self.total_s = 0.0

    def note(self, duration_s: float) -> None:
        """Count a delivery, with its hot retries, or one call with a list of records."""
        self.counts[bisect_left(DURATION_BOUNDS_S, duration_s)] += 1
        self.total_s += duration_s

    @property
    def usual_s(self) -> float:
        """What all but one delivery in a hundred took at most, by the bounds of the buckets; 0 before the first."""
        enough = 0.99 * sum(self.counts)
        bounds = zip((0.0, *DURATION_BOUNDS_S, math.inf), accumulate((0, *self.counts)), strict=True)
        return next(bound_s for bound_s, count in bounds if count >= enough)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """A user's function for one main topic, with one policy."""

    function: HandlerFunction
    topology: HandlerTopology
    policy: RetryPolicy
    value_type: Any = bytes
    concurrency: int = 1
    """Handler runs at once per worker, counted apart for the main topic and for redeliveries."""
    max_in_flight: int = 1000
    """Records per source partition that are taken in and not settled yet."""
    max_in_flight_bytes: int = 16 * 1024 * 1024
    max_crashes: int = 3
    """How many workers may die running a record alone before it is dead-lettered as `crashed`."""
    by_reference: bool = False
    """What waits is on the main topic; the table has only where."""
    through_main: bool = False
    """What is due again is published to the main topic, and delivered once that is read so far."""
    order: Order = Order.NONE
    holding: Holding = field(default_factory=Holding)
    batch: Batch | None = None
    """How many records the function takes in one call, as a list; None: it takes one."""
    rate_limit: RateLimit | None = None
    """Of redeliveries, for the whole group; None: no limit."""
    max_concurrent: int | None = None
    """Runs of redeliveries at once per worker; None: `concurrency`."""
    circuit: CircuitBreaker | None = None
    """When it takes failures for an outage; None: never."""
    circuits: Mapping[str, CircuitBreaker] = field(default_factory=dict)
    """The same for services that rules and `Unavailable` name."""
    deduplicate: Deduplicate | None = None
    """What tells a producer's duplicates, which are skipped; None: nothing does."""
    mask: Mask | None = field(default=None, repr=False, compare=False)
    """What messages of errors are freed of; None: nothing."""
    destinations: Destinations | None = field(default=None, repr=False, compare=False)
    """Topics that it may publish to; None: it cannot."""
    values: ValueReader = field(init=False, repr=False, compare=False)
    takes_delivery: bool = field(default=False, init=False, repr=False, compare=False)
    wants_delivery: bool = field(default=True, init=False, repr=False, compare=False)
    """Whether a call needs the record's `Delivery`: the function takes it, or a thread is named by it."""
    timeout_s: float = field(default=0.0, init=False, repr=False, compare=False)
    tries_in_place: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether a delivery may try again in place: asked at each one that fails."""
    is_async: bool = field(default=True, init=False, repr=False, compare=False)
    """Whether the function is a coroutine function; plain functions run in a thread."""
    name: str = field(default="", init=False)
    policy_digest: str = field(default="", init=False, repr=False, compare=False)
    warned_of: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    """Predicates that have raised, and undeclared circuits that were named: each is logged once."""
    without_id: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)
    """Records whose event id could not be made, by type of the error."""
    known_circuits: dict[int, dict[str, Circuit]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By partition and name, the own one's is empty: what this worker knows, also of those that it has not now."""
    places: Mapping[str, Places] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Of the circuits that say how many runs go on at once."""
    durations: Durations = field(default_factory=Durations, init=False, repr=False, compare=False)
    orphans: Orphans = field(init=False, repr=False, compare=False)
    threads: Threads = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.batch is not None:
            if self.policy.tries_in_place:
                raise InvalidSettingError(
                    "batch",
                    self.batch,
                    "it cannot be combined with hot= of the policy: a list that fails is halved instead",
                )
            if self.order is Order.PARTITION:
                raise InvalidSettingError(
                    "batch", self.batch, "it cannot be combined with order='partition': one record runs at a time"
                )
            if self.batch.size > self.max_in_flight:
                raise InvalidSettingError(
                    "batch", self.batch, f"expected a size of at most max_in_flight={self.max_in_flight}"
                )
        check_names(self.circuits)
        for limit in ("rate_limit", "max_concurrent"):
            if self.circuit is not None and getattr(self.circuit, limit) is not None:
                problem = f"only circuits= have a {limit}; for all retries set {limit}= of the handler"
                raise InvalidSettingError("circuit", self.circuit.text, problem)
        for name, breaker in self.breakers.items():
            if self.order is Order.PARTITION:
                problem = "it cannot be combined with order='partition', where one record is tried at a time: a circuit"
                problem += " opens when different records fail. Use the policy 'forever(10s)' instead"
                raise InvalidSettingError("circuits" if name else "circuit", breaker.text, problem)
        for rule in self.policy.on:
            if rule.circuit and rule.circuit not in self.circuits:
                missing = f"circuits={{{rule.circuit!r}: CircuitBreaker()}}"
                problem = (
                    f"a rule names the circuit {rule.circuit!r}, and the handler has none of this name: add {missing}"
                )
                raise InvalidSettingError("circuits", [*self.circuits], problem)
        if self.policy.max_attempts is None and self.order not in (Order.KEY, Order.PARTITION):
            problem = "a schedule without end needs order='key' or order='partition', where other records wait"
            raise InvalidSettingError("policy", self.policy.text, problem)
        self.holding.check(self.order, drop=self.topology.drop)
        if self.by_reference and self.order is Order.LATEST:
            problem = (
                "it cannot be combined with order='latest': a newer record may replace one that is being read again"
            )
            raise InvalidSettingError("payload", "reference", problem)
        if self.by_reference and self.policy.longest_ms is None:
            problem = "with a schedule without end it needs max_elapsed=…: no topic keeps records without limit"
            raise InvalidSettingError("payload", "reference", problem)
        if self.through_main and (self.order is not Order.NONE or self.by_reference):
            problem = "it cannot be combined with order=, which it would not keep, or with payload='reference'"
            raise InvalidSettingError("redelivery", "main", problem)
        few = {name: each.max_concurrent for name, each in self.circuits.items() if each.max_concurrent is not None}
        if self.through_main and few:
            problem = (
                "with redelivery='main' they have no max_concurrent: what waits there for its turn would count, too"
            )
            raise InvalidSettingError("circuits", [*few], problem)
        object.__setattr__(self, "places", {name: Places(most) for name, most in few.items()})
        object.__setattr__(self, "policy_digest", self.policy.digest)
        object.__setattr__(self, "name", _name(self.function))
        body = body_of(self.function)
        if inspect.isclass(body):
            problem = "it is a class: a call makes an object and runs no method of it. Declare the bound method of an "
            problem += "object, as retries.handler(...)(obj.method)"
            raise HandlerSignatureError(self.name, problem)
        object.__setattr__(self, "takes_delivery", _takes_delivery(self.name, self.function))
        object.__setattr__(self, "values", ValueReader(self.name, self.value_type, body))
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise HandlerSignatureError(self.name, "it is a generator (it has a yield), so calling it runs nothing")
        object.__setattr__(self, "is_async", inspect.iscoroutinefunction(body))
        object.__setattr__(self, "timeout_s", self.policy.timeout_ms / 1000)
        object.__setattr__(self, "tries_in_place", self.policy.tries_in_place)
        object.__setattr__(self, "wants_delivery", self.takes_delivery or not self.is_async)
        first, again, ordered = self.concurrency, self.max_concurrent or self.concurrency, self.order is not Order.NONE
        object.__setattr__(self, "orphans", Orphans(max(MIN_ORPHANS, first, again), ordered=ordered))
        object.__setattr__(self, "threads", Threads(keep=first + again))

    @property
    def main(self) -> str:
        """Main topic."""
        return self.topology.main

    @property
    def group(self) -> str:
        """The consumer group."""
        return self.topology.group

    @property
    def breakers(self) -> Mapping[str, CircuitBreaker]:
        """All circuits by name; its own has an empty one."""
        return self.circuits if self.circuit is None else {"": self.circuit, **self.circuits}

    @property
    def pace(self) -> str:
        """What holds its deliveries back, for people; empty where nothing does."""
        parts = [] if self.rate_limit is None else [f"retries {self.rate_limit.text} in the whole group"]
        parts += (
            []
            if self.max_concurrent is None
            else [f"{counted(self.max_concurrent, 'retry', 'retries')} at once per worker"]
        )
        parts += [f"circuit {f'{name} ' * bool(name)}{breaker.text}" for name, breaker in self.breakers.items()]
        return "; ".join(parts)

    @property
    def manner(self) -> tuple[str, ...]:
        """What its declaration says besides the policy, for people."""
        order = "" if self.order is Order.NONE else f"order={self.order}"
        lists = "" if self.batch is None else f"lists of {self.batch.text}"
        payload = "payload=reference" if self.by_reference else ""
        again = "redelivery=main" if self.through_main else ""
        return tuple(filter(None, (order, self.holding.text, payload, again, lists, self.pace)))

    def decode(self, value: bytes | None) -> Any:
        """Decode a record's value, or raise `UndecodableError`."""
        return self.values.decode(value)


def unwrapped(function: HandlerFunction) -> HandlerFunction:
    """Return the function in a partial, or the function."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def body_of(function: HandlerFunction) -> HandlerFunction:
    """Return what runs when a handler is called: the function in a partial, the `__call__` of an object."""
    function = unwrapped(function)
    return function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__


def _name(function: HandlerFunction) -> str:
    function = unwrapped(function)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None) or '?'}.{named.__qualname__}"


def _called(function: Any) -> Any:
    """Return what takes a call's arguments: of a decorator that passes on any, what it wraps."""
    if isinstance(function, functools.partial):
        return functools.partial(_called(function.func), *function.args, **function.keywords)
    if inspect.ismethod(function):
        return MethodType(_called(function.__func__), function.__self__)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is None:
        return function if isinstance(function.__call__, MethodWrapperType) else _called(function.__call__)
    with suppress(ValueError):  # it is in C, as `functools.lru_cache`
        own = inspect.signature(function, follow_wrapped=False).parameters.values()
        if all(each.kind is not each.VAR_POSITIONAL for each in own):
            return function
    return _called(wrapped)


def _takes_delivery(name: str, function: HandlerFunction) -> bool:
    try:
        parameters = inspect.signature(_called(function), follow_wrapped=False).parameters
    except (TypeError, ValueError) as exc:
        raise HandlerSignatureError(name, f"its signature cannot be read ({exc})") from exc
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if positional and positional[0].name == "self":
        raise HandlerSignatureError(
            name, "it takes self: declare the bound method, as retries.handler(...)(obj.method)"
        )
    if any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters.values()):
        raise HandlerSignatureError(name, "it has keyword-only arguments without a default")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters.values()):
        return True
    required = sum(p.default is p.empty for p in positional)
    if not positional or required > 2:
        raise HandlerSignatureError(name, f"it takes {len(positional)} arguments")
    return required == 2 or (len(positional) >= 2 and positional[1].default is None)


async def call(handler: Handler, value: Any, given: Delivery | list[Delivery] | None, deadline_s: float) -> None:
    """Run the function once: coroutine functions here, plain ones in a thread; with a list, where that is its value.

    A plain function that is given up cannot be stopped: its thread goes on as an orphan. `deadline_s` is when its time
    is up, by the loop: a session may end long before that.

    Raises:
        HandlerResultError: it returned an error, or something that would still have to run.
        NoThreadError: the system has no further thread; the function was not started.
    """
    arguments = (value, given) if handler.takes_delivery else (value,)
    if given is None or handler.is_async:
        result = await handler.function(*arguments)
    else:
        result = await _in_thread(handler, arguments, given, deadline_s)
    if result is None:
        return
    if inspect.isawaitable(result):
        result = await result
    check_result(handler.name, result, parts(given))


async def _in_thread(
    handler: Handler, arguments: tuple[Any, ...], given: Delivery | list[Delivery], deadline_s: float
) -> Any:
    deliveries = [*given] if isinstance(given, list) else [given]  # the function may do anything to its list
    run = handler.threads.run(handler.function, *arguments, name=deliveries[0].failure_id)
    try:
        ended = await asyncio.shield(run)
    except asyncio.CancelledError:
        if not run.done():
            run.add_done_callback(_discard_result)
            abandon(handler, run, deliveries, deadline_s)
        raise
    if ended.error is not None:
        raise ended.error  # a StopIteration becomes a RuntimeError on its way, as from any coroutine (PEP 479)
    return ended.result


def _discard_result(run: asyncio.Future[Ended]) -> None:
    if not run.cancelled():
        discard(run.result().result)


def abandon(handler: Handler, run: asyncio.Future[Any], deliveries: list[Delivery], deadline_s: float) -> None:
    """Make a run that does not end an orphan, and log it, with the first of its records."""
    orphans, delivery = handler.orphans, deliveries[0]
    left_s = deadline_s - asyncio.get_running_loop().time()
    orphans.adopt(run, *(each.failure_id for each in deliveries), left_s=left_s)
    logger.warning("retryapp.run_abandoned", extra=_facts(handler, delivery, "was given up and goes on"))
    if orphans.full:
        logger.warning(
            "retryapp.handler_blocked",
            extra=_facts(handler, delivery, f"starts no new run until one of them has ended (limit {orphans.limit})"),
        )


def _facts(handler: Handler, delivery: Delivery, what: str) -> dict[str, object]:
    return {
        "handler": handler.main,
        "topic": delivery.origin.topic,
        "partition": delivery.origin.partition,
        "offset": delivery.origin.offset,
        "failure_id": delivery.failure_id,
        "attempt": delivery.attempt,
        "count": len(handler.orphans),
        "error_message": f"handler {handler.name} {what}",
    }
