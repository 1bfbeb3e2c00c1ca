"""What `Retries(app)` refuses where it is declared, before any broker is asked."""

from __future__ import annotations

import json
from typing import Any

import faust
import pytest

from retryapp import Batch, CircuitBreaker, Deduplicate, Retries, RetryPolicy, non_retryable, retryable
from retryapp.core.control import Verb
from retryapp.core.errors import (
    ConfigurationError,
    DuplicateHandlerError,
    InvalidDurationError,
    InvalidSettingError,
    InvalidTopicNameError,
    NameClashError,
    PublishCircleError,
    PublishRefusedError,
)
from retryapp.core.jobs import HandlerVerb, LetterFilter
from retryapp.engine.handler.handler import HandlerSignatureError
from retryapp.kafka import Plan
from retryapp.lookup.handler_jobs import JobPreview
from retryapp.lookup.jobs import Order
from retryapp.lookup.previews import Preview
from retryapp.runtime.options import SETTINGS

POLICY = RetryPolicy("1s")


class PlainOrder:
    """Nothing says what its fields are."""


class FaustOrder(faust.Record):  # type: ignore[misc]  # Faust has no type information
    """What only Faust reads."""

    id: int


def new_app(**options: Any) -> faust.App:
    return faust.App("app", broker="kafka://127.0.0.1:1", store="memory://", **options)


async def charge(_value: bytes) -> None:
    """Handle a record."""


async def refund(_value: bytes) -> None:
    """Handle it too."""


@pytest.fixture
async def retries() -> Retries:
    """An app with a handler for `orders`."""
    made = Retries(new_app())
    made.handler("orders", policy=POLICY)(charge)
    return made


async def test_a_second_handler_of_a_topic_is_refused(retries: Retries) -> None:
    """One record has one fate in a group; the message names both functions."""
    with pytest.raises(DuplicateHandlerError) as raised:
        retries.handler("orders", policy=POLICY)(refund)
    assert (raised.value.topic, raised.value.group) == ("orders", "app")
    assert (raised.value.first.split(".")[-1], raised.value.second.split(".")[-1]) == ("charge", "refund")
    assert len(retries.handlers) == 1


async def test_a_handler_that_is_declared_once_the_worker_has_begun_is_refused(retries: Retries) -> None:
    """It was taken, and nothing ever read its topic: topics are made and read from the start on."""
    retries._runtime.plan = Plan(steps=(), brokers=1, bootstrap="127.0.0.1:1")
    with pytest.raises(InvalidSettingError, match=r"topic='refunds': .*handler .*refund declared before the worker"):
        retries.handler("refunds", policy=POLICY)(refund)
    assert [handler.main for handler in retries.handlers] == ["orders"]


async def test_an_agent_is_no_handler(retries: Retries) -> None:
    """The message says what to remove, and names the function."""

    async def process(stream: Any) -> None:
        async for _ in stream:
            pass

    agent = retries.app.agent("payments")(process)
    with pytest.raises(HandlerSignatureError, match=r"it is an agent.* remove @app\.agent and.*async def process"):
        retries.handler("payments", policy=POLICY)(agent)
    assert len(retries.handlers) == 1


@pytest.mark.parametrize("topic", ["app.orders.retry", "app.orders.pending.changelog", "app_orders_dlq"])
async def test_a_handler_of_a_topic_of_ours_is_refused(retries: Retries, topic: str) -> None:
    """What waits is no main topic; and Kafka takes a dot and an underscore in a name for the same."""
    with pytest.raises(NameClashError):
        retries.handler(topic, policy=POLICY)(refund)
    assert len(retries.handlers) == 1


@pytest.mark.parametrize("topic", ["__consumer_offsets", "__transaction_state", "__share_group_state"])
async def test_a_topic_of_kafkas_own_is_refused(retries: Retries, topic: str) -> None:
    """A handler of it would get what brokers write; what is published to it would break them."""
    for arguments in ({"topic": topic}, {"topic": "others", "publishes": [topic]}):
        with pytest.raises(InvalidTopicNameError, match=f"'{topic}' cannot be used: Kafka keeps its own state there"):
            retries.handler(**arguments, policy=POLICY)(refund)


@pytest.mark.parametrize("topic", ["", "order s", "o" * 240])
async def test_a_topic_whose_names_kafka_would_refuse_is_refused(retries: Retries, topic: str) -> None:
    """Of all topics that it would make, not of the main topic alone."""
    with pytest.raises(InvalidTopicNameError):
        retries.handler(topic, policy=POLICY)(refund)


