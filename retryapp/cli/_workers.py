"""A running group as one of its workers shows it, by its pages as JSON, and in a terminal.

Each worker asks the others, so one is enough: of those that answer, the one that knows most of the group. What is not
known is None, and a dash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import quote

import aiohttp
from rich.box import SIMPLE_HEAD
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table

from retryapp.cli.console import Given
from retryapp.core.text import counted, with_app
from retryapp.lookup.instants import length_text
from retryapp.lookup.payloads import printable
from retryapp.ports import PAGES_PREFIX

ANSWER_S: Final = 5.0
CONNECT_S: Final = 1.0
"""Timeout of the first request to an address where a worker may be."""

_LANE: Final = ("state", "since_ms", "pending", "main_lag", "due", "in_flight", "last_error",
                "last_error_ms", "partition", "circuit", "circuits", "paused")  # fmt: skip
_FIGURES: Final = ("pending", "next_due_ms", "dead", "as_of_ms", "unknown_partitions", "left_out", "rates")
_ERRORS: Final = (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, OSError)
"""What an address raises that does not answer, or is not of a worker."""


_STATE_STYLES: Final = {"open": "green", "opening": "yellow", "idle": "yellow", "closed": "red"}
_NUMBERS: Final = {
    "pending": "pending",
    "due": "due",
    "main lag": "main_lag",
    "in flight": "in_flight",
}
"""Heading → name of the fact of a lane."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One moment of a group."""

    group: str
    now_ms: int
    """By the clock of the worker whose pages these are, as all its times: the operator's may be minutes off."""
    workers: Sequence[str] = ()
    """Addresses of those whose numbers these are."""
    handlers: Sequence[Mapping[str, Any]] = ()
    """Facts of each handler over all workers, as the overview has them: main, pending, next_due_ms, dead, as_of_ms,
    unknown_partitions, left_out and rates."""
    lanes: Sequence[Mapping[str, Any]] = ()
    """Facts of each partition: main, partition, worker, state, since_ms, last_error, and those of `_NUMBERS`."""
    todo: Sequence[str] = ()
    """What needs action, the worst first."""
    note: str = ""


