"""`Retries(app)`: retries for the handlers of a Faust app, without subclassing it.

    app = faust.App("billing", broker="kafka://localhost:9092", store="rocksdb://")
    retries = Retries(app)

    @retries.handler("orders", value=Order, policy=RetryPolicy("5m*2 30m*3 1h"))
    async def charge(order: Order) -> None: ...

The decorated function is returned unchanged, so a unit test can call it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeVar, cast

import faust
from faust.types.agents import AgentT
from pydantic import ValidationError

from retryapp import web
from retryapp.core.batch import Batch
from retryapp.core.checks import check_count, check_kind, check_word, problem_text
from retryapp.core.circuit import CircuitBreaker
from retryapp.core.control import MAX_WORDS, Command, Edit, Verb, named_by
from retryapp.core.deduplicate import Deduplicate, EventId
from retryapp.core.durations import Duration, named_duration_ms
from retryapp.core.errors import DamagedMetadataError, InvalidSettingError
from retryapp.core.jobs import HANDLER_VERBS
from retryapp.core.lifecycle import Commanded
from retryapp.core.masking import UNMASKED, parse_mask
from retryapp.core.policy import RetryPolicy
from retryapp.core.record import parse_failure_id
from retryapp.core.topology import HandlerTopology, Tiers, check_names, letters_topic
from retryapp.engine.handler.declared import check_value, handler_fields, topology_fields
from retryapp.engine.handler.handler import Delivery, Handler, HandlerSignatureError, Order
from retryapp.engine.handler.publish import Destinations
from retryapp.kafka import KafkaConnection, PlanOptions
from retryapp.kafka.commands import send_commands
from retryapp.lookup.decoding import Decoder, Decoding
from retryapp.lookup.handler_jobs import HandlerJobs, check_reason
from retryapp.lookup.jobs import Words, tell_handler
from retryapp.runtime.app import Runtime
from retryapp.runtime.options import RuntimeOptions
from retryapp.runtime.view import RuntimeView
from retryapp.runtime.worker import RetryWorker, end_faust_on_named_errors, refuse_at_discovery, runtime_of
from retryapp.settings import load_settings
from retryapp.web.access import LoginHook, parse_operators

__all__ = ["Delivery", "Retries"]

F = TypeVar("F", bound=Callable[..., Any])


class Retries:
    """Extends a Faust app: declares handlers, and runs them when the app's worker runs.

    Args:
        app: any Faust app, not running yet. One `Retries` per app.
        grace: how long handlers may continue after SIGTERM; then they are cancelled, and their records go to the next
            owner. Default: `RETRYAPP_GRACE`.
        drain: the same when a rebalance takes their partition away.
        start_timeout: how long a start waits for a broker before it gives up (exit 3).
        create_main_partitions: partitions of main topics, and of topics that handlers publish to (`publishes=`), that
            are created if missing; None: a missing one is an error.
        allow_low_replication: accept fewer than three copies of our topics on three or more brokers.
        downtime: longest time that all workers may be down; the doctor compares retentions with it.
        dlq_retention: how long dead letters are kept; None: no limit. Default: 30 days.
        admin_options: librdkafka properties for the administration client, for what the app's credentials do not hold
            (`ssl.ca.location` with TLS).
        login: says who asks for a page, besides tokens and proxies: takes the aiohttp request, returns a name and
            `look`, `operate` or `admin`, or None. Async, or a plain function, which runs in a thread; 5 s at most.
        decoder: makes keys and values (Avro, Protobuf, encrypted) readable for people and for the search by field, on
            pages, in the API and in commands with `-A`; handlers get the bytes. A plain function of the bytes and a
            `confluent_kafka.serialization.SerializationContext` (`topic`, `field`, `headers`), as that package's
            deserializers; it returns text, bytes or what JSON can show, or None to leave them as they are. It runs in a
            thread, 2 s at most.

    Raises:
        InvalidSettingError: the app has a `Retries` already, or an argument is out of range.
    """

    def __init__(
        self,
        app: faust.App,
        *,
        grace: Duration | None = None,
        drain: Duration = "5s",
        start_timeout: Duration = "60s",
        create_main_partitions: int | None = None,
        allow_low_replication: bool = False,
        downtime: Duration = "7d",
        dlq_retention: Duration | None = "30d",
        admin_options: Mapping[str, str] | None = None,
        login: LoginHook | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        end_faust_on_named_errors()
        check_kind("app", app, faust.App, "an app, as faust.App(...)")
        if runtime_of(app) is not None:
            raise InvalidSettingError(
                "Retries(app)", app.conf.id, "this app has a Retries already; declare all handlers with that one"
            )
        if app.configured:
            raise InvalidSettingError(
                "Retries(app)",
                app.conf.id,
                "make it right after faust.App(...), before the first topic, agent or look at app.conf",
            )
        if create_main_partitions is not None:
            check_count("create_main_partitions", create_main_partitions)
        check_kind("allow_low_replication", allow_low_replication, bool, "True or False")
        check_kind("admin_options", admin_options or {}, Mapping, "properties by name, as {'ssl.ca.location': ...}")
        if login and not callable(login):
            raise InvalidSettingError("login", login, "expected a function of the request")
        self.decoding = None if decoder is None else Decoding(decoder, lambda: self.topologies)
        """Shows keys and values; None: by what they look like."""
        self.app = app
        settings = load_settings()
        operators = parse_operators(
            settings.web_operators,
            proxies=settings.web_proxies,
            hosts=settings.web_hosts,
            peer_secret=settings.peer_secret.get_secret_value(),
            hook=login,
        )
        options = RuntimeOptions(
            grace_ms=settings.grace if grace is None else named_duration_ms("grace", grace),
            drain_ms=named_duration_ms("drain", drain),
            start_timeout_ms=named_duration_ms("start_timeout", start_timeout),
            plan=PlanOptions(
                create_main_partitions=create_main_partitions,
                allow_low_replication=allow_low_replication,
                downtime_ms=named_duration_ms("downtime", downtime),
                dlq_retention_ms=None if dlq_retention is None else named_duration_ms("dlq_retention", dlq_retention),
            ),
            admin_options=admin_options or {},
            pages_guarded=operators.guarded,
        )
        self._mask = parse_mask(settings.mask)
        self._runtime = Runtime(app, options)
        self._destinations = Destinations(self._runtime.topics, self._runtime.clock, self._owned_topics)
        refuse_at_discovery(app)
        app._retryapp_runtime = self._runtime  # type: ignore[attr-defined]  # found again by runtime_of
        app._retryapp_retries = self  # type: ignore[attr-defined]  # found again by load_application
        cast("dict[str, Any]", app._default_options[1]).setdefault("Worker", RetryWorker)
        view = RuntimeView(self._runtime)
        facts: Any = {"operators": operators, "mask": self._mask, "decoding": self.decoding}
        web.register(app, view, clock=self._runtime.clock, **facts)

    def handler(
        self,
        topic: str,
        *,
        policy: RetryPolicy | str,
        value: Any = bytes,
        concurrency: int = 1,
        tiers: str | Tiers = Tiers.SINGLE,
        max_in_flight: int = 1000,
        max_crashes: int = 3,
        deduplicate: Deduplicate | str | EventId | None = None,
        order: str | Order = Order.NONE,
        on_dead: Literal["release", "hold"] = "release",
        max_sequences: int | None = None,
        max_sequence_size: int | None = None,
        overflow: Literal["block", "release"] = "block",
        publishes: Sequence[str] = (),
        batch: Batch | None = None,
        rate_limit: str | None = None,
        max_concurrent: int | None = None,
        circuit: CircuitBreaker | None = None,
        circuits: Mapping[str, CircuitBreaker] | None = None,
        dead_letters: Literal["topic", "drop"] = "topic",
        payload: Literal["copy", "reference"] = "copy",
        redelivery: Literal["direct", "main"] = "direct",
    ) -> Callable[[F], F]:
        """Declare the handler of a main topic.

        Args:
            topic: the main topic. One handler per topic and app.
            policy: when and whether a failed record is tried again; or its text, as `"5m*2 30m"`.
            value: what the function takes: `bytes` (default; None for a null value), `dict` (JSON), a pydantic model,
                or any type that pydantic can read from JSON. A value that does not decode takes the policy's path with
                its bytes kept.
            concurrency: handler runs at once per worker, at most 10000; retries have as many of their own.
            tiers: `single` (one retry topic for all delays) or `per-delay` (one for each delay of the schedule).
            max_in_flight: records per partition that may be taken in and not yet settled.
            max_crashes: how many workers may die running a record alone before it is dead-lettered as `crashed`.
            deduplicate: skip a producer's duplicates: `"header:<name>"` or a function of the record gives the event id,
                and `Deduplicate("header:<name>", window="7d")` also how long it is remembered (a day otherwise). Adds
                one topic, and one record to it for each record that is received.
            order: `none` (default): records that wait delay no other. `key`: records of a key run in the order of the
                topic, each after the end of the one before; those behind one that failed wait, undelivered, and other
                keys go on. `partition`: the same for all records of a partition, which stops until then. `latest`: a
                newer record of a key replaces the one that waits.
            on_dead: what becomes of later records of its key, or partition, when one is dead: `release` (default), they
                go on; or `hold`, they wait until somebody replays or discards its dead letter, or releases the record.
            max_sequences: with `order="key"`, how many keys of a partition may wait; None: no cap.
            max_sequence_size: how many records of a key may wait, with the one that the others wait for; None: no cap.
            overflow: what happens at a cap: `block` (default), the partition takes in no more records until fewer wait;
                or `release`, the record that the others wait for is dead as `overflow`, and they go on.
            publishes: topics that the function publishes to. A start checks that they exist, `plan` and `doctor` list
                them and the rights that they need, and a circle of handlers is refused.
            batch: `Batch(size=100, wait="50ms")`: the function takes a list of up to `size` values of one partition,
                and, as a second argument, a list of their deliveries. `deliveries[i].fail(error)` fails one of them.
            rate_limit: how many retries may begin in a second, minute or hour, over all workers: `"50/s"`, `"600/m"`,
                `"1000/h"`. Each partition has an equal share. First deliveries are not limited.
            max_concurrent: runs of retries at once per worker, if not as many as `concurrency`.
            circuit: `CircuitBreaker()`: when many different records fail, that is an outage: no attempts are spent, a
                few records probe, and the rest waits. Not with `order="partition"`.
            circuits: the same for services by name: `{"ledger": CircuitBreaker()}`. A rule with `circuit="ledger"`, or
                `raise Unavailable("ledger")`, says that a failure is that service's; only such records wait for it.
            dead_letters: `topic` (default), or `drop`: there is no dead-letter topic, and what would be dead is
                discarded, with a `discarded` event that says why.
            payload: `copy` (default), or `reference`: of a record that waits only its place on the main topic is
                stored, with its size, time and checksum; when due it is read from there again. A start checks that the
                topic keeps records for twice the policy's waits. Not with `order="latest"`, nor with a schedule without
                end unless `max_elapsed` ends it.
            redelivery: `direct` (default): a record that is due again is delivered from the table; or `main`: a copy of
                it is published to the main topic first, and it is delivered once the topic is read up to the copy,
                after the records before it. Other groups that use retryapp ignore such copies. Not with an order,
                `payload="reference"` or `max_concurrent` of a circuit, nor on a compacted topic.

        Returns:
            A decorator that returns the function unchanged. The function may take a `Delivery` as a second argument:
            facts of the record, and `publish`.

        Raises:
            DuplicateHandlerError: the topic has a handler already.
            HandlerSignatureError: the function cannot be called with a value.
            InvalidTopicNameError, NameClashError: topic names that would not work.
            PublishCircleError: handlers would publish to each other's main topics in a circle.
            InvalidSettingError, InvalidPolicyError, InvalidDurationError: an argument is out of range.
        """
        return self._declare(
            topic,
            policy,
            {"tiers": tiers, "publishes": publishes, "dead_letters": dead_letters},
            value=value,
            concurrency=concurrency,
            max_in_flight=max_in_flight,
            max_crashes=max_crashes,
            rate_limit=rate_limit,
            max_concurrent=max_concurrent,
            circuit=circuit,
            circuits=circuits,
            deduplicate=deduplicate,
            order=order,
            on_dead=on_dead,
            overflow=overflow,
            max_sequences=max_sequences,
            max_sequence_size=max_sequence_size,
            batch=batch,
            payload=payload,
            redelivery=redelivery,
        )

    def dead_letters(
        self,
        topic: str,
        *,
        policy: RetryPolicy | str,
        group: str | None = None,
        named: str | None = None,
        value: Any = bytes,
        concurrency: int = 1,
        publishes: Sequence[str] = (),
    ) -> Callable[[F], F]:
        """Declare a handler of the dead letters of a handler, which is declared before or is another application's.

        It takes each dead letter's value, and a `Delivery` whose `letter` says why the record died. A letter that it
        is done with is marked as handled; one that it fails for good stays where it is, marked as failed.

        Args:
            topic: the main topic of that handler.
            policy: when and whether a letter is tried again after a failure; or its text.
            group: of that handler, where it is another application's: its topic is read, and never written to.
            named: the dead-letter topic of a rule (`dead_letters="invalid"`); None: the usual one.
            value: what the function takes, as of `handler`.
            concurrency: runs at once per worker; retries have as many of their own.
            publishes: topics that the function publishes to, as of `handler`.

        Raises:
            InvalidSettingError: there is no such handler, or it has no such dead-letter topic; and as `handler`.
            InvalidTopicNameError: with `group`, what follows is no name of a topic.
        """
        other = None if group == self.app.conf.id else group
        letters = letters_topic(self.topologies, topic, named, group=other)
        names, source = {"publishes": publishes, "dead_letters": "drop"}, {"letters_of": topic, "letters_from": other}
        return self._declare(letters, policy, names, source, value=value, concurrency=concurrency)

    def _declare(
        self,
        main: str,
        policy: RetryPolicy | str,
        names: Mapping[str, Any],
        source: Mapping[str, Any] = {},
        **given: Any,
    ) -> Callable[[F], F]:
        chosen = policy if isinstance(policy, RetryPolicy) else RetryPolicy.parse(policy)
        settings = handler_fields(**given)
        check_kind("topic", main, str, "the name of one topic, as text")  # callers without type checks pass a list
        topics = topology_fields(chosen, settings, **names)

        def declare(function: F) -> F:
            if isinstance(function, AgentT):
                problem = "it is an agent, and a handler gets one value: remove @app.agent and the loop over its stream"
                raise HandlerSignatureError(function.name, problem)
            topology = HandlerTopology(group=self.app.conf.id, main=main, **topics, **source)
            handler = Handler(
                function=function,
                topology=topology,
                policy=chosen,
                destinations=self._destinations,
                mask=None if self._mask == UNMASKED else self._mask,
                **settings,
            )
            check_value(handler)
            others = [known for known in self.topologies if known.main != main]
            check_names([*others, topology])
            self._runtime.serve(handler)
            return function

        return declare

    async def command(
        self,
        verb: str,
        failure_id: str,
        *,
        by: str = "",
        why: str = "",
        at: datetime | None = None,
        hold_for: Duration | None = None,
        force: bool = False,
        edit: Edit | None = None,
        wait: Duration = "30s",
    ) -> Commanded | None:
        """Steer a record that waits or is dead: send a command to the worker that has it, and wait for its answer.

        Args:
            verb: `retry-now`, `reschedule`, `hold`, `release`, `cancel`, `replay`, `discard` or `restore`.
            failure_id: of the record, as `Delivery.failure_id`; of `release`, `Delivery.token` as well.
            by: who asks, for the audit.
            why: the reason, for the audit.
            at: of `reschedule`: when, with a time zone.
            hold_for: of `hold`: how long, if nobody releases it; None: `7d`.
            force: of `replay`: also a record that ended its workers, or may be superseded, or whose letter was handled.
            edit: of `replay`: what it changes, as `Edit.of("keep", value=b"…")`; the letter stays as it was.
            wait: how long to wait for the answer.

        Returns:
            What came of it: `refused` is None where the command was obeyed, `text` says more. None: no worker has
            answered, and the command waits for one, for 15 minutes.

        Raises:
            InvalidSettingError: an argument is none of those.
            LookupError: the failure id is of no handler of this app.
            BrokerUnreachableError: no broker answered; it says whether the command was sent.
            EnvironmentFault: no worker has made the topics yet, there is no such partition, or a right is missing.
        """
        check_word("verb", verb, Verb)
        check_kind("failure_id", failure_id, str, "the text of a failure id, or of a token")
        check_kind("edit", edit, Edit | None, 'what Edit.of(...) returns, as Edit.of("keep", value=b"...")')
        if at is not None and getattr(at, "tzinfo", None) is None:
            raise InvalidSettingError("at", at, "expected a time with a time zone: datetime(…, tzinfo=UTC)")
        try:
            named = named_by(failure_id)
            group, origin = parse_failure_id(named["failure_id"])
            due_at_ms = None if at is None else round(at.timestamp() * 1000)
            hold_ms = None if hold_for is None else named_duration_ms("hold_for", hold_for)
            facts: dict[str, Any] = {"by": by, "why": why, "due_at_ms": due_at_ms, "hold_ms": hold_ms}
            command = Command(id=secrets.token_hex(8), verb=Verb(verb), force=force, edit=edit, **named, **facts)
        except (DamagedMetadataError, ValueError) as error:
            problem = problem_text(error) if isinstance(error, ValidationError) else str(error)
            problem = problem.replace("due_at_ms", "at").replace("hold_ms", "hold_for")  # as they are called here
            raise InvalidSettingError("command", f"{verb} {failure_id}", problem) from error
        found = [known for known in self.topologies if (known.group, known.main) == (group, origin.topic)]
        if not found:
            raise LookupError(f"{failure_id} is of no handler of this app")
        wait_s = named_duration_ms("wait", wait) / 1000
        outcomes = await asyncio.to_thread(send_commands, self.connection, found[0], [command], wait_s=wait_s)
        return outcomes.get(command.id)

    async def command_handler(
        self, verb: str, topic: str, *, why: str, circuit: str = "", by: str = "", wait: Duration = "30s"
    ) -> Mapping[int, Commanded | None]:
        """Steer a handler on all partitions: send a command to the workers that have them, and wait for their answers.

        Args:
            verb: `pause`, `resume`, `outage-open` or `outage-close`.
            topic: its main topic.
            why: the reason, for the audit; not empty.
            circuit: which an outage is about; empty: the handler's own.
            by: who asks, for the audit.
            wait: how long to wait for the answers.

        Returns:
            What came of it by partition, as of `command`. None: it waits for a worker, without a limit.

        Raises:
            InvalidSettingError: there is no such verb, no reason, or another argument is none that it takes.
            LookupError: the topic has no handler of this app.
            BrokerUnreachableError: no broker answered; it says whether the command was sent.
            EnvironmentFault: no worker has made the topics yet, there is no such partition, or a right is missing.
        """
        check_word("command_handler", verb, HANDLER_VERBS)
        check_reason(why, by)
        expected = f"the name of a circuit, of at most {MAX_WORDS} characters; empty: the handler's own"
        check_kind("circuit", circuit, str, expected)
        if len(circuit) > MAX_WORDS:
            raise InvalidSettingError("circuit", circuit, f"expected {expected}")
        if circuit and not verb.startswith("outage-"):
            raise InvalidSettingError("circuit", circuit, "expected none: pause and resume are for the whole handler")
        found = self._topology(topic)
        words: Words = {"by": by, "why": why, "wait_s": named_duration_ms("wait", wait) / 1000}
        return await asyncio.to_thread(tell_handler, self.connection, found, HANDLER_VERBS[verb], circuit, **words)

    def jobs(self, topic: str) -> HandlerJobs:
        """Return what previews, begins and steers jobs over the dead letters of a topic's handler; else LookupError."""
        return HandlerJobs(self.connection, self._topology(topic), self._runtime.clock.wall_ms)

    def _topology(self, topic: str) -> HandlerTopology:
        found = next((known for known in self.topologies if known.main == topic), None)
        if found is None:
            raise LookupError(f"{topic} has no handler of this app")
        return found

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The declared handlers."""
        return tuple(served.handler for served in self._runtime.served.values())

    @property
    def topologies(self) -> tuple[HandlerTopology, ...]:
        """The topics of each handler."""
        return tuple(handler.topology for handler in self.handlers)

    def _owned_topics(self) -> frozenset[str]:
        return frozenset(name for topology in self.topologies for name in topology.owned)

    @property
    def connection(self) -> KafkaConnection:
        """Address and security for administration and bounded reading."""
        return self._runtime.connection

    @property
    def plan_options(self) -> PlanOptions:
        """The app's options for its topics."""
        return self._runtime.options.plan
