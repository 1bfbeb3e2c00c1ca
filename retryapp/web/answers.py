"""What the pages show, as plain facts: the same for HTML and JSON.

Every method asks the worker's view, whose answers are bounded, and returns facts or raises ``PageError``. Partitions of
other workers are never guessed at: their numbers are None, and a question for one of them is sent there
(``errors.elsewhere``). Lists and counts are read from the tables in a thread: the event loop belongs to the records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from retryapp.core.causes import OTHER_CAUSE
from retryapp.core.classify import DeadReason
from retryapp.core.control import is_open
from retryapp.core.errors import EnvironmentFault, RetryAppError
from retryapp.core.jobs import LetterFilter
from retryapp.core.masking import Mask
from retryapp.core.record import Origin, Record, failure_id
from retryapp.core.rows import is_stopped
from retryapp.lookup.circuits import mark_held_back, what_holds
from retryapp.lookup.decoding import Decoding, Searching, Show, undecoded
from retryapp.lookup.records import (
    Facts,
    dead_detail,
    known_sum,
    payloads,
    pending_detail,
    place_of,
    whole_entry,
)
from retryapp.ports import ELSEWHERE, PAGES_PREFIX, Activity, CauseTrends, Clock, DeadEntry, HandlerInfo, PartitionInfo
from retryapp.runtime.machine.threads import Daemons
from retryapp.runtime.view import RuntimeView
from retryapp.web.access import Operators, Person, Role
from retryapp.web.addresses import find_address, letter_address, origin_asked, pending_address, stop_address
from retryapp.web.attention import needs_action
from retryapp.web.counting import Counting
from retryapp.web.due import DueCounts
from retryapp.web.errors import SOON, PageError, elsewhere, not_found, not_open, not_ready
from retryapp.web.figures import OPEN, other_owners, partition_facts, partition_part, web_url
from retryapp.web.group import Causes, Group, group_of
from retryapp.web.lists import Listing, Row, chosen_of, dead_here, may_lack, merged_facts, share_of, waiting_here
from retryapp.web.peers import ASKING, PART, SIGNATURE, Peers, spread
from retryapp.web.query import Question
from retryapp.web.turns import Turns, compute

READ_TIMEOUT_S: Final = 5.0
"""Time limit for reading a record from Kafka."""
_NEAR: Final = 100
"""Offsets in which the next newer dead letter is looked for."""
LIVE_S: Final = 5
"""Overview, handler and queued commands are loaded again after this time."""

List = Callable[[Question, Sequence[PartitionInfo]], Awaitable[Listing[Row]]]
"""Lists what this worker has of some partitions."""

_searches: Final = Turns(4)  # they read topics, or look into messages, headers and values: that may take long
_decodings: Final = Daemons(4, "decodings")
_readings: Final = Daemons(4, "readings")
"""Of single records: a broker that has just gone holds a thread longer than its page waits."""


class Answers:
    """Answers to all questions that a page can ask this worker."""

    def __init__(
        self,
        view: RuntimeView,
        clock: Clock,
        operators: Operators,
        mask: Mask,
        decoding: Decoding | None,
    ) -> None:
        self.view = view
        self.operators = operators
        self.mask = mask
        self.decoding = decoding
        self.clock = clock
        self._due = DueCounts(view)
        self.counting = Counting(view)
        self.peers = Peers(self.now_ms, operators.peer_secret, self._group)

    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def _group(self) -> str:
        return next((info.group for info in self.view.handlers()), "")

    def refuse_other_groups(self, request: Any) -> None:
        """Refuse the question of a worker of another group.

        Raises:
            PageError: 404.
        """
        asking = request.headers.get(ASKING)
        if asking is not None and asking != (ours := self._group()):
            raise not_found("other-group", f"this is a worker of group {ours}", "Ask workers of your own group")

    async def person(self, request: Any, needs: Role) -> Person:
        url = self.view.url()
        asked = url.rstrip("/") + request.raw_path
        if request.path.startswith(PART) and self.peers.has_signed(request.headers.get(SIGNATURE, ""), asked):
            return Person("a worker", Role.OPERATE)
        return await self.operators.person(request, url, needs)

    async def index(self, _question: Question) -> Facts:
        """Return the handlers with their totals, and what needs somebody to act."""
        infos = list(self.view.handlers())
        heres = [self.view.partitions(info.main) for info in infos]
        mains = [info.main for info in infos]
        wholes = [self.everywhere(main, here, causes=True) for main, here in zip(mains, heres, strict=True)]
        groups = await asyncio.gather(*wholes)  # one deadline for all
        now_ms, url, ready = self.now_ms(), self.view.url(), self.view.ready()

        def facts() -> Facts:
            handlers, todo = list[Facts](), list[Facts]()
            for info, here, group in zip(infos, heres, groups, strict=True):
                handlers.append(self._facts_of(info, here, group))
                todo += needs_action(info.main, group.partitions, group.causes, group.parts, group.rates, now_ms)
            return {
                "silent": sorted({url for handler in handlers for url in handler["group"]["silent"]}),
                "group": self._group() or None,
                "url": url,
                "ready": ready,
                "todo": sorted(todo, key=lambda each: -each["weight"]),
                "handlers": handlers,
                "workers": sorted(set[str]().union(*map(other_owners, heres))),
                "live_s": LIVE_S,
            }

        return await compute(facts)  # of handlers with hundreds of partitions it takes long

    async def handler(self, question: Question) -> Facts:
        """Return one handler: topics, policy, partitions, and what becomes due within a day."""
        info = self.get_handler_or_404(question.main)
        infos = self.view.partitions(info.main)
        due = self._due.everywhere(info.main, infos, self.now_ms(), self.peers)
        group, due_facts = await asyncio.gather(self.everywhere(info.main, infos, causes=True), due)

        def facts() -> Facts:
            return {
                "handler": self._facts_of(info, infos, group),
                "everywhere": [partition_facts(item) for item in group.partitions],
                "causes": group.with_trends(group.causes),
                "waiting_causes": group.with_trends(group.waiting),
                **due_facts,
                "live_s": LIVE_S,
            }

        return await compute(facts)  # there may be hundreds of partitions and causes

    @staticmethod
    def _facts_of(info: HandlerInfo, here: Sequence[PartitionInfo], group: Group) -> Facts:
        return {**asdict(info), "partitions_here": sum(item.state != ELSEWHERE for item in here), "group": group.totals}

    async def everywhere(self, main: str, infos: Sequence[PartitionInfo], *, causes: bool = False) -> Group:
        """Return what all workers have of a handler; its `causes`, hundreds in each partition, where shown."""
        answers = await self.peers.ask(main, infos)
        now_ms = self.now_ms()
        ours = self.view.job_parts(main), self.view.activity(main), self.view.trends(main)

        def together() -> Group:
            return group_of(main, infos, answers, now_ms, self._causes(main) if causes else None, *ours)

        return await compute(together)

    def _causes(self, main: str) -> tuple[Causes, Causes]:
        return self.view.causes(main), self.view.waiting_causes(main)

    async def part(self, _question: Question) -> Facts:
        """Return what this worker has, for the pages of the others: it asks nobody."""
        handlers: Facts = {}
        for main in [info.main for info in self.view.handlers()]:
            activity, trends = self.view.activity(main), self.view.trends(main)
            jobs = {  # on the loop, which changes them
                number: [part.model_dump(mode="json", exclude_defaults=True) for part in parts]
                for number, parts in self.view.job_parts(main).items()
            }
            mine = await compute(self._part_of, main, self.view.partitions(main), activity, trends)
            handlers[main] = {**mine, "jobs": jobs}
        return {"handlers": handlers}

    def _part_of(
        self,
        main: str,
        infos: Sequence[PartitionInfo],
        activity: Activity | None,
        trends: CauseTrends | None,
    ) -> Facts:
        """Return what this worker has of a handler, in a thread: there may be hundreds of partitions and causes."""
        dead, waiting = self._causes(main)
        return {
            "partitions": [partition_part(item) for item in infos if item.state != ELSEWHERE],
            "causes": spread(dead),
            "waiting": spread(waiting),
            "activity": activity and asdict(activity),
            "trends": trends and asdict(trends),
        }

    async def due_here(self, question: Question) -> Facts:
        main = self.get_handler_or_404(question.main).main
        return (await self._due.here(main, self.view.partitions(main), self.now_ms())).model_dump()

    async def pending(self, question: Question) -> Facts:
        """Return one page of waiting records of the group by due time."""
        wanted, infos = question.wanted, self._partitions(question)
        facts, (total, whole, about) = await asyncio.gather(
            self._list(question, infos, "pending", self.pending_here), self._totals(question, infos, "pending")
        )
        of = None if wanted == LetterFilter() else whole  # without an index by cause a page may have seen a part
        total = None if question.is_narrow else total
        return {**facts, **_asked(question), "total": total, "of": of, "about": about}

    async def dead(self, question: Question) -> Facts:
        """Return one page of dead letters of the group, the newest first."""
        wanted, infos = question.wanted, self._partitions(question)
        asked: Facts = {**_asked(question), "reason": wanted.reason, "marked": question.marked}
        facts, (total, _, about) = await asyncio.gather(
            self._list(question, infos, "dead", self.dead_here), self._totals(question, infos, "dead")
        )
        total = None if question.marked or question.is_narrow else total
        reasons = {*map(str, DeadReason), wanted.reason or "", *(each["reason"] or "" for each in facts["records"])}
        # of how many is not known: a page looks at marked letters too, which no table counts
        return {**facts, **asked, "total": total, "of": None, "about": about, "reasons": sorted(reasons - {""})}

    async def pending_here(self, question: Question, infos: Sequence[PartitionInfo]) -> Listing[Row]:
        look = partial(waiting_here, self.view, infos, question, self.now_ms(), self._search(question))
        return await (_searches.take(look) if question.wanted.deep else compute(look))

    async def dead_here(self, question: Question, infos: Sequence[PartitionInfo]) -> Listing[Row]:
        info = self.get_handler_or_404(question.main)
        if question.wanted.deep:
            self.check_broker()
        look = partial(dead_here, self.view, infos, question, info, self._search(question))
        return await (_searches.take(look) if question.wanted.deep else compute(look))

    def _search(self, question: Question) -> Searching | None:
        """Return what decodes values for a search by field; None: nothing has to be decoded."""
        if self.decoding is None or question.wanted.field is None:
            return None
        return Searching(self.decoding, question.main)

    async def _show(self, question: Question, detail: Callable[[Show], Facts]) -> Facts:
        """Return a record with key and value, decoded for who may see them."""
        if self.decoding is None or question.role < Role.OPERATE:
            return await compute(detail, undecoded)
        shows = self.decoding.shows(question.main, self.mask)
        return await asyncio.get_running_loop().run_in_executor(_decodings, detail, shows)

    async def _list(self, question: Question, infos: Sequence[PartitionInfo], kind: str, own: List) -> Facts:
        """Merge what all workers list, and say what is left out.

        Others list their share of the page: a whole one of each took most of the time. They are asked again where a
        share is too small.
        """
        chosen = chosen_of(infos, question)
        share = share_of(question, chosen)
        asked = self.peers.read(chosen, question.main, question.list_address(kind, share))
        answers, ours = await asyncio.gather(asked, own(question, chosen))
        facts = await compute(merged_facts, question, chosen, kind, {"": ours, **answers})
        if may_lack(facts, question, share):
            again = await self.peers.read(chosen, question.main, question.list_address(kind, question.limit))
            answers = {url: again[url] or body for url, body in answers.items()}
            facts = await compute(merged_facts, question, chosen, kind, {"": ours, **answers})
        return {
            "main": question.main,
            "partition": question.partition,
            "limit": question.limit,
            "partitions": [item.partition for item in infos],
            **facts,
        }

    async def _totals(
        self, question: Question, infos: Sequence[PartitionInfo], name: str
    ) -> tuple[int | None, int | None, Facts | None]:
        """Return how many records of the cause asked for, how many in all, and the cause; None: not known.

        The list of what waits has dead records as well whose sequences have stopped, which no cause of it counts.
        """
        cause = question.wanted.cause
        group = await self.everywhere(question.main, infos, causes=cause is not None)
        chosen = chosen_of(group.partitions, question)
        is_known = [item.state != ELSEWHERE and item.as_of_ms is None for item in chosen]
        numbers = [getattr(item, name) for item in chosen] if all(is_known) else [None]
        stopped = known_sum(item.stopped for item in chosen if name == "pending") or 0
        causes = group.waiting if name == "pending" else group.causes
        about = next(iter(group.with_trends(each for each in causes if each.cause_id == cause)), None)
        if None in numbers:
            return None, None, about
        whole = known_sum([*numbers, stopped])
        if cause is None:
            return whole, whole, None
        others = any(each.cause_id == OTHER_CAUSE for each in causes)
        if others or stopped or any(item.state != OPEN for item in chosen):  # some may be among these
            return None, whole, about
        return 0 if about is None else about["records"], whole, about

    async def pending_record(self, question: Question) -> Facts:
        """Return one waiting record with headers, key and value."""
        info = self.get_handler_or_404(question.main)
        partition, offset = question.at()
        self.get_open_partition_or_404(partition, question)
        topic_id = question.topic_id or self.view.topic_id(info.main)
        origin = Origin(info.main, topic_id, partition, offset)
        entry = self.view.pending_find(origin)
        if entry is None:
            raise not_found(
                "not-pending",
                f"no record of {info.main} with partition {partition} and offset {offset} waits",
                "It may have been delivered since, or be dead: look at the handler's dead letters",
                {"Where it is now": find_address(info, origin)},
            )
        item = self.view.partition(info.main, partition)
        holding = what_holds([] if item is None else [item])
        unread = ""
        if (there := place_of(entry, info.main)) is not None:
            try:
                entry = whole_entry(entry, await self.read_record(*there))
            except RetryAppError as error:  # the record waits all the same
                unread = str(error)
        record = await self._show(question, partial(pending_detail, entry, unread=unread))
        mark_held_back(record, holding, self.now_ms())
        name = record["failure_id"] if is_stopped(entry.value) else None
        letter = None if name is None else self.view.dead_find(info.main, partition, name)
        facts = {"main": info.main, "policy": _policy(info), "jobs": self._jobs(info.main, partition)}
        of_letter = letter and {"letter": letter_address(info.main, letter), "mark": letter.row.mark}
        return {**facts, "record": record, **(of_letter or {"letter": None, "mark": None})}

    def _jobs(self, main: str, partition: int) -> list[str]:
        """Return the ids of the jobs that a partition remembers: those that have a page."""
        return [part.job for part in self.view.job_parts(main).get(partition, ())]

    async def dead_letter(self, question: Question) -> Facts:
        """Return one dead letter; key and value are read from the topic now."""
        info = self.get_handler_or_404(question.main)
        partition, offset = question.at()
        self.get_open_partition_or_404(partition, question)
        letters = question.letters
        entries = (
            self.view.dead_page(info.main, partition=partition, letters=letters, before=offset + 1, limit=1)
            if letters is None or letters in info.dead_letters
            else ()
        )
        if not entries or entries[0].row.offset != offset:
            raise not_found(
                "not-dead",
                f"no dead letter of {info.main} at partition {partition}, offset {offset} is known",
                "It may be older than the dead-letter topic's retention: look at the list",
            )
        topic = info.topics["dlq" if letters is None else f"dlq {letters}"]
        record = await self._content(question, topic, entries[0])
        page = partial(self.view.dead_page, info.main, partition=partition, letters=letters)
        newer = [entry.row.offset for entry in page(before=offset + _NEAR, limit=_NEAR) if entry.row.offset > offset]
        older = [entry.row.offset for entry in page(before=offset, limit=1)]
        beside = {"newer": min(newer, default=None), "older": older[0] if older else None}
        facts = {"main": info.main, "topic": topic, "policy": _policy(info), "jobs": self._jobs(info.main, partition)}
        return {**facts, "record": record, **beside, "stopped": stop_address(self.view, record)}

    async def _content(self, question: Question, topic: str, entry: DeadEntry) -> Facts:
        """Return a letter with its headers, key and value, or why these cannot be shown.

        The index has no headers: all is read from the topic, and the value of a too large record from the main topic.
        """
        places = [(topic, entry.partition, entry.row.offset)]
        known = dead_detail(entry, ())
        origin = known["origin"]
        if known["reason"] == DeadReason.TOO_LARGE and origin:
            places.append((origin["topic"], origin["partition"], origin["offset"]))
        read_from = "{}[{}]@{}".format(*places[-1])
        content: Facts = {**known, "read_from": read_from, "unread": None}
        content |= dict.fromkeys(("headers", "retry_headers", "key", "value"))  # not known until it is read
        try:
            letter = record = await self.read_record(*places[0])
            if len(places) > 1 and letter is not None:
                is_there = origin["topic_id"] == self.view.topic_id(question.main)  # else another has its offset
                record = await self.read_record(*places[1]) if is_there else None
        except RetryAppError as error:
            return {**content, "unread": str(error)}
        return await self._show(question, partial(_with_content, content, entry, letter, record))

    def check_broker(self) -> None:
        """Raise `PageError` while it is known that no broker answers: asking would take long to say less."""
        if (silence := self.view.silence()) is not None:
            raise PageError(503, "try-again", silence, "This is read from the topics: ask once a broker answers", SOON)

    async def read_record(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record from Kafka; None when it is no longer there.

        Raises:
            RetryAppError: no broker answers; while that is known, none is asked.
        """
        if (silence := self.view.silence()) is not None:
            raise EnvironmentFault(silence)
        read = partial(self.view.read_record, topic, partition, offset)
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await asyncio.get_running_loop().run_in_executor(_readings, read)
        except TimeoutError as error:
            raise EnvironmentFault(f"the broker did not answer within {READ_TIMEOUT_S:g} s") from error

    def find(self, question: Question) -> str:
        """Return the path of the page of a failure id: waiting, dead, or what has become of it.

        Raises:
            PageError: 400 when it is no failure id of this handler.
        """
        info = self.get_handler_or_404(question.main)
        wanted = question.query.get("id", "").strip()
        for main in {each.main for each in self.view.handlers()} - {info.main}:
            if wanted.startswith(f"{info.group}/{main}@"):  # it was given to the page of another handler
                here = "&here=1" * bool(question.query.get("here"))
                return f"{PAGES_PREFIX}/{quote(main, safe='')}/find?id={quote(wanted, safe='')}{here}"
        origin = origin_asked(info, question)
        same = failure_id(info.group, origin)
        base = f"{PAGES_PREFIX}/{quote(info.main, safe='')}"
        item = self.view.partition(info.main, origin.partition)
        if item is not None and item.state == ELSEWHERE and question.query.get("here"):
            return f"{base}/journey?id={quote(same, safe='')}"  # browsers send no form on to another worker
        self.get_open_partition_or_404(origin.partition, question)
        if self.view.pending_find(origin) is not None:
            return pending_address(origin)
        dead = self.view.dead_find(info.main, origin.partition, same)
        if dead is not None and is_open(dead.row.mark):
            return letter_address(info.main, dead)
        return f"{base}/journey?id={quote(same, safe='')}"

    async def ready(self, question: Question) -> Facts:
        """Return ``{"ok": true}`` when a broker answers and every lane here is open and moves, or refuse with 503."""
        if self.view.ready():
            return {"ok": True}
        if question.role < Role.LOOK:
            raise PageError(503, "not-ready", "this worker is not ready", "Whoever has the role look is told why", SOON)
        silence = self.view.silence()
        lanes: list[tuple[HandlerInfo, PartitionInfo]] = []
        for info in self.view.handlers():
            lanes += [(info, item) for item in self.view.partitions(info.main) if item.state != ELSEWHERE]
            await asyncio.sleep(0)
        waiting = [(info, item) for info, item in lanes if item.state != OPEN or item.stalled]
        raise not_ready(silence, waiting, len(lanes), self.now_ms(), f"{PAGES_PREFIX}/")

    def get_handler_or_404(self, main: str) -> HandlerInfo:
        infos = self.view.handlers()
        for info in infos:
            if info.main == main:
                return info
        known = ", ".join(info.main for info in infos) or "none"
        raise not_found("no-such-handler", f"no handler for topic {main!r}", f"Handlers of this app: {known}")

    def get_open_partition_or_404(self, number: int, question: Question) -> None:
        """Refuse a partition that cannot be read here: 404, 307 or 409 when elsewhere, 503 until it is open."""
        _refuse_closed(self.view.partition(question.main, number), number, question)

    def _partitions(self, question: Question) -> Sequence[PartitionInfo]:
        """Return all partitions of a list's handler, or refuse when nobody can read the one asked for."""
        self.get_handler_or_404(question.main)
        infos = self.view.partitions(question.main)
        if question.partition is not None:
            info = infos[question.partition] if question.partition < len(infos) else None
            if info is None or info.state != ELSEWHERE or web_url(info.owner_url) is None:
                _refuse_closed(info, question.partition, question)
        return infos


