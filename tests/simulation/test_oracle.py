"""The judge of histories finds each way in which one can be wrong, and nothing in one that is right."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from operator import methodcaller
from operator import methodcaller as do
from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.core.record import Record
from retryapp.core.rows import OPERATOR, PendingRow, Reference, encode_row
from retryapp.ports import TopicPartition
from simulation.lives import SPAN
from simulation.newest import check_replaced
from simulation.oracle import Oracle
from simulation.quiet import HEALED_MS, check_outage, longest_idle_wait_ms
from simulation.referring import KEPT_MS, Referring
from simulation.story import Call, Opening, Story, Topics, Violation
from simulation.waits import Waits

TOPICS = Topics("orders", "retry", "dlq", "events", "changelog", "seen", "results")
WAITS_MS = (100, 200)
KEY, HEADERS = b"k", (("trace", b"1"),)
IDENTITY = bytes(21)
ROW = bytes(4) + (1_000_100).to_bytes(8, "big")


class Told:
    """An oracle with one record, and short ways to tell it things."""

    def __init__(self, script: str = "FS") -> None:
        self.oracle = Oracle(TOPICS, WAITS_MS, later_ms=50, skew_ms=0)
        self.record = Record("orders", 0, 0, 7, KEY, b"v", HEADERS)
        self.oracle.add(self.record, script)

    def call(self, attempt: int, *, at_ms: float, fine: bool, due_ms: int | None = None) -> None:
        """The handler is called, and is done 10 ms later."""
        self.begin(attempt, at_ms=at_ms, due_ms=due_ms)
        self.oracle.ended((0, 0), attempt, Call("w", at_ms, at_ms + 10, fine))

    def begin(
        self,
        attempt: int,
        *,
        at_ms: float,
        due_ms: int | None = None,
        value: bytes = b"v",
        opening: Opening | None = None,
        offset: int = 0,
    ) -> None:
        self.oracle.begun((0, offset), attempt, due_ms, (KEY, value, HEADERS, 7), at_ms, opening)

    def show(self, topic: str, attempt: int, *, at_ms: float = 1e9, due_ms: int = 0, value: bytes = b"v") -> None:
        """A copy of the record becomes visible."""
        ours = (
            ("retry-origin", b"orders@x/0/0"), ("retry-attempt", b"%d" % attempt), ("retry-due-ms", b"%d" % due_ms),
        )  # fmt: skip
        copy = Record(topic, 0, attempt, 0, KEY, value, HEADERS + ours)
        self.oracle.appeared(TopicPartition(topic, 0), [copy], at_ms)

    def log(self, value: bytes | None) -> None:
        """A row is put or removed."""
        self.oracle.appeared(TopicPartition("changelog", 0), [Record("changelog", 0, 0, 0, IDENTITY, value, ())], 1e9)

    def succeed(self, delivery: int = 2) -> None:
        """The event of a success after a failure becomes visible."""
        told = b'{"kind": "succeeded", "origin": "orders@x/0/0", "delivery": %d}' % delivery
        self.oracle.appeared(TopicPartition("events", 0), [Record("events", 0, 0, 0, b"", told, ())], 1e9)

    def publish(self, attempt: int) -> None:
        record = Record("results", 0, attempt, 0, b"0", b"%d" % attempt, ())
        self.oracle.appeared(TopicPartition("results", 0), [record], 1e9)

    def move(self, topic: str, offset: int) -> None:
        self.oracle.offsets.moved({TopicPartition(topic, 0): offset})

    def recovered(self, *due_ms: int) -> None:
        """A lane opens with this row, under keys of these due times."""
        self.oracle.stores.recovered(0, {each.to_bytes(8, "big") + IDENTITY: ROW for each in due_ms})

    def at_rest(self) -> None:
        self.oracle.at_rest()


IN_ORDER = [
    do("call", 1, at_ms=1_000_000, fine=False), do("show", "retry", 1, due_ms=1_000_100), do("log", ROW),
    do("move", "orders", 1), do("recovered", 1_000_100), do("call", 2, at_ms=1_000_120, fine=True, due_ms=1_000_100),
    do("publish", 2), do("succeed"), do("log", None), do("recovered"),
]  # fmt: skip
"""A failure, a wait and a success."""


def tell(told: Told, steps: list[methodcaller]) -> None:
    for step in steps:
        step(told)


def test_a_good_history_holds() -> None:
    """From the first delivery to the last."""
    told = Told()
    assert told.oracle.open_ends() == [(0, 0)]
    tell(told, IN_ORDER)
    told.oracle.at_rest()
    assert (told.oracle.open_ends(), told.oracle.repeated) == ([], 0)


REST = do("at_rest")
FAILED = do("call", 1, at_ms=0, fine=False)
IN_SESSION = Opening("w", 0.0)
AGAIN_AFTER_ITS_END = [
    FAILED, do("show", "dlq", 1, at_ms=500), do("begin", 2, at_ms=9_000, due_ms=1, opening=Opening("w", 501.0)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("invariant", "steps"),
    [
        pytest.param("I3", [FAILED, do("begin", 2, at_ms=105, due_ms=105)], id="early"),
        pytest.param("I5", [do("begin", 4, at_ms=0)], id="too often"),
        pytest.param("I5", [do("begin", 2, at_ms=0)], id="out of order"),
        pytest.param("I8", [do("begin", 1, at_ms=0, value=b"other")], id="changed"),
        pytest.param("I8", [do("show", "retry", 1, value=b"other")], id="changed copy"),
        pytest.param("I6", [do("move", "orders", 1)], id="passed"),
        pytest.param("I6", [do("show", "retry", 1, due_ms=1_000_100), do("move", "orders", 1)], id="a copy, no row"),
        pytest.param(
            "I6", [do("call", 1, at_ms=0, fine=True), do("move", "orders", 1), do("move", "orders", 0)], id="moved back"
        ),
        pytest.param("I1", [do("show", "retry", 1)] * 2, id="twice"),
        pytest.param("I2", [do("show", "retry", 1), do("succeed", 1)], id="two hand-offs of a delivery"),
        pytest.param("I2", [do("succeed")] * 2, id="ended twice"),
        pytest.param("I2", [do("succeed"), do("show", "retry", 1)], id="tried after its end"),
        pytest.param("I1", [do("show", "dlq", 1)], id="wrong end"),
        pytest.param("I5", [do("show", "retry", 3)], id="one wait too many"),
        pytest.param("I1", [REST], id="lost"),
        pytest.param("I7", [*IN_ORDER, do("log", ROW), REST], id="waits forever"),
        pytest.param("I7", [do("log", ROW), do("recovered")], id="another store"),
        pytest.param("I7", [do("log", ROW), do("recovered", 5)], id="a key that is not its own"),
        pytest.param("I7", [do("log", ROW), do("recovered", 5, 1_000_100)], id="two rows of a record"),
        pytest.param("I1", [do("begin", 1, at_ms=0, offset=5)], id="nobody's"),
        pytest.param("I5", [do("begin", 1, at_ms=at_ms, opening=IN_SESSION) for at_ms in (0, 5)], id="same session"),
        pytest.param(
            "I5",
            [do("show", "retry", 1, at_ms=500), do("begin", 1, at_ms=900, opening=Opening("w", 501.0))],
            id="after its outcome",
        ),
        pytest.param("I1", [FAILED, do("publish", 1)], id="published by a failure"),
        pytest.param("I1", [*IN_ORDER, do("publish", 2)], id="published twice"),
        pytest.param("I1", [do("call", 1, at_ms=0, fine=True), REST], id="published nothing"),
    ],
)
def test_what_is_wrong_is_named(invariant: str, steps: list[methodcaller]) -> None:
    told = Told()
    tell(told, steps[:-1])
    with pytest.raises(Violation, match=f"^{invariant} "):
        steps[-1](told)


@pytest.mark.parametrize(
    ("script", "fate"),
    [("S", "done"), ("FS", "done"), ("FFS", "done"), ("FFFS", "dead"), ("F", "dead"), ("FR", "dead"), ("R", "dead")],
)
def test_a_script_says_how_a_record_ends(script: str, fate: str) -> None:
    """Under three attempts."""
    assert Told().oracle.fate(script) == fate


def test_what_an_opening_could_not_know_may_be_handled_again() -> None:
    """An outcome that came later."""
    told = Told()
    told.show("retry", 1, at_ms=500)
    told.begin(1, at_ms=900, opening=Opening("w", 499.0))
    told.begin(1, at_ms=900)
    assert told.oracle.repeated == 1


def test_the_end_of_a_record_is_the_outcome_of_all_its_attempts() -> None:
    """A second attempt behind a dead letter is one too many, whatever its own outcome."""
    with pytest.raises(Violation, match=r"^I5 .* its outcome is durable"):
        tell(Told("R"), AGAIN_AFTER_ITS_END)


@pytest.mark.parametrize(
    ("taken_back", "rows", "holds"),
    [
        (False, {b"e": b"row"}, True),
        (False, {}, False),
        (False, {b"e": b"row", b"f": b"row"}, False),
        (True, {b"e": b"row", b"f": b"row"}, True),
        (True, {b"f": b"row"}, False),
    ],
)
def test_a_table_of_seen_events_is_compared(rows: dict[bytes, bytes], *, taken_back: bool, holds: bool) -> None:
    """It is its changelog, and what the broker took back."""
    oracle = repeated()
    oracle.appeared(TopicPartition("seen", 0), [Record("seen", 0, 0, 0, b"e", b"row", ())], 1.0)
    with nullcontext() if holds else pytest.raises(Violation, match=r"^I7 "):
        oracle.stores.remembered(0, rows, taken_back=taken_back)


def repeated() -> Oracle:
    """Return an oracle with two records of one event, at offsets 0 and 1."""
    oracle = Oracle(TOPICS, WAITS_MS, later_ms=50, skew_ms=0)
    for offset in (0, 1):
        oracle.add(Record("orders", 0, offset, 7, KEY, b"v", HEADERS), "S", "e1")
    return oracle


def handle(oracle: Oracle, offset: int) -> None:
    """A handler call, from begin to end."""
    oracle.begun((0, offset), 1, None, (KEY, b"v", HEADERS, 7), 1.0)
    oracle.ended((0, offset), 1, Call("w", 1.0, 2.0, fine=True))


def skip(oracle: Oracle, offset: int, first: int) -> None:
    told = b'{"kind": "skipped", "why": "", "origin": "orders@x/0/%d", "first_offset": %d}' % (offset, first)
    oracle.appeared(TopicPartition("events", 0), [Record("events", 0, 0, 0, b"", told, ())], 1e9)


def test_a_duplicate_that_is_skipped_is_right() -> None:
    """The first is handled, the other one told; rows of seen events concern nobody here."""
    oracle = repeated()
    handle(oracle, 0)
    oracle.appeared(TopicPartition("results", 0), [Record("results", 0, 0, 0, b"0", b"1", ())], 1e9)
    oracle.appeared(TopicPartition("seen", 0), [Record("seen", 0, 0, 0, bytes(16), b"row", ())], 1e9)
    skip(oracle, 1, 0)
    oracle.offsets.moved({TopicPartition("orders", 0): 2})
    oracle.at_rest()
    assert (oracle.open_ends(), oracle.skips) == ([], 1)


def test_a_duplicate_that_is_handled_is_wrong() -> None:
    """What was seen is durable before the offset moves."""
    with pytest.raises(Violation, match=r"I5 0/1: a duplicate of \(0, 0\)"):
        handle(repeated(), 1)


def test_skips_that_are_wrong_are_found() -> None:
    """Of the first record, as a repetition of another one, twice, and without a word."""
    for offset, first in ((0, 1), (1, 7)):
        with pytest.raises(Violation, match="I1"):
            skip(repeated(), offset, first)
    oracle = repeated()
    skip(oracle, 1, 0)
    with pytest.raises(Violation, match="I2 0/1: 2 visible copies"):
        skip(oracle, 1, 0)
    oracle = repeated()
    handle(oracle, 0)
    with pytest.raises(Violation, match="I6 0/1: passed without a fate"):
        oracle.offsets.moved({TopicPartition("orders", 0): 2})


GROUP = "g2:w@0-2<9 wg2:w@1000.0-1000.2"
"""A note: the records at offsets 0 and 1 were started together, and so were their rows, due at 1000."""


def suspected() -> Oracle:
    """Return an oracle with three records, whose first deliveries have begun."""
    oracle, opening = Oracle(TOPICS, WAITS_MS, later_ms=50, skew_ms=0), Opening("w", 5.0)
    for offset in range(3):
        oracle.add(Record("orders", 0, offset, 7, KEY, b"v", HEADERS), "FS")
    for offset in (0, 1):
        oracle.begun((0, offset), 1, None, (KEY, b"v", HEADERS, 7), 10.0, opening)
    return oracle


@pytest.mark.parametrize(
    ("offset", "attempt", "due_ms", "note"),
    [
        (1, 1, None, GROUP),
        (2, 1, None, GROUP.replace("w@", "another@")),
        (2, 1, None, "r2:w<9"),
        (1, 2, 1000, GROUP),
        (2, 2, 1001, "g2:w@0-2"),
    ],
)
def test_what_a_mark_names_may_run(offset: int, attempt: int, due_ms: int | None, note: str) -> None:
    """Rows do not wait for first deliveries; another life's mark says nothing of this one."""
    suspected().offsets.suspects((0, offset), attempt, due_ms, note, Opening("w", 5.0))


