"""What Spark's Python workers make of a record on Arrow is what core's decoders say."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from drawn import instants, metadata, names
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import Archive
from samples import dead, waiting

from retryapp.core.control import LetterMark, MarkKind, is_mark
from retryapp.core.errors import RetryAppError
from retryapp.core.headers import (
    OUR_HEADERS,
    RETRY_DUE_MS,
    RETRY_REASON,
    RETRY_WORKER,
    decode_metadata,
    encode_metadata,
)
from retryapp.core.lifecycle import (
    CircuitChanged,
    Commanded,
    Discarded,
    LifecycleEvent,
    PolicyUsed,
    Progress,
    Succeeded,
    decode_event,
    newer_event,
)
from retryapp.core.metadata import MAX_COUNT, MAX_EPOCH_MS
from retryapp.core.record import Headers, Origin, parse_origin
from retryapp.lookup.failures import NOT_RUN
from retryapp.pipeline.analysis.reading import NO_HEADERS, read_batch, readings_of
from retryapp.pipeline.analysis.schemas import SAID

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOTHING: dict[str, Any] = dict.fromkeys(SAID.fieldNames())
pytestmark = pytest.mark.timeout(300)
QUIET = settings(deadline=None, database=None, print_blob=True)

counts = st.integers(1, MAX_COUNT)
values = (
    st.none() | st.binary(max_size=12) | st.sampled_from([b"0", b"-1", b"01", b"%C3", b"%zz", b"a+b", b"2", b"1:2"])
)
header_names = st.sampled_from(sorted(OUR_HEADERS)) | names


@st.composite
def headers(draw: st.DrawFn) -> Headers:
    """Headers as they are written, with foreign ones beside them, and as a fault or a stranger may leave them."""
    pairs: list[tuple[str, bytes | None]] = list(draw(metadata().map(encode_metadata) | st.just(())))
    for _ in range(draw(st.integers(0, 2))):
        kind = draw(st.sampled_from(["drop", "again", "change", "add"]))
        if kind == "add":
            pairs.insert(draw(st.integers(0, len(pairs))), (draw(header_names), draw(values)))
        elif pairs:
            place = draw(st.integers(0, len(pairs) - 1))
            if kind == "drop":
                del pairs[place]
            elif kind == "again":
                pairs.append(pairs[place])
            else:
                pairs[place] = (pairs[place][0], draw(values))
    return tuple(pairs)


successes = st.builds(
    Succeeded,
    **dict.fromkeys(("group", "handler", "failure_id", "origin"), names),
    **dict.fromkeys(("started_ms", "ended_ms", "lateness_ms"), instants),
    **dict.fromkeys(("attempt", "delivery"), counts),
)
handlers = dict.fromkeys(("group", "handler", "main"), names)
policies = st.builds(PolicyUsed, **handlers, text=names, digest=names, at_ms=instants)
ranges: dict[str, Any] = dict.fromkeys(("partition", "to_offset", "received", "first_try_ok", "failed"), counts)
passages = st.builds(Progress, **handlers, **ranges, from_offset=st.just(0), from_ms=instants, to_ms=instants)
event_values = (
    (successes | policies | passages).map(lambda event: event.to_json())
    | st.none()
    | st.binary(max_size=20)
    | st.sampled_from([b"{}", b'{"kind": "succeeded"}', b'{"kind": "newer", "v": 2}', b"null"])
)


UNREAD = {
    "retry-handler": b"x", "retry-first-failed-ms": b"1", "retry-error-trace": b"x", "retry-history": b"1:2:x",
    "retry-hot-attempts": b"1", "retry-rule": b"x", "retry-rule-failures": b"1", "retry-original-reason": b"x",
    "retry-replay-id": b"x", "retry-letter": b"x", "retry-null-value": b"1", "retry-no-payload": b"1",
    "retry-counted-from-ms": b"1", "retry-edited": b"1", "retry-worker": b"x",
}  # fmt: skip
"""Headers that the analysis does not read, with values that they may have."""
DAMAGED = NOTHING | {"unreadable": "damaged"}


def station_of(found: Headers) -> str:
    return "dlq" if RETRY_REASON in dict(found) else "retry"


def expected_of_headers(found: Headers) -> dict[str, Any]:
    """Return what core says, as a row; whatever is wrong with headers that the analysis does not need."""
    if is_mark(found):
        return DAMAGED  # of a mark there is the value, if it is one
    names = [name for name, _ in found]
    other = RETRY_DUE_MS if RETRY_REASON in names else RETRY_REASON
    needed = [(name, value) for name, value in found if value is None or name != other or names.count(name) > 1]
    needed = [(name, value if value is None else UNREAD.get(name, value)) for name, value in needed]
    missing = [(name, value) for name, value in UNREAD.items() if name not in names]
    try:
        read = decode_metadata((*needed, *missing) if OUR_HEADERS & set(names) else ())
    except RetryAppError:
        return DAMAGED
    if read is None:
        return NOTHING | {"unreadable": NO_HEADERS}
    facts = asdict(read)
    own = {"kind": station_of(found), "failure_id": read.failure_id, "ended_ms": read.last_failed_ms}
    own |= {"started_ms": None} if read.reason in NOT_RUN and RETRY_WORKER not in names else {}
    place = {name: facts["origin"][name] for name in ("topic_id", "partition", "offset")}
    return NOTHING | {name: facts[name] for name in NOTHING.keys() & facts} | place | own


def expected_of_event(value: bytes | None) -> dict[str, Any]:
    """Return what core says, as a row."""
    try:
        event = decode_event(value or b"")
        place = asdict(parse_origin(event.origin)) if isinstance(event, Succeeded) else {}
    except RetryAppError:
        newer = newer_event(value or b"")
        return NOTHING | {"kind": f"newer-{newer[0]}"} if newer else DAMAGED
    facts = (event.model_dump() if isinstance(event, Succeeded | Progress) else {"kind": event.kind}) | place
    return NOTHING | {name: facts[name] for name in NOTHING.keys() & facts}


ORIGIN = Origin("orders", "kq8G0bTz", 3, 1042)
SUCCESS = Succeeded(
    group="billing", handler="shop.charge", failure_id="billing/orders@kq8G0bTz/3/1042", origin=ORIGIN.text, attempt=2,
    started_ms=1, ended_ms=2, lateness_ms=0,
)  # fmt: skip


PLACE: dict[str, Any] = {"group": "billing", "handler": "shop.charge", "main": "orders", "partition": 0}
COUNTED = Progress(**PLACE, from_offset=0, to_offset=2, from_ms=1, to_ms=2, received=2, first_try_ok=2, failed=0)
DISCARDED = Discarded(
    **dict.fromkeys(("group", "handler", "reason", "error_type", "error_message", "fingerprint", "policy"), ""),
    **dict.fromkeys(("attempt", "delivery", "first_failed_ms", "started_ms", "ended_ms", "origin_timestamp_ms"), 1),
    failure_id=SUCCESS.failure_id, origin=ORIGIN.text,
)  # fmt: skip


def changed(event: LifecycleEvent, **facts: object) -> bytes:
    """Return an event with facts that no worker would write."""
    return json.dumps(json.loads(event.to_json()) | facts).encode()


def read(station: str, *values: bytes | None, found: Headers = ()) -> list[dict[str, Any]]:
    """Return what is read of records of one station, without what they do not say."""
    number = len(values)
    batch = pa.array([station] * number), pa.array([list(found)] * number, ARROW_HEADERS), pa.array(values, pa.binary())
    rows = read_batch(*batch).to_pylist()
    return [{name: fact for name, fact in row.items() if fact is not None} for row in rows]


def test_marks_of_dead_letters_are_no_letters() -> None:
    """What one says, and of which record; one that cannot be read is reported."""
    mark = LetterMark(
        mark=MarkKind.RESTORED, failure_id=SUCCESS.failure_id, letter=7, delivery=4, replays=1, command="c"
    )
    written = mark.to_record("billing.orders.dlq", 3)
    fine, *damaged = read("dlq", written.value, b"{}", written.value.replace(b"@", b""), found=written.headers)
    assert fine == {
        "kind": "mark-restored", "failure_id": SUCCESS.failure_id, "topic_id": "kq8G0bTz", "partition": 3,
        "offset": 1042, "replays": 1, "delivery": 4,
    }  # fmt: skip
    assert [list(row) for row in damaged] == [["unreadable"]] * 2


def test_what_a_stranger_wrote_is_reported() -> None:
    """Half a surrogate, infinity, too deep a nest, an origin that is none, numbers that no column holds.

    One such event would end every analysis; the records beside it are read all the same.
    """
    numbers = {"from_ms": 10**30, "to_ms": MAX_EPOCH_MS + 1, "partition": 2**31, "to_offset": 2**63, "received": 2**62}
    strange = [
        *(changed(COUNTED, **{name: number}) for name, number in numbers.items()),
        changed(DISCARDED, origin_timestamp_ms=-(10**30)),
        *(changed(SUCCESS, origin=place) for place in ("orders@id/1", "orders@id/1/x", "orders@id/99999999999/2")),
        *(b'{"v":1,"kind":"policy"}', b'{"v":2,"kind":"\\ud800"}', b'{"v":1e400,"kind":"x"}'),
        *(b"[]", b"[" * 20_000, b'{"v":2,"kind":"x","y":' + b"[" * 20_000),
    ]
    *damaged, fine = read("events", *strange, COUNTED.to_json())
    assert [list(row) for row in damaged] == [["unreadable"]] * len(strange)
    for row, (name, number) in zip(damaged, numbers.items(), strict=False):
        assert row["unreadable"].startswith(f"not a lifecycle event: {name}: {number} is out of range")
    assert (fine["kind"], fine["received"]) == ("progress", 2)
    assert read("events") == [], "of an empty partition"


def test_the_columns_of_spark_say_what_core_says(generating: SparkSession) -> None:
    """Any records read as Python reads them. All are drawn first and read by one job; a failure names the row.

    Commands and circuits are no journeys; a kind or version that is not known yet is no damage: its kind is read.
    """
    ended = Commanded(**PLACE, at_ms=1, command="", verb="job-end", failure_id="", text="done", job="j1")
    opened = CircuitChanged(**PLACE, at_ms=1, from_state="closed", to_state="open", cause="down")
    traced = replace(dead(1), error_trace="Traceback:\n  100 % +\n")
    told = (
        waiting(1),
        waiting(1, error_message="na\u00efve\n"),
        waiting(1, delivery=9, replays=1, replay_id="r"),
        traced,
    )
    found = list(map(encode_metadata, told))
    events: list[bytes | None] = [each.to_json() for each in (SUCCESS, ended, opened)]
    events += b'{"v":1,"kind":"unheard","x":2}', b'{"v":2,"kind":"policy"}'

    @settings(QUIET, max_examples=200)
    @given(st.lists(headers(), max_size=3), st.lists(event_values, max_size=2))
    def draw(some: list[Headers], said: list[bytes | None]) -> None:
        found.extend(some)
        events.extend(said)

    draw()
    rows: list[dict[str, Any]] = [{"station": station_of(each), "headers": list(each)} for each in found]
    rows += [{"station": "events", "value": value} for value in events]
    rows.append({"station": "dlq", "headers": None})  # as Spark reads a record that has none
    strange = NOTHING | {"unreadable": NO_HEADERS}
    expected = [*map(expected_of_headers, found), *map(expected_of_event, events), strange]
    records = Archive().frame(generating, ({**row, "offset": number} for number, row in enumerate(rows)))
    for number, row in readings_of(records).select("found_offset", "said").collect():
        facts = row.asDict()
        if facts["unreadable"] not in (None, NO_HEADERS):
            facts["unreadable"] = "damaged"
        assert facts == expected[number], rows[number]
    assert sum(each["unreadable"] is None for each in expected) > len(rows) / 10, "hardly any could be read"
