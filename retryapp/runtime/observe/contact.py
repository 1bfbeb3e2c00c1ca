"""Watches whether a broker answers this worker, and knows its main topics: what is shown is as new as its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from math import inf
from typing import Final

from mode.utils.logging import get_logger

from retryapp.core.errors import RetryAppError
from retryapp.engine.handler.threads import Threads
from retryapp.kafka import KafkaRequestError
from retryapp.ports import Clock

logger = get_logger(__name__)

SILENT_S: Final = 5.0
"""Time without an answer after which the worker is not ready and its numbers are the last known ones."""
EVERY_S: Final = 2.0
PROVE_EVERY_S: Final = 30.0
"""How often the login is tried while no broker answers: a refused one looks like silence to a running client."""


class Contact:
    """When a broker answered last, and which main topics it does not know any more.

    `answered_s`: when it answered, by the monotonic clock; -inf: not yet. `prove` logs in once, blocks, and raises a
    `KafkaRequestError` if the login or a certificate is refused, as after a change of password.
    """

    def __init__(
        self,
        clock: Clock,
        brokers: Callable[[], str],
        answered_s: Callable[[], float],
        prove: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock = clock
        self._prove = prove
        self._threads = Threads(keep=1)  # not the loop's executor, whose threads handlers may hold
        self._proved_s = -inf
        self._refusal = ""
        self._brokers = brokers
        self._answered_s = answered_s
        self.missing: dict[str, str] = {}
        """Main topics that the brokers do not know any more, each with a sentence about it."""
        self._known = set[str]()
        self._refused_s: dict[str, float] = {}
        """When a broker last refused to have a topic read."""
        self._gone_s: dict[str, float] = {}
        """Since when the brokers do not know topics that they knew."""

    def silent_s(self) -> float:
        """Return the seconds since the last answer; 0 before the first, which the start of the worker waits for."""
        answered_s = self._answered_s()
        return 0.0 if answered_s == -inf else max(0.0, self._clock.monotonic_s() - answered_s)

    def silence(self) -> str | None:
        """Return which broker has not answered for how long; None while one answers."""
        silent_s = self.silent_s()
        if silent_s < SILENT_S:
            return None
        brokers = self._brokers()
        who = f"brokers {brokers} have" if "," in brokers else f"broker {brokers} has"
        return f"{who} not answered for {silent_s:.0f} s{self._refusal}"

    def refuse(self, topic: str) -> None:
        """Note that a broker does not let this worker read a topic; any thread may."""
        self._refused_s[topic] = self._clock.monotonic_s()

    def refused(self, topic: str) -> str | None:
        """Return what to do about a topic that this worker may not read now; None for any other."""
        if self._clock.monotonic_s() - self._refused_s.get(topic, -inf) >= SILENT_S:
            return None
        return f"this login may not read {topic}. Grant READ on it ('retryapp plan -A MODULE --acls' lists all rights)"

    def counted(self, counts: Mapping[str, int]) -> None:
        """Take what the brokers say: the number of partitions by main topic."""
        self._known.update(main for main, number in counts.items() if number)  # at first the client has not asked yet
        now_s, gone = self._clock.monotonic_s(), [main for main in self._known if not counts.get(main)]
        self._gone_s = {main: self._gone_s.get(main, now_s) for main in gone}
        self.missing = {main: why for main, why in self.missing.items() if main in gone}

    def look_for_missing(self) -> None:
        """Count topics as missing, and say so, that were not known for a while: a new broker does not know all."""
        now_s = self._clock.monotonic_s()
        for main, since_s in self._gone_s.items():
            if main in self.missing or now_s - since_s < SILENT_S:
                continue
            self.missing[main] = (
                f"the brokers do not know topic {main}: it was deleted, or this login may no longer see it. Nothing is "
                f"delivered, and what waits stays where it is. If it is made again this worker ends soon, to be "
                f"restarted; if a right was missing, restart it"
            )
            logger.error("Not ready: %s", self.missing[main])

    async def _look_for_refusal(self) -> bool:
        """Learn whether brokers are silent because they refuse this worker; return whether that has just come out."""
        if self.silent_s() < SILENT_S:
            self._refusal, self._proved_s = "", -inf
            return False
        now_s, before = self._clock.monotonic_s(), self._refusal
        if now_s - self._proved_s >= PROVE_EVERY_S:
            self._proved_s = now_s
            try:
                await self._try_login()
                self._refusal = ""
            except KafkaRequestError as error:
                self._refusal = f": {error}"
            except RetryAppError:  # there is no answer to this either
                self._refusal = ""
            except Exception as error:  # noqa: BLE001 - as a library for Kerberos has them: the looks must go on
                self._refusal = f": the login could not be tried: {error!r}"
        return self._refusal not in ("", before)

    async def _try_login(self) -> None:
        tried = await self._threads.run(self._prove, name="log-in")
        if tried.error is not None:
            raise tried.error

    async def run(self, remember: Callable[[], Awaitable[object]]) -> None:
        """Log each silence when it begins, when a refusal explains it, and when it is over.

        `remember` is called while a broker answers.
        """
        before: str | None = None
        while True:
            changed = await self._look_for_refusal()
            silence = self.silence()
            if silence is not None and (before is None or changed):
                logger.error("Not ready: %s; pages show the last known numbers until one answers", silence)
            elif silence is None:
                if before is not None:
                    logger.warning("A broker answers again: before, %s", before)
                with suppress(RetryAppError):  # a store that cannot be read fails its lane, which says so
                    await remember()
            before = silence
            self.look_for_missing()
            await self._clock.sleep(EVERY_S)
