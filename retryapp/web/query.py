"""What a request asks for, checked: address, page size, cursors, partition, format.

Cursors are opaque to a reader and mean a place, not a page number, so that a list may change while it is read:

* ``after`` of the waiting records is a row key in hex;
* ``before`` of the dead letters is a `Place`, as ``1760000000000-3-97`` or ``1760000000000-3-5-invalid``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlencode

from pydantic import ValidationError

from retryapp.core.causes import OTHER_CAUSE, cause_bytes
from retryapp.core.checks import first_problem
from retryapp.core.classify import DeadReason
from retryapp.core.errors import shown
from retryapp.core.jobs import LetterFilter
from retryapp.core.row_keys import ROW_KEY_BYTES
from retryapp.lookup.instants import INSTANT, parse_instant
from retryapp.web.access import Role
from retryapp.web.errors import PageError, bad_parameter, not_found

DEFAULT_LIMIT: Final = 50
MAX_LIMIT: Final = 500
FILTERS: Final = ("reason", "error_type", "cause", "message", "key", "header", "field")
"""Parameters that are fields of `LetterFilter`; with `since` and `until` they are all of it."""
YES: Final = "1"
_FORMS: Final = {
    "header": "NAME=TEXT, as tenant=acme, of at most 400 characters",
    "field": "/POINTER=TEXT, as /customer/id=17, of at most 400 characters",
}
_OF_LISTS: Final = frozenset({*FILTERS, "since", "until", "limit", "partition", "after", "before", "marked"})
"""What tells one list from another."""
MAX_REFRESH_S: Final = 3_600
MAX_SEEN: Final = 2**53
_MAX_DIGITS: Final = 19

Stream = tuple[int, str | None]
"""Partition, and name of the dead-letter topic of a rule or None."""
Place = tuple[int, int, str, int]
"""Of a dead letter in a list: when it was appended, partition, name of the topic of a rule or "", offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request; None: not asked for."""

    path: str = ""
    """As it was sent, still quoted."""
    main: str = ""
    """The handler's main topic, from the address."""
    place: tuple[str, str] = ("", "")
    """Partition and offset, from the address of one record."""
    job: str = ""
    """Id of a job, from the address."""
    query: Mapping[str, str] = field(default_factory=dict)
    """All parameters that say something, each once."""
    as_json: bool = False
    limit: int = DEFAULT_LIMIT
    """Rows on a page, from 1 to ``MAX_LIMIT``."""
    partition: int | None = None
    wanted: LetterFilter = field(default_factory=LetterFilter)
    """Which records are asked for."""
    after: bytes | None = None
    """Waiting records after this row key."""
    before: Place | None = None
    """Dead letters older than this."""
    seen: int = 0
    """Records on the pages before."""
    marked: bool = False
    """Also dead letters that are not open any more: replayed, discarded, handled."""
    topic_id: str | None = None
    """Id of the main topic that a record is of; None: of the one that there is now."""
    letters: str | None = None
    """Name of the dead-letter topic of a rule; None: the usual one."""
    refresh_s: int | None = None
    """Ask the browser to load the page again after this time; 0: never."""
    routed: bool = False
    """Another worker sent the request here: do not send it on again."""
    role: Role = Role.NONE
    """Of who asks."""

    def address(self, path: str | None = None, **changes: str) -> str:
        """Return the address of this question with other parameters, or with another path."""
        rest = {name: value for name, value in self.query.items() if name != "routed"}
        query = urlencode({**rest, **changes})
        return (path or self.path) + (f"?{query}" if query else "")

    def list_address(self, path: str, limit: int) -> str:
        """Return the address of a list of another worker: with what this one is of, and nothing else of the request."""
        asked = {name: value for name, value in self.query.items() if name in _OF_LISTS}
        return replace(self, query=asked).address(path, limit=str(limit))

    @property
    def is_narrow(self) -> bool:
        """Whether only a look at each record says how many a list has: tables count all, and those of a cause."""
        of_partition = self.wanted.cause is not None and self.partition is not None
        return of_partition or self.wanted.model_copy(update={"cause": None}) != LetterFilter()

    def at(self) -> tuple[int, int]:
        """Return partition and offset of the address.

        Raises:
            PageError: 404, they are no numbers.
        """
        for text in self.place:
            if not is_number(text):
                raise not_found("no-such-page", f"{text!r} is no partition or offset", "Expected whole numbers, from 0")
        return int(self.place[0]), int(self.place[1])


