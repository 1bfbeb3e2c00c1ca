"""Facts as HTML or JSON, and the headers that keep a page what it is: not framed, without scripts."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from retryapp.core.durations import format_duration_ms
from retryapp.lookup.instants import iso_text, length_text, relative_text, utc_text
from retryapp.lookup.payloads import Payload, printable

HTML: Final = "text/html"
JSON: Final = "application/json"


def to_json(facts: Mapping[str, Any]) -> str:
    """Write facts as JSON in ASCII, so that nothing in them can break the encoding."""
    return json.dumps(facts, default=_plain, indent=2) + "\n"


def _plain(value: object) -> object:
    if isinstance(value, Payload):
        return value.facts
    raise TypeError(f"{type(value).__name__} is no fact")


def to_html(template: str, facts: Mapping[str, Any]) -> str:
    """Fill a template; ``facts`` are escaped wherever they stand."""
    return environment().get_template(template).render(facts).encode("utf-8", "backslashreplace").decode("utf-8")


@cache
def environment() -> Environment:
    """Return the templates with their filters; made once."""
    env = Environment(
        loader=PackageLoader("retryapp.web", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        clean=lambda value: printable(str(value)),
        count=lambda value: "-" if value is None else f"{value:,}",
        duration=format_duration_ms,
        iso=iso_text,
        part=lambda value: quote(str(value), safe=""),
        query=lambda items: urlencode({name: value for name, value in items.items() if value is not None}),
        relative=relative_text,
        span=lambda value: length_text(value) if value else "0 s",
        amount=lambda value: "unknown" if value["count"] is None else f"{value['count']:,}" + "+" * value["more"],
        utc=utc_text,
    )
    env.globals["style"] = Markup(_style(env))  # noqa: S704 - our own file, no facts in it
    return env


def _style(env: Environment) -> str:
    loader = env.loader
    if loader is None:
        raise LookupError("the templates have no loader")
    return loader.get_source(env, "style.css")[0]


@cache
def safety_headers() -> Mapping[str, str]:
    """Return the headers of every answer: our own style and nothing else may be loaded or run."""
    digest = hashlib.sha256(str(environment().globals["style"]).encode("utf-8")).digest()
    style = f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
    return {
        "Content-Security-Policy": f"default-src 'none'; style-src {style}; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def status_text(status: int) -> str:
    """Return a status with its name, as ``404 Not Found``."""
    return f"{status} {HTTPStatus(status).phrase}"
