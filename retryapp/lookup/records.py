"""Waiting and dead records as plain facts, for JSON, a template or a terminal.

A worker's pages have rows of its tables; commands read the group's topics to their end, with no worker. Lists hold the
beginnings of key and message, and no value and no foreign headers: whoever shows them leaves out what a reader may not
see. Damaged metadata is shown as such, never hidden and never a reason
to fail.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from heapq import nlargest, nsmallest
from typing import Any, Final, NamedTuple

from retryapp.core.causes import cause_id, cause_name, cause_text
from retryapp.core.classify import DeadReason
from retryapp.core.control import MarkKind, is_mark, is_open, mark_of, row_state
from retryapp.core.dead_index import MAX_KEY_BYTES, MAX_TYPE_BYTES, index_letter, newest_letter
from retryapp.core.errors import DamagedMetadataError, DamagedRowError
from retryapp.core.foreign import split_headers, unshield
from retryapp.core.headers import RETRY_GROUP, RETRY_ORIGIN, RETRY_REASON, decode_metadata
from retryapp.core.hops import arriving
from retryapp.core.jobs import LetterFilter
from retryapp.core.metadata import RetryMetadata
from retryapp.core.record import Headers, Origin, Record, failure_id, parse_failure_id
from retryapp.core.reference import as_copy, is_same
from retryapp.core.row_keys import parse_row_key
from retryapp.core.rows import (
    OPERATOR,
    SEQUENCE,
    TOKEN,
    PendingRow,
    decode_row,
    encode_row,
    failure_in,
    is_of_key,
    is_reference,
    is_stopped,
    key_of_row,
)
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, dead_letter_topics, fold_changelog, read_topic
from retryapp.lookup.decoding import KEY, VALUE, Decoding, Searching, Show, undecoded
from retryapp.lookup.failures import NOT_RUN, failures_of, has_failed
from retryapp.lookup.payloads import header_text, utf8_text
from retryapp.ports import DeadEntry, PendingEntry

Facts = dict[str, Any]
"""As JSON has them: units in the names, times in epoch milliseconds."""
Marks = dict[tuple[str, int, int], MarkKind]
"""What has become of dead letters, by topic, partition and offset: by a command, or by their handler."""

_SUMMARY = ("failure_id", "attempt", "replays", "tier", "reason", "error_type", "first_failed_ms", "last_failed_ms")
_INDEXED = ("attempt", "error_type", "message", "cause_id", "first_failed_ms", "last_failed_ms", "damaged", "offset",
            "replays", "mark", "job")  # fmt: skip
_VALUELESS: Final = {DeadReason.DAMAGED, DeadReason.GONE, DeadReason.TOO_LARGE}
"""Reasons of dead letters that may have come without their value."""
CUT: Final = "…"
"""What follows the beginning of a key."""
MAX_MESSAGE_CHARS: Final = 200
"""Characters of an error's message in a list of waiting records; that of dead letters has what their index keeps."""


def known_sum(numbers: Iterable[int | None]) -> int | None:
    """Return the sum of the numbers that are known; None if none is."""
    known = [number for number in numbers if number is not None]
    return sum(known) if known else None


def pending_summary(entry: PendingEntry) -> Facts:
    """Return one line of the list of waiting records."""
    row, key, damaged = _row(entry)
    facts = {"key": key_text(row.key), "max_attempts": entry.max_attempts}
    return {**_summary(row.headers, damaged), **facts, **key}


def key_text(key: bytes | None, *, cut: bool = False) -> str | None:
    """Return a key as lists show it: text, or its bytes in hexadecimal; None without one.

    Of a long one its beginning, with `CUT` at the end; so of one that was `cut` before.
    """
    if key is None:
        return None
    kept, cut = key[:MAX_KEY_BYTES], cut or len(key) > MAX_KEY_BYTES
    text = utf8_text(kept, cut=cut)
    return (text if text is not None and text.isprintable() else f"0x{kept.hex()}") + CUT * cut