@pytest.mark.parametrize(
    ("argument", "value", "expected"),
    [
        ("topic", ["orders", "returns"], ""),
        ("policy", 3, "a RetryPolicy or its text"),
        ("tiers", "per_delay", "one of single, per-delay"),
        ("batch", 50, "a Batch"),
        ("circuit", True, "a CircuitBreaker"),
        ("concurrency", "4", ""),
        ("concurrency", 0, ""),
        ("concurrency", 10_001, "at most 10000"),
        ("max_concurrent", 10**9, "at most 10000"),
        ("max_in_flight", 0, ""),
        ("max_crashes", None, ""),
        ("max_concurrent", True, ""),
        ("max_concurrent", 0, ""),
        ("max_concurrent", 2.5, ""),
        ("rate_limit", "fast", ""),
        ("rate_limit", "50", ""),
        ("publishes", None, ""),
        ("publishes", [5], ""),
        ("publishes", "receipts", ""),
        ("circuits", 5, ""),
        ("circuits", {5: CircuitBreaker()}, ""),
        ("circuits", {"ledger": True}, ""),
        ("dead_letters", "no", "one of topic, drop"),
        ("deduplicate", "event-id", "header:"),
        ("deduplicate", "header: event-id", ""),
        ("payload", "offset", "one of copy, reference"),
        ("redelivery", "topic", "one of direct, main"),
        ("value", "json", "dict for JSON"),
        ("value", 5, ""),
        ("value", None, "a type; bytes gives values as they are"),
        ("value", json.loads, "a type; "),
        ("value", PlainOrder, ""),
        ("value", FaustOrder, ""),
    ],
)
async def test_an_argument_that_cannot_be_used_is_named(
    retries: Retries, argument: str, value: Any, expected: str
) -> None:
    """Where it is declared, with what was expected; also one of a type that only callers without type checks pass."""
    arguments = {"topic": "others", "policy": POLICY, argument: value}
    with pytest.raises(ConfigurationError, match=rf"{argument}=.*: .*expected.*{expected}"):
        retries.handler(**arguments)(refund)
    assert len(retries.handlers) == 1


@pytest.mark.parametrize("argument", ["grace", "drain", "start_timeout", "downtime", "dlq_retention"])
async def test_a_length_without_a_unit_is_named(argument: str) -> None:
    """With the argument that it was given for."""
    with pytest.raises(InvalidDurationError, match=f"setting {argument}=60 is not a duration: a bare number"):
        Retries(new_app(), **{argument: 60})


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("app", None),
        ("create_main_partitions", "6"),
        ("create_main_partitions", 0),
        ("allow_low_replication", "no"),
        ("admin_options", 5),
        ("login", "ann"),
    ],
)
async def test_an_argument_of_retries_that_cannot_be_used_is_named(argument: str, value: Any) -> None:
    """Where it is given, not when a broker is asked."""
    with pytest.raises(InvalidSettingError, match=rf"setting {argument}=.*expected"):
        Retries(**{"app": new_app(), argument: value})


async def test_a_method_that_is_decorated_in_its_class_is_refused(retries: Retries) -> None:
    """It would take the value as `self`, and the delivery as the value."""

    class Billing:
        async def charge(self, value: bytes) -> None:
            """Handle a record."""

    with pytest.raises(ConfigurationError, match="self"):
        retries.handler("others", policy=POLICY)(Billing.charge)
    retries.handler("others", policy=POLICY)(Billing().charge)


@pytest.mark.parametrize("at", [None, "2030-01-31T12:00"])
async def test_a_command_that_lacks_something_says_what(retries: Retries, at: Any) -> None:
    """In our words, before any broker is asked."""
    with pytest.raises(InvalidSettingError, match=r": at belongs to reschedule|a time with a time zone") as raised:
        await retries.command("reschedule", "app/orders@kq8G0bTz/3/1042", at=at)
    assert "pydantic" not in str(raised.value)
    with pytest.raises(InvalidSettingError, match="setting failure_id=None: expected the text of a failure id"):
        await retries.command("cancel", None)  # type: ignore[arg-type]  # as of a header that is not there
    with pytest.raises(InvalidSettingError, match="hold_for belongs to hold alone"):
        await retries.command("cancel", "app/orders@kq8G0bTz/3/1042", hold_for="1h")
    with pytest.raises(InvalidSettingError, match=r"setting edit=.*: expected what Edit\.of\(\.\.\.\) returns"):
        await retries.command("replay", "app/orders@kq8G0bTz/3/1042", edit={"value": b"v"})  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingError, match=r"'retry_now': expected one of retry-now, reschedule"):
        await retries.command("retry_now", "app/orders@kq8G0bTz/3/1042")


