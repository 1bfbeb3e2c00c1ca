"""Topics of a handler: names, settings, clashes."""

from __future__ import annotations

import pytest

from retryapp.core.errors import DuplicateHandlerError, InvalidTopicNameError, NameClashError, PublishCircleError
from retryapp.core.topology import HandlerTopology, Tiers, TopicRole, check_names, topic_specs

DAY = 86_400_000


def test_names_with_one_retry_topic() -> None:
    """The default: the delays do not name topics."""
    topology = HandlerTopology("billing", "orders", delays_ms=(60_000, 1_000))
    assert topology.owned == (
        "billing.orders.retry",
        "billing.orders.dlq",
        "billing.orders.events",
        "billing.orders.control",
        "billing.orders.pending.changelog",
    )


def test_rules_have_dead_letter_topics_of_their_own() -> None:
    """Of the same settings as the usual one; found by name also where the policy does not have them any more."""
    topology = HandlerTopology("billing", "orders", dead_letters=("invalid", "fraud", "invalid"))
    assert topology.dlqs == ("billing.orders.dlq", "billing.orders.dlq.fraud", "billing.orders.dlq.invalid")
    assert topology.dlq_named("fraud") == topology.dlqs[1]
    assert topology.dlq_named(None) == topology.dlq
    specs = topic_specs(topology, partitions=3, main_max_message_bytes=1_000, replication=3, dlq_retention_ms=DAY)
    letters = [spec for spec in specs if spec.role is TopicRole.DLQ]
    assert [spec.name for spec in letters] == list(topology.dlqs)
    assert letters[0].config == letters[1].config
    bare = HandlerTopology("billing", "orders")
    others = ("billing.orders.dlq.retry", "billing.orders.dlq.a.b", "billing.orders.dlqs", "billing.orders.events")
    assert [name for name in (*topology.dlqs, *others) if bare.is_dlq(name)] == list(topology.dlqs)


def test_a_dead_letter_topic_that_is_a_main_topic_is_refused() -> None:
    """All other names that a handler may have are refused for a rule."""
    named = HandlerTopology("g", "orders", dead_letters=("invalid",))
    with pytest.raises(NameClashError):
        check_names([named, HandlerTopology("g", "g.orders.dlq.invalid")])


def test_names_with_a_retry_topic_per_delay() -> None:
    """Distinct delays, rising, in canonical units."""
    topology = HandlerTopology("billing", "orders", Tiers.PER_DELAY, (3_600_000, 300_000, 300_000, 90_000))
    tiers = ["1m30s", "5m", "1h"]
    assert list(topology.retry_topics) == [f"billing.orders.retry.{tier}" for tier in tiers]
    delays = {300_000: "5m", 240_000: "5m", 195_000: "1m30s", 10**12: "1h", 0: "1m30s"}  # the shorter of two as near
    assert {delay: topology.retry_topic_for(delay).rsplit(".", 1)[1] for delay in delays} == delays


@pytest.mark.parametrize(
    ("group", "main", "problem"),
    [
        ("", "orders", "empty"), ("billing", "", "empty"), ("bil ling", "orders", "' '"),
        ("billing", "orders/eu", "'/'"), ("billing", "ördérs", "'éö'"), ("billing", "o" * 240, "characters"),
        ("..", "orders", "'..'"),
    ],
)  # fmt: skip
def test_an_illegal_name_is_refused_by_name(group: str, main: str, problem: str) -> None:
    """The error says which name and what is wrong with it."""
    with pytest.raises(InvalidTopicNameError, match="cannot be used") as caught:
        HandlerTopology(group, main)
    assert problem in str(caught.value)


def test_the_longest_name_counts() -> None:
    """What is too long is our longest name, not the main topic's."""
    room = 249 - len("g..pending.changelog")
    HandlerTopology("g", "m" * room)
    with pytest.raises(InvalidTopicNameError, match="250 characters"):
        HandlerTopology("g", "m" * (room + 1))


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([("g", "orders"), ("g", "orders")], DuplicateHandlerError), ([("a.b", "c"), ("a", "b.c")], NameClashError),
        ([("a_b", "c"), ("a.b", "c")], NameClashError), ([("g", "orders"), ("h", "g.orders.retry")], NameClashError),
        ([("g", "orders"), ("g", "g.orders.dlq")], NameClashError),
        ([("g", "orders"), ("h", "g_orders_dlq")], NameClashError),
    ],
)  # fmt: skip
def test_clashes_are_refused(pairs: list[tuple[str, str]], error: type[Exception]) -> None:
    """Two owners, a main topic that is ours, and names that Kafka cannot tell apart."""
    with pytest.raises(error):
        check_names([HandlerTopology(group, main) for group, main in pairs])