@pytest.mark.parametrize(
    ("offset", "attempt", "due_ms", "note", "what"),
    [
        (2, 1, None, GROUP, "attempt 1 runs beside g2:w@0-2"),
        (0, 2, 1001, GROUP, "attempt 2 runs beside"),
        (0, 1, None, "s1:w@2", "runs beside s1:w@2"),
        (2, 1, None, "s1:w@2", r"beside \(0, 0\), not durable"),
    ],
)
def test_what_runs_beside_suspects_is_found(
    offset: int, attempt: int, due_ms: int | None, note: str, what: str
) -> None:
    """And a group that starts before the outcomes of the one before are durable."""
    with pytest.raises(Violation, match=f"^I14 .*{what}"):
        suspected().offsets.suspects((0, offset), attempt, due_ms, note, Opening("w", 5.0))


def test_a_group_may_start_once_the_one_before_is_durable() -> None:
    """By the committed offset."""
    oracle = suspected()
    for offset in (0, 1):
        oracle.ended((0, offset), 1, Call("w", 10.0, 11.0, fine=True))
    oracle.offsets.moved({TopicPartition("orders", 0): 2})
    oracle.offsets.suspects((0, 2), 1, None, "s1:w@2", Opening("w", 5.0))


@pytest.mark.parametrize("deferred", [False, True])
def test_a_row_runs_beside_a_suspect_until_its_outcome_is_there(*, deferred: bool) -> None:
    """Also one that spends no attempt; one of before counts for nothing."""
    told, opening = Told(), Opening("w", 5.0)
    told.oracle.steering = SimpleNamespace(deferred=lambda *_: deferred, begins=lambda *_: None, resumed_ms={})
    told.oracle.add(Record("orders", 0, 1, 7, KEY, b"v", HEADERS), "FS")
    told.call(1, at_ms=10, fine=False, due_ms=None)
    told.show("retry", 1, at_ms=30, due_ms=110)
    told.begin(2, at_ms=120, due_ms=110, opening=opening)
    follow = do("suspects", (0, 1), 2, 120, "ws1:w@120.1", opening)
    with pytest.raises(Violation, match=r"beside \(0, 0\), not durable"):
        follow(told.oracle.offsets)
    told.show("retry", 2, at_ms=140, due_ms=1_000)
    follow(told.oracle.offsets)


