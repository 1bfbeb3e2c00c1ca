"""The names of the ``retry-*`` headers, and of the user's headers while they travel beside them."""

from __future__ import annotations

from typing import Final

RETRY_VERSION: Final = "retry-version"
RETRY_NULL_VALUE: Final = "retry-null-value"
RETRY_GROUP: Final = "retry-group"
RETRY_HANDLER: Final = "retry-handler"
RETRY_ORIGIN: Final = "retry-origin"
RETRY_ORIGIN_TIMESTAMP_MS: Final = "retry-origin-timestamp-ms"
RETRY_ATTEMPT: Final = "retry-attempt"
RETRY_DUE_MS: Final = "retry-due-ms"
RETRY_STARTED_MS: Final = "retry-started-ms"
RETRY_HOT_ATTEMPTS: Final = "retry-hot-attempts"
"""Reserved for retries in place: ours, not written, not read."""
RETRY_POLICY: Final = "retry-policy"
RETRY_TIER: Final = "retry-tier"
RETRY_FIRST_FAILED_MS: Final = "retry-first-failed-ms"
RETRY_LAST_FAILED_MS: Final = "retry-last-failed-ms"
RETRY_ERROR_TYPE: Final = "retry-error-type"
RETRY_ERROR_MESSAGE: Final = "retry-error-message"
RETRY_ERROR_TRACE: Final = "retry-error-trace"
RETRY_REASON: Final = "retry-reason"
RETRY_ORIGINAL_REASON: Final = "retry-original-reason"
"""With reason ``too-large`` only: why the record died before it proved too large for the dead-letter topic."""
RETRY_FINGERPRINT: Final = "retry-fingerprint"
RETRY_HISTORY: Final = "retry-history"
RETRY_REPLAY_ID: Final = "retry-replay-id"
RETRY_REPLAYS: Final = "retry-replays"

OUR_HEADERS: Final = frozenset(
    {
        RETRY_VERSION, RETRY_NULL_VALUE, RETRY_GROUP, RETRY_HANDLER, RETRY_ORIGIN, RETRY_ORIGIN_TIMESTAMP_MS,
        RETRY_ATTEMPT, RETRY_DUE_MS, RETRY_STARTED_MS, RETRY_HOT_ATTEMPTS, RETRY_POLICY, RETRY_TIER,
        RETRY_FIRST_FAILED_MS, RETRY_LAST_FAILED_MS, RETRY_ERROR_TYPE, RETRY_ERROR_MESSAGE, RETRY_ERROR_TRACE,
        RETRY_REASON, RETRY_ORIGINAL_REASON, RETRY_FINGERPRINT, RETRY_HISTORY, RETRY_REPLAY_ID, RETRY_REPLAYS,
    }
)  # fmt: skip
"""All names that are ours in format version 1."""

SHIELD: Final = "retry-foreign-"
"""Prefix put before a user's own header whose name is one of ours, while the record travels on our topics."""

ESCAPED: Final = "retry-escaped-"
"""The same before a user's header name that is not UTF-8, whose bytes follow percent-encoded (RFC 3986)."""