async def test_an_app_has_one_retries(retries: Retries) -> None:
    """Two would each take the transport."""
    with pytest.raises(InvalidSettingError, match="has a Retries already"):
        Retries(retries.app)


async def test_fausts_own_transactions_are_refused() -> None:
    """They lose records, and would not move with ours."""
    app = new_app(processing_guarantee="exactly_once")
    Retries(app)
    with pytest.raises(InvalidSettingError, match="processing_guarantee"):
        app.finalize()


async def test_what_the_user_has_set_stays() -> None:
    """Faust's defaults are changed only where nobody has decided."""
    app = new_app(broker_session_timeout=21.0)
    Retries(app)
    app.finalize()
    assert app.conf.broker_session_timeout == 21.0
    assert app.conf.broker_rebalance_timeout == SETTINGS["broker_rebalance_timeout"][0]
    older = new_app(commit_interval=1.5)  # Faust refuses both names of a setting
    Retries(older)
    with pytest.warns(FutureWarning, match="commit_interval"):
        older.finalize()
    assert older.conf.broker_commit_interval == 1.5


@pytest.mark.parametrize(
    ("given", "interval_s"),
    [
        ({}, 3.0),
        ({"broker_session_timeout": 6.0}, 1.5),
        ({"broker_session_timeout": 12.0}, 3.0),
        ({"broker_session_timeout": 6.0, "broker_heartbeat_interval": 2.0}, 2.0),
    ],
)
async def test_a_short_session_has_several_heartbeats(given: dict[str, float], interval_s: float) -> None:
    """One may get lost; what the user has decided stays."""
    app = new_app(**given)
    Retries(app)
    app.finalize()
    assert app.conf.broker_heartbeat_interval == interval_s


async def test_a_session_without_a_heartbeat_is_refused() -> None:
    """The group would take every worker for dead, and none would start a record."""
    app = new_app(broker_session_timeout=6.0, broker_heartbeat_interval=6.0)
    Retries(app)
    with pytest.raises(InvalidSettingError, match="a third is usual"):
        app.finalize()


async def test_handlers_publish_to_topics_that_no_handler_owns(retries: Retries) -> None:
    """Also not to those of another handler of the app; a main topic is the user's."""
    retries.handler("refunds", policy=POLICY)(refund)
    assert [handler.main for handler in retries.handlers] == ["orders", "refunds"]
    (destinations,) = {handler.destinations for handler in retries.handlers}
    assert destinations is not None
    for topic in ("app.orders.retry", "app.refunds.dlq", "app.refunds.pending.changelog"):
        with pytest.raises(PublishRefusedError, match="retryapp's own"):
            destinations.of(topic)
    assert destinations.of("refunds").topic == "refunds"


async def test_event_ids_are_named_as_text_as_a_function_or_with_a_window(retries: Retries) -> None:
    """All three come to the same rule, and to one topic more."""
    for main, given in (
        ("a", "header:event-id"),
        ("b", Deduplicate("header:event-id", window="2d")),
        ("c", lambda record: record.key),
    ):
        retries.handler(main, policy=POLICY, deduplicate=given)(charge)
    found = {handler.main: handler for handler in retries.handlers}
    windows = [found[main].topology.seen_window_ms for main in ("a", "b", "c", "orders")]
    assert windows == [86_400_000, 172_800_000, 86_400_000, None]
    assert found["orders"].deduplicate is None


async def test_a_circle_of_handlers_is_refused_where_it_is_closed(retries: Retries) -> None:
    """Which handler is declared last does not matter."""
    retries.handler("receipts", policy=POLICY, publishes=iter(["mails", "orders", "mails"]))(refund)
    assert retries.topologies[1].publishes == ("mails", "orders")
    with pytest.raises(PublishCircleError, match="receipts -> mails -> receipts"):
        retries.handler("mails", policy=POLICY, publishes=["receipts"])(charge)
    assert len(retries.handlers) == 2


