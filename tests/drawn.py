"""Strategies for metadata as workers write it: of records that wait, and of dead ones."""

from __future__ import annotations

from hypothesis import strategies as st

from retryapp.core.classify import DeadReason
from retryapp.core.metadata import (
    MAX_EPOCH_MS,
    MAX_HISTORY,
    MAX_HISTORY_TYPE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_NAME_BYTES,
    MAX_TRACE_BYTES,
    HistoryEntry,
    RetryMetadata,
)
from retryapp.core.record import Origin

GROUP = "billing"

well_formed = st.characters(codec="utf-8")


def text(max_bytes: int, min_size: int = 0) -> st.SearchStrategy[str]:
    """Return a strategy for well-formed text within a number of bytes."""
    return st.text(well_formed, min_size=min_size, max_size=max_bytes // 4)


instants = st.integers(0, MAX_EPOCH_MS)
names = text(MAX_NAME_BYTES, min_size=1)
entries = st.builds(HistoryEntry, st.integers(1, 1000), instants, text(MAX_HISTORY_TYPE_BYTES, min_size=1))
origins = st.builds(
    Origin,
    st.from_regex(r"\A[A-Za-z0-9._-]{1,40}\Z"),
    st.from_regex(r"\A[A-Za-z0-9_-]{8}\Z"),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
)


@st.composite
def metadata(draw: st.DrawFn, dead: bool | None = None) -> RetryMetadata:
    """Draw valid metadata of a waiting or a dead record."""
    is_dead = draw(st.booleans()) if dead is None else dead
    replays = draw(st.integers(0, 3))
    attempt = draw(st.integers(0 if replays else 1, 10_000))
    reason = draw(st.sampled_from([each.value for each in DeadReason])) if is_dead else None
    return RetryMetadata(
        group=GROUP,
        handler=draw(names),
        origin=draw(origins),
        origin_timestamp_ms=draw(st.integers(-1, MAX_EPOCH_MS)),
        attempt=attempt,
        delivery=attempt + draw(st.integers(0, 3)),
        due_at_ms=None if is_dead else draw(instants),
        started_ms=draw(instants),
        policy=draw(names),
        tier=None if is_dead else draw(st.sampled_from(["1s", "1m"])),
        first_failed_ms=draw(instants),
        counted_from_ms=draw(st.none() | instants),
        last_failed_ms=draw(instants),
        error_type=draw(names),
        error_message=draw(text(MAX_MESSAGE_BYTES)),
        error_trace=draw(st.none() | text(MAX_TRACE_BYTES)) if is_dead else None,
        reason=reason,
        original_reason=draw(st.sampled_from([None, "exhausted"])) if reason == DeadReason.TOO_LARGE else None,
        fingerprint=draw(names),
        history=tuple(draw(st.lists(entries, max_size=MAX_HISTORY))),
        replay_id=draw(names) if replays else None,
        replays=replays,
        null_value=draw(st.booleans()),
    )