def _asked(question: Question) -> Facts:
    names = ("error_type", "cause", "key", "message", "header", "field")
    times = {name: question.query.get(name) for name in ("since", "until")}
    return {**{name: getattr(question.wanted, name) for name in names}, **times}


def _with_content(content: Facts, entry: DeadEntry, letter: Record | None, record: Record | None, show: Show) -> Facts:
    if letter is not None:
        content = {**content, **dead_detail(entry, letter.headers), "key": None}
    if letter is None or record is None:
        return {**content, "unread": "it is no longer on the topic (older than its retention, or deleted)"}
    return {**content, **payloads(letter.headers, record.key, record.value, show)}


def _refuse_closed(info: PartitionInfo | None, number: int, question: Question) -> None:
    if info is None:
        hint = f"See {PAGES_PREFIX}/{quote(question.main, safe='')}/ for those that there are"
        raise not_found("no-such-partition", f"{question.main} has no partition {number}", hint)
    if info.state == ELSEWHERE:
        url, routed = web_url(info.owner_url), question.routed
        there = question.address() if routed else question.address(routed="1")
        raise elsewhere(question.main, number, url + there if url else None, routed=routed)
    if info.state != OPEN:
        raise not_open(question.main, number, info.state, info.last_error)


def _policy(info: HandlerInfo) -> dict[str, str]:
    return {"text": info.policy, "digest": info.policy_digest, "order": info.order}