async def test_a_pace_is_read_where_it_is_declared(retries: Retries) -> None:
    """And told in one line."""
    retries.handler("a", policy=POLICY, rate_limit="50/s", max_concurrent=5, circuit=CircuitBreaker())(charge)
    paces = {handler.main: handler.pace for handler in retries.handlers}
    assert paces["a"] == (
        "retries 50/s in the whole group; 5 retries at once per worker; circuit opens for 5s when 0.5 of 20 or more "
        "records fail in 10s; 3 probes; ramp 30s; attempts free for 1h"
    )
    assert paces["orders"] == ""
    few = {"ledger": CircuitBreaker(rate_limit="5/s", max_concurrent=2)}
    retries.handler("c", policy=POLICY, circuits=few)(charge)
    assert retries.handlers[-1].pace.endswith("attempts free for 1h; retries 5/s; 2 retries at once per worker")


async def test_a_handler_of_dead_letters_belongs_to_a_handler(retries: Retries) -> None:
    """Which is declared before it, and has such a dead-letter topic; a letter that fails makes no other letter."""
    rules = RetryPolicy("1s", on=[non_retryable(ValueError, dead_letters="invalid")])
    retries.handler("views", policy="1s", dead_letters="drop")(refund)
    retries.dead_letters("orders", policy="1m*3", concurrency=4, publishes=["reports"])(refund)
    letters = retries.topologies[-1]
    assert (letters.main, letters.letters_of, letters.dlqs) == ("app.orders.dlq", "orders", ())
    assert (letters.publishes, retries.handlers[-1].concurrency) == (("reports",), 4)
    for topic, named in (("refunds", None), ("app.orders.dlq", None), ("orders", "invalid"), ("views", None)):
        with pytest.raises(InvalidSettingError, match=r"dead_letters|named"):
            retries.dead_letters(topic, policy="1m", named=named)
    with pytest.raises(InvalidSettingError, match="it has none, as it has dead_letters='drop'"):
        retries.dead_letters("views", policy="1m")
    with pytest.raises(DuplicateHandlerError):
        retries.dead_letters("orders", policy="1m")(charge)
    with pytest.raises(InvalidSettingError, match="concurrency"):
        retries.dead_letters("orders", policy="1m", concurrency=0)
    with pytest.raises(InvalidSettingError, match="no dead-letter topic"):
        retries.dead_letters("orders", policy=rules)
    with pytest.raises(InvalidSettingError, match="no dead-letter topic"):
        retries.handler("payments", policy=rules, dead_letters="drop")
    retries.handler("payments", policy=rules)(charge)
    retries.dead_letters("payments", policy="1m", named="invalid")(charge)
    assert retries.topologies[-1].main == "app.payments.dlq.invalid"


async def test_dead_letters_of_another_group_can_be_read(retries: Retries) -> None:
    """Their handler is declared elsewhere; with this app's own group the topic is that of a handler of this app."""
    retries.dead_letters("invoices", group="billing", named="invalid", policy="1m*3")(refund)
    letters = retries.topologies[-1]
    assert (letters.group, letters.main, letters.dlqs) == ("app", "billing.invoices.dlq.invalid", ())
    assert (letters.letters_of, letters.letters_from, letters.own_letters_of) == ("invoices", "billing", None)
    retries.dead_letters("orders", group="app", policy="1m")(refund)
    assert (retries.topologies[-1].own_letters_of, retries.topologies[-1].letters_from) == ("orders", None)
    for wrong in ({"named": "retry"}, {"group": 3}, {"group": "a b"}, {"group": "app"}):
        with pytest.raises((InvalidSettingError, InvalidTopicNameError)):
            retries.dead_letters("invoices", **{"group": "billing", "policy": "1m", **wrong})(refund)
    with pytest.raises(PublishCircleError, match=r"billing\.invoices\.dlq -> invoices -> billing"):
        retries.dead_letters("invoices", group="billing", policy="1m", publishes=["invoices"])(refund)