def question_of(
    query: Mapping[str, str],
    match: Mapping[str, str] | None = None,
    path: str = "",
    role: Role = Role.NONE,
    now_ms: int = 0,
) -> Question:
    """Check the parameters of a request; empty ones (of a form) count as absent, and of several the last one counts.

    Raises:
        PageError: 400, with the parameter's name and what was expected.
    """
    given = {name: value for name, value in query.items() if value}
    match = match or {}
    if given.get("format", "html") not in {"html", "json"}:
        raise bad_parameter("format", given["format"], "html or json")
    return Question(
        path=path,
        main=match.get("main", ""),
        place=(match.get("partition", ""), match.get("offset", "")),
        job=match.get("job", ""),
        query=given,
        as_json=given.get("format") == "json",
        limit=_number(given, "limit", 1, MAX_LIMIT) or DEFAULT_LIMIT,
        partition=_number(given, "partition", 0, 2**31 - 1),
        wanted=_filter(given, now_ms),
        after=None if "after" not in given else row_key_of(given["after"]),
        before=None if "before" not in given else place_of(given["before"]),
        seen=_number(given, "seen", 0, MAX_SEEN) or 0,
        marked=is_yes(given, "marked"),
        topic_id=given.get("topic_id"),
        letters=given.get("letters"),
        refresh_s=_number(given, "refresh", 0, MAX_REFRESH_S),
        routed="routed" in given,
        role=role,
    )


def _filter(given: Mapping[str, str], now_ms: int) -> LetterFilter:
    fields: dict[str, Any] = {name: given[name] for name in FILTERS if name in given}
    fields |= {"from_ms": _instant(given, "since", now_ms), "until_ms": _instant(given, "until", now_ms)}
    cause = given.get("cause", OTHER_CAUSE)
    if cause != OTHER_CAUSE and cause_bytes(cause) is None:
        raise bad_parameter("cause", cause, "an id as lists show it, c1-3f9ca81b02")
    since_ms, until_ms = fields["from_ms"], fields["until_ms"]
    if since_ms is not None and until_ms is not None and since_ms >= until_ms:
        raise bad_parameter("until", given["until"], f"a time after since={shown(given['since'])}, or nothing fits")
    try:
        return LetterFilter(**fields)
    except ValidationError as error:
        field, _, problem = first_problem(error)
        name = {"from_ms": "since", "until_ms": "until"}.get(field, field)
        raise bad_parameter(name, given[name], _FORMS.get(name, problem)) from error


def is_known(reason: str | None) -> bool:
    """Tell whether this build gives letters a reason; those of a newer one may have others."""
    return reason is None or reason in {*DeadReason}


def unknown_reason(reason: str | None) -> PageError:
    """Return the refusal of a reason that is not known here and that no letter has."""
    return bad_parameter("reason", reason or "", f"one of {', '.join(sorted(DeadReason))}")


def is_yes(given: Mapping[str, str], name: str) -> bool:
    """Tell whether something is asked for.

    Raises:
        PageError: 400 for any other word than `YES`: `0` or `no` would be taken for a yes.
    """
    if given.get(name, YES) != YES:
        raise bad_parameter(name, given[name], f"{YES}, or no such parameter")
    return name in given


def is_number(text: str) -> bool:
    """Tell whether a text is a whole number in ASCII digits that fits into a topic's numbers."""
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def _number(given: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not is_number(text) or not least <= int(text) <= most:
        raise bad_parameter(name, text, f"a whole number from {least} to {most}")
    return int(text)


def row_key_of(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != ROW_KEY_BYTES:
        raise bad_parameter("after", text, "a cursor as the link to the next page has it")
    return key


def place_of(text: str) -> Place:
    append, partition, offset, letters = (*text.split("-", 3), "", "", "", "")[:4]
    if not all(map(is_number, (append, partition, offset))):
        raise bad_parameter("before", text, "a cursor as the link to the next page has it")
    return int(append), int(partition), letters, int(offset)


def place_text(place: Place) -> str:
    """Write a cursor of the dead letters; `place_of` reads it back.

    >>> place_text((1_760_000_000_000, 3, "in-valid", 97))
    '1760000000000-3-97-in-valid'
    """
    append, partition, letters, offset = place
    return f"{append}-{partition}-{offset}{f'-{letters}' if letters else ''}"


def _instant(given: Mapping[str, str], name: str, now_ms: int) -> int | None:
    if name not in given:
        return None
    try:
        return parse_instant(given[name], now_ms, back=True)
    except ValueError as error:
        raise bad_parameter(name, given[name], INSTANT) from error
