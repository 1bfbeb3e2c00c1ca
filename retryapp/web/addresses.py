"""Addresses of records: where one is shown, and which one is asked for."""

from __future__ import annotations

from urllib.parse import quote

from retryapp.core.errors import DamagedMetadataError
from retryapp.core.record import Origin, failure_id, parse_failure_id
from retryapp.core.rows import is_stopped
from retryapp.lookup.records import Facts
from retryapp.ports import PAGES_PREFIX, DeadEntry, HandlerInfo
from retryapp.runtime.view import RuntimeView
from retryapp.web.errors import bad_parameter
from retryapp.web.query import Question


def letter_address(main: str, letter: DeadEntry) -> str:
    """Return the address of the page of a dead letter."""
    topic = f"?letters={letter.letters}" if letter.letters else ""
    return f"{PAGES_PREFIX}/{quote(main, safe='')}/dead/{letter.partition}/{letter.row.offset}{topic}"


def pending_address(origin: Origin) -> str:
    """Return the address of the page of a record that waits."""
    base = f"{PAGES_PREFIX}/{quote(origin.topic, safe='')}/pending"
    return f"{base}/{origin.partition}/{origin.offset}?topic_id={quote(origin.topic_id, safe='')}"


def stop_address(view: RuntimeView, letter: Facts) -> str | None:
    """Return the address where the sequence of a dead record is released; None: it has not stopped."""
    if letter["origin"] is None:
        return None
    origin = Origin(**letter["origin"])
    row = view.pending_find(origin)
    return pending_address(origin) if row is not None and is_stopped(row.value) else None


def find_address(info: HandlerInfo, origin: Origin) -> str:
    """Return the address that leads to wherever a record is now."""
    name = quote(failure_id(info.group, origin), safe="")
    return f"{PAGES_PREFIX}/{quote(info.main, safe='')}/find?id={name}"


def origin_asked(info: HandlerInfo, question: Question) -> Origin:
    """Return the record that a question names by its failure id.

    Raises:
        PageError: 400 when it is no failure id of this handler.
    """
    wanted = question.query.get("id", "").strip()
    try:
        group, origin = parse_failure_id(wanted)
    except DamagedMetadataError as error:
        raise bad_parameter("id", wanted, "a failure id: group/topic@id/partition/offset") from error
    if (group, origin.topic) != (info.group, info.main):
        raise bad_parameter("id", wanted, f"a failure id of {info.group}/{info.main}")
    return origin