def test_specs_have_the_settings_that_keep_what_waits() -> None:
    """Each topic with its clean-up, retention, time stamps, size and replicas, and a reason for each."""
    topology = HandlerTopology("billing", "orders")
    specs = {
        spec.role: spec for spec in topic_specs(topology, partitions=6, main_max_message_bytes=1_048_588, replication=3)
    }
    retry = specs[TopicRole.RETRY].config
    assert retry == {
        "cleanup.policy": "delete",
        "retention.ms": str(7 * DAY),
        "retention.bytes": "-1",
        "message.timestamp.type": "LogAppendTime",
        "max.message.bytes": str(1_048_588 + 65_536),
        "compression.type": "producer",
        "min.insync.replicas": "2",
    }
    assert specs[TopicRole.DLQ].config["retention.ms"] == str(30 * DAY)
    assert specs[TopicRole.EVENTS].config["retention.ms"] == str(7 * DAY)
    changelog = specs[TopicRole.CHANGELOG].config
    assert changelog["cleanup.policy"] == "compact"
    assert {"segment.ms", "min.cleanable.dirty.ratio", "delete.retention.ms"} <= changelog.keys()
    assert "retention.ms" not in changelog
    for spec in specs.values():
        assert (spec.partitions, spec.replication) == (6, 3)
        assert spec.why.keys() == spec.config.keys() | {"partitions", "replication"}
        assert all(spec.why.values())
        assert spec.config["message.timestamp.type"] == "LogAppendTime"


def test_retention_follows_what_is_asked() -> None:
    """Dead letters may be kept forever, history as long as events; one copy, one in sync."""
    specs = topic_specs(
        HandlerTopology("billing", "orders", Tiers.PER_DELAY, (1_000, 2_000)),
        partitions=1,
        main_max_message_bytes=1_000,
        replication=1,
        dlq_retention_ms=None,
    )
    by_name = {spec.name: spec.config for spec in specs}
    for name in ("retry.1s", "retry.2s", "events"):
        assert by_name[f"billing.orders.{name}"]["retention.ms"] == str(7 * DAY)
    assert by_name["billing.orders.dlq"]["retention.ms"] == "-1"
    assert {config["min.insync.replicas"] for config in by_name.values()} == {"1"}


