"""Reads well-formed records by Spark's own expressions, so that most rows never go to a Python worker.

Whatever is not surely well-formed is left to `reading`, which calls core's decoders: headers of ours that are missing,
doubled, null or out of range, names outside printable ASCII, every event but ``succeeded`` as workers write it.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from retryapp.core import headers
from retryapp.core.lifecycle import Succeeded
from retryapp.core.metadata import FORMAT_VERSION, MAX_COUNT, MAX_EPOCH_MS, MAX_HISTORY
from retryapp.pipeline.schemas import EVENT, METADATA, READING


def _printable(but: str = "") -> str:
    """Return a pattern for one character of printable ASCII but those; no ranges, which Java tries one by one."""
    return "[" + "".join(f"\\x{code:02x}" for code in range(0x20, 0x7F) if chr(code) not in but) + "]"


_NUMBER: Final = "(?:0|[1-9][0-9]{0,17})"
_PLAIN: Final = r"\A" + _printable(but="%+") + r"*\z"  # text that percent-encoding leaves unchanged
_NOT_ESCAPED: Final = "[^ -*,-~]|%(?![0-9A-Fa-f]{2})"
"""What percent-encoded text does not have; searched for, because a match of the whole could exhaust the stack."""
_REPLACED: Final = "\ufffd"  # what Java makes of bytes that are not UTF-8
_ORIGIN: Final = r"\A[A-Za-z0-9._-]{1,249}@[A-Za-z0-9_-]{1,22}/(?:0|[1-9][0-9]{0,9})/" + _NUMBER + r"\z"
_MAX_PARTITION: Final = 2**31 - 1
_ENTRY: Final = _NUMBER + ":" + _NUMBER + ":" + _printable(but="%+,:") + "*+"
_HISTORY: Final = r"\A" + _ENTRY + "(?:," + _ENTRY + "){0," + str(MAX_HISTORY - 1) + r"}\z"
_NO_VALUE: Final = "cast(X'00FF00FF' as binary)"  # no header says this; searching it finds nulls

_NUMBERS: Final = {
    "origin_timestamp_ms": (headers.RETRY_ORIGIN_TIMESTAMP_MS, -1, MAX_EPOCH_MS),
    "attempt": (headers.RETRY_ATTEMPT, 0, MAX_COUNT),
    "delivery": (headers.RETRY_DELIVERY, 0, MAX_COUNT),
    "started_ms": (headers.RETRY_STARTED_MS, 0, MAX_EPOCH_MS),
    "first_failed_ms": (headers.RETRY_FIRST_FAILED_MS, 0, MAX_EPOCH_MS),
    "last_failed_ms": (headers.RETRY_LAST_FAILED_MS, 0, MAX_EPOCH_MS),
    "due_at_ms": (headers.RETRY_DUE_MS, 0, MAX_EPOCH_MS),
    "replays": (headers.RETRY_REPLAYS, 0, MAX_COUNT),
}
"""Field → header, least and greatest value."""
_ELSE: Final = {"replays": "0L", "delivery": "v_attempt"}
_NAMES: Final = {
    "group": headers.RETRY_GROUP,
    "handler": headers.RETRY_HANDLER,
    "policy": headers.RETRY_POLICY,
    "error_type": headers.RETRY_ERROR_TYPE,
    "fingerprint": headers.RETRY_FINGERPRINT,
    "tier": headers.RETRY_TIER,
    "reason": headers.RETRY_REASON,
    "original_reason": headers.RETRY_ORIGINAL_REASON,
    "replay_id": headers.RETRY_REPLAY_ID,
}
_TEXTS: Final = {"error_message": headers.RETRY_ERROR_MESSAGE, "error_trace": headers.RETRY_ERROR_TRACE}
_OTHERS: Final = {
    "version": headers.RETRY_VERSION,
    "origin": headers.RETRY_ORIGIN,
    "history": headers.RETRY_HISTORY,
    "null_value": headers.RETRY_NULL_VALUE,
}
_OPTIONAL: Final = frozenset({*_ELSE, "due_at_ms", "tier", "reason", "original_reason", "replay_id", "error_trace"})
_RAW: Final = {
    **{field: header for field, (header, _, _) in _NUMBERS.items()},
    **_NAMES,
    **_TEXTS,
    **_OTHERS,
}  # field → header

_ORDER: Final = (
    headers.RETRY_VERSION, headers.RETRY_NULL_VALUE, headers.RETRY_GROUP, headers.RETRY_HANDLER, headers.RETRY_ORIGIN,
    headers.RETRY_ORIGIN_TIMESTAMP_MS, headers.RETRY_ATTEMPT, headers.RETRY_DELIVERY, headers.RETRY_DUE_MS,
    headers.RETRY_STARTED_MS, headers.RETRY_POLICY, headers.RETRY_TIER, headers.RETRY_FIRST_FAILED_MS,
    headers.RETRY_LAST_FAILED_MS, headers.RETRY_ERROR_TYPE, headers.RETRY_ERROR_MESSAGE, headers.RETRY_ERROR_TRACE,
    headers.RETRY_REASON, headers.RETRY_ORIGINAL_REASON, headers.RETRY_FINGERPRINT, headers.RETRY_HISTORY,
    headers.RETRY_REPLAY_ID, headers.RETRY_REPLAYS,
)  # fmt: skip
"""In which ours are written."""
_STRANGERS: Final = rf"(?:(?!retry-(?!{headers.SHIELD[6:]}|{headers.ESCAPED[6:]}))[^\n]*+\n)*+"
_IN_ORDER: Final = rf"\A{_STRANGERS}" + "".join(rf"(?:{name}\n)?" for name in _ORDER) + rf"{_STRANGERS}\z"

NATIVE: Final = "native"


def _succeeded() -> str:
    parts, text = [], '"' + _printable(but='"\\') + '*+"'
    for name, field in Succeeded.model_fields.items():
        value = _NUMBER if field.annotation is int else text
        fixed = {"v": "1", "kind": '"succeeded"', **dict.fromkeys(("attempt", "delivery"), "[1-9][0-9]{0,17}")}
        parts.append(f'"{name}":{fixed.get(name, value)}')
    return r"\A\{" + ",".join(parts) + r"\}\z"


def with_native(rows: DataFrame, *, is_event: Column) -> DataFrame:
    """Add a struct ``native`` as ``schemas.READING`` has it; null for each row that core's decoders must read."""
    kept = rows.columns
    text = F.col("value").cast("string")
    event = F.when(is_event & text.rlike(_succeeded()), F.from_json(text, EVENT))
    texts = (_raw(field).alias(f"r_{field}") for field in (*_NUMBERS, *_TEXTS, *_OTHERS))
    facts = (_value(field).alias(f"v_{field}") for field in (*_NUMBERS, *_NAMES, *_TEXTS))
    values = rows.select(*kept, event.alias("_event"), _none_twice_or_null().alias("_whole"), *texts, *facts)
    fits = F.coalesce(reduce(and_, [~is_event, F.col("_whole"), *_conditions()]), F.lit(False))
    metadata = F.struct(*(_column(field).alias(field) for field in METADATA.fieldNames()))
    failure_id = F.concat_ws("/", F.col("v_group"), F.col("r_origin"))
    native = F.when(F.col("_event").isNotNull(), _reading(F.col("_event.failure_id"), event=F.col("_event"))).when(
        fits, _reading(failure_id, metadata=metadata)
    )
    return values.select(*kept, native.alias(NATIVE))


