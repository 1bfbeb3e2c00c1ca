"""Deliver due rows: from the pending table to the handler, in due order, never early.

A task of each session sleeps until the next row is due, and claims due rows while there is room. A claim is in memory
only: it lasts until the turn of its delivery is applied, so no row is delivered twice at once, or until the session
ends. Few claims wait for a runner: a flood waits in the table.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress

from retryapp.core.errors import DamagedRowError, NewerRecordError, NewerRowError
from retryapp.core.metadata import HELD, RetryMetadata
from retryapp.core.record import Headers, Record
from retryapp.core.row_keys import HELD_ROWS, IDENTITY_AT, MOST_QUEUES, parse_row_key, queue_in, queue_of
from retryapp.core.rows import ALONE, CANCELLED, SENT, TOKEN, PendingRow, damaged_row, decode_row, is_held, row_due_ms
from retryapp.engine.delivery.run import Claim, DeliveryContext
from retryapp.engine.partition.line import up_to
from retryapp.engine.partition.sequences import Sequences
from retryapp.ports import PendingTable

CLAIM_LIMIT = 200
"""Rows of one look at the table."""
CLAIM_BYTES = 1 << 20
"""Bytes of these; a larger row is claimed alone."""
LEAST_AHEAD = 200
"""As many as a look brings, which costs as much as 20 rows: replays of a job took 5 % less CPU than with 64.

