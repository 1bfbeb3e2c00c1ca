"""Facts as HTML or JSON, and the headers that keep a page what it is: not framed, with no script but our own."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from typing_extensions import override

from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import InvalidDurationError
from retryapp.core.record import idempotency_key
from retryapp.core.row_keys import BEFORE_STOPPED
from retryapp.core.text import counted
from retryapp.lookup.instants import iso_text, length_text, relative_text, utc_text
from retryapp.lookup.payloads import Payload, printable
from retryapp.lookup.records import may_be_cut
from retryapp.web import cells
from retryapp.web.cells import due_text, spaced

HTML: Final = "text/html"
JSON: Final = "application/json"
_OWN: Final = {"style": "style.css", "live": "live.js"}
_OF_DICTS: Final = frozenset(dir(dict))


def to_json(facts: Mapping[str, Any]) -> str:
    """Write facts as JSON in ASCII, so that nothing in them can break the encoding."""
    return json.dumps(facts, default=_plain) + "\n"  # indented it takes ten times as long


def _plain(value: object) -> object:
    if isinstance(value, Payload):
        return value.facts
    raise TypeError(f"{type(value).__name__} is no fact")


def to_html(template: str, facts: Mapping[str, Any]) -> str:
    """Fill a template; ``facts`` are escaped wherever they stand."""
    return environment().get_template(template).render(facts).encode("utf-8", "backslashreplace").decode("utf-8")


class _Environment(Environment):
    """Facts are dicts: what a template asks them for is looked up before Jinja tries their attributes, in vain."""

    @override
    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _OF_DICTS:
            return obj[attribute]
        return super().getattr(obj, attribute)


@cache
def environment() -> Environment:
    """Return what fills templates; the first call takes some 80 ms: in a thread."""
    env = _Environment(
        loader=PackageLoader("retryapp.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        attempt=cells.attempt,
        attempts=cells.attempts,
        cause=cells.cause,
        clean=lambda value: printable(str(value)),
        counted=counted,
        count=lambda value: "-" if value is None else f"{value:,}",
        idempotency_key=idempotency_key,
        iso=iso_text,
        part=lambda value: quote(str(value), safe=""),
        query=lambda items: urlencode({name: value for name, value in items.items() if value is not None}),
        delay=_delay,
        error=cells.error,
        known=cells.known,
        when=cells.when,
        when_due=cells.when_due,
        due=lambda value, now_ms: spaced(due_text(value, now_ms)),
        relative=lambda value, now_ms: spaced(relative_text(value, now_ms)),
        span=lambda value: spaced(length_text(value)) if value else "0 s",
        amount=lambda value: "unknown" if value["count"] is None else f"{value['count']:,}" + "+" * value["more"],
        utc=utc_text,
    )
    env.tests["perhaps_cut"] = may_be_cut
    env.globals.update({name: Markup(_own(name)) for name in _OWN})  # noqa: S704 - no facts are in them
    env.globals["first_stopped"] = BEFORE_STOPPED.hex()
    env.globals["parts"] = env.get_template("parts.html").module
    return env


def _delay(tier: str) -> str:
    try:
        return spaced(length_text(round(parse_duration_ms(tier))))
    except InvalidDurationError:
        return tier


@cache
def _own(name: str) -> str:
    return (files("retryapp.web") / "templates" / _OWN[name]).read_text("utf-8")


def _digest(name: str) -> str:
    digest = hashlib.sha256(_own(name).encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


@cache
def safety_headers() -> Mapping[str, str]:
    """Return the headers of every answer: our own style and script, and nothing else may be loaded or run."""
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src {_digest('style')}; script-src {_digest('live')}; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }
