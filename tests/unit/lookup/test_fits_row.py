"""Which waiting records fit a search, and how much of them is looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from samples import WAITING

from retryapp.core.causes import cause_id
from retryapp.core.headers import encode_metadata
from retryapp.core.hops import failure_of
from retryapp.core.jobs import LetterFilter
from retryapp.core.rows import PendingRow, encode_row
from retryapp.lookup import records


def row(message: str, *, counted: bool) -> bytes:
    """Return the row of a record; one that an earlier build wrote is not counted."""
    metadata = replace(WAITING, error_message=message)
    failure = failure_of(metadata) if counted else b""
    return encode_row(PendingRow(b"k", b"{}", encode_metadata(metadata), failure=failure))


@pytest.mark.parametrize("counted", [True, False])
def test_a_search_by_cause_decodes_no_row_of_another_one(monkeypatch: pytest.MonkeyPatch, counted: bool) -> None:
    """The row names its cause; of one that does not, the headers decide."""
    wanted = LetterFilter(cause=cause_id(WAITING.error_type, WAITING.fingerprint, "HTTP 503"))
    decoded, decode = list[bytes](), records.decode_row

    def noted(raw: bytes) -> Any:
        decoded.append(raw)
        return decode(raw)

    monkeypatch.setattr(records, "decode_row", noted)
    same, other = row("HTTP 503", counted=counted), row("no such postcode", counted=counted)
    assert records.fits_row(wanted, same)
    assert not records.fits_row(wanted, other)
    assert decoded == ([same] if counted else [same, other])