async def test_a_handler_is_steered_by_its_topic(retries: Retries, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no verb, or no handler of this app, is refused before any broker is asked."""
    asked: list[Any] = []
    monkeypatch.setattr("retryapp.retries.tell_handler", lambda *given, **words: asked.append((given[1:], words)) or {})
    words: dict[str, Any] = {"by": "ann", "why": "down"}
    assert await retries.command_handler("outage-open", "orders", circuit="ledger", **words, wait="2s") == {}
    assert asked == [((retries.topologies[0], HandlerVerb.OPEN, "ledger"), {**words, "wait_s": 2.0})]
    with pytest.raises(InvalidSettingError, match="outage-close"):
        await retries.command_handler("stop", "orders", why="down")
    with pytest.raises(InvalidSettingError, match="why"):
        await retries.command_handler("pause", "orders", why=" ")
    with pytest.raises(InvalidSettingError, match="setting by=None"):
        await retries.command_handler("pause", "orders", why="down", by=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettingError, match="circuit"):  # it paused the whole handler
        await retries.command_handler("pause", "orders", why="down", circuit="ledger")
    with pytest.raises(InvalidSettingError, match="setting circuit=5: expected the name"):
        await retries.command_handler("outage-open", "orders", why="down", circuit=5)  # type: ignore[arg-type]
    with pytest.raises(LookupError):
        await retries.command_handler("pause", "refunds", why="down")


async def test_jobs_are_of_a_handler_and_refuse_what_names_no_letters(retries: Retries) -> None:
    """Before any broker is asked; nobody replays everything by a missing word, or without a reason."""
    jobs = retries.jobs("orders")
    assert jobs.topology == retries.topologies[0]
    with pytest.raises(LookupError):
        retries.jobs("refunds")
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("cancel", {"all": True}, "verb"), ("replay", {}, "all"), ("replay", {"colour": "red"}, "colour"),
        ("replay", {"from_ms": "2h"}, "from_ms"),
    ]  # fmt: skip
    for verb, wanted, name in wrong:
        with pytest.raises(InvalidSettingError, match=f"setting {name}="):
            await jobs.preview(verb, **wanted)
    for call in (
        jobs.begin(JobPreview(Order(Verb.REPLAY, LetterFilter()), Preview()), why=""),
        jobs.command("pause", "j1", why=" "),
    ):
        with pytest.raises(InvalidSettingError, match="why="):
            await call
    for job in ("", "no id", "j" * 65, "j1\n", None):
        with pytest.raises(InvalidSettingError, match=r"setting job=.*: expected the id of a job"):
            await jobs.command("pause", job, why="down")  # type: ignore[arg-type]


async def test_how_a_handler_is_called_is_told(retries: Retries) -> None:
    """Order and lists in words; nothing where nothing is asked for."""
    retries.handler("a", policy=POLICY, order="key", batch=Batch(50, "20ms"), rate_limit="50/s")(print)
    told = {handler.main: handler.manner for handler in retries.handlers}
    lists = "lists of up to 50 records, gathered for 20ms"
    assert told == {"a": ("order=key", lists, "retries 50/s in the whole group"), "orders": ()}


async def test_a_handler_says_how_its_records_wait(retries: Retries) -> None:
    """By reference for as long as all waits take together, or until `max_elapsed`; as copies unless it is said."""
    mixed = RetryPolicy("1m*2", on=[retryable(OSError, schedule="5m*3")])
    for number, (policy, longest_ms) in enumerate(
        [("5m*2 1h", 4_200_000), (RetryPolicy("1h*3", max_elapsed="2h"), 7_200_000), (mixed, 900_000)]
    ):
        retries.handler(f"large-{number}", policy=policy, payload="reference")(charge)
        assert (retries.handlers[-1].by_reference, retries.topologies[-1].reference_ms) == (True, longest_ms)
        assert "payload=reference" in retries.handlers[-1].manner
    retries.handler("small", policy="1h")(charge)
    assert (retries.handlers[-1].by_reference, retries.topologies[-1].reference_ms) == (False, None)


async def test_what_is_due_again_comes_through_the_main_topic_where_that_is_said(retries: Retries) -> None:
    """The topology says so, for rights and for the check of the topic; what makes no sense with it is refused."""
    retries.handler("a", policy="1h", redelivery="main")(charge)
    assert (retries.handlers[-1].through_main, retries.topologies[-1].through_main) == (True, True)
    assert retries.handlers[-1].manner == ("redelivery=main",)
    retries.handler("b", policy="1h")(charge)
    assert (retries.handlers[-1].through_main, retries.topologies[-1].through_main) == (False, False)
    for more in ({"order": "latest"}, {"payload": "reference"}):
        with pytest.raises(InvalidSettingError, match="redelivery"):
            retries.handler("c", policy="1h", redelivery="main", **more)(charge)  # type: ignore[arg-type]