def pending_detail(entry: PendingEntry, show: Show = undecoded, *, unread: str = "") -> Facts:
    """Return one waiting record with its headers, key and value; `unread`: why the main topic could not be read."""
    row, key, damaged = _row(entry)
    show = undecoded if damaged else show  # its value is the row
    return {
        **_detail(row.headers, damaged),
        **key,
        "since_ms": row.since_ms or None,
        "max_attempts": entry.max_attempts,
        "state": _state(row),
        **payloads(row.headers, row.key, row.value, show),
        "unread": (unread or "the main topic does not have it any more") if row.reference else None,
    }


def place_of(entry: PendingEntry, main: str) -> tuple[str, int, int] | None:
    """Return where the payload of a waiting record is on the main topic; None: in its row."""
    key = parse_row_key(entry.key)
    return (main, key.partition, key.origin_offset) if is_reference(entry.value) else None


def whole_entry(entry: PendingEntry, found: Record | None) -> PendingEntry:
    """Return a waiting record with its payload, if that is what the main topic has; else as it was."""
    with suppress(DamagedRowError):
        row, shown = decode_row(entry.value), None if found is None else arriving(found)
        if row.reference is not None and shown is not None and is_same(row.reference, shown):
            return replace(entry, value=encode_row(as_copy(row, shown)))
    return entry


def _state(row: PendingRow) -> str | None:
    """Return what a command may name so that it is refused if the record has changed; None: it cannot."""
    metadata, _ = _metadata(row.headers)
    if metadata is None or row.hold == SEQUENCE:
        return None
    return row_state(metadata.replays, metadata.attempt, row.due_at_ms)


def pending_value(entry: PendingEntry) -> bytes | None:
    """Return the value's bytes; None: the row is damaged, or does not have them."""
    row, _, damaged = _row(entry)
    metadata, _ = _metadata(row.headers)
    elsewhere = row.reference is not None or (metadata is not None and metadata.no_payload)
    return None if damaged or elsewhere else row.value or b""


def dead_value(record: Record) -> bytes | None:
    """Return the value's bytes of a dead letter; None: it does not have them."""
    reason = dict(record.headers).get(RETRY_REASON) or b""
    return None if not record.value and reason.decode("ascii", "replace") in _VALUELESS else record.value or b""


def dead_summary(entry: DeadEntry) -> Facts:
    """Return one line of the list of dead letters, as the index has it."""
    row = entry.row
    whole = row.damaged is None
    return {
        **{name: getattr(row, name) for name in _INDEXED},
        "failure_id": row.failure_id if whole else None,
        "max_attempts": entry.max_attempts,
        "tier": None,
        "reason": row.reason if whole else None,
        "last_failed_ms": None if row.reason in NOT_RUN else row.last_failed_ms,  # when it was dead; it failed before
        "cause": row.cause or row.error_type,
        "key": key_text(row.key, cut=not row.has_whole_key),
        "origin": _origin(parse_failure_id(row.failure_id)[1]) if whole and row.failure_id else None,
        "partition": entry.partition,
        "letters": entry.letters,
        "append_ms": None if row.append_ms < 0 else row.append_ms,
    }


def dead_detail(entry: DeadEntry, headers: Headers) -> Facts:
    """Return one dead letter with its headers, which like key and value are read from the topic."""
    detail = _detail(headers, entry.row.damaged)
    failed = {name: detail[name] for name in ("first_failed_ms", "last_failed_ms") if detail["failures"] is not None}
    return {**detail, **dead_summary(entry), **_whole_type(headers), **failed}


def _whole_type(headers: Headers) -> Facts:
    """Return the type of a letter's error, of which the index has the beginning."""
    metadata, _ = _metadata(headers)
    return {} if metadata is None else {"error_type": metadata.error_type}


def may_be_cut(error_type: str | None) -> bool:
    """Tell whether a type of error is as long as those that the index has cut, so no letter may have just that one."""
    return error_type is not None and MAX_TYPE_BYTES - 4 < len(error_type.encode()) <= MAX_TYPE_BYTES


def payloads(headers: Headers, key: bytes | None, value: bytes | None, show: Show) -> Facts:
    """Return key and value of a record with these headers, ours included."""
    return {"key": show(key, KEY, headers), "value": show(original_value(headers, value), VALUE, headers)}


