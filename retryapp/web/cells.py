"""Cells of tables as HTML: a long list has thousands, for each of which macros of templates take four times as long."""

from __future__ import annotations

import re
from typing import Final

from markupsafe import Markup, escape

from retryapp.lookup.instants import iso_text, length_text, relative_text, utc_text
from retryapp.lookup.payloads import printable
from retryapp.lookup.records import Facts

OVERDUE_MS: Final = 10_000
"""What is due for longer is marked."""
_LENGTH: Final = re.compile(r"\b(\d+(?:\.\d+)?)(ms|[smhd])\b")
_NONE: Final = Markup('<span class="soft">-</span>')


def spaced(text: str) -> str:
    """Write lengths as people do.

    >>> spaced("4m 12s ago"), spaced("in 2.3s")
    ('4 min 12 s ago', 'in 2.3 s')
    """
    return _LENGTH.sub(lambda found: f"{found[1]} {'min' if found[2] == 'm' else found[2]}", text)


def due_text(due_at_ms: int | None, now_ms: int) -> str:
    """Return when something is due; a dash for never."""
    if due_at_ms is None or due_at_ms >= now_ms:
        return relative_text(due_at_ms, now_ms)
    return f"overdue {length_text(now_ms - due_at_ms)}"


def known(value: object) -> Markup:
    """Return a text; a dash for None."""
    return _NONE if value is None else escape(printable(str(value)))


def when(instant_ms: int | None, now_ms: int) -> Markup:
    """Return an instant, and how far it is from now."""
    return _NONE if instant_ms is None else _time(instant_ms, relative_text(instant_ms, now_ms))


def when_due(due_at_ms: int | None, now_ms: int) -> Markup:
    """Return the instant when something is due, and how far that is from now."""
    if due_at_ms is None:
        return _NONE
    return _time(due_at_ms, due_text(due_at_ms, now_ms), ' class="bad"' * (due_at_ms < now_ms - OVERDUE_MS))


def _time(instant_ms: int, text: str, more: str = "") -> Markup:
    time = f'<time datetime="{iso_text(instant_ms)}"{more}>{spaced(text)} <small>{utc_text(instant_ms)}</small></time>'
    return _html(time)


def attempt(number: int | None, replays: int | None, most: int | None) -> Markup:
    """Return the number of an attempt, and of how many."""
    if number is None:
        return _NONE
    before = f'<span class="soft">replay {replays},<br>attempt</span> ' if replays else ""
    after = f' <span class="soft">of {most}</span>' if most else ""
    return _html(f"<span>{before}{number}{after}</span>")


def attempts(record: Facts, more: int = 0) -> Markup:
    """Return the number of a record's last attempt; of the next one, with one `more`."""
    number = record["attempt"]
    return attempt(None if number is None else number + more, record["replays"], record["max_attempts"])


def error(record: Facts) -> Markup:
    """Return type and message of a record's last error."""
    message = record["message"]
    below = f'<br><span class="soft">{known(message)}</span>' if message else ""
    return _html(f"<code>{known(record['error_type'])}</code>{below}")


def cause(record: Facts, path: str) -> Markup:
    """Return the id of a record's cause, with a link to the list of all that have it."""
    name = record["cause_id"]
    if name is None:
        return _NONE
    return _html(f'<a href="{escape(path)}?cause={escape(name)}"><code class="id">{escape(name)}</code></a>')


def _html(text: str) -> Markup:
    return Markup(text)  # noqa: S704 - what is in it is a number, or escaped