class Workers:
    """Asks the workers at some addresses; `group` None: of any group; `only`: one main topic; `token`: for all."""

    def __init__(self, group: str | None, urls: Sequence[str], *, only: str | None = None, token: str = "") -> None:
        self.group = group
        self.urls = [base_url(url) for url in urls]
        self._only = only
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.answered: list[str] = []
        """Addresses at which a worker of the group has answered last."""
        self.refused: list[str] = []
        """Addresses of pages that want a token, or another one."""

    def ask(self, now_ms: int) -> Group:
        """Return the group's figures; without workers if none answers."""
        return asyncio.run(self._ask(now_ms))

    async def _ask(self, now_ms: int) -> Group:
        self.answered, self.refused = [], []
        timeout = aiohttp.ClientTimeout(total=ANSWER_S, connect=CONNECT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            indexes = await asyncio.gather(*(self._index(session, url) for url in self.urls))
            known = [(url, index) for url, index in zip(self.urls, indexes, strict=True) if index is not None]
            self.answered = [url for url, _ in known]
            for url, index in sorted(known, key=lambda each: _unknown(each[1])):
                with suppress(*_ERRORS):
                    return await self._group_of(session, url, index, now_ms)
        return Group(group=self.group or "?", now_ms=now_ms)

    async def _index(self, session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
        """Return the overview of a worker of the group, with the handlers that are looked at."""
        try:
            index = await self._json(session, f"{url}{PAGES_PREFIX}/")
            if self.group is not None and index["group"] != self.group:
                return None
            index["handlers"] = [each for each in index["handlers"] if self._only in (None, each["main"])]
            _unknown(index)  # raises where it is none
        except _ERRORS as error:
            if isinstance(error, aiohttp.ClientResponseError) and error.status in (401, 403):
                self.refused.append(url)
            return None
        return index

    async def _group_of(self, session: aiohttp.ClientSession, url: str, index: Mapping[str, Any], now_ms: int) -> Group:
        figures, lanes = [], []
        for handler in index["handlers"]:
            main, whole = handler["main"], handler["group"]
            figures.append({"main": main, **{name: whole.get(name) for name in _FIGURES}})
            page = await self._json(session, f"{url}{PAGES_PREFIX}/{quote(main, safe='')}/partitions")
            lanes += [
                {"main": main, "worker": item["owner_url"] or "", **{name: item.get(name) for name in _LANE}}
                for item in page["partitions"]
            ]
        own, silent = index["url"] or url, index["silent"]
        todo = [each for each in index["todo"] if self._only in (None, each["main"])]
        notes = [f"{own}: {index['broker_silence']}"] if index.get("broker_silence") else []
        refusing = [each for each in index.get("refusing", ()) if each in silent]
        for what, some in (
            ("no answer from {}", [each for each in silent if each not in refusing]),
            ("{} refused to answer: set one RETRYAPP_PEER_SECRET for all workers, whose clocks agree", refusing),
        ):
            if some:
                notes.append(f"{what.format(', '.join(some))}: their last numbers are shown, or are left out")
        if self._only is not None and not figures:
            notes.append(f"no handler of {self._only}")
        return Group(
            group=index["group"] or "?",
            now_ms=index.get("now_ms", now_ms),
            workers=sorted({own, *index["workers"]} - {*silent}),
            handlers=figures,
            lanes=lanes,
            todo=[f"{each['main']}: {each['text']}" for each in todo],
            note="; ".join(notes),
        )

    async def _json(self, session: aiohttp.ClientSession, address: str) -> dict[str, Any]:
        asked: Any = {"params": {"format": "json"}, "headers": self._headers, "allow_redirects": not self._headers}
        async with session.get(address, **asked, raise_for_status=True) as response:
            facts: dict[str, Any] = await response.json()
            return facts


def base_url(text: str) -> str:
    """Return the address of a worker, which may be typed without its scheme, or with the path of the pages."""
    url = text if "://" in text else f"http://{text}"
    return url.rstrip("/").removesuffix(PAGES_PREFIX)


def _unknown(index: Mapping[str, Any]) -> tuple[int, int]:
    """Return of how many partitions a worker knows no numbers, and of how many handlers old ones."""
    groups = [each["group"] for each in index["handlers"]]
    missing = sum(len(each["unknown_partitions"]) for each in groups)
    return missing, sum(each["as_of_ms"] is not None for each in groups)


def _plain(text: str) -> str:
    return escape(printable(with_app(text, Given.now().app_spec)))


def group_table(group: Group) -> RenderableType:
    count = len(group.workers)
    parts: list[RenderableType] = [f"[bold]{_plain(group.group)}[/]  {count} worker{'' if count == 1 else 's'}"]
    if group.note:
        parts.append(f"[yellow]{_plain(group.note)}[/]")
    parts += [f"[red]{_plain(text)}[/]" for text in group.todo]
    for figures in group.handlers:
        parts += ["", f"[bold cyan]{_plain(figures['main'])}[/]", _figures_table(figures, group.now_ms)]
    if group.lanes:
        parts += ["", _lanes_table(group)]
    return Stack(*parts)


def _figures_table(figures: Mapping[str, Any], now_ms: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_row("waiting", f"[yellow]{_number_text(figures['pending'])}[/]{_due_text(figures, now_ms)}")
    table.add_row("dead", f"[red]{_number_text(figures['dead'])}[/]")
    if limits := _limits_text(figures, now_ms):
        table.add_row("", f"[yellow]{limits}[/]")
    if (rates := figures["rates"]) is not None:
        least = "at least " if rates.get("is_least") else ""
        failures = f"[red]{least}{rates['failures_per_min']:,.0f} failed[/]"
        table.add_row("a minute", f"{least}{rates['deliveries_per_min']:,.0f} delivered, {failures}{_of_text(rates)}")
    table.add_row("late by", _late_text(rates))
    return table


def _circuit_text(lane: Mapping[str, Any]) -> str:
    paused = "[red], paused[/]" if lane.get("paused") else ""
    circuits = {"": {"state": lane.get("circuit") or "closed"}, **(lane.get("circuits") or {})}
    away = [f"{name} {each['state']}".strip() for name, each in circuits.items() if each["state"] != "closed"]
    return paused + "".join(f"[red], circuit {_plain(text)}[/]" for text in away)


def _lanes_table(group: Group) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in ("worker", "topic", "part", "lane", "since", *_NUMBERS):
        justify: Literal["left", "right"] = "right" if heading == "part" or heading in _NUMBERS else "left"
        table.add_column(heading, justify=justify, no_wrap=True)
    table.add_column("last error", overflow="fold")  # the one that gives way
    for lane in sorted(group.lanes, key=lambda lane: (lane["worker"], lane["main"], lane["partition"])):
        numbers = [lane.get(name) for name in _NUMBERS.values()]
        state, since_ms = lane["state"], lane.get("since_ms")
        table.add_row(
            _plain(lane["worker"].removeprefix("http://") or "-"),
            _plain(lane["main"]),
            str(lane["partition"]),
            f"[{_STATE_STYLES.get(state, 'dim')}]{_plain(state)}[/]{_circuit_text(lane)}",
            "-" if since_ms is None else length_text(max(0, group.now_ms - since_ms)),
            *("-" if number is None else f"{number:,}" for number in numbers),
            _plain(_error_text(lane, group.now_ms)),
        )
    return table


def _number_text(number: int | None) -> str:
    return "unknown" if number is None else f"{number:,}"


def _limits_text(figures: Mapping[str, Any], now_ms: int) -> str:
    """Return how old the numbers of waiting and dead records are, and what they leave out."""
    as_of_ms, count = figures["as_of_ms"], len(figures["unknown_partitions"])
    age = [] if as_of_ms is None else [f"last known {length_text(max(0, now_ms - as_of_ms))} ago"]
    only_dead = "dead " * ((figures.get("left_out") or {}).get("pending") == [])
    return "; ".join([*age, f"{only_dead}without {counted(count, 'partition')}, not known now"] if count else age)


def _of_text(rates: Mapping[str, Any]) -> str:
    """Return of how many workers the rates are, where some have not answered; workers of earlier builds do not say."""
    workers, of_workers = rates.get("workers", 0), rates.get("of_workers", 0)
    return f" ({workers} of {counted(of_workers, 'worker')})" if workers < of_workers else ""


def _due_text(figures: Mapping[str, Any], now_ms: int) -> str:
    if (due_ms := figures["next_due_ms"]) is None:
        return ""
    late_ms = now_ms - due_ms
    return f" (overdue {length_text(late_ms)})" if late_ms > 0 else f" (next due in {length_text(-late_ms)})"


def _error_text(lane: Mapping[str, Any], now_ms: int) -> str:
    """Return what closed a lane last, and when: it stays when the lane is open again."""
    error, at_ms = lane.get("last_error") or "", lane.get("last_error_ms")
    return f"{length_text(max(0, now_ms - at_ms))} ago: {error}" if error and at_ms is not None else error


def _late_text(rates: Mapping[str, Any] | None) -> str:
    if rates is None or not rates["retries"]:
        return "-"
    late_ms = rates["late_p99_ms"]
    return "p99 > 1m" if late_ms is None else f"p99 <= {length_text(round(late_ms))}"