def original_value(headers: Headers, value: bytes | None) -> bytes | None:
    """Return the value as the user sent it: null travels as empty, with a mark in the metadata."""
    metadata, _ = _metadata(headers)
    return None if metadata is not None and metadata.null_value and not value else value


def _row(entry: PendingEntry) -> tuple[PendingRow, Facts, str | None]:
    """Return the row, what its key contains, and what is wrong with it: a damaged row is its bytes as a value."""
    key = parse_row_key(entry.key)
    facts = {"partition": key.partition, "origin_offset": key.origin_offset}
    try:
        row, damaged = decode_row(entry.value), None
    except DamagedRowError as error:
        row, damaged = PendingRow(None, entry.value, ()), str(error)
    due_at_ms = None if row.hold else key.due_at_ms
    until_ms = key.due_at_ms if row.hold & (OPERATOR | TOKEN) else None
    held = {"held_by": row.held_by, "held_until_ms": until_ms, "circuit": row.circuit or None}
    return row, {**facts, "due_at_ms": due_at_ms, **held}, damaged


def _metadata(headers: Headers) -> tuple[RetryMetadata | None, str | None]:
    try:
        metadata = decode_metadata(headers)
    except DamagedMetadataError as error:
        return None, str(error)
    return metadata, None if metadata else "the record carries no retry metadata"


def _summary(headers: Headers, damaged: str | None) -> Facts:
    """Return what a list shows; None for what damaged metadata does not contain."""
    metadata, problem = _metadata(headers)
    facts: Facts = {name: getattr(metadata, name, None) for name in _SUMMARY}
    facts |= dict.fromkeys(("message", "cause", "cause_id"))
    if metadata is not None and not has_failed(metadata):
        facts |= dict.fromkeys(("first_failed_ms", "last_failed_ms"))
    if metadata is not None and metadata.held:
        facts["error_type"] = None
    elif metadata is not None:
        facts["message"] = metadata.error_message[:MAX_MESSAGE_CHARS]
        facts["cause"] = cause_name(metadata.error_type, None, metadata.error_message)
        facts["cause_id"] = cause_id(metadata.error_type, metadata.fingerprint, metadata.error_message)
    return {**facts, "origin": _origin(metadata.origin) if metadata else None, "damaged": damaged or problem}


def _origin(origin: Origin) -> Facts:
    """Return what `asdict` does, which takes a sixth of a list's time."""
    return {name: getattr(origin, name) for name in ("topic", "topic_id", "partition", "offset")}


def _detail(headers: Headers, damaged: str | None) -> Facts:
    metadata, _ = _metadata(headers)
    foreign, ours = split_headers(headers)
    failures = _failures(metadata) if metadata else None
    return {
        **_summary(headers, damaged),
        **({"last_failed_ms": failures["last_ms"]} if failures else {}),
        "metadata": asdict(metadata) if metadata else None,
        "failures": failures,
        "headers": [{"name": _shown(name), "value": header_text(value)} for name, value in unshield(foreign)],
        "retry_headers": [{"name": name, "value": header_text(value)} for name, value in ours],
    }


def _failures(metadata: RetryMetadata) -> Facts:
    failures = failures_of(metadata)
    return {**failures._asdict(), "attempts": [each._asdict() for each in failures.attempts]}


def _shown(name: str) -> str:
    """Return a header's name as text: lone surrogates, for bytes that are no UTF-8, cannot be written."""
    return name.encode("utf-8", "backslashreplace").decode()


class _Position(NamedTuple):
    """Position of a record in a list; sorts as the lists do."""

    instant_ms: int
    main: str
    partition: int
    offset: int


class Listed(NamedTuple):
    """The beginning of a list."""

    records: list[Facts]
    matching: int
    """Records in the whole list."""
    undecoded: int = 0
    """Records whose value was not searched: the decoder failed."""
    marked: Mapping[str, int] = {}
    """How many of a whole list of dead letters are not open, by what became of them (`core.control.MarkKind`); of
    waiting records, how many are dead, as `stopped`: their sequences have stopped."""


