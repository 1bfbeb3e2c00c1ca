"""The numbers of the group's other workers: each is asked for its own partitions, and asks nobody further.

A worker that does not answer in time leaves its last numbers with their age, or none: what is unknown is never zero.
Addresses are those that the group's members have told one another; nothing of the reader's request is sent to them. A
question is signed with the group's secret, if there is one, and that of another worker needs no role then. Its time is
checked and no nonce kept: who overhears a question has overheard the answer, and may read it again for a minute.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import chain
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
from pydantic import TypeAdapter
from yarl import URL

from retryapp.core.causes import CauseCount, summed
from retryapp.core.jobs import Part
from retryapp.ports import PAGES_PREFIX, Activity, CauseTrends, PartitionInfo
from retryapp.web.figures import other_owners
from retryapp.web.query import is_number

DEADLINE_S: Final = 0.8
"""How long a page waits for all of them."""
FRESH_MS: Final = 2_000
"""An answer serves all pages for so long."""
MAX_BYTES: Final = 8 << 20
"""Of an answer: 500 rows of a list have up to 5 KB each where messages are not ASCII, a partition in `PART` 600 B."""
PART: Final = f"{PAGES_PREFIX}/part"
SIGNATURE: Final = "X-Retryapp-Peer"
"""Header of a question: when it was asked, epoch milliseconds, and the HMAC of that and the address, as ``ms:hex``."""
ASKING: Final = "X-Retryapp-Group"
"""Header of a question: the group that asks. A worker of another group may listen where one of ours did."""
SIGNED_MS: Final = 60_000
"""How far clocks may differ."""

logger = logging.getLogger(__name__)

_FAULTS: Final = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


@dataclass(slots=True, kw_only=True)
class SpreadCause(CauseCount):
    """A cause of one worker's records, and how many of its partitions' are of it."""

    by: dict[int, tuple[int, int]]
    """Records and attempts by partition."""

    def within(self, partitions: Collection[int]) -> CauseCount:
        """Return what these partitions have of it: while the group moves partitions two workers may have one."""
        its = [self.by[number] for number in self.by.keys() & {*partitions}]
        facts = {each.name: getattr(self, each.name) for each in fields(CauseCount)}
        facts |= {"records": sum(each[0] for each in its), "attempts": sum(each[1] for each in its)}
        return CauseCount(**facts)


@dataclass(frozen=True, slots=True)
class HandlerPart:
    """What one worker has of one handler."""

    partitions: list[PartitionInfo] = field(default_factory=list)
    causes: list[SpreadCause] = field(default_factory=list)
    waiting: list[SpreadCause] = field(default_factory=list)
    """Causes of what waits."""
    jobs: dict[int, list[Part]] = field(default_factory=dict)
    """Parts of jobs by partition."""
    activity: Activity | None = None
    trends: CauseTrends | None = None


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """What one worker has, by main topic."""

    handlers: dict[str, HandlerPart] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer of a worker."""

    part: WorkerPart
    at_ms: int
    """When it came, epoch milliseconds."""
    fresh: bool = True
    """Whether it may serve another page."""

    def is_old(self, now_ms: int) -> bool:
        """Whether its worker has not answered lately."""
        return abs(now_ms - self.at_ms) > 2 * FRESH_MS  # the clock may have been put right, by hours


_PARTS: Final = TypeAdapter(WorkerPart)