A third while there are first deliveries, which wait for the end of a look."""
REFERENCES_AHEAD = 256
"""What one request brings; a shorter one costs as much."""
NEVER_MS = 1 << 62
MAX_SLEEP_S = 60.0
BLOCKED_SLEEP_S = 0.25
"""Longest sleep without room for due rows."""

MOST_FRESH = 1_000
"""Rows that are remembered as they were written, of at most `FRESH_BYTES` each."""
FRESH_BYTES = 4 << 10
_MAYBE_HELD = frozenset((HELD, "?"))
"""Tiers of rows that may be held: a damaged one does not say its tier."""

Deliver = Callable[[list[tuple[Claim, Record]]], None]


class Scheduler:
    """The claims of one session."""

    def __init__(
        self,
        context: DeliveryContext,
        partition: int,
        pending: PendingTable | None,
        deliver: Deliver,
        sequences: Sequences | None = None,
        on_loaded: Callable[[], None] | None = None,
        commanded: Callable[[], Awaitable[object]] | None = None,
        held: Callable[[bytes, PendingRow], bool] = lambda _key, _row: False,
    ) -> None:
        self.claimed: dict[bytes, Claim] = {}
        self.claimed_bytes = 0
        self.copying: dict[bytes, int] = {}
        """Bytes of copies on their way into rows that wait by reference (`engine.partition.recall`), by the rows' keys.

        No claim of one begins meanwhile: what ended its hold would put the reference back."""
        self.waiting = 0
        """Claims for which no runner was free yet."""
        self._waiting_in: Counter[str] = Counter()
        """The same of each named circuit."""
        self._limited = False
        """A circuit had a limit in the last scan: it has not seen all that is due."""
        self._fresh: dict[bytes, tuple[bytes, PendingRow, RetryMetadata, Headers]] = {}
        """By identity: rows that `remember` took, until they are claimed."""
        self.over = False
        self.looked_ms = context.clock.wall_ms()
        """Time of the last scan for due rows; at first, of the session's begin."""
        batch = context.handler.batch
        least = REFERENCES_AHEAD if context.handler.by_reference else 0
        least = context.handler.max_in_flight if context.handler.through_main else least  # they wait for the main topic
        least = max(least, 2 * context.handler.concurrency * (1 if batch is None else batch.size))
        self._aheads = max(least, LEAST_AHEAD), max(least, LEAST_AHEAD // 3)
        """Claims for which no runner is free: how many there may be without first deliveries, and beside them."""
        self._context = context
        self._partition = partition
        self._pending = pending
        self._deliver = deliver
        self._sequences = sequences
        self._on_loaded = on_loaded
        self._commanded = commanded
        """Waits until the commands are obeyed that came while no worker had the partition."""
        self._held = held
        """Takes a row whose hold begins or ends before it runs; tells whether it has."""
        self.loaded = sequences is None and commanded is None
        """Which sequences have rows is known, and commands are obeyed; nothing is taken in before."""
        self.known = asyncio.Event()
        """Set once it is known which sequences have rows: no command changes one before."""
        if sequences is not None:
            sequences.wake = lambda: self._wake.set()
        self._wake = asyncio.Event()
        self._blocked = False
        self._next_due_ms = 0
        """Nothing in the table is due before."""

    @property
    def room(self) -> int:
        """How many rows may be claimed now; none that no runner would begin, it would be claimed again at once."""
        return min(self._free, self._context.pace.claims(self.waiting))

    @property
    def _free(self) -> int:
        """The same, whatever the pace."""
        handler = self._context.handler
        able = self._context.clock.trusted and not self._context.lapsed()
        if not able or self.claimed_bytes >= handler.max_in_flight_bytes:
            return 0
        return max(0, min(CLAIM_LIMIT, self._ahead - self.waiting, handler.max_in_flight - len(self.claimed)))

    @property
    def _ahead(self) -> int:
        return self._aheads[self._context.rounds.shared]

    def end(self) -> None:
        """Claim no more."""
        self.over = True
        self._context.pace.leave(self.freed)

    def begun(self, claim: Claim) -> None:
        """Note that a runner has a claim, or that it will have none."""
        claim.begun = True
        self.waiting -= 1
        if claim.circuit:
            self._waiting_in[claim.circuit] -= 1
            if self._limited:
                self._wake.set()
        self._unblock()

    def release(self, key: bytes) -> None:
        """End a claim: its turn was applied."""
        claim = self.claimed.pop(key, None)
        if claim is not None:
            self.claimed_bytes -= claim.size
        self._unblock()

    def _unblock(self) -> None:
        if not self._blocked:
            return
        # room that is worth a look at the table, while runners have claims to go on with; each row asks for it twice
        ahead, worth = self._ahead, 1
        if self.waiting:
            worth = max(1, min(CLAIM_LIMIT, ahead, self._context.handler.max_in_flight) // 2)
        if ahead - self.waiting >= worth and self.room >= worth:
            self._wake.set()

    def freed(self) -> None:
        """Note that more may be claimed by the pace."""
        if self._limited or (self._blocked and self.room):
            self._wake.set()

    def take(self, key: bytes, identity: bytes, size: int) -> None:
        """Claim a row that is not delivered, but changed by a command: until the turn of that is applied."""
        self.forget(identity)
        self.claimed[key] = Claim(key=key, identity=identity, due_at_ms=0, size=size, changing=True)
        self.claimed_bytes += size

    def remember(self, identity: bytes, raw: bytes, row: PendingRow, metadata: RetryMetadata, others: Headers) -> None:
        """Keep what a row that is written now and due at once says, so that its claim need not decode it.

        `others`: its headers that are not ours.
        """
        if len(raw) <= FRESH_BYTES and len(self._fresh) < MOST_FRESH:
            self._fresh[identity] = raw, row, metadata, others

    def forget(self, identity: bytes) -> None:
        """Let go what `remember` took: its row is not written."""
        self._fresh.pop(identity, None)

    def give_back(self, claim: Claim) -> None:
        """End a claim without an outcome: the row waits on. In an ordered handler, before its sequence goes on."""
        self.release(claim.key)
        self.changed(claim.due_at_ms)

    def changed(self, due_at_ms: int) -> None:
        """Note that the table has another row, due then."""
        if due_at_ms < self._next_due_ms:
            self._next_due_ms = due_at_ms
            self._wake.set()

    def copied(self, key: bytes) -> None:
        """Note that a row has become a copy, or has not."""
        del self.copying[key]
        self.changed(0)

    def has_rows(self, circuit: str, until_ms: int) -> bool:
        """Tell whether a row is due by a time: of all rows, or of those that wait for a named circuit."""
        if self._pending is None:
            return False
        if circuit:
            only = dict.fromkeys(range(MOST_QUEUES), 0) | {queue_of(circuit): 1}
            return bool(self._pending.due(until_ms, 1, most=only)[0])
        next_due_ms = self._pending.due(0, 0)[1]
        return next_due_ms is not None and next_due_ms <= until_ms

    async def run(self) -> None:
        """Claim what is due until the session is over."""
        clock = self._context.clock
        if self._sequences is not None and self._pending is not None:
            await self._sequences.load(self._pending)
        self.known.set()
        if self._commanded is not None:
            await self._commanded()
        self.loaded = True
        if self._on_loaded is not None:
            self._on_loaded()
        if self._sequences is not None:
            await self._sequences.caught_up()
        while not self.over:
            if not clock.trusted:
                await asyncio.sleep(BLOCKED_SLEEP_S)
                continue
            self._wake.clear()
            next_due_ms = await self._claim_due()
            self.looked_ms = clock.wall_ms()
            wait_s = self._blocked_s(next_due_ms) if self._blocked else self._until_s(next_due_ms)
            if self._limited:
                wait_s = min(wait_s, self._context.pace.limit_s())
            if wait_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._wake.wait()
            else:
                await asyncio.sleep(0)

    def _until_s(self, due_at_ms: int) -> float:
        # not compared with "is it due": a row may become due between the scan and this line
        return min(MAX_SLEEP_S, (due_at_ms - self._context.clock.wall_ms()) / 1000)

    def _blocked_s(self, next_due_ms: int) -> float:
        if self._free <= 0:
            return BLOCKED_SLEEP_S  # room wakes this task; the sleep is bounded in case it was there already
        due_s = 0.0 if self._sequences is not None and self._sequences.ready else self._until_s(next_due_ms)
        return min(MAX_SLEEP_S, max(due_s, self._context.pace.wait_s() or BLOCKED_SLEEP_S))

    async def _claim_due(self) -> int:
        """Claim due rows while there is room; return the time before which no other is due."""
        pending = self._pending
        while pending is not None and not self.over:
            limit, held_limit = self.room, min(self._free, self._context.pace.claims(self.waiting, due=False))
            self._blocked = limit <= 0
            now_ms = self._context.clock.wall_ms()
            max_bytes = min(CLAIM_BYTES, self._context.handler.max_in_flight_bytes - self.claimed_bytes)
            claimed: Collection[bytes] = {*self.claimed, *self.copying} if self.copying else self.claimed
            heads: list[tuple[bytes, bytes]] = []
            scans, limits = self._limited or now_ms >= self._next_due_ms, dict[str, int]()
            if scans or (self._sequences is not None and self._sequences.aside):
                limits = self._context.pace.limits(self._waiting_in, self.freed)
                self._limited = bool(limits)
            queues = {queue_of(name): limit for name, limit in limits.items()}
            if self._sequences is not None:
                heads = self._sequences.heads(pending, held_limit, max_bytes, limit, claimed, queues)
            elif not _MAYBE_HELD.isdisjoint(pending.counts()):  # the handler had an order before
                held = pending.page(HELD_ROWS, held_limit + len(claimed))
                heads = up_to((each for each in held if each[0] not in claimed), held_limit, max_bytes)
            left = max_bytes - sum(len(value) for _, value in heads)
            full = len(heads) >= held_limit or left <= 0
            rows: list[tuple[bytes, bytes]] = []
            if scans:
                if heads:
                    claimed = {*claimed, *(key for key, _ in heads)}
                put_aside = sum(not is_held(value) for _, value in heads)
                most = 0 if full else max(0, min(limit - put_aside, held_limit - len(heads)))
                rows, next_due_ms = pending.due(now_ms, most, claimed, max_bytes=left, most=queues, aside=False)
                self._next_due_ms = NEVER_MS if next_due_ms is None else next_due_ms
            taken = self._claim_all(heads + rows)
            self._context.pace.claimed([claim for claim, _ in taken], limits, self.freed)
            if not rows and not heads:
                break
            counted = {claim.key for claim, _ in taken if claim.circuit in limits}
            if any(queue_in(key) in queues and key not in counted for key, _ in rows):
                self._next_due_ms = 0  # it does not run, or no circuit hears of its end: there may be others behind it
            self._deliver(taken)
            if not (heads and full) and self._next_due_ms > now_ms:
                break
            await asyncio.sleep(0)  # many partitions have a flood at once: others in the event loop come between
        return self._next_due_ms

    def _claim_all(self, rows: list[tuple[bytes, bytes]]) -> list[tuple[Claim, Record]]:
        """Claim rows, as far as there is room for the records that some of them refer to; at least one."""
        taken: list[tuple[Claim, Record]] = []
        most = self._context.handler.max_in_flight_bytes
        for at, (key, value) in enumerate(rows):
            if taken and self.claimed_bytes >= most:
                self._leave(rows[at:])
                break
            if (claimed := self._claim(key, value)) is not None:
                taken.append(claimed)
        return taken

    def _leave(self, rows: list[tuple[bytes, bytes]]) -> None:
        """Have rows that were found be found again."""
        for key, value in rows:
            self._next_due_ms = min(self._next_due_ms, row_due_ms(value))
            if self._sequences is not None:
                self._sequences.left(key, value)

    def _claim(self, key: bytes, value: bytes) -> tuple[Claim, Record] | None:
        """Claim a row; None: earlier records of its sequence are not done."""
        place = parse_row_key(key)
        damage, metadata = None, None
        fresh = self._fresh.pop(key[IDENTITY_AT:], None)
        try:
            if fresh is not None and fresh[0] == value:
                _, row, metadata, headers = fresh
            else:
                row = decode_row(value)
                headers = row.headers
        except NewerRowError as exc:
            where = f"the row of {self._context.handler.main}[{self._partition}]@{place.origin_offset}"
            raise NewerRecordError(f"{where} in the pending table", exc.finding) from exc
        except DamagedRowError as exc:
            row, damage = damaged_row(value), exc
            headers = row.headers
        if damage is None and self._held(key, row):
            return None
        due_at_ms = 0 if row.held else place.due_at_ms
        if self._sequences is not None and not self._sequences.claim(key, row, damaged=damage is not None):
            return None
        claim = Claim(
            key=key,
            identity=key[IDENTITY_AT:],
            due_at_ms=due_at_ms,
            counted=(row.attempt, row.delivery),
            size=len(value) + (0 if row.reference is None else row.reference.size),
            damage=damage,
            reference=row.reference,
            circuit=row.circuit,
            alone=bool(row.flags & ALONE),
            cancelled=bool(row.flags & CANCELLED),
            surplus=self._sequences is not None and damage is None and self._sequences.is_surplus(row),
            expired=bool(row.hold & TOKEN),
            sent=bool(row.flags & SENT),
            metadata=metadata,
        )
        self.claimed[key] = claim
        self.claimed_bytes += claim.size
        self.waiting += 1
        if claim.circuit:
            self._waiting_in[claim.circuit] += 1
        coordinates = self._context.handler.topology.pending_changelog, self._partition, place.origin_offset
        return claim, Record(*coordinates, row.since_ms, row.key, row.value, headers)
