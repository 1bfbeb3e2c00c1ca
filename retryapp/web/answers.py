"""What the pages show, as plain facts: the same for HTML and JSON.

Every method asks the worker's view, whose answers are bounded, and returns facts or raises ``PageError``. Partitions of
other workers are never guessed at: their numbers are None, and a question for one of them is sent there
(``errors.elsewhere``). Lists and counts are read from the tables in a thread: the event loop belongs to the records.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from retryapp.core.causes import CauseCount, summed
from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedMetadataError, RetryAppError
from retryapp.core.jobs import Part
from retryapp.core.record import failure_id, parse_failure_id
from retryapp.lookup.circuits import mark_held_back
from retryapp.lookup.payloads import payload_of
from retryapp.lookup.records import Facts, dead_detail, dead_summary, original_value, pending_detail, pending_summary
from retryapp.ports import PAGES_PREFIX, Clock, DeadEntry, HandlerInfo, PartitionInfo, PartitionLag
from retryapp.runtime.view import RuntimeView
from retryapp.web.access import NOBODY, Operators, Person, Role
from retryapp.web.attention import needs_action
from retryapp.web.due import DueCounts
from retryapp.web.errors import SOON, PageError, bad_parameter, elsewhere, not_found, not_open, not_ready
from retryapp.web.figures import DUE_ROWS, ELSEWHERE, OPEN, lag_facts, partition_facts, totals, web_url
from retryapp.web.peers import PART, SIGNATURE, Peers, causes_of, jobs_of, merged, silent_of
from retryapp.web.query import Question, Stream, offsets_text

SCAN_ROWS: Final = 2_000
"""Maximum number of rows that a page of dead letters reads when it filters by reason."""
READ_TIMEOUT_S: Final = 5.0
"""Time limit for reading a record from Kafka."""
_CHUNK_ROWS: Final = 50
LIVE_S: Final = 5
"""Overview and handler are loaded again after this time."""


class Group(NamedTuple):
    """What all workers have of a handler, as far as they answer."""

    partitions: list[PartitionInfo]
    silent: list[str]
    """Addresses of workers that do not answer."""
    causes: list[CauseCount]
    parts: list[tuple[int, Part]]
    """Parts of jobs with their partitions."""


class Answers:
    """Answers to all questions that a page can ask this worker."""

    def __init__(self, view: RuntimeView, clock: Clock, operators: Operators = NOBODY) -> None:
        self.view = view
        self.operators = operators
        self.clock = clock
        self._due = DueCounts(view)
        self.peers = Peers(self.now_ms, operators.peer_secret)

    def now_ms(self) -> int:
        """Return the epoch time in milliseconds."""
        return self.clock.wall_ms()

    def person(self, request: Any) -> Person:
        """Return who asks."""
        url = self.view.url()
        if request.path == PART and self.peers.has_signed(request.headers.get(SIGNATURE, ""), url):
            return Person("a worker", Role.OPERATE)
        return self.operators.person(request, url)

    async def index(self, _question: Question) -> Facts:
        """Return the handlers with their totals, and what needs somebody to act."""
        infos = list(self.view.handlers())
        handlers, todo = [], list[Facts]()
        for info in infos:
            here = self.view.partitions(info.main)
            group = await self._everywhere(info.main, here)
            whole = {**totals(group.partitions, whole=True), "silent": group.silent}
            handlers.append({**asdict(info), **totals(here), "group": whole})
            todo += needs_action(info.main, group.partitions, group.causes, group.parts, self.now_ms())
        return {
            "silent": sorted({url for handler in handlers for url in handler["group"]["silent"]}),
            "group": infos[0].group if infos else None,
            "url": self.view.url(),
            "ready": self.view.ready(),
            "todo": sorted(todo, key=lambda each: -each["weight"]),
            "handlers": handlers,
            "workers": sorted({url for handler in handlers for url in handler["workers"]}),
            "live_s": LIVE_S,
        }

    async def handler(self, question: Question) -> Facts:
        """Return one handler: topics, policy, partitions, and what becomes due within a day."""
        info = self.get_handler_or_404(question.main)
        infos = self.view.partitions(info.main)
        group = await self._everywhere(info.main, infos)
        whole = {**totals(group.partitions, whole=True), "silent": group.silent}
        return {
            "handler": {**asdict(info), **totals(infos), "group": whole},
            "partitions": [partition_facts(item) for item in infos],
            "everywhere": [partition_facts(item) for item in group.partitions],
            "causes": [asdict(cause) for cause in group.causes],
            "due": await self._due.of(info.main, infos, self.now_ms()),
            "live_s": LIVE_S,
        }

    async def _everywhere(self, main: str, infos: Sequence[PartitionInfo]) -> Group:
        """Return what all workers have of a handler."""
        answers = await self.peers.ask(infos)
        now_ms = self.now_ms()
        ours = await asyncio.to_thread(self.view.causes, main)
        parts = {**jobs_of(main, answers), **self.view.job_parts(main)}
        return Group(
            merged(main, infos, answers, now_ms),
            silent_of(infos, answers, now_ms),
            summed([*ours, *causes_of(main, answers)]),
            [(number, part) for number, some in sorted(parts.items()) for part in some],
        )

    async def parts(self, main: str) -> tuple[Sequence[tuple[int, Part]], list[str]]:
        """Return the parts of jobs of all workers with their partitions, and who does not answer."""
        group = await self._everywhere(main, self.view.partitions(main))
        return group.parts, group.silent

    async def part(self, _question: Question) -> Facts:
        """Return what this worker has, for the pages of the others: it asks nobody."""
        handlers: Facts = {}
        for info in self.view.handlers():
            here = [asdict(item) for item in self.view.partitions(info.main) if item.state != ELSEWHERE]
            causes = await asyncio.to_thread(self.view.causes, info.main)
            handlers[info.main] = {
                "partitions": here,
                "causes": [asdict(cause) for cause in causes],
                "jobs": {
                    number: [part.model_dump(mode="json", exclude_defaults=True) for part in parts]
                    for number, parts in self.view.job_parts(info.main).items()
                },
            }
        return {"handlers": handlers}

    async def partitions(self, question: Question) -> Facts:
        """Return each partition with owner, lane, and how far it lags, leaving out what is not yet due."""
        info = self.get_handler_or_404(question.main)
        lags: dict[int, PartitionLag] = {}
        unknown = None
        try:
            lags = {lag.partition: lag for lag in await self.view.lags(info.main)}
        except RetryAppError as error:
            unknown = str(error)
        infos, now_ms, url = self.view.partitions(info.main), self.now_ms(), self.view.url()

        def line(item: PartitionInfo) -> Facts:
            due = None
            if item.state == OPEN:
                rows = self.view.due_times(info.main, item.partition, start_ms=0, stop_ms=now_ms, limit=DUE_ROWS)
                due = len(rows)
            return {**partition_facts(item), **lag_facts(item, lags.get(item.partition), due=due, here_url=url)}

        return {
            "main": info.main,
            "group": info.group,
            "url": web_url(url),
            "partitions": await asyncio.to_thread(lambda: [*map(line, infos)]),
            "lag_unknown": unknown,
        }

    async def pending(self, question: Question) -> Facts:
        """Return one page of waiting records by due time."""
        infos = self._partitions(question)

        def page() -> tuple[list[Facts], str | None]:
            entries = self.view.pending_page(
                question.main, after=question.after, limit=question.limit + 1, partition=question.partition
            )
            shown = entries[: question.limit]
            mark = question.address(after=shown[-1].key.hex()) if len(entries) > len(shown) else None
            return [pending_summary(entry) for entry in shown], mark

        records, following = await asyncio.to_thread(page)
        holding, now_ms = {item.partition: item.holds_due for item in infos}, self.now_ms()
        for record in records:
            mark_held_back(record, holding, now_ms)
        return {"records": records, "next": following, **_list_facts(question, infos)}

    async def dead(self, question: Question) -> Facts:
        """Return one page of dead letters, newest first over all partitions here."""
        infos = self._partitions(question)
        records, cursor, scanned = await asyncio.to_thread(self._newest, infos, question)
        return {
            "records": records,
            "next": question.address(before=offsets_text(cursor)) if cursor else None,
            "scanned": scanned,
            "reason": question.reason,
            "cause": question.cause,
            "key": question.key,
            "reasons": sorted({*DeadReason, question.reason or DeadReason.EXHAUSTED}),
            **_list_facts(question, infos),
        }

    def _newest(
        self, infos: Sequence[PartitionInfo], question: Question
    ) -> tuple[list[Facts], dict[Stream, int] | None, int]:
        """Return the newest dead letters of all partitions, where the next page begins, and how many rows were read."""
        partitions = [item.partition for item in infos if item.state == OPEN]
        if question.partition is not None:
            partitions = [question.partition]
        topics = (None, *self.get_handler_or_404(question.main).dead_letters)
        known = [(partition, letters) for partition in partitions for letters in topics]
        cursor = {stream: offset for stream, offset in (question.before or {}).items() if stream in known}
        streams = [self._letters(question, stream, cursor.get(stream)) for stream in known]
        records: list[Facts] = []
        scanned = 0
        for row in heapq.merge(*streams, key=_newest_first):
            if len(records) == question.limit or scanned == SCAN_ROWS:
                return records, cursor, scanned
            scanned += 1
            cursor[row["partition"], row["letters"]] = row["offset"]
            if question.reason in (None, row["reason"]):
                records.append(row)
        return records, None, scanned

    def _letters(self, question: Question, stream: Stream, before: int | None) -> Iterator[Facts]:
        chunk = 2  # most partitions of a page are asked for no more
        sought: Facts = {"cause": question.cause, "key": None if question.key is None else question.key.encode()}
        partition, letters = stream
        while True:
            place: Facts = {"partition": partition, "letters": letters, "before": before, "limit": chunk}
            entries = self.view.dead_page(question.main, **place, **sought)
            yield from map(dead_summary, entries)
            if len(entries) < chunk:
                return
            before = entries[-1].row.offset
            chunk = min(_CHUNK_ROWS, 2 * chunk)

    async def pending_record(self, question: Question) -> Facts:
        """Return one waiting record with headers, key and value."""
        info = self.get_handler_or_404(question.main)
        partition, offset = question.at()
        self.get_open_partition_or_404(partition, question)
        entry = self.view.pending_find(info.main, partition, offset)
        if entry is None:
            raise not_found(
                "not-pending",
                f"no record of {info.main} with partition {partition} and offset {offset} waits",
                "It may have been delivered since, or be dead: look at the handler's dead letters",
            )
        item = self.view.partition(info.main, partition)
        holding = {partition: None if item is None else item.holds_due}
        record = await asyncio.to_thread(pending_detail, entry)
        mark_held_back(record, holding, self.now_ms())
        return {"main": info.main, "policy": _policy(info), "record": record}

    async def dead_letter(self, question: Question) -> Facts:
        """Return one dead letter; key and value are read from the topic now."""
        info = self.get_handler_or_404(question.main)
        partition, offset = question.at()
        self.get_open_partition_or_404(partition, question)
        letters = question.letters
        entries = (
            self.view.dead_page(info.main, partition=partition, letters=letters, before=offset + 1, limit=1)
            if letters is None or letters in info.dead_letters
            else ()
        )
        if not entries or entries[0].row.offset != offset:
            raise not_found(
                "not-dead",
                f"no dead letter of {info.main} at partition {partition}, offset {offset} is known",
                "It may be older than the dead-letter topic's retention: look at the list",
            )
        topic = info.topics["dlq" if letters is None else f"dlq {letters}"]
        record = await self._content(topic, entries[0])
        return {"main": info.main, "topic": topic, "policy": _policy(info), "record": record}

    async def _content(self, topic: str, entry: DeadEntry) -> Facts:
        """Return a letter with its headers, key and value, or why these cannot be shown.

        The index has no headers: all is read from the topic, and the value of a too large record from the main topic.
        """
        places = [(topic, entry.partition, entry.row.offset)]
        known = dead_detail(entry, ())
        origin = known["origin"]
        if known["reason"] == DeadReason.TOO_LARGE and origin:
            places.append((origin["topic"], origin["partition"], origin["offset"]))
        read_from = "{}[{}]@{}".format(*places[-1])
        content: Facts = {**known, "read_from": read_from, "unread": None, "key": None, "value": None}
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                letter = record = await self.view.read_record(*places[0])
                if len(places) > 1 and letter is not None:
                    record = await self.view.read_record(*places[1])
        except TimeoutError:
            return {**content, "unread": f"the broker did not answer within {READ_TIMEOUT_S:g} s"}
        except RetryAppError as error:
            return {**content, "unread": str(error)}
        if letter is not None:
            content = {**content, **dead_detail(entry, letter.headers), "key": None}
        if letter is None or record is None:
            return {**content, "unread": "it is no longer on the topic (older than its retention, or deleted)"}
        value = original_value(letter.headers, record.value)
        return {**content, "key": payload_of(record.key), "value": payload_of(value)}

    def find(self, question: Question) -> str:
        """Return the path of the page of a failure id: waiting or dead.

        Raises:
            PageError: 400 when it is no failure id of this handler; 404 when it neither waits nor is dead here.
        """
        info = self.get_handler_or_404(question.main)
        wanted = question.query.get("id", "").strip()
        try:
            group, origin = parse_failure_id(wanted)
        except DamagedMetadataError as error:
            raise bad_parameter("id", wanted, "a failure id: group/topic@id/partition/offset") from error
        if (group, origin.topic) != (info.group, info.main):
            raise bad_parameter("id", wanted, f"a failure id of {info.group}/{info.main}")
        self.get_open_partition_or_404(origin.partition, question)
        same = failure_id(group, origin)
        base = f"{PAGES_PREFIX}/{quote(info.main, safe='')}"
        waiting = self.view.pending_find(info.main, origin.partition, origin.offset)
        if waiting is not None and pending_summary(waiting)["failure_id"] in {same, None}:
            return f"{base}/pending/{origin.partition}/{origin.offset}"
        dead = self.view.dead_find(info.main, origin.partition, same)
        if dead is not None:
            return f"{base}/dead/{dead.partition}/{dead.row.offset}" + (f"?letters={dead.letters}" * bool(dead.letters))
        raise not_found(
            "not-failed",
            f"{same} neither waits nor is dead here",
            "It may have succeeded, be in delivery, or be older than the dead-letter topic's retention",
        )

    async def ready(self, question: Question) -> Facts:
        """Return ``{"ok": true}`` when a broker answers and every lane here is open and moves, or refuse with 503."""
        if self.view.ready():
            return {"ok": True}
        if question.role < Role.LOOK:
            raise PageError(503, "not-ready", "this worker is not ready", "Whoever has the role look is told why", SOON)
        silence = self.view.silence()
        lanes: list[tuple[HandlerInfo, PartitionInfo]] = []
        for info in self.view.handlers():
            lanes += [(info, item) for item in self.view.partitions(info.main) if item.state != ELSEWHERE]
            await asyncio.sleep(0)
        waiting = [(info, item) for info, item in lanes if item.state != OPEN or item.stalled]
        raise not_ready(silence, waiting, len(lanes), self.now_ms(), f"{PAGES_PREFIX}/")

    def get_handler_or_404(self, main: str) -> HandlerInfo:
        """Return the handler of a main topic, or refuse with 404."""
        infos = self.view.handlers()
        for info in infos:
            if info.main == main:
                return info
        known = ", ".join(info.main for info in infos) or "none"
        raise not_found("no-such-handler", f"no handler for topic {main!r}", f"Handlers of this app: {known}")

    def get_open_partition_or_404(self, number: int, question: Question) -> None:
        """Refuse a partition that cannot be read here: 404, 307 or 409 when elsewhere, 503 until it is open."""
        _refuse_closed(self.view.partition(question.main, number), number, question)

    def _partitions(self, question: Question) -> Sequence[PartitionInfo]:
        """Return all partitions of a list's handler, or refuse when the one asked for cannot be read here."""
        self.get_handler_or_404(question.main)
        infos = self.view.partitions(question.main)
        if question.partition is not None:
            number = question.partition
            _refuse_closed(infos[number] if number < len(infos) else None, number, question)
        return infos


