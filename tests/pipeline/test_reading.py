"""Both readers of headers and events agree: core's in a worker, and the same in Spark's Python workers on Arrow."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from retryapp.core.errors import RetryAppError
from retryapp.core.headers import decode_metadata, encode_metadata
from retryapp.core.lifecycle import PolicyUsed, Progress, Succeeded, decode_event
from retryapp.core.metadata import HistoryEntry, RetryMetadata
from retryapp.core.names import OUR_HEADERS
from retryapp.core.record import Headers, Origin
from retryapp.pipeline.reading import NO_HEADERS, read_batch, read_columns
from retryapp.pipeline.schemas import EVENT, HEADERS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ARROW_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
QUIET = settings(deadline=None, database=None, print_blob=True)

words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
instants = st.integers(0, 253_402_300_799_999)
counts = st.integers(1, 1_000_000)
origins = st.builds(
    Origin,
    st.from_regex(r"\A[A-Za-z0-9._-]{1,20}\Z"),
    st.from_regex(r"\A[A-Za-z0-9_-]{8}\Z"),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
)
common: dict[str, Any] = {
    "group": words,
    "handler": words,
    "origin": origins,
    "origin_timestamp_ms": st.integers(-1, 10**13),
    "attempt": counts,
    "started_ms": instants,
    "hot_attempts": counts,
    "policy": words,
    "first_failed_ms": instants,
    "last_failed_ms": instants,
    "error_type": words,
    "error_message": st.text(st.characters(codec="utf-8"), max_size=40),
    "fingerprint": words,
    "history": st.lists(st.builds(HistoryEntry, counts, instants, words), max_size=4).map(tuple),
    "replay_id": st.none() | words,
    "replays": st.integers(0, 3),
    "null_value": st.booleans(),
}
metadata = st.builds(RetryMetadata, **common, due_at_ms=instants, tier=st.none() | words) | st.builds(
    RetryMetadata, **common, reason=words, original_reason=st.none() | words, error_trace=st.none() | words
)
values = (
    st.none() | st.binary(max_size=12) | st.sampled_from([b"0", b"-1", b"01", b"%C3", b"%zz", b"a+b", b"2", b"1:2"])
)
header_names = st.sampled_from(sorted(OUR_HEADERS)) | words


@st.composite
def headers(draw: st.DrawFn) -> Headers:
    """Headers as they are written, with foreign ones beside them, and as a fault or a stranger may leave them."""
    pairs: list[tuple[str, bytes | None]] = list(draw(metadata.map(encode_metadata) | st.just(())))
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
    group=words,
    handler=words,
    failure_id=words,
    origin=words,
    attempt=counts,
    started_ms=instants,
    ended_ms=instants,
    lateness_ms=instants,
)
policies = st.builds(PolicyUsed, group=words, handler=words, main=words, text=words, digest=words, at_ms=instants)
passages = st.builds(
    Progress,
    group=words,
    handler=words,
    main=words,
    partition=counts,
    from_offset=st.just(0),
    to_offset=counts,
    from_ms=instants,
    to_ms=instants,
    received=counts,
    first_try_ok=counts,
    failed=counts,
)
event_values = (
    (successes | policies | passages).map(lambda event: event.to_json())
    | st.none()
    | st.binary(max_size=20)
    | st.sampled_from([b"{}", b'{"kind": "succeeded"}', b'{"kind": "newer", "v": 2}', b"null"])
)


def expected_of_headers(found: Headers) -> dict[str, Any]:
    """Return what core says, as a row."""
    nothing: dict[str, Any] = {"failure_id": None, "metadata": None, "event": None, "unreadable": None}
    try:
        read = decode_metadata(found)
    except RetryAppError as error:
        return {**nothing, "unreadable": str(error)}
    if read is None:
        return {**nothing, "unreadable": NO_HEADERS}
    facts = {**asdict(read), "history": [asdict(entry) for entry in read.history]}
    return {**nothing, "failure_id": read.failure_id, "metadata": facts}


def expected_of_event(value: bytes | None) -> dict[str, Any]:
    """Return what core says, as a row."""
    nothing: dict[str, Any] = {"failure_id": None, "metadata": None, "event": None, "unreadable": None}
    try:
        event = decode_event(value or b"")
    except RetryAppError as error:
        return {**nothing, "unreadable": str(error)}
    told = dict.fromkeys(EVENT.fieldNames()) | event.model_dump()
    return {**nothing, "failure_id": told["failure_id"], "event": told}


@QUIET
@given(st.lists(headers(), max_size=8), st.lists(event_values, max_size=8))
def test_a_batch_says_what_core_says_of_each_record(found: list[Headers], events: list[bytes | None]) -> None:
    """Whatever the headers are: the same fields, or the same words on why there are none."""
    stations = ["retry"] * len(found) + ["events"] * len(events)
    rows = [[{"key": key, "value": value} for key, value in each] for each in found]
    answer = read_batch(
        pa.array(stations, pa.string()),
        pa.array([*rows, *([None] * len(events))], ARROW_HEADERS),
        pa.array([*([None] * len(found)), *events], pa.binary()),
    ).to_pylist()
    assert answer == [*map(expected_of_headers, found), *map(expected_of_event, events)]


def test_the_columns_of_spark_say_it_too(spark: SparkSession) -> None:
    """The whole way through Spark's Python workers and back."""
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    schema = T.StructType(
        [
            T.StructField("number", T.IntegerType()),
            T.StructField("station", T.StringType()),
            T.StructField("headers", HEADERS),
            T.StructField("value", T.BinaryType()),
        ]
    )

    @settings(QUIET, max_examples=2)
    @given(st.lists(headers(), min_size=40, max_size=60), st.lists(event_values, min_size=20, max_size=30))
    def agree(found: list[Headers], events: list[bytes | None]) -> None:
        rows: list[tuple[Any, ...]] = [("dlq", list(each), None) for each in found]
        rows += [("events", None, value) for value in events]
        frame = spark.createDataFrame([(number, *row) for number, row in enumerate(rows)], schema)
        reading = read_columns(F.col("station"), F.col("headers"), F.col("value"))
        read = frame.select("number", reading.alias("reading")).orderBy("number").collect()
        answer = [row["reading"].asDict(recursive=True) for row in read]
        assert answer == [*map(expected_of_headers, found), *map(expected_of_event, events)]

    agree()