class Peers:
    """Asks the other workers."""

    def __init__(self, now_ms: Callable[[], int], secret: str = "", group: Callable[[], str] = str) -> None:
        self._now_ms = now_ms
        self._group = group
        self._secret = secret.encode()
        self.refusing: set[str] = set()
        """Workers whose last answer was 401 or 403."""
        self._owners: dict[str, set[str]] = {}
        """By main topic: the workers that had its partitions when they were asked last."""
        self._answers: dict[str, Answer] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    async def ask(self, main: str, infos: Sequence[PartitionInfo]) -> Mapping[str, Answer]:
        """Return the last answers of the workers that have these partitions of a handler, by address."""
        now_ms, urls = self._now_ms(), other_owners(infos)
        self._owners[main] = urls
        for url in urls:
            known = self._answers.get(url)
            if url not in self._asking and (known is None or not known.fresh or abs(now_ms - known.at_ms) >= FRESH_MS):
                self._asking[url] = asyncio.create_task(self._ask(url), name=f"ask-{url}")
        if waiting := [self._asking[url] for url in urls if url in self._asking]:
            await asyncio.wait(waiting, timeout=DEADLINE_S)
        owners = {*self._asking}.union(*self._owners.values())
        self.refusing &= owners
        for gone in self._answers.keys() - owners:
            del self._answers[gone]
        return {url: self._answers[url] for url in urls if url in self._answers}

    def ask_anew(self) -> None:
        """Let the next page ask all of them: something was changed."""
        self._answers = {url: replace(answer, fresh=False) for url, answer in self._answers.items()}

    async def read(self, infos: Sequence[PartitionInfo], main: str, page: str) -> Mapping[str, bytes | None]:
        """Ask the workers that have these partitions of a handler for a page below `PART`; None: no answer."""
        path = f"{PART}/{quote(main, safe='')}/{page}"
        urls = sorted(other_owners(infos))
        return dict(zip(urls, await asyncio.gather(*(self._get(url, path) for url in urls)), strict=True))

    async def _ask(self, url: str) -> None:
        try:
            if (body := await self._get(url, PART)) is not None:
                self._answers[url] = Answer(_PARTS.validate_json(body), self._now_ms())
        except ValueError:
            pass  # its last answer is shown with its age, or that there is none
        finally:
            self._asking.pop(url, None)

    async def _get(self, url: str, path: str) -> bytes | None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                if await _is_link_local(url):
                    return None
                signed = {SIGNATURE: self._signature(url + path, self._now_ms())} if self._secret else {}
                asked: Any = {"allow_redirects": False, "headers": {ASKING: self._group(), **signed}}
                where = URL(url + path, encoded=True)
                async with aiohttp.ClientSession() as session, session.get(where, **asked) as answer:
                    self._note(url, refuses=answer.status in (401, 403))
                    if answer.status != 200:
                        return None
                    body = bytearray()
                    async for chunk in answer.content.iter_any():
                        body += chunk
                        if len(body) > MAX_BYTES:
                            return None
                    return bytes(body)
        except _FAULTS:
            self._note(url, refuses=False)  # whether it would still refuse is not known
            return None

    def _note(self, url: str, *, refuses: bool) -> None:
        if refuses and url not in self.refusing:
            logger.warning("retryapp.peer_refused: RETRYAPP_PEER_SECRET or clock of %r is another", url)
        (self.refusing.add if refuses else self.refusing.discard)(url)

    def has_signed(self, signature: str, address: str) -> bool:
        """Tell whether another worker of the group asks at this address of this one."""
        at = signature.partition(":")[0]
        if not self._secret or not is_number(at) or abs(self._now_ms() - int(at)) > SIGNED_MS:
            return False
        expected = self._signature(address, int(at))
        return hmac.compare_digest(signature.encode("utf-8", "replace"), expected.encode())

    def _signature(self, address: str, at_ms: int) -> str:
        return f"{at_ms}:{hmac.digest(self._secret, f'{at_ms} {address}'.encode(), 'sha256').hex()}"


async def _is_link_local(url: str) -> bool:
    """Tell whether an address leads to the machine's own services, as a cloud's metadata."""
    parts = urlsplit(url)
    found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, parts.port or 80)
    addresses = [ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found]
    return any((getattr(each, "ipv4_mapped", None) or each).is_link_local for each in addresses)


def spread(causes: Mapping[int, Sequence[CauseCount]]) -> list[dict[str, Any]]:
    """Return one worker's causes by partition as it tells them, each once (`SpreadCause`)."""
    by = defaultdict[str, dict[int, tuple[int, int]]](dict)
    for number, counts in causes.items():
        for each in counts:
            by[each.cause_id][number] = each.records, each.attempts
    return [{**asdict(each), "by": by[each.cause_id]} for each in summed(chain.from_iterable(causes.values()))]