@pytest.mark.parametrize(("fenced_ms", "holds"), [(99.0, True), (101.0, False)])
def test_an_owner_that_was_replaced_knows_nothing_of_what_follows(fenced_ms: float, *, holds: bool) -> None:
    """What it has taken in may begin, until it hears of it."""
    told = Told("FS")
    told.oracle.add(Record("orders", 0, 1, 7, KEY, b"v", HEADERS), "S")
    told.oracle.sequences.orders["w"] = "latest"
    told.oracle.stories[0, 1].settled_ms[1] = 100.0
    with nullcontext() if holds else pytest.raises(Violation, match=r"^I16 0/0: begins after \(0, 1\)"):
        told.begin(1, at_ms=200, opening=Opening("w", fenced_ms))


def replaced(*, ended: bool, forced: bool = True) -> Told:
    """The first record is dead, a newer one of its key has begun, and the first one is replayed."""
    told, opening = Told("RS"), Opening("w", 0.0)
    told.oracle.add(Record("orders", 0, 1, 7, KEY, b"v", HEADERS), "S")
    told.oracle.sequences.orders["w"] = "latest"
    nothing: dict[str, Any] = dict.fromkeys(("edited", "begins", "deferred"), lambda *_: None)
    told.oracle.steering = SimpleNamespace(is_forced=lambda _: forced, resumed_ms={}, **nothing)
    told.begin(1, at_ms=10, opening=opening)
    end(told.oracle, "dlq")
    told.begin(1, at_ms=20, opening=opening, offset=1)
    told.oracle.ended((0, 1), 1, Call("w", 20.0, 30.0, fine=ended))
    ours = (
        ("retry-origin", b"orders@x/0/0"), ("retry-attempt", b"0"), ("retry-delivery", b"1"), ("retry-replays", b"1"),
        ("retry-replay-id", b"c"),
    )  # fmt: skip
    copy = Record("retry", 0, 0, 0, KEY, b"v", HEADERS + ours)
    told.oracle.appeared(TopicPartition("retry", 0), [copy], 40.0)
    return told


