"""A worker that is not there: handlers, waiting records and dead letters behind what the pages ask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from functional.web import audits
from samples import WAITING, partition
from typing_extensions import override

from retryapp.core.causes import CauseCount, summed
from retryapp.core.control import Command, Verb
from retryapp.core.dead_index import IndexedLetter, index_letter
from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.failed import row_failed_of
from retryapp.core.foreign import shield
from retryapp.core.headers import encode_metadata
from retryapp.core.jobs import HandlerVerb, JobPart, JobVerb, LetterFilter, Part, PartState
from retryapp.core.lifecycle import Commanded
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.record import Headers, Origin, Record
from retryapp.core.row_keys import due_order, identity_of, parse_row_key, row_key
from retryapp.core.rows import PendingRow, encode_row
from retryapp.lookup.jobs import JobProgress, Order, Refused, Told
from retryapp.lookup.outcomes import Outcome, Sent
from retryapp.lookup.previews import Preview, Scope
from retryapp.ports import Activity, CauseTrends, DeadEntry, HandlerInfo, PartitionInfo, PartitionLag, PendingEntry
from retryapp.runtime.view import RuntimeView
from retryapp.web.journeys import Journey

NOW_MS = audits.NOW_MS
GROUP = "billing"
MAIN = "shop.orders"
TOPIC_ID = "kq8G0bTz"
BASE = f"/retries/{MAIN}"
UNTOLD = 78
"""Offset of a record of which the topics say nothing."""
EVIL = "<script>alert(1)</script>"
DEEP = '{"a": ' * 10_000 + '"secret-deep"' + "}" * 10_000
"""JSON that is too deep to be looked into."""


def metadata(offset: int, partition: int = 0, **changes: object) -> RetryMetadata:
    """Return metadata of a record that failed twice and waits 5 m."""
    facts: dict[str, object] = {
        "group": GROUP,
        "handler": "billing.charge",
        "origin": Origin(MAIN, TOPIC_ID, partition, offset),
        "attempt": 2,
        "delivery": 2,
        "due_at_ms": NOW_MS + 252_000,
        "tier": "5m",
        "last_failed_ms": NOW_MS - 48_000,
        "history": (
            HistoryEntry(1, NOW_MS - 360_000, "httpx.ReadTimeout"),
            HistoryEntry(2, NOW_MS - 48_000, "httpx.HTTPStatusError"),
        ),
    }
    return replace(WAITING, **{**facts, **changes})  # type: ignore[arg-type]  # a test's own fields


def dead_metadata(offset: int, partition: int = 0, **changes: object) -> RetryMetadata:
    """Return metadata of a record that used up its attempts."""
    facts: dict[str, object] = {
        "attempt": 7,
        "delivery": 7,
        "due_at_ms": None,
        "tier": None,
        "reason": "exhausted",
        "error_trace": 'File "billing.py", line 21, in charge\n    await post(url, order)',
    }
    return metadata(offset, partition, **{**facts, **changes})


@dataclass
class FakeWorker(RuntimeView):
    """Over plain lists."""

    infos: list[HandlerInfo] = field(default_factory=list)
    parts: dict[str, list[PartitionInfo]] = field(default_factory=dict)
    waiting: list[PendingEntry] = field(default_factory=list)
    letters: dict[int, list[IndexedLetter]] = field(default_factory=dict)
    named: dict[tuple[int, str], list[IndexedLetter]] = field(default_factory=dict)
    """Dead letters on topics of rules."""
    filling: set[tuple[str, int]] = field(default_factory=set)
    """Partitions whose dead letters are still being read."""
    records: dict[tuple[str, int, int], Record] = field(default_factory=dict)
    is_ready: bool = True
    broker_down: bool = False
    silent: str | None = None
    answer: str | None = ""
    """What becomes of commands: empty, obeyed; None, queued; else the word of a refusal."""
    commands: list[Command] = field(default_factory=list)
    broken: bool = False
    address: str = "http://127.0.0.1:6066"
    behind: list[PartitionLag] = field(default_factory=list)
    remembered: dict[str, dict[int, list[Part]]] = field(default_factory=dict)
    """What the partitions here remember of jobs."""
    known: dict[str, dict[int, Part]] = field(default_factory=dict)
    """What the changelogs of all partitions say of jobs."""
    not_begun: list[int] = field(default_factory=list)
    """Partitions on which any of them waits for a worker."""
    fits: Preview = field(default_factory=Preview)
    """What any preview counts."""
    failing: CauseTrends | None = None
    """What has failed in its handlers."""
    lately: Activity | None = None
    """What has ended in its handlers."""
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    """What was asked about many records."""

    @override
    def url(self) -> str:
        return self.address

    @override
    def handlers(self) -> Sequence[HandlerInfo]:
        if self.broken:
            raise ZeroDivisionError("a bug, with <b>markup</b>")
        return self.infos

    @override
    def partitions(self, main: str) -> Sequence[PartitionInfo]:
        return self.parts[main]

    @override
    def partition(self, main: str, number: int) -> PartitionInfo | None:
        return next((part for part in self.parts[main] if part.partition == number), None)

    @override
    async def lags(self, main: str) -> Sequence[PartitionLag]:
        if self.broker_down:
            raise BrokerUnreachableError("localhost:9092", "connection refused")
        return self.behind if main == MAIN else []

    @override
    def due_times(self, main: str, partition: int, *, start_ms: int, stop_ms: int, limit: int) -> Sequence[int]:
        rows = (parse_row_key(row.key) for row in self.waiting if main == MAIN and row.partition == partition)
        return sorted(row.due_at_ms for row in rows if start_ms <= row.due_at_ms < stop_ms)[:limit]

    @override
    def pending_page(
        self, main: str, *, after: bytes | None, limit: int, partition: int | None = None
    ) -> Iterable[PendingEntry]:
        rows = sorted(self.waiting if main == MAIN else [], key=lambda entry: due_order(entry.key))
        rows = [row for row in rows if partition in (None, row.partition)]
        rows = [row for row in rows if after is None or due_order(row.key) > due_order(after)]
        return rows[:limit]

    @override
    def topic_id(self, _main: str) -> str:
        return TOPIC_ID

    @override
    def pending_find(self, origin: Origin) -> PendingEntry | None:
        return next((row for row in self.waiting if row.key.endswith(identity_of(origin))), None)

    @override
    def letters_counted(self, main: str, partition: int) -> bool:
        return (main, partition) not in self.filling

    @override
    def dead_page(
        self, main: str, *, partition: int, before: int | None, limit: int, letters: str | None = None
    ) -> Sequence[DeadEntry]:
        rows = sorted(self._dead(main, partition, letters), key=lambda row: -row.offset)
        shown = [row for row in rows if before is None or row.offset < before][:limit]
        return [DeadEntry(partition=partition, row=row, letters=letters) for row in shown]

    @override
    def dead_latest(
        self,
        main: str,
        *,
        partition: int,
        before: tuple[int, int] | None,
        limit: int,
        letters: str | None = None,
        cause: str | None = None,
        key: bytes | None = None,
    ) -> Sequence[DeadEntry]:
        rows = [
            ((row.append_ms, row.offset), row)
            for row in self._dead(main, partition, letters)
            if cause in (None, row.cause_id) and key in (None, row.key)
        ]
        shown = sorted((each for each in rows if before is None or each[0] < before), key=lambda each: each[0])
        return [DeadEntry(partition=partition, row=row, letters=letters) for _, row in shown[::-1][:limit]]

    def _dead(self, main: str, partition: int, letters: str | None) -> Sequence[IndexedLetter]:
        there = self.letters.get(partition, []) if letters is None else self.named.get((partition, letters), [])
        return there if main == MAIN else []

    @override
    def dead_find(self, main: str, partition: int, failure_id: str) -> DeadEntry | None:
        return next(
            (
                entry
                for letters in (None, *self.infos[0].dead_letters)
                for entry in self.dead_page(main, partition=partition, before=None, limit=10**6, letters=letters)
                if entry.row.failure_id == failure_id
            ),
            None,
        )

    @override
    def on_topics(self, main: str, call: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return getattr(self, call.__name__)(main, *args, **more)

    def reach_first(self, _main: str) -> None:
        if self.broker_down:
            raise BrokerUnreachableError("localhost:9092", "nothing was sent: connection refused")

    def send_commands(
        self, main: str, commands: Sequence[Command], *, wait_s: float, places: dict[str, tuple[int, int]]
    ) -> Mapping[str, Commanded]:
        self.commands += commands
        places |= {each.id: (0, len(self.commands) - number) for number, each in enumerate(reversed(commands), 1)}
        if self.answer is None:
            return {}
        facts: Any = {"group": GROUP, "handler": "h", "main": main, "partition": 0, "at_ms": NOW_MS}
        told = {each.id: {"command": each.id, "verb": each.verb, "failure_id": each.failure_id} for each in commands}
        refused = {"refused": self.answer or None, "text": "a sentence"}
        return {name: Commanded(**facts, **asked, **refused) for name, asked in told.items()}

    def read_outcome(self, main: str, partition: int, offset: int, go_on: Callable[[], bool]) -> Outcome | None:
        if offset >= max(1, len(self.commands)):
            return None
        unsteered = Command(id="c", verb=Verb.REPLAY, failure_id=f"{GROUP}/{MAIN}@{TOPIC_ID}/0/10001")
        command = self.commands[offset] if self.commands else unsteered
        sent = Sent(id=command.id, verb=command.verb, failure_id=command.failure_id)
        return Outcome(sent, self._told(0, command.verb), complete=go_on())

    @override
    def job_parts(self, main: str) -> Mapping[int, Sequence[Part]]:
        return self.remembered.get(main, {})

    def parts_of(self, main: str) -> Mapping[str, Mapping[int, Part]]:
        return self.known

    def progress_of(self, main: str, now_ms: int) -> Mapping[str, JobProgress]:
        return {job: JobProgress(parts, self.not_begun) for job, parts in self.known.items()}

    def preview(self, main: str, verb: Verb, wanted: LetterFilter, go_on: Callable[[Preview], bool]) -> Preview:
        self.asked.append((main, verb, wanted))
        return self.fits

    def begin(self, main: str, order: Order, scope: Scope, *, wait_s: float) -> Told:
        self.asked.append((main, order, scope))
        return {number: self._told(number, "job-start") for number in scope.letters}

    def tell_job(self, main: str, job: str, verb: JobVerb, **more: Any) -> Told:
        self.asked.append((main, job, verb, more))
        return {number: self._told(number, verb) for number in self.remembered.get(main, {})}

    def tell_handler(self, main: str, verb: HandlerVerb, circuit: str, **more: Any) -> Told:
        self.asked.append((main, verb, circuit, more))
        return {number: self._told(number, verb) for number in range(2)}

    def read_journey(self, main: str, origin: Origin, since_ms: int | None, go_on: Callable[[], bool]) -> Journey:
        return Journey([] if origin.offset == UNTOLD else steps(), 12, complete=True, edited=1)

    read_audit = staticmethod(audits.audit_of)

    def read_refused(self, main: str, job: str, parts: Any, go_on: Callable[[], bool], *, most: int) -> Refused:
        assert [part.job for part in parts.values()] == [job] * len(parts)
        facts = {"refused": "recovered", "text": "this letter is <recovered> already"}
        names = [f"{GROUP}/{MAIN}@kq8G0bTz/1/{number}" for number in range(3)]
        return Refused([{"partition": 1, "failure_id": name, **facts} for name in (*names, None)][:most], complete=True)

    def _told(self, partition: int, verb: str) -> Commanded | None:
        if self.answer is None:
            return None
        facts: Any = {"group": GROUP, "handler": "h", "main": MAIN, "partition": partition, "at_ms": NOW_MS}
        asked = {"command": "c", "verb": verb, "failure_id": "", "text": "a sentence"}
        return Commanded(**facts, **asked, refused=self.answer or None)

    @override
    def causes(self, main: str) -> Mapping[int, Sequence[CauseCount]]:
        facts: Any = {"records": 1, "attempts": 7, "first_ms": NOW_MS - 360_000, "last_ms": NOW_MS}
        return {
            number: summed(
                CauseCount(cause_id=row.cause_id, name=row.cause or "", sample=row.failure_id or "", **facts)
                for row in rows
                if row.cause_id
            )
            for number, rows in (self.letters if main == MAIN else {}).items()
        }

    @override
    def waiting_causes(self, main: str) -> Mapping[int, Sequence[CauseCount]]:
        rows = self.waiting if main == MAIN else []
        return {
            number: summed(filter(None, (row_failed_of(entry.value) for entry in rows if entry.partition == number)))
            for number in {entry.partition for entry in rows}
        }

    @override
    def activity(self, main: str) -> Activity | None:
        return self.lately if main == MAIN else None

    @override
    def trends(self, main: str) -> CauseTrends | None:
        return self.failing if main == MAIN else None

    @override
    def read_record(self, topic: str, partition: int, offset: int) -> Record | None:
        if self.broker_down:
            raise BrokerUnreachableError("localhost:9092", "connection refused")
        return self.records.get((topic, partition, offset))

    @override
    def read_range(self, topic: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[Record]:
        for (name, number, offset), record in self.records.items():
            first, stop = ranges.get(number, (0, 0))
            if name == topic and first <= offset < stop:
                yield record

    @override
    def silence(self) -> str | None:
        return self.silent

    @override
    def ready(self) -> bool:
        return self.is_ready and self.silent is None

    @override
    async def metrics_text(self) -> bytes:
        return b"# HELP retryapp_succeeded_total x\nretryapp_succeeded_total 1.0\n"

    # --- filling it ---

    def wait(self, md: RetryMetadata, *, key: bytes | None, value: bytes | None, headers: Headers = ()) -> PendingEntry:
        row = PendingRow(key, value, shield(headers) + encode_metadata(md), md.due_at_ms or 0, NOW_MS - 47_990)
        entry = PendingEntry(
            partition=md.origin.partition,
            key=row_key(row.due_at_ms, identity_of(md.origin)),
            value=encode_row(row),
        )
        self.waiting.append(entry)
        return entry

    def bury(
        self,
        offset: int,
        md: RetryMetadata,
        *,
        key: bytes | None = b"customer-7",
        value: bytes | None = b"{}",
        headers: Headers = (),
        letters: str | None = None,
        append_ms: int | None = None,
    ) -> None:
        partition, at_ms = md.origin.partition, md.last_failed_ms if append_ms is None else append_ms
        every = shield(headers) + encode_metadata(md)
        topic = f"{GROUP}.{MAIN}.dlq"
        if letters is None:
            self.letters.setdefault(partition, []).append(index_letter(offset, every, key, at_ms))
        else:
            self.named.setdefault((partition, letters), []).append(index_letter(offset, every, key, at_ms))
            topic += f".{letters}"
        self.records[topic, partition, offset] = Record(topic, partition, offset, NOW_MS, key, value, every)


def handler(main: str = MAIN, **changes: object) -> HandlerInfo:
    prefix = f"{GROUP}.{main}"
    plain = HandlerInfo(
        group=GROUP,
        main=main,
        function="billing.charge",
        policy="5m*2 30m*3 1h; timeout=5m; non-retryable=ValueError",
        schedule="5m*2 30m*3 1h",
        max_attempts=7,
        policy_digest="9f2c41aa",
        tiers="single",
        order="none",
        concurrency=8,
        timeout_ms=300_000,
        topics={
            "main": main,
            **{name: f"{prefix}.{name}" for name in ("dlq", "events", "control")},
            "changelog": f"{prefix}.pending.changelog",
        },
        partitions=4,
        retry_topics=(f"{prefix}.retry",),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # a test's own fields


ORDER = (
    b'{"id":4711,"amount":19.90,"currency":"EUR","customer":{"name":"Zo\xc3\xab","vip":false},'
    b'"items":[{"sku":"A-1","n":2},{"sku":"B-9","n":1}],"notes":[]}'
)
TRACEPARENT: Headers = (
    ("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("tenant", b"north"),
)


def job_parts() -> dict[int, list[Part]]:
    """Return what two partitions remember: a job that goes on, and one that has paused itself."""
    order = JobPart(verb=Verb.REPLAY, filter=LetterFilter(cause="c1-0011223344"), upto={}, letters=350)
    facts: Any = {"verb": "replay", "by": "ann", "order": order}
    going = [Part(job="3f9ca81b02", why="ledger is back", done=number, looked=700, **facts) for number in (210, 95)]
    going[1].refused = Counter({"recovered": 4})
    again: Any = {"paused": "60 of the last 100 failed again", "outcomes": 100, "failed_again": 60}
    stopped = Part(job="77aa00bb11", why="second try", state=PartState.PAUSED, done=100, **again, **facts)
    return {0: [stopped, going[0]], 1: [going[1]]}


LATER_MS = NOW_MS + 220_000


def steps() -> list[dict[str, Any]]:
    """Return the journey of a record that failed, died, was edited and replayed, and failed again."""
    failed: Any = {"kind": "failed", "delivery": 1, "replays": 0, "reason": None, "due_at_ms": NOW_MS - 400_000}
    failed["first_failed_ms"] = NOW_MS - 900_000
    failed |= {"error_type": "app.ServiceError", "message": f"HTTP 503 {EVIL}", "cause_id": "c1-0011223344"}
    return [
        {**failed, "at_ms": NOW_MS - 900_000, "attempt": 1, "duration_ms": 2_300, "worker": "pod-7/worker-2"},
        {**failed, "at_ms": NOW_MS - 400_000, "attempt": 7, "duration_ms": 40, "kind": "dead", "reason": "exhausted"},
        {"kind": "replay", "at_ms": NOW_MS - 90_000, "by": "ann", "text": "it waits", "message": "ledger is back"},
        {"kind": "replayed", "at_ms": NOW_MS - 90_000, "by": "ann", "job": "3f9ca81b02"},
        {
            **failed,
            "at_ms": NOW_MS - 80_000,
            "attempt": 1,
            "replays": 1,
            "duration_ms": 9,
            "due_at_ms": NOW_MS + 220_000,
        },
    ]


def busy_worker(peer: str = "http://127.0.0.1:6067") -> FakeWorker:
    """Return a worker in mid-life: three partitions open, one elsewhere, one opening; every kind of value."""
    worker = FakeWorker(infos=[handler(partitions=6), handler("flights", function="flights.enrich", partitions=2)])
    worker.parts[MAIN] = [
        partition(
            0,
            pending=64,
            pending_by_tier={"5m": 40, "30m": 24},
            next_due_ms=NOW_MS + 1_200,
            dead=131,
            in_flight=3,
            release_lag_ms=2_300,
            session=2,
            since_ms=NOW_MS - 3_600_000,
            last_error="TimeoutError: no answer",
            last_error_ms=NOW_MS - 3_601_000,
        ),
        partition(1, pending=2, pending_by_tier={"5m": 1, "1h": 1}, next_due_ms=NOW_MS - 900, dead=4),
        partition(2, state="elsewhere", owner_url=peer),
        partition(3, state="elsewhere"),
        partition(4, state="opening", last_error="lane billing.shop.orders.4: not a member of generation 12"),
        partition(5, pending=1_204_331, pending_by_tier={"5m": 1_204_331}, next_due_ms=NOW_MS + 299_000, in_flight=8),
    ]
    worker.lately = Activity(span_s=60, deliveries=6_310, failures=42, late_within={"0.05": 40, "+Inf": 40})
    worker.behind = [
        PartitionLag(partition=0, committed=7_001, main=12),
        PartitionLag(partition=1, committed=None, main=0),
    ]
    worker.parts["flights"] = [partition(0), partition(1)]
    worker.remembered[MAIN] = job_parts()
    for number in range(60):
        late = metadata(10_000 + number, due_at_ms=NOW_MS + 1_200 + number * 4_000)
        worker.wait(late, key=b"customer-%d" % number, value=ORDER, headers=TRACEPARENT)
    worker.wait(metadata(42, 1, due_at_ms=NOW_MS - 900), key=None, value=b"\x00\x01\xfe\xff binary \x80" * 20)
    worker.wait(
        metadata(43, 1, error_message=f"bad thing {EVIL}", error_type=EVIL, due_at_ms=NOW_MS + 3_600_000, tier="1h"),
        key=EVIL.encode(),
        value=f"value {EVIL}".encode(),
        headers=(
            (f"x-{EVIL}", EVIL.encode()),
            ("retry-reason", b"the user's own"),
            ("null", None),
            ("bin", b"\xff\xfe"),
        ),
    )
    for number in range(120):
        md = dead_metadata(
            2_000 + number,
            last_failed_ms=NOW_MS - (120 - number) * 60_000,
            reason=("exhausted", "rejected", "non-retryable")[number % 3],
        )
        worker.bury(number * 2, md, value=ORDER, headers=TRACEPARENT)
    worker.bury(5, dead_metadata(8, 1, reason="too-large", original_reason="exhausted"), value=b"")
    worker.bury(7, dead_metadata(9, 1, null_value=True), key=None, value=b"")
    evil = dead_metadata(11, 1, error_message=EVIL, error_trace=EVIL, error_type=EVIL)
    worker.bury(9, evil, key=EVIL.encode(), value=EVIL.encode(), headers=((EVIL, EVIL.encode()),))
    damaged: Headers = (("retry-attempt", b"seven"), ("retry-version", b"1"))
    worker.letters[1].append(index_letter(12, damaged, None, NOW_MS))
    topic = f"{GROUP}.{MAIN}.dlq"
    worker.records[topic, 1, 12] = Record(topic, 1, 12, NOW_MS, None, b"{}", damaged)
    worker.records[MAIN, 1, 8] = Record(MAIN, 1, 8, NOW_MS, b"k", b"large " * 40_000, ())
    return worker