def list_waiting(
    connection: KafkaConnection,
    topologies: Sequence[HandlerTopology],
    *,
    partition: int | None,
    wanted: LetterFilter | None = None,
    limit: int | None,
    decoding: Decoding | None = None,
) -> Listed:
    """Return those that fit, the next due first, and above all stopped sequences.

    Memory is that of the rows that fit, but for a field of values that have to be decoded.
    """
    wanted = None if wanted == LetterFilter() else wanted
    searches = _searches(topologies, decoding)
    early, late = wanted, None
    if wanted is not None and wanted.field is not None and decoding is not None:
        early, late = wanted.model_copy(update={"field": None}), wanted  # each row is decoded once, as it is in the end
    rows = {
        at: entry
        for topology, search in searches.items()
        for at, entry in _waiting(
            connection, topology, partition, lambda _, row: early is None or fits_row(early, row)
        ).items()
        if late is None or fits_row(late, entry.value, search)
    }
    first = sorted(rows) if limit is None else nsmallest(limit, rows)
    stopped = sum(is_stopped(entry.value) for entry in rows.values())
    marked = {"stopped": stopped} if stopped else {}
    records = [{"main": at.main, **pending_summary(rows[at])} for at in first]
    return Listed(records, len(rows), _undecoded(searches), marked)


def _searches(
    topologies: Sequence[HandlerTopology], decoding: Decoding | None
) -> dict[HandlerTopology, Searching | None]:
    return {each: None if decoding is None else Searching(decoding, each.main) for each in topologies}


def _undecoded(searches: Mapping[HandlerTopology, Searching | None]) -> int:
    return sum(search.undecoded for search in searches.values() if search is not None)


def fits_row(wanted: LetterFilter, raw: bytes, search: Searching | None = None) -> bool:
    """Tell whether a row fits; one that is damaged, or without what is asked for (by reference), does not."""
    if wanted.key is not None and not is_of_key(raw, wanted.key.encode()):  # most are not, and need no decoding
        return False
    if wanted.cause is not None and (failed := failure_in(raw)) is not None and cause_text(failed[0]) != wanted.cause:
        return False
    try:
        row = decode_row(raw)
        metadata = decode_metadata(row.headers)
    except (DamagedRowError, DamagedMetadataError):
        return False
    return metadata is not None and _fits(wanted, metadata, row, row.since_ms, search)


def _fits(wanted: LetterFilter, metadata: RetryMetadata, record: Any, died_ms: int, search: Searching | None) -> bool:
    """Tell whether a record fits; only one that fits by all else is decoded."""
    if wanted.field is None or search is None:
        return wanted.fits(metadata, record, died_ms)
    rest, field = wanted.model_copy(update={"field": None}), LetterFilter(field=wanted.field)
    return rest.fits(metadata, record, died_ms) and field.fits(metadata, replace(record, value=search(record)), died_ms)


def find_waiting(connection: KafkaConnection, topology: HandlerTopology, origin: Origin) -> PendingEntry | None:
    """Return the waiting record of a first delivery; of several, the one due last.

    A damaged row does not contain its failure id: its partition and offset decide.
    """
    identity = failure_id(topology.group, origin)
    entries = _waiting(
        connection,
        topology,
        origin.partition,
        lambda identity, row: parse_row_key(key_of_row(row, identity)).origin_offset == origin.offset,
    )
    found = [at for at, entry in entries.items() if pending_summary(entry)["failure_id"] in (identity, None)]
    return entries[max(found)] if found else None


def _waiting(
    connection: KafkaConnection,
    topology: HandlerTopology,
    partition: int | None,
    is_wanted: Callable[[bytes, bytes], bool],
) -> dict[_Position, PendingEntry]:
    """Return the rows that are wanted, by their identity and value; the others are dropped as they are read."""

    def kept(identity: bytes, row: bytes) -> bytes | None:
        return row if is_wanted(identity, row) else None

    numbers = None if partition is None else [partition]
    rows = fold_changelog(connection, topology.pending_changelog, kept, partitions=numbers)
    entries = {}
    for identity, value in rows.items():
        if value is None:
            continue
        raw = key_of_row(value, identity)
        key = parse_row_key(raw)
        first = 0 if is_stopped(value) else key.due_at_ms  # they wait for somebody
        at = _Position(first, topology.main, key.partition, key.origin_offset)
        entries[at] = PendingEntry(partition=key.partition, key=raw, value=value)
    return entries


