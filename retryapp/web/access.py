"""Who may steer through the pages, and who only looks.

Looking needs no login: keep the pages on loopback, or behind a proxy with a login. Steering needs an operator: whoever
reaches the pages from this machine, where the setting says ``local``, or who has a token. Tokens are kept as hashes,
and never stand in an address. A browser has its token in a cookie that no script reads and no other site sends.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import urlsplit

from retryapp.core.errors import InvalidSettingError
from retryapp.web.errors import PageError

COOKIE: Final = "retryapp-operator"
LOCAL: Final = "local"
_ENTRY: Final = re.compile(r"([\w.@-]{1,64}):([0-9a-f]{64})", re.ASCII)
_FORWARDED: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Operators:
    """Who may steer."""

    local: bool = False
    """Whoever reaches the pages from this machine."""
    tokens: Mapping[str, str] = field(default_factory=dict)
    """Names by the SHA-256 of their tokens, in hexadecimal."""

    def named(self, request: Any) -> str | None:
        """Return who sends a request; None: somebody who may only look."""
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        if token and (name := self.name_of(token)):
            return name
        return LOCAL if self.local and is_local(request) else None

    def name_of(self, token: str) -> str | None:
        """Return whose token it is, or None."""
        digest = hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()
        return next((name for known, name in self.tokens.items() if compare_digest(known, digest)), None)


NOBODY: Final = Operators()


def parse_operators(text: str) -> Operators:
    """Read the setting: ``local``, or ``NAME:SHA256``, with commas between.

    Raises:
        InvalidSettingError: something else.
    """
    local, tokens = False, dict[str, str]()
    for entry in filter(None, (each.strip() for each in text.split(","))):
        if entry == LOCAL:
            local = True
        elif (found := _ENTRY.fullmatch(entry)) is not None:
            tokens[found[2]] = found[1]
        else:
            expected = "local, or NAME:SHA256 with the hash of a token in hexadecimal, with commas between"
            raise InvalidSettingError("RETRYAPP_WEB_OPERATORS", "(not shown)", expected)
    return Operators(local=local, tokens=tokens)


def is_local(request: Any) -> bool:
    """Tell whether a request comes from this machine, to a name of this machine, and not through a proxy.

    The name counts because of pages whose host is made to point here (DNS rebinding).
    """
    try:
        near = ipaddress.ip_address(request.remote or "").is_loopback
    except ValueError:
        near = False
    asked = urlsplit(f"//{request.headers.get('Host', '')}").hostname
    return near and asked in _LOOPBACK_NAMES and not any(name in request.headers for name in _FORWARDED)


def refuse_other_sites(request: Any) -> None:
    """Refuse what a page of another site has a browser send.

    Raises:
        PageError: 403.
    """
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    if foreign or site not in (None, "same-origin", "none"):
        raise PageError(403, "other-site", "another site has sent this request", "Send it from retryapp's own pages")