def _refuse_closed(info: PartitionInfo | None, number: int, question: Question) -> None:
    if info is None:
        hint = f"See {PAGES_PREFIX}/{quote(question.main, safe='')}/ for those that there are"
        raise not_found("no-such-partition", f"{question.main} has no partition {number}", hint)
    if info.state == ELSEWHERE:
        url = None if question.routed else web_url(info.owner_url)
        raise elsewhere(question.main, number, url + question.address(routed="1") if url else None)
    if info.state != OPEN:
        raise not_open(question.main, number, info.state, info.last_error)


def _list_facts(question: Question, infos: Sequence[PartitionInfo]) -> Facts:
    away = [item for item in infos if item.state == ELSEWHERE]
    return {
        "main": question.main,
        "partition": question.partition,
        "limit": question.limit,
        "partitions_here": [item.partition for item in infos if item.state != ELSEWHERE],
        "partitions_left_out": [item.partition for item in infos if item.state not in {OPEN, ELSEWHERE}],
        "partitions_elsewhere": [{"partition": item.partition, "owner_url": web_url(item.owner_url)} for item in away],
    }


def _policy(info: HandlerInfo) -> dict[str, str]:
    return {"text": info.policy, "digest": info.policy_digest, "order": info.order}


def _newest_first(row: Facts) -> float:
    """Sort by time of the last failure; where that is unreadable the row comes at once and holds nothing back."""
    return float("-inf") if row["last_failed_ms"] is None else -row["last_failed_ms"]