def _reading(failure_id: Column, **known: Column) -> Column:
    columns = {"failure_id": failure_id, **known}
    return F.struct(*(columns.get(field.name, F.lit(None)).cast(field.dataType).alias(field.name) for field in READING))


def _none_twice_or_null() -> Column:
    """Tell whether ours are in writing order, each once, and no header is null."""
    joined = F.concat(F.array_join("headers.key", "\n"), F.lit("\n"))
    none_null = ~F.coalesce(F.array_contains("headers.value", F.expr(_NO_VALUE)), F.lit(True))
    return joined.rlike(_IN_ORDER) & none_null


def _raw(field: str) -> Column:
    place = F.array_position("headers.key", _RAW[field]).cast("int") - 1
    return F.get("headers.value", place).cast("string")


def _value(field: str) -> Column:
    """Return what a header says, if it is well-formed: nothing of this fails, `_conditions` looks at the result."""
    raw = _raw(field)
    if field in _NUMBERS:
        return raw.try_cast("bigint")
    if field in _TEXTS:
        decoded = F.when(~raw.rlike(_NOT_ESCAPED), F.try_url_decode(raw))
        return F.when(F.contains(raw, F.lit("%")), decoded).otherwise(raw)
    return raw


def _conditions() -> list[Column]:
    """Return what must hold; each may be null for no."""
    found = []

    def check(field: str, raw: Column, fits: Column) -> None:
        found.append(raw.isNull() | fits if field in _OPTIONAL else fits)

    for field, (_, least, most) in _NUMBERS.items():
        raw, value = F.col(f"r_{field}"), F.col(f"v_{field}")
        check(field, raw, (value.cast("string") == raw) & value.between(least, most))
    for field in _NAMES:
        check(field, F.col(f"v_{field}"), F.col(f"v_{field}") != "")
    found.append(F.concat_ws("", *(F.col(f"v_{field}") for field in _NAMES)).rlike(_PLAIN))
    for field in _TEXTS:
        raw, value = F.col(f"r_{field}"), F.col(f"v_{field}")
        escaped = F.contains(raw, F.lit("%")) & ~F.contains(value, F.lit(_REPLACED))
        check(field, raw, escaped | raw.rlike(_PLAIN))
    history = F.col("r_history")
    flag = F.col("r_null_value")
    return [
        *found,
        F.col("r_version") == str(FORMAT_VERSION),
        F.col("r_origin").rlike(_ORIGIN) & (_part(F.col("r_origin"), "/", 2).try_cast("bigint") <= _MAX_PARTITION),
        history.isNull() | history.rlike(_HISTORY),
        flag.isNull() | (flag == "1"),
        (F.col("v_attempt") >= 1) | (F.coalesce(F.col("v_replays"), F.lit(0)) > 0),
        F.col("v_delivery").isNull() | (F.col("v_delivery") >= F.col("v_attempt")),
        F.col("v_due_at_ms").isNull() != F.col("v_reason").isNull(),
    ]