def test_a_handler_that_deduplicates_has_one_topic_more() -> None:
    """Its records are forgotten by age: the window in full hours and one hour more."""
    plain, seen = (HandlerTopology("g", "orders", seen_window_ms=window_ms) for window_ms in (None, 5_400_000))
    assert set(seen.owned) - set(plain.owned) == {"g.orders.seen.changelog"}
    specs = topic_specs(seen, partitions=3, main_max_message_bytes=1_000, replication=3)
    (spec,) = [spec for spec in specs if spec.role is TopicRole.SEEN]
    assert (spec.name, spec.partitions) == (seen.seen_changelog, 3)
    assert spec.config["cleanup.policy"] == "delete"
    assert spec.config["retention.ms"] == str(3 * 3_600_000)
    assert (spec.config["retention.bytes"], spec.config["segment.ms"]) == ("-1", "3600000")
    week = HandlerTopology("g", "orders", seen_window_ms=7 * DAY)
    specs = topic_specs(week, partitions=3, main_max_message_bytes=1_000, replication=3)
    assert specs[-1].config["segment.ms"] == str(7 * DAY // 8), "a few segments, whatever the window"


def publishing(**publishes: str) -> list[HandlerTopology]:
    """Return handlers by main topic, each with the topics that it publishes to."""
    return [HandlerTopology("g", main, publishes=tuple(topics.split())) for main, topics in publishes.items()]


@pytest.mark.parametrize(
    ("handlers", "circle"),
    [
        (publishing(a="x a"), "a -> a"),
        (publishing(a="x b", b="a"), "a -> b -> a"),
        (publishing(z="a", a="b c", b="x", c="d", d="b a"), "a -> c -> d -> a"),
    ],
)
def test_a_record_that_would_come_back_to_its_handler_is_refused(handlers: list[HandlerTopology], circle: str) -> None:
    """It would make another one each time."""
    with pytest.raises(PublishCircleError, match=circle):
        check_names(handlers)


def test_handlers_may_publish_to_each_other_in_one_direction() -> None:
    """Also in two ways to the same one; not to a topic of ours."""
    check_names(publishing(a="b c", b="d", c="d", d="x"))
    with pytest.raises(NameClashError, match="publishes"):
        check_names(publishing(a="g.b.events", b=""))
    with pytest.raises(InvalidTopicNameError):
        publishing(a="no/name")


def letters(publishes: str = "", of: str = "orders", name: str = "") -> HandlerTopology:
    main = f"g.{of}.dlq{name}"
    return HandlerTopology("g", main, publishes=tuple(publishes.split()), drop=True, letters_of=of)


def test_a_handler_without_dead_letters_has_all_other_topics() -> None:
    """Its dead-letter topic would have that name still: it may be of a former start."""
    topology = HandlerTopology("g", "orders", drop=True)
    assert (topology.dlqs, topology.dlq) == ((), "g.orders.dlq")
    assert topology.owned == ("g.orders.retry", "g.orders.events", "g.orders.control", "g.orders.pending.changelog")
    assert topology.is_dlq("g.orders.dlq")


def test_a_dead_letter_topic_is_the_main_topic_of_its_handler_alone() -> None:
    """Of a handler of this group that has it; its topics are named after it like any other's, with no second one."""
    orders = HandlerTopology("g", "orders", dead_letters=("invalid",))
    check_names([orders, letters(), letters(name=".invalid")])
    assert letters().owned == (
        "g.g.orders.dlq.retry", "g.g.orders.dlq.events", "g.g.orders.dlq.control",
        "g.g.orders.dlq.pending.changelog",
    )  # fmt: skip
    with pytest.raises(NameClashError):
        check_names([orders, HandlerTopology("h", "refunds"), HandlerTopology("g", "g.orders.dlq", drop=True)])
    with pytest.raises(NameClashError):
        check_names([orders, HandlerTopology("h", "g.orders.dlq", drop=True, letters_of="orders")])


def test_a_dead_letter_topic_is_known_by_its_name():
    """Tools that see topics alone count no marks as records of it."""
    letters = ("shop.orders.dlq", "other.a.dlq.invalid", "shop.orders.dlq.dlq")
    others = ("orders", ".dlq", "shop.dlq.events", "shop.orders.dlqs", "shop.orders.dlq.a.b", "shop.orders.retry")
    assert [HandlerTopology("shop", name).reads_letters for name in letters] == [True] * 3
    assert [HandlerTopology("shop", name).reads_letters for name in others] == [False] * 6


@pytest.mark.parametrize(
    ("handlers", "circle"),
    [
        ([*publishing(orders=""), letters("orders")], "orders -> g.orders.dlq -> orders"),
        ([*publishing(orders="", a="orders"), letters("x a")], "orders -> g.orders.dlq -> a -> orders"),
    ],
)
def test_a_circle_through_dead_letters_is_refused(handlers: list[HandlerTopology], circle: str) -> None:
    """A record that dies each time would come back each time."""
    with pytest.raises(PublishCircleError, match=circle):
        check_names(handlers)
    check_names([*publishing(orders="x", b=""), letters("b")])


def test_marks_are_kept_for_longer_than_letters() -> None:
    """A segment of the dead-letter topic may keep its first letter for a week more."""
    facts = {"partitions": 3, "main_max_message_bytes": 1_000, "replication": 3}

    def kept(topology: HandlerTopology, retention_ms: int | None) -> str:
        specs = topic_specs(topology, **facts, dlq_retention_ms=retention_ms)
        return next(spec.config["retention.ms"] for spec in specs if spec.role is TopicRole.EVENTS)

    assert (kept(letters(), 30 * DAY), kept(letters(), None)) == (str(37 * DAY), "-1")
    assert kept(HandlerTopology("g", "orders"), 30 * DAY) == str(7 * DAY)
