"""What the pages say, as plain facts: the same for HTML and JSON.

Every method asks the worker's view, which is bounded and short, and returns facts or raises ``PageError``. Partitions
of other workers are never guessed at: their numbers are None, and a question for one of them is routed
(``errors.elsewhere``).

Questions run on the worker's event loop, between records, so none keeps it for long: what asks many things lets others
in between (``_BREATH``), and what decodes many rows does so in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final
from urllib.parse import quote

from retryapp.core.classify import DeadReason
from retryapp.core.errors import DamagedMetadataError, RetryAppError
from retryapp.core.record import failure_id, parse_failure_id
from retryapp.ports import Clock, DeadEntry, HandlerInfo, PartitionInfo, PartitionLag, PendingEntry, WorkerView
from retryapp.web.errors import bad_parameter, elsewhere, not_found, not_open, not_ready
from retryapp.web.figures import (
    DUE_ROWS,
    ELSEWHERE,
    OPEN,
    handler_facts,
    lag_facts,
    partition_facts,
    policy_facts,
    totals,
    web_url,
)
from retryapp.web.merge import merged
from retryapp.web.outlooks import Outlooks
from retryapp.web.payloads import payload_of
from retryapp.web.query import Question, is_number, offsets_text
from retryapp.web.records import Facts, dead_detail, dead_summary, is_null, pending_detail, pending_summary

PREFIX: Final = "/retries"
"""Where the pages are, on every worker."""

SCAN_ROWS: Final = 2_000
"""A page of dead letters looks at no more rows than this when it filters by reason."""

READ_TIMEOUT_S: Final = 5.0
"""How long a page waits for a record to be read from Kafka."""

_BREATH: Final = 32
"""After so many questions to the tables others may run; some 0.1 ms each."""
_CHUNK_ROWS: Final = 50
_FIRST_CHUNK_ROWS: Final = 2

Locate = Callable[[str], str]
"""Address of the same question at another worker, from that worker's address."""