def list_dead(
    connection: KafkaConnection,
    topologies: Sequence[HandlerTopology],
    *,
    partition: int | None,
    wanted: LetterFilter | None,
    limit: int,
    decoding: Decoding | None = None,
) -> Listed:
    """Return dead letters that fit, the latest first; memory: ``limit`` records, marks, 8 bytes for each that fits."""
    fitting: dict[tuple[str, int], array[int]] = {}
    marks = Marks()
    searches = _searches(topologies, decoding)

    def letters() -> Iterator[tuple[_Position, Record]]:
        for topology, search in searches.items():
            numbers = None if partition is None else [partition]
            for record in read_letters(connection, topology, marks, numbers):
                if wanted is None or fits(wanted, record, search):
                    fitting.setdefault((record.topic, record.partition), array("q")).append(record.offset)
                    at = _Position(record.timestamp_ms, topology.main, record.partition, record.offset)
                    yield at, replace(record, value=None)  # lists show no payloads

    latest = nlargest(limit, letters(), key=lambda letter: letter[0])
    facts = [
        {"main": at.main, "dead_ms": record.timestamp_ms, "topic": record.topic, **dead_summary(dead_entry(record)),
         **_whole_type(record.headers), "mark": marks.get(place_of_letter(record))}
        for at, record in latest
    ]  # fmt: skip
    marked = Counter(
        str(mark)
        for (topic, number, offset), mark in marks.items()
        if not is_open(mark) and _has(fitting.get((topic, number), ()), offset)
    )
    return Listed(facts, sum(map(len, fitting.values())), _undecoded(searches), marked)


def _has(offsets: Sequence[int], offset: int) -> bool:
    at = bisect_left(offsets, offset)
    return at < len(offsets) and offsets[at] == offset


def fits(wanted: LetterFilter, record: Record, search: Searching | None = None) -> bool:
    """Tell whether a letter fits; a damaged one does by its reason alone."""
    metadata, _ = _metadata(record.headers)
    if metadata is not None:
        return _fits(wanted, metadata, record, record.timestamp_ms, search)
    reason = (wanted.reason or "").encode()
    return wanted == LetterFilter(reason=wanted.reason) and (not reason or (RETRY_REASON, reason) in record.headers)


def find_dead(
    connection: KafkaConnection, topology: HandlerTopology, origin: Origin
) -> tuple[Record, MarkKind | None] | None:
    """Return the last dead letter of a first delivery, on whichever topic it is, and what has become of it."""
    wanted, marks = {(RETRY_ORIGIN, origin.text.encode()), (RETRY_GROUP, topology.group.encode())}, Marks()
    found = read_letters(connection, topology, marks, [origin.partition])
    last = {record.topic: record for record in found if wanted <= set(record.headers)}
    if not last:
        return None
    record = newest_letter([*last.values()], lambda letter: dead_entry(letter).row.age)
    return record, marks.get(place_of_letter(record))


def read_letters(
    connection: KafkaConnection, topology: HandlerTopology, marks: Marks, partitions: Sequence[int] | None = None
) -> Iterator[Record]:
    """Yield the dead letters of a handler: on the usual topic and those of rules, also of a former policy.

    `marks` gets what has become of them, and is whole once all are read.
    """
    for topic in dead_letter_topics(KafkaAdmin(connection), topology):
        for record in read_topic(connection, topic, partitions=partitions):
            if not is_mark(record.headers):
                yield record
            elif (mark := mark_of(record.headers, record.value)) is not None:
                marks[topic, record.partition, mark.letter] = mark.mark


def place_of_letter(record: Record) -> tuple[str, int, int]:
    """Return what `Marks` know a letter by."""
    return record.topic, record.partition, record.offset


def dead_entry(record: Record) -> DeadEntry:
    """Return a record of the dead-letter topic as a worker's table has it."""
    row = index_letter(record.offset, record.headers, record.key, record.timestamp_ms)
    return DeadEntry(partition=record.partition, row=row)