@pytest.mark.parametrize(("ended", "again", "holds"), [(True, False, True), (False, False, False), (True, True, False)])
def test_a_replayed_record_begins_after_newer_ones_that_had_ended(*, ended: bool, again: bool, holds: bool) -> None:
    """What they have done does not matter to whoever uses force; what is still to come replaces it."""
    told = replaced(ended=ended)
    if again:
        told.begin(1, at_ms=50, opening=Opening("w", 45.0), offset=1)
    with nullcontext() if holds else pytest.raises(Violation, match=r"^I20 0/0: a row begins after \[1\] of its key"):
        told.begin(1, at_ms=70, due_ms=40, opening=Opening("w", 60.0))


def test_a_replay_without_force_is_found_where_the_newest_counts() -> None:
    """A newer record may have replaced it."""
    with pytest.raises(Violation, match=r"^I20 0/0: replayed without force"):
        replaced(ended=True, forced=False)


@pytest.mark.parametrize("gone", [False, True])
def test_a_replaced_record_may_have_the_name_of_one_that_is_gone_with_its_topic(*, gone: bool) -> None:
    """A worker that runs on has named both like records of the former topic."""
    told = Told()
    for offset in (SPAN, SPAN + 2):
        told.oracle.add(Record("orders", 0, offset, 7, b"other", b"v", HEADERS), "S")
    told.oracle.stories[0, 0].gone = gone
    with nullcontext() if gone else pytest.raises(Violation, match=r"^I20 0/0: superseded by 2, which does not"):
        check_replaced(told.oracle.stories, (0, 0), 2)


