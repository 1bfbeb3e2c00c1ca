"""What records have failed of, as their headers say."""

from __future__ import annotations

from contextlib import suppress
from sys import intern

from retryapp.core.causes import CauseCount, cause_id, cause_name
from retryapp.core.errors import DamagedMetadataError, DamagedRowError, NewerRowError
from retryapp.core.headers import decode_metadata
from retryapp.core.hops import failed_last_ms
from retryapp.core.record import Headers
from retryapp.core.rows import decode_row, is_stopped


def failed_of(headers: Headers) -> CauseCount | None:
    """Return the cause of one record; None: nothing has failed yet, or its headers are damaged."""
    with suppress(DamagedMetadataError):
        read = decode_metadata(headers)
        if read is not None and not read.held:
            return CauseCount(
                cause_id=cause_id(read.error_type, read.fingerprint, read.error_message),
                name=intern(cause_name(read.error_type, None, read.error_message)),
                records=1,
                attempts=read.attempt,
                first_ms=read.first_failed_ms,
                last_ms=failed_last_ms(read),
                sample=read.failure_id,
            )
    return None


def row_failed_of(value: bytes) -> CauseCount | None:
    """Return the same of a row; None of one that cannot be read, too, or of a dead record: its letter says it."""
    with suppress(DamagedRowError, NewerRowError):
        return None if is_stopped(value) else failed_of(decode_row(value).headers)
    return None
