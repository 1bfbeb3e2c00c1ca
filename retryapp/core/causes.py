r"""Names of causes: an error's message without what differs from record to record.

>>> template_of("Client error '404 Not Found' for url 'https://shop.example.org/orders/17'")
"Client error '404 Not Found' for url <text>"
>>> template_of("shard 7 refused {'id': 3} of Ann Lee at 2026-11-23 17:48:00, [Errno 111] 10.0.0.1:9092")
'shard <number> refused <data> of <name> at <time>, [Errno 111] <ip>'
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from retryapp.core.text import cut_text

MAX_READ_BYTES: Final = 512
"""Bytes of a message, as UTF-8, that a cause depends on: headers keep more, so all readers see the same."""
_SHORT: Final = 80
"""Characters of messages whose templates are remembered as they came."""
MAX_CAUSES: Final = 200
"""Causes that one table of a partition counts apart; further ones count as ``OTHER_CAUSE``."""
OTHER_CAUSE: Final = "other"
CAUSE_BYTES: Final = 5
_PREFIX: Final = "c1-"
_TYPE_BYTES: Final = 240
MAX_WORDS: Final = 16
MAX_CHARS: Final = 160
_READ: Final = 320  # characters of a message that are read
_LONG_NUMBER: Final = re.compile(r"[0-9]{6,}")
_UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_ANY_UUID: Final = "12345678-1234-1234-1234-123456789abc"
_ERROR_WORDS: Final = (
    "Access|Authentication|Authorization|Bad|Broken|Client|Closed|Conflict|Connect|Connection|Denied|Entity|Error|"
    "Exceeded|Exception|Expired|Failed|Failure|Forbidden|Found|Gateway|Gone|Internal|Invalid|Large|Length|Locked|Many|"
    "Method|No|None|Not|Payload|Permission|Precondition|Range|Refused|Request|Requests|Required|Reset|Server|Service|"
    "Timed|Timeout|Too|Unauthorized|Unavailable|Unprocessable|Unreachable|Unsupported"
)  # no names of anybody although they have a capital
_PLAIN: Final = frozenset(_ERROR_WORDS.split("|"))
_BEGINNINGS: Final = frozenset(".:;!?(]")
_NO_QUOTES: Final = str.maketrans("", "", "\"'")
_IS: Final = r"""["']?[\s:=(]{0,3}"""
_CODE: Final = rf"""(?<!\w)(?:
    ["']?(?i:http(?:/[\d.]{{1,3}})?|status|code|error|response)(?i:[ _-]?(?:status|error|code)){{0,2}}
        {_IS}[1-5]\d\d(?!\w|\.\d)
    | [1-5]\d\d(?=[ ](?:{_ERROR_WORDS})\b) | \A[45]\d\d(?=[:,;]|[ ]-|\Z) | \A\(\d{{4}}(?=,)
    | \[?(?i:errno|winerror|(?:error|exit|return)[ _-]?code){_IS}-?\d{{1,5}}(?!\w)\]?
    | (?i:sqlstate)[\s:=([]{{0,3}}[\dA-Z]{{5}}(?!\w)\]? | \[[\dA-Z]{{5}}\](?=[ ]?[\[A-Z]|\Z) | ORA-\d{{1,5}}(?!\w)
)"""
# Repeated groups are not possessive: Python before 3.11.5 matches such wrongly (its issue 106052). They need not be:
# what follows them matches wherever they end, or nothing follows.
_QUOTED_CODES: Final = re.compile(
    rf"{_CODE}(?:[ ](?:{_ERROR_WORDS})\b)* | \b(?:[A-Z]+_[A-Z_]+|E[A-Z]{{4,}})\b", re.VERBOSE
)
_PART: Final = re.compile(
    rf"""<(?:text|url|name|value|data|email|time|ip|path|number|id)> | (?P<code>{_CODE}) | (?P<brackets>[{{}}\[\]]+)
    | (?P<text>(?<!\w)(?:"(?:[^"\\]|\\.?)*(?:"|\Z)|'(?:[^'\\]|\\.?|(?<=\w)'(?=\w))*(?:'|\Z)|`[^`]*+(?:`|\Z)))
    | (?P<url>[A-Za-z][\w+.-]{{1,15}}://[^\s"'<>]*+)
    | (?P<name>[A-ZÀ-ÖØ-Þ](?:'[A-Z])?[a-zß-öø-ÿ]++(?:-[A-Z][a-z]++)?(?=[\s,;)\]}}("]|[.:!?]?(?:\s|\Z)))
    | (?P<word>(?:[^\s"'`,;()\[\]{{}}<>|.:!?…]|[.:!?](?=[\w/\\.:@=+-])|(?<=\w)'(?=\w))+)""",
    re.VERBOSE | re.DOTALL,
)
_KIND: Final = re.compile(
    r"""(?P<email>.+@.+) | (?P<time>\d{4}-\d\d-\d\d.*|\d{1,2}:\d\d(?::\d\d.*)?|\d{1,2}[./-]\d{1,2}[./-]\d{2,4})
    | (?P<ip>(?:\d{1,3}\.){3}\d{1,3}(?:[:/]\d+)?|(?=.*:.*:)[\da-fA-F:.%]+)
    | (?P<path>(?:[A-Za-z]:|[.~]{1,2})?[/\\].*\w.*|.*[/\\].*[\d./\\].*|.*[\d.].*[/\\].*)
    | (?P<number>[#+-]?(?:0[xX][\da-fA-F]+|\d[\d._]*(?:[eE][+-]?\d+)?)(?:[^\W\d_]{1,3}|%)?
        |(?=\d)(?:\d+d)?(?:\d+h)?(?:\d+m)?(?:\d+(?:\.\d+)?s)?(?:\d+ms)?) | (?P<id>[\da-fA-F-]{8,})
    | (?P<prefix>[^\W\d_]{1,12}[-_#:]?)\d+ | (?P<any_id>.*\d.*) | (?P<text>.{41,})""",
    re.VERBOSE | re.DOTALL,
)
_PLACEHOLDER: Final = re.compile("<[a-z]+>")
_RUN: Final = re.compile(r"(<[a-z]+>)(?:[\s,:;.|!?-]*(?:<[a-z]+>|None|[Nn]ull|[Tt]rue|[Ff]alse))+")  # as a payload


@dataclass(slots=True, kw_only=True)
class CauseCount:
    """The records of a partition, waiting or dead, that have one cause."""

    cause_id: str
    """``c1-`` and ten hex digits, or ``OTHER_CAUSE``."""
    name: str
    records: int
    attempts: int
    """Attempts that these records have spent."""
    first_ms: int
    """First and last failure among them, epoch milliseconds, since their cause was first counted."""
    last_ms: int
    sample: str
    """Failure id of the one that was counted last."""


def summed(counts: Iterable[CauseCount]) -> list[CauseCount]:
    """Return the counts of several tables as one for each cause, the most frequent first."""
    found: dict[str, CauseCount] = {}
    for count in counts:
        if (was := found.get(count.cause_id)) is None:
            found[count.cause_id] = replace(count)
            continue
        was.records += count.records
        was.attempts += count.attempts
        was.first_ms = min(was.first_ms, count.first_ms)
        was.last_ms, was.sample = max((was.last_ms, was.sample), (count.last_ms, count.sample))
    return sorted(found.values(), key=lambda count: (-count.records, count.cause_id))


def cause_id(error_type: str, fingerprint: str, message: str) -> str:
    """Return the id of a cause: version 1 of a hash of type, place (the fingerprint) and template.

    It depends on its arguments alone, so workers, commands, pages and Spark agree; it is the same for the text that
    the handler raised and for what the headers keep of it.
    """
    return cause_text(cause_hash(error_type, fingerprint, message))


def cause_hash(error_type: str, fingerprint: str, message: str) -> bytes:
    """Return the same in ``CAUSE_BYTES`` bytes."""
    return _hash(cut_text(error_type, _TYPE_BYTES), fingerprint, template_of(message))


@lru_cache(maxsize=1024)
def _hash(error_type: str, fingerprint: str, template: str) -> bytes:
    whole = "\n".join((error_type, fingerprint, template))
    return hashlib.sha256(whole.encode("utf-8", "backslashreplace")).digest()[:CAUSE_BYTES]


def cause_text(raw: bytes) -> str:
    return _PREFIX + raw.hex()


def cause_bytes(cause: str | None) -> bytes | None:
    """Return a cause id as tables have it; None when it is none of this version."""
    try:
        raw = bytes.fromhex((cause or "").removeprefix(_PREFIX))
    except ValueError:
        return None
    return raw if len(raw) == CAUSE_BYTES and cause == cause_text(raw) else None


def cause_name(error_type: str, place: str | None, message: str) -> str:
    """Return what people call a cause: type, place and template."""
    error_type = cut_text(error_type, _TYPE_BYTES)
    return f"{error_type}{f' at {place}' if place else ''}: {template_of(message)}".removesuffix(": ")


def template_of(message: str) -> str:
    """Return a message with placeholders for addresses, ids, numbers, times, paths, names and text in quotes.

    What tells causes apart stays: status codes, errno, SQLSTATE, names in CAPITALS, plain words. At most ``MAX_WORDS``
    words and ``MAX_CHARS`` characters.
    """
    return (_read_once if len(message) <= _SHORT else _read_template)(message)


def _read_template(message: str) -> str:
    message = cut_text(message, MAX_READ_BYTES)
    # no code is that long: with one number and one id for all, the cache hits
    return _template(_LONG_NUMBER.sub("1000000", _UUID.sub(_ANY_UUID, message)))


_read_once = lru_cache(maxsize=1024)(_read_template)


@lru_cache(maxsize=1024)  # failures of one cause come by the thousand, and a message takes up to 60 us
def _template(message: str) -> str:
    read = message if len(message) <= _READ else "".join(message[:_READ].rsplit(maxsplit=1)[:1])
    text = re.sub("(?<==)<[a-z]+>", "<value>", _PART.sub(_shown, read.strip()))
    words = _RUN.sub(lambda run: run[1] if len(set(_PLACEHOLDER.findall(run[0]))) == 1 else "<data>", text).split()
    whole = " ".join(words)
    if len(words) <= MAX_WORDS and len(whole) <= MAX_CHARS:
        return whole
    return f"{' '.join([*words[:MAX_WORDS], ''])[: MAX_CHARS - 1].rpartition(' ')[0]} …".strip()


def _shown(part: re.Match[str]) -> str:
    kind, text = part.lastgroup, part[0]
    if kind == "word":
        return _word(text)
    if kind == "name":
        before, after = part.string[: part.start()].rstrip()[-1:], part.string[part.end() :].lstrip()[:1]
        begins = after.islower() if before in _BEGINNINGS else not (before or after.isupper())
        return text if text in _PLAIN or begins else "<name>"
    if kind == "text":
        codes = " ".join(code[0].translate(_NO_QUOTES) for code in _QUOTED_CODES.finditer(text[1:].rstrip(text[0])))
        return f"'{codes}'" if codes else "<text>"
    kept = {None: text, "code": text.translate(_NO_QUOTES), "brackets": " "}
    return kept.get(kind, f"<{kind}>")


def _word(word: str) -> str:
    key, sign, value = word.partition("=")
    if sign and value:
        return f"{_word(key)}={value if value.isupper() and value.replace('_', '').isalpha() else '<value>'}"
    kind = _KIND.fullmatch(word)
    if kind is None or (word.isalpha() and len(word) < 8):
        return word
    return f"{kind['prefix']}<number>" if kind["prefix"] else f"<{str(kind.lastgroup).removeprefix('any_')}>"