@pytest.mark.parametrize("held", [False, True])
def test_after_an_outage_everything_begins_soon(*, held: bool) -> None:
    """Or after the hold of a record."""
    told = Told("S")
    told.call(1, at_ms=1_001 + HEALED_MS, fine=True)
    told.oracle.stories[0, 0].freed_ms = 1_500 if held else 0.0
    with nullcontext() if held else pytest.raises(Violation, match=r"^I18: .* 6001 ms"):
        check_outage(told.oracle, 1_000)


@pytest.mark.parametrize(("in_place", "idle_ms"), [(True, 20), (False, 120)])
def test_a_delivery_that_pauses_between_its_tries_goes_on(in_place: bool, idle_ms: float) -> None:
    """A record that waits for its place in flight waits for a delivery, not for nothing; where none goes on, it does.

    Seed 22428652.
    """
    opening = Opening("w", 0.0)
    first, second = (Story(Record("orders", 0, at, 7, KEY, b"v", HEADERS), "FS", sent_ms=5.0) for at in range(2))
    first.taken_in, second.taken_in = (0.0, opening), (140.0, opening)
    first.calls[1] = [Call("w", 0, 10, fine=False), Call("w", 110, 120, fine=True, in_place=in_place)]
    assert longest_idle_wait_ms([first, second]) == idle_ms


def end(oracle: Oracle, topic: str, attempt: int = 1) -> None:
    """The dead letter of the first record becomes visible on a topic."""
    ours = (("retry-origin", b"orders@x/0/0"), ("retry-attempt", b"%d" % attempt))
    oracle.appeared(TopicPartition(topic, 0), [Record(topic, 0, 0, 0, KEY, b"v", HEADERS + ours)], 1e9)


def pass_over(oracle: Oracle, delivery: int = 1) -> None:
    """The event of a skip by the handler becomes visible."""
    told = b'{"kind": "skipped", "why": "", "origin": "orders@x/0/0", "first_offset": null, "delivery": %d}' % delivery
    oracle.appeared(TopicPartition("events", 0), [Record("events", 0, 0, 0, b"", told, ())], 1e9)


