"""Who may do what through the pages.

Whoever asks has one of four roles (`Role`): by a token, by the user's own login hook, by a proxy that logs people in,
or by asking from this machine. Each address needs one (`views.ROUTES`, `views.ACTIONS`); what a role may not see is
left out of answers (`hiding`).

Tokens are kept as hashes and never stand in an address. A browser has its token in a cookie that no script reads and no
other site sends. A role that comes from where somebody asks, and not from a token, counts under a known host name only:
else a page whose name is made to point here (DNS rebinding) would have it.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import ipaddress
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import partial
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from retryapp.core.errors import InvalidSettingError, shown
from retryapp.ports import PAGES_PREFIX
from retryapp.runtime.machine.threads import Daemons
from retryapp.web.errors import PageError

COOKIE: Final = "retryapp-operator"
LOCAL: Final = "local"
ANYONE: Final = "anyone"
PROXY_USER: Final = "X-Forwarded-User"
PROXY_ROLE: Final = "X-Forwarded-Role"
MOST_LETTERS: Final = 1_000
"""Letters of a job that needs no admin."""
HOOK_S: Final = 5.0
"""How long a login hook may take."""
MOST_HOOKS: Final = 8
"""Login hooks in threads that run at once; others wait for one to end."""
_NAME: Final = re.compile(r"[\w.@-]{1,64}", re.ASCII)
_HOST: Final = re.compile(r"[\w.-]+")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_FORWARDED: Final = ("Forwarded", "Via", "X-Forwarded-For", "X-Real-IP")
_OWN_PAGES: Final = "Send it from retryapp's own pages; a proxy before them must pass on the browser's header Host"
_LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Known = tuple[str, str] | None
"""A name, and `look`, `operate` or `admin`; None: somebody unknown."""
LoginHook = Callable[[web.Request], Known | Awaitable[Known]]

logger = logging.getLogger(__name__)


class Role(IntEnum):
    """What somebody may do; each role includes those before it."""

    NONE = 0
    """Ask whether the worker lives."""
    LOOK = 1
    """See metadata."""
    OPERATE = 2
    """See keys, values, headers and messages; command single records; jobs of up to `MOST_LETTERS` letters."""
    ADMIN = 3
    """All: larger jobs, pausing a handler."""


_ROLES: Final = {role.name.lower(): role for role in Role if role}


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks."""

    name: str
    role: Role
    can_log_in: bool = False
    """There are tokens, and none was sent."""
    unknown_host: str | None = None
    """Name that the pages were asked under and do not have: only a token counts there."""
    token_unknown: bool = False
    """The token that was sent is not known."""

    def require(self, role: Role) -> None:
        """Refuse what needs another role.

        Raises:
            PageError: 401 for somebody who can log in, else 403.
        """
        if self.role >= role:
            return
        token = " the token that was sent is none of RETRYAPP_WEB_OPERATORS, and" if self.token_unknown else ""
        message = f"this needs the role {role.name.lower()};{token} {self.name} has {self.role.name.lower()}"
        if self.can_log_in:
            hint = f"Log in at {PAGES_PREFIX}/login, or send a token: Authorization: Bearer ..."
            raise PageError(401, "login-needed", message, hint, {"WWW-Authenticate": "Bearer"})
        if self.unknown_host is not None:
            hint = "RETRYAPP_WEB_HOSTS names the hosts of these pages (docs/operating.md)"
            raise PageError(403, "host-not-known", f"{shown(self.unknown_host)} is no name of these pages", hint)
        hint = "RETRYAPP_WEB_OPERATORS gives roles (docs/operating.md); the command retryapp needs none"
        raise PageError(403, "role-needed", message, hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """Who may do what."""

    local: Role = Role.LOOK
    """Whoever asks from this machine."""
    anyone: Role = Role.NONE
    """Whoever reaches the pages."""
    tokens: Mapping[str, Person] = field(default_factory=dict)
    """By the SHA-256 of a token, in hexadecimal."""
    proxies: tuple[Network, ...] = ()
    """Where requests come from whose `PROXY_USER` and `PROXY_ROLE` count."""
    hosts: frozenset[str] = frozenset()
    """Names of the pages besides those of this machine."""
    hook: LoginHook | None = None
    """Says who has sent a request. It reads headers, cookies, address or certificate, not the body."""
    peer_secret: str = field(default="", repr=False)
    """Of the group's workers."""
    _threads: Daemons = field(
        default_factory=partial(Daemons, MOST_HOOKS, "login"), init=False, repr=False, compare=False
    )
    """Run hooks that are plain functions: one that hangs takes no page a thread, and keeps no process alive."""

    @property
    def guarded(self) -> bool:
        """Whether it is said who may reach the pages from elsewhere."""
        return bool(self.tokens or self.proxies or self.anyone or self.hook)

    async def person(self, request: web.Request, url: str, needs: Role) -> Person:
        """Return who sends a request to a worker with the address `url`.

        Where everybody may ask, no hook is called: a probe must not wait for it.
        """
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip() if scheme.lower() == "bearer" else request.cookies.get(COOKIE, "")
        if token and (known := self.owner_of(token)) is not None:
            return known
        return replace(await self._without_token(request, url, needs), token_unknown=bool(token))

    async def _without_token(self, request: web.Request, url: str, needs: Role) -> Person:
        host, can_log_in = _host(request.headers.get("Host", "")), bool(self.tokens)
        if not self._is_known(host, url):
            return Person(ANYONE, Role.NONE, can_log_in, host or "")
        if self.hook is not None and needs and (found := await _by_hook(self.hook, self._threads, request)) is not None:
            return found if found.role else replace(found, can_log_in=can_log_in)
        near = _ip(request.remote or "")
        if near is not None and any(near in network for network in self.proxies):
            return self._by_proxy(request.headers)
        forwarded = any(name in request.headers for name in _FORWARDED)
        if near is not None and near.is_loopback and host in _LOOPBACK_NAMES and not forwarded:
            return Person(LOCAL, max(self.local, self.anyone), can_log_in)
        return Person(ANYONE, self.anyone, can_log_in)

    def owner_of(self, token: str) -> Person | None:
        digest = hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()
        found = [person for known, person in self.tokens.items() if compare_digest(known, digest)]  # looks at all
        return found[0] if found else None

    def _by_proxy(self, headers: Any) -> Person:
        names, roles = headers.getall(PROXY_USER, []), headers.getall(PROXY_ROLE, [])
        role = _ROLES.get(roles[0].lower()) if any(roles) else Role.LOOK
        if len(names) != 1 or len(roles) > 1 or not _NAME.fullmatch(names[0]):  # two: one is the client's own
            role = None
        return Person(ANYONE, self.anyone, bool(self.tokens)) if role is None else Person(names[0], role)

    def _is_known(self, host: str | None, url: str) -> bool:
        if host is None:
            return False
        names = {*_LOOPBACK_NAMES, *self.hosts, socket.gethostname().lower(), urlsplit(url).hostname}
        return bool(_ip(host)) or host in names  # no name can be made to point to an address that stands for itself


NOBODY: Final = Operators()


async def _by_hook(hook: LoginHook, threads: Daemons, request: web.Request) -> Person | None:
    """Return whom a login hook knows; who asks has no role if it fails, wherever from.

    A plain function runs in a thread: the loop is the records'.
    """
    try:
        async with asyncio.timeout(HOOK_S):
            answer: Any
            if inspect.iscoroutinefunction(hook):
                answer = hook(request)
            else:
                answer = await asyncio.get_running_loop().run_in_executor(threads, _called, hook, request)
            known = await answer if inspect.isawaitable(answer) else answer
        return None if known is None else _person(*known)
    except Exception:  # the user's code, or what it asks: it might have refused
        logger.exception("retryapp.login_hook_failed")
        return Person(ANYONE, Role.NONE)


def _called(hook: LoginHook, request: web.Request) -> Any:
    try:
        return hook(request)
    except BaseException as error:  # SystemExit, raised on the loop, would end the worker
        raise RuntimeError("the login hook failed") from error


def _person(name: str, role: str) -> Person:
    if not _NAME.fullmatch(name) or role not in _ROLES:
        raise ValueError(f"{shown((name, role))} is no name of letters, digits and . @ - with look, operate or admin")
    return Person(name, _ROLES[role])


def parse_operators(
    text: str, *, proxies: str = "", hosts: str = "", peer_secret: str = "", hook: LoginHook | None = None
) -> Operators:
    """Read the settings, each with commas between: `local`, `anyone` or `NAME:SHA256`, with `:ROLE`; addresses; names.

    Raises:
        InvalidSettingError: something else.
    """
    local, anyone, tokens = Role.LOOK, Role.NONE, dict[str, Person]()
    for entry in _entries(text):
        name, *rest = entry.split(":")
        role = _ROLES[rest.pop()] if rest and rest[-1] in _ROLES else Role.OPERATE
        if name == LOCAL and not rest:
            local = role
        elif name == ANYONE and not rest and ":" in entry:  # said in so many words
            anyone = role
        elif _NAME.fullmatch(name) and len(rest) == 1 and _HASH.fullmatch(rest[0].lower()):
            tokens[rest[0].lower()] = Person(name, role)
        else:
            expected = "expected entries with commas between them, each local, local:ROLE, anyone:ROLE, NAME:SHA256 or "
            expected += "NAME:SHA256:ROLE; ROLE is look, operate or admin, SHA256 the hash of a token in hexadecimal"
            raise InvalidSettingError("RETRYAPP_WEB_OPERATORS", "(not shown)", expected)
    names = frozenset(entry.lower() for entry in _entries(hosts))
    if wrong := [name for name in names if not _HOST.fullmatch(name) and not _ip(name.strip("[]"))]:
        raise InvalidSettingError("RETRYAPP_WEB_HOSTS", wrong[0], "expected names of hosts, without scheme and port")
    return Operators(
        local=local,
        anyone=anyone,
        tokens=tokens,
        proxies=tuple(map(_network, _entries(proxies))),
        hosts=names,
        peer_secret=peer_secret,
        hook=hook,
    )


def _entries(text: str) -> Iterable[str]:
    return filter(None, (each.strip() for each in text.split(",")))


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        expected = f"expected addresses or networks, as 10.0.0.0/24: {error}"
        raise InvalidSettingError("RETRYAPP_WEB_PROXIES", text, expected) from error


def _host(text: str) -> str | None:
    try:
        return urlsplit(f"//{text}").hostname
    except ValueError:
        return None


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def refuse_other_sites(request: web.Request) -> None:
    """Refuse what a page of another site has a browser send.

    A browser says in every POST which site has sent it, so no token in the form is needed. One that says neither this
    nor that is a program, or a browser of before 2019.

    Raises:
        PageError: 403.
    """
    origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
    try:
        foreign = origin is not None and urlsplit(origin).netloc != request.headers.get("Host")
    except ValueError:
        foreign = True
    unsaid = origin is site is None and "text/html" in request.headers.get("Accept", "")
    if foreign or unsaid or site not in (None, "same-origin", "none"):
        raise PageError(403, "other-site", "another site has sent this request", _OWN_PAGES)