class Answers:
    """Answers to all questions that a page can ask this worker."""

    def __init__(self, view: WorkerView, clock: Clock) -> None:
        """Args: view: the worker. clock: wall time, for "in 5m"."""
        self.view = view
        self.clock = clock
        self._outlooks = Outlooks(view)

    def now_ms(self) -> int:
        """Return the epoch time in milliseconds."""
        return self.clock.wall_ms()

    # --- lists of things --------------------------------------------------------------------------------------------

    async def index(self) -> Facts:
        """Return the handlers with their totals on this worker."""
        infos = list(self.view.handlers())
        handlers = []
        for info in infos:
            handlers.append({**handler_facts(info), **totals(self.view.partitions(info.main))})
            await asyncio.sleep(0)
        return {
            "group": infos[0].group if infos else None,
            "url": self.view.url(),
            "ready": self.view.ready(),
            "handlers": handlers,
            "workers": sorted({url for handler in handlers for url in handler["workers"]}),
        }

    async def handler(self, main: str) -> Facts:
        """Return one handler: topics, policy, partitions, and what is due within the hour."""
        info = self.get_handler_or_404(main)
        partitions = self.view.partitions(main)
        return {
            "handler": {**handler_facts(info), **totals(partitions)},
            "partitions": [partition_facts(item) for item in partitions],
            "due": await self._outlooks.of(main, partitions, self.now_ms()),
        }

    async def due(self, main: str, question: Question, locate: Locate) -> Facts:
        """Return how much becomes due when, over the partitions here or for one of them."""
        self.get_handler_or_404(main)
        if question.partition is None:
            infos = list(self.view.partitions(main))
        else:
            infos = [self.get_open_partition_or_404(main, question.partition, question, locate)]
        return {"main": main, "due": await self._outlooks.of(main, infos, self.now_ms()), **self._where(main, question)}

    async def partitions(self, main: str) -> Facts:
        """Return each partition with owner, lane, and how far it is behind, leaving out what is not yet due."""
        info = self.get_handler_or_404(main)
        lags: dict[int, PartitionLag] = {}
        unknown = None
        try:
            lags = {lag.partition: lag for lag in await self.view.lags(main)}
        except RetryAppError as error:
            unknown = str(error)
        now_ms, rows = self.now_ms(), []
        infos = self.view.partitions(main)
        for number, item in enumerate(infos, start=1):
            due = None
            if item.state == OPEN:
                due = len(self.view.due_times(main, item.partition, start_ms=0, stop_ms=now_ms, limit=DUE_ROWS))
            lag = lag_facts(item, lags.get(item.partition), due=due, here_url=self.view.url())
            rows.append({**partition_facts(item), **lag})
            if number % _BREATH == 0:
                await asyncio.sleep(0)
        return {
            "main": main,
            "group": info.group,
            "url": web_url(self.view.url()),
            "partitions": rows,
            "lag_unknown": unknown,
        }

    async def pending(self, main: str, question: Question, locate: Locate) -> Facts:
        """Return one page of waiting records by due time."""
        partitions = self._chosen(main, question, locate)
        streams = [self._waiting_rows(main, number, question.after) for number in partitions]
        entries: list[PendingEntry] = []
        async for entry in merged(streams, lambda entry: entry.key):
            entries.append(entry)
            if len(entries) > question.limit:
                break
        shown = entries[: question.limit]
        return {
            "main": main,
            "records": await asyncio.to_thread(lambda: [pending_summary(entry) for entry in shown]),
            "next_after": shown[-1].key.hex() if len(entries) > len(shown) else None,
            **self._where(main, question),
        }

    async def dead(self, main: str, question: Question, locate: Locate) -> Facts:
        """Return one page of dead letters, newest first over all partitions here."""
        partitions = self._chosen(main, question, locate)
        records, cursor, scanned = await self._newest(main, partitions, question)
        return {
            "main": main,
            "records": records,
            "next_before": offsets_text(cursor) if cursor else None,
            "scanned": scanned,
            "reason": question.reason,
            "reasons": sorted({*DeadReason, question.reason or DeadReason.EXHAUSTED}),
            **self._where(main, question),
        }

    def _where(self, main: str, question: Question) -> Facts:
        infos = self.view.partitions(main)
        return {
            "partition": question.partition,
            "limit": question.limit,
            "partitions_here": [item.partition for item in infos if item.state != ELSEWHERE],
            "partitions_elsewhere": [
                {"partition": item.partition, "owner_url": web_url(item.owner_url)}
                for item in infos
                if item.state == ELSEWHERE
            ],
        }

    async def _newest(
        self, main: str, partitions: Sequence[int], question: Question
    ) -> tuple[list[Facts], dict[int, int] | None, int]:
        """Merge the partitions' dead letters by time of the last failure, newest first.

        Returns:
            The rows of the page; where the next one begins, None at the end; and how many rows were looked at.
        """
        cursor = {p: o for p, o in (question.before or {}).items() if p in partitions}
        streams = [self._dead_rows(main, p, cursor.get(p)) for p in partitions]
        records: list[Facts] = []
        scanned = 0
        async for row in merged(streams, _newest_first):
            if len(records) == question.limit or scanned == SCAN_ROWS:
                return records, cursor, scanned
            scanned += 1
            cursor[row["partition"]] = row["offset"]
            if question.reason is None or row["reason"] == question.reason:
                records.append(row)
        return records, None, scanned

    def _chosen(self, main: str, question: Question, locate: Locate) -> list[int]:
        """Return the partitions that a list is about: the one asked for, or all that are open here."""
        self.get_handler_or_404(main)
        if question.partition is None:
            return [item.partition for item in self.view.partitions(main) if item.state == OPEN]
        return [self.get_open_partition_or_404(main, question.partition, question, locate).partition]

    def _waiting_rows(self, main: str, partition: int, after: bytes | None) -> Iterator[PendingEntry]:
        chunk = _FIRST_CHUNK_ROWS
        while True:
            entries = self.view.pending_page(main, after=after, limit=chunk, partition=partition)
            yield from entries
            if len(entries) < chunk:
                return
            after = entries[-1].key
            chunk = min(_CHUNK_ROWS, 2 * chunk)

    def _dead_rows(self, main: str, partition: int, before: int | None) -> Iterator[Facts]:
        chunk = _FIRST_CHUNK_ROWS
        while True:
            entries = self.view.dead_page(main, partition=partition, before=before, limit=chunk)
            yield from map(dead_summary, entries)
            if len(entries) < chunk:
                return
            before = entries[-1].row.offset
            chunk = min(_CHUNK_ROWS, 2 * chunk)

    # --- one thing --------------------------------------------------------------------------------------------------

    async def pending_record(self, main: str, at: tuple[str, str], question: Question, locate: Locate) -> Facts:
        """Return one waiting record with headers, key and value.

        Args:
            main: the handler's main topic.
            at: partition and origin offset, as the address has them.
            question: the request's query.
            locate: address at another worker.
        """
        info = self.get_handler_or_404(main)
        partition, offset = (_path_number(text) for text in at)
        self.get_open_partition_or_404(main, partition, question, locate)
        entry = self.view.pending_find(main, partition, offset)
        if entry is None:
            raise not_found(
                "not-pending",
                f"no record of {main} with partition {partition} and offset {offset} waits",
                "It may have been delivered since, or be dead: look at the handler's dead letters",
            )
        return {"main": main, "policy": policy_facts(info), "record": await asyncio.to_thread(pending_detail, entry)}

    async def dead_letter(self, main: str, at: tuple[str, str], question: Question, locate: Locate) -> Facts:
        """Return one dead letter; key and value are read from the topic now.

        Args:
            main: the handler's main topic.
            at: partition and offset on the dead-letter topic, as the address has them.
            question: the request's query.
            locate: address at another worker.
        """
        info = self.get_handler_or_404(main)
        partition, offset = (_path_number(text) for text in at)
        self.get_open_partition_or_404(main, partition, question, locate)
        entry = self._dead_at(main, partition, offset)
        if entry is None:
            raise not_found(
                "not-dead",
                f"no dead letter of {main} at partition {partition}, offset {offset} is known",
                "It may be older than the dead-letter topic's retention: look at the list",
            )
        topic = info.topics.get("dlq", f"{info.group}.{main}.dlq")
        record = dead_detail(entry)
        return {
            "main": main,
            "topic": topic,
            "policy": policy_facts(info),
            "record": {**record, **await self._content(topic, record, null=is_null(entry))},
        }

    def _dead_at(self, main: str, partition: int, offset: int) -> DeadEntry | None:
        found = self.view.dead_page(main, partition=partition, before=offset + 1, limit=1)
        return found[0] if found and found[0].row.offset == offset else None

    async def _content(self, topic: str, facts: Facts, *, null: bool) -> Facts:
        """Return key and value, or why they cannot be shown: the rest of the page does not depend on them.

        A dead letter that was too large has no value: it is read from the main topic.
        """
        at = (topic, facts["partition"], facts["offset"])
        origin = facts["origin"]
        if facts["reason"] == DeadReason.TOO_LARGE and origin:
            at = (origin["topic"], origin["partition"], origin["offset"])
        content: Facts = {"read_from": f"{at[0]}[{at[1]}]@{at[2]}", "unread": None, "key": None, "value": None}
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                record = await self.view.read_record(*at)
        except TimeoutError:
            return {**content, "unread": f"the broker did not answer within {READ_TIMEOUT_S:g} s"}
        except RetryAppError as error:
            return {**content, "unread": str(error)}
        if record is None:
            return {**content, "unread": "it is no longer on the topic (older than its retention, or deleted)"}
        value = None if null and not record.value else record.value
        return {**content, "key": payload_of(record.key), "value": payload_of(value)}

    def find(self, main: str, wanted: str, question: Question, locate: Locate) -> str:
        """Return the path of the page of a failure id: waiting or dead.

        Raises:
            PageError: 400 when it is no failure id of this handler; 404 when it neither waits nor is dead here.
        """
        info = self.get_handler_or_404(main)
        try:
            group, origin = parse_failure_id(wanted.strip())
        except DamagedMetadataError as error:
            raise bad_parameter("id", wanted, "a failure id: group/topic@id/partition/offset") from error
        if (group, origin.topic) != (info.group, main):
            raise bad_parameter("id", wanted, f"a failure id of {info.group}/{main}")
        self.get_open_partition_or_404(main, origin.partition, question, locate)
        same = failure_id(group, origin)
        base = f"{PREFIX}/{quote(main, safe='')}"
        waiting = self.view.pending_find(main, origin.partition, origin.offset)
        if waiting is not None and pending_summary(waiting)["failure_id"] in {same, None}:
            return f"{base}/pending/{origin.partition}/{origin.offset}"
        dead = self.view.dead_find(main, origin.partition, same)
        if dead is not None:
            return f"{base}/dead/{dead.partition}/{dead.row.offset}"
        raise not_found(
            "not-failed",
            f"{same} neither waits nor is dead here",
            "It may have succeeded, be on its way to the handler, or be older than the dead-letter topic's retention",
        )

    # --- get or refuse ----------------------------------------------------------------------------------------------

    def get_handler_or_404(self, main: str) -> HandlerInfo:
        """Return the handler of a main topic, or refuse with 404."""
        infos = self.view.handlers()
        for info in infos:
            if info.main == main:
                return info
        known = ", ".join(info.main for info in infos) or "none"
        raise not_found("no-such-handler", f"no handler for topic {main!r}", f"Handlers of this app: {known}")

    def get_open_partition_or_404(self, main: str, number: int, question: Question, locate: Locate) -> PartitionInfo:
        """Return a partition that can be read here, or refuse: 404, 307 or 409 when elsewhere, 503 until it is open."""
        info = self.view.partition(main, number)
        if info is None:
            count = self.get_handler_or_404(main).partitions
            raise not_found("no-such-partition", f"{main} has no partition {number}", f"It has {count}, counted from 0")
        if info.state == ELSEWHERE:
            url = None if question.routed else web_url(info.owner_url)
            raise elsewhere(main, number, locate(url) if url else None)
        if info.state != OPEN:
            raise not_open(main, number, info.state, info.last_error)
        return info

    async def get_ready_or_503(self) -> Facts:
        """Return ``{"ok": true}`` when every lane of this worker is open, or refuse with 503 and name the others."""
        if self.view.ready():
            return {"ok": True}
        lanes: list[tuple[HandlerInfo, PartitionInfo]] = []
        for info in self.view.handlers():
            lanes += [(info, item) for item in self.view.partitions(info.main) if item.state != ELSEWHERE]
            await asyncio.sleep(0)
        waiting = [(info, item) for info, item in lanes if item.state != OPEN]
        raise not_ready(waiting, len(lanes), self.now_ms(), f"{PREFIX}/")


def _path_number(text: str) -> int:
    if not is_number(text):
        raise not_found("no-such-page", f"{text!r} is no partition or offset", "Expected whole numbers, from 0")
    return int(text)


def _newest_first(row: Facts) -> float:
    """Sort by time of the last failure; where that is unreadable the row comes at once and holds nothing back."""
    return float("-inf") if row["last_failed_ms"] is None else -row["last_failed_ms"]