def test_dead_letters_on_the_wrong_topic_are_found() -> None:
    """Those of a rule on the usual one, others on the rule's, and any on a topic that no rule has."""
    for script, right, wrong in (("V", "dlq.invalid", "dlq"), ("R", "dlq", "dlq.invalid"), ("R", "dlq", "dlq.other")):
        end(Told(script).oracle, right)
        with pytest.raises(Violation, match="I8 0/0: attempt 1 has a dead letter on"):
            end(Told(script).oracle, wrong)


@pytest.mark.parametrize(
    ("value", "right", "wrong"), [(b"0.0:I", "dlq", "dlq.invalid"), (b"edited", "dlq.invalid", "dlq")]
)
def test_a_condition_about_a_value_goes_by_what_a_command_has_made_of_it(value: bytes, right: str, wrong: str) -> None:
    """Its rule, with a dead-letter topic of its own, does not match the record as it was sent."""
    for topic in (right, wrong):
        told = Told("I")
        told.oracle.stories[0, 0].record = replace(told.record, value=value)
        with nullcontext() if topic == right else pytest.raises(Violation, match="I8 0/0: attempt 1 has a dead letter"):
            told.show(topic, 1, value=value)


def test_skips_by_the_handler_that_are_wrong_are_found() -> None:
    """Of a record that does not say so, twice, with a result, and beside a row that stays."""
    with pytest.raises(Violation, match="I1 0/0: skipped, by script 'FS'"):
        pass_over(Told("FS").oracle)
    told = Told("P")
    pass_over(told.oracle)
    with pytest.raises(Violation, match="I2 0/0: 2 visible copies"):
        pass_over(told.oracle)
    told = Told("FP")
    told.call(1, at_ms=1_000, fine=False)
    told.log(ROW)
    told.show("retry", 1, due_ms=1_000_100)
    pass_over(told.oracle, 2)
    with pytest.raises(Violation, match=r"I7 .*1 rows wait for ever"):
        told.at_rest()
    told.log(None)
    told.at_rest()
    with pytest.raises(Violation, match="I1"):
        told.publish(1)


@pytest.mark.parametrize(
    ("script", "fate"),
    [("YYS", "done"), ("YYYS", "dead"), ("YFYFS", "dead"), ("YFYS", "done"), ("FFS", "done"), ("YP", "skipped")],
)
def test_a_busy_service_has_waits_of_its_own(script: str, fate: str) -> None:
    """Two in a row, four attempts in all."""
    waits = Waits([(100, 200, 300)], {}, (10, 20), per_delay=False)
    assert waits.fate(script) == fate
    least = [waits.least_ms(Story(Record("orders", 0, 0, 7, KEY, b"v", ()), "YYFY"), n, "w") for n in (1, 2, 3, 4)]
    assert least == [10, 20, 100, 10]


@pytest.mark.parametrize(
    ("hold", "due_ms", "holds"), [(0, -1, True), (0, 500, True), (0, 501, False), (OPERATOR, 501, True)]
)
def test_a_row_waits_by_reference_until_it_is_safe(hold: int, due_ms: int, *, holds: bool) -> None:
    """One that is due by now waits no longer, as after a release; both times count from the last that is safe."""
    story = Story(Record("orders", 0, 0, 7, KEY, b"v", HEADERS), "FS", 7)
    safe_ms = 7 + KEPT_MS // 2
    told = Reference(7, 10, 1, safe_ms)
    row = encode_row(PendingRow(KEY, b"", (), due_at_ms=safe_ms + due_ms, hold=hold, reference=told))
    with nullcontext() if holds else pytest.raises(Violation, match=r"^I21 "):
        Referring().written((0, 0), story, row, safe_ms + 500)


@pytest.mark.parametrize(("new", "again", "holds"), [(0, 1, True), (0, 0, False), (2, 1, False)])
def test_more_may_wait_than_a_cap_says_only_where_the_first_one_comes_again(
    new: int, again: int, *, holds: bool
) -> None:
    """Its offset was set back while later ones waited; whatever comes behind others is one too many."""
    oracle = Told().oracle
    for offset in (1, 2):
        oracle.add(Record("orders", 0, offset, 7, KEY, b"v", HEADERS), "FS")
    oracle.sequences.most = 2
    oracle.stories[0, new].again = again
    with nullcontext() if holds else pytest.raises(Violation, match=r"I22 .* 3 of its sequence wait"):
        oracle.sequences.check_size((0, new), [(0, 0), (0, 1), (0, 2)])