def _column(field: str) -> Column:
    if field == "version":
        return F.lit(FORMAT_VERSION).cast("bigint")
    if field == "origin":
        place = F.substring_index("r_origin", "@", -1)
        return F.struct(
            F.substring_index("r_origin", "@", 1).alias("topic"),
            _part(place, "/", 1).alias("topic_id"),
            _part(place, "/", 2).try_cast("bigint").alias("partition"),
            _part(place, "/", 3).try_cast("bigint").alias("offset"),
        )
    if field == "history":
        entries = F.transform(F.split("r_history", ","), _entry)
        return F.coalesce(entries, F.array().cast(METADATA["history"].dataType))
    if field == "null_value":
        return F.col("r_null_value").isNotNull()
    value = F.col(f"v_{field}")
    return F.coalesce(value, F.expr(_ELSE[field])) if field in _ELSE else value


def _entry(text: Column) -> Column:
    return F.struct(
        _part(text, ":", 1).try_cast("bigint").alias("attempt"),
        _part(text, ":", 2).try_cast("bigint").alias("failed_ms"),
        _part(text, ":", 3).alias("error_type"),
    )


def _part(text: Column, mark: str, number: int) -> Column:
    """Return one of three parts with a mark between them; ``split_part`` would compile a pattern for each row."""
    upto = text if number == 3 else F.substring_index(text, mark, number)
    return upto if number == 1 else F.substring_index(upto, mark, -1)
