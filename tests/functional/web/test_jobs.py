"""Jobs through the pages: previewed, begun as they were shown, watched, paused, resumed and cancelled."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from html.parser import HTMLParser
from itertools import count
from typing import Any

import pytest
from functional.web.server import Site, opened, serving
from functional.web.worker import BASE, GROUP, MAIN, NOW_MS, FakeWorker, job_parts
from samples import partition
from typing_extensions import override

from retryapp.core.control import Verb
from retryapp.core.jobs import HandlerVerb, JobPart, JobVerb, LetterFilter, PartState
from retryapp.lookup.jobs import Order
from retryapp.lookup.previews import Preview, Scope
from retryapp.ports import Activity, CircuitInfo
from retryapp.web import counting
from retryapp.web import jobs as web_jobs
from retryapp.web.access import Operators, Role
from retryapp.web.answers import Answers
from retryapp.web.jobs import StartJob

HTML = {"Accept": "text/html"}


class Form(HTMLParser):
    """The fields of a page's form that is sent to an address."""

    def __init__(self, html: str, action: str) -> None:
        super().__init__()
        self.action, self.inside, self.fields = action, False, dict[str, str]()
        self.feed(html)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        if tag == "form":
            self.inside = facts.get("action") == self.action
        elif tag == "input" and self.inside and facts.get("type") == "hidden":
            self.fields[facts["name"] or ""] = facts["value"] or ""


def fit(worker: FakeWorker) -> None:
    """Let any preview find 700 letters of one cause on two partitions."""
    found = worker.fits
    found.fitting.update({0: 500, 1: 200})
    found.upto.update({0: {f"{GROUP}.{MAIN}.dlq": 900}, 1: {f"{GROUP}.{MAIN}.dlq": 301}})
    found.causes["c1-0011223344"], found.names["c1-0011223344"] = 700, "ServiceError: <number> from the ledger"
    found.samples[f"{GROUP}.{MAIN}.dlq", 0, 17] = f"{GROUP}/{MAIN}@kq8G0bTz/0/17"
    found.done["recovered"] = 5
    found.looked = found.whole = 2_000


async def test_a_job_takes_letters_of_a_former_policy(worker: FakeWorker) -> None:
    """Their topics are there, and previews count them; topics of others are none of it."""
    fit(worker)
    async with opened(worker) as site:
        for name, status in (("gone", 303), ("gone.events", 400)):
            worker.fits.upto[0] = {f"{GROUP}.{MAIN}.dlq": 900, f"{GROUP}.{MAIN}.dlq.{name}": 7}
            form = Form(await site.page(f"{BASE}/jobs/new?verb=discard&all=1"), f"{BASE}/command/job")
            sent = {**form.fields, "why": "test data"}
            assert (await site.post(sent, HTML, f"{BASE}/command/job"))[0] == status


async def test_a_job_takes_letters_of_a_reason_that_only_a_newer_build_gives(worker: FakeWorker) -> None:
    """One that no letter has is a slip."""
    async with opened(worker) as site:
        asked = f"{BASE}/jobs/new?verb=discard&reason=quarantined"
        assert (await site.get(asked))[0] == 400
        fit(worker)
        assert (await site.get(asked))[0] == 200


async def test_what_was_previewed_is_what_begins(worker: FakeWorker) -> None:
    """The filter, the numbers by partition and the end that was set; the form is sent as the page has it."""
    fit(worker)
    async with opened(worker) as site:
        body = await site.page(f"{BASE}/jobs/new?verb=replay&cause=c1-0011223344&since=2h")
        assert worker.asked[0] == (MAIN, Verb.REPLAY, LetterFilter(cause="c1-0011223344", from_ms=NOW_MS - 7_200_000))
        for shown in ("Replay 700 dead letters?", "from the ledger", f"{GROUP}/{MAIN}@kq8G0bTz/0/17", "recovered"):
            assert shown in body
        form = Form(body, f"{BASE}/command/job").fields
        sent = {**form, "why": "ledger is back", "rate": "100/s"}
        status, _, headers = await site.post(sent, HTML, f"{BASE}/command/job")
        assert (status, headers["Location"]) == (303, f"{BASE}/jobs/{form['job']}")
        main, order, scope = worker.asked[1]
        wanted = worker.asked[0][2]
        assert main == MAIN
        assert order == Order(Verb.REPLAY, wanted, id=form["job"], rate="100/s", by="local", why="ledger is back")
        assert scope == Scope(letters={0: 500, 1: 200}, upto=worker.fits.upto)
        worker.answer = "job-known"
        status, body, _ = await site.post(sent, HTML, f"{BASE}/command/job")
        assert (status, "refused" in body) == (200, True), "sent again, it is refused as known"


async def test_the_other_causes_of_a_preview_lead_to_no_list(worker: FakeWorker) -> None:
    """The list of others has those of the tables, which count other ones together."""
    fit(worker)
    worker.fits.causes["other"], worker.fits.names["other"] = 3, "other"
    async with opened(worker) as site:
        body = await site.page(f"{BASE}/jobs/new?verb=replay&all=1")
        assert ("cause=c1-0011223344" in body, "cause=other" in body) == (True, False)
        assert '<th scope="row">other</th>' in body


async def test_no_page_has_a_job_replay_what_ended_its_workers(worker: FakeWorker) -> None:
    """It says how one does it alone; `force` is about newer records, so only a handler of the latest has it."""
    fit(worker)
    worker.fits.done["crashed"] = 3
    async with opened(worker) as site:
        body = await site.page(f"{BASE}/jobs/new?verb=replay&all=1")
        assert f'Replay each alone, from <a href="{BASE}/dead?reason=crashed">' in body
        assert 'name="force"' not in body
        worker.infos = [replace(info, order="latest") for info in worker.infos]
        assert 'name="force"' in await site.page(f"{BASE}/jobs/new?verb=replay&all=1")


async def test_a_preview_that_had_no_time_says_so(worker: FakeWorker) -> None:
    """Shares go by what each partition keeps; the job takes the rest too."""
    fit(worker)
    worker.fits.complete, worker.fits.whole = False, 10_000
    worker.fits.kept.update({0: 6_000, 1: 4_000, 2: 0})
    async with opened(worker) as site:
        body = await site.page(f"{BASE}/jobs/new?verb=discard&all=1")
        assert "Discard all dead letters that fit?" in body
        assert "<b>700 so far</b>" in body, "of these some are perhaps done with: their marks come later"
        assert ">Discard all that fit</button>" in body
        assert "2,000 of 10,000 were looked at" in body
        scope = Scope.model_validate_json(Form(body, f"{BASE}/command/job").fields["scope"])
        assert (scope.letters, scope.complete) == ({0: 6_000, 1: 4_000}, False)


async def test_a_preview_goes_on_while_somebody_looks(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page shows it further on; what was counted to its end begins without another count, by an operator too."""
    monkeypatch.setattr(web_jobs, "LOOK_S", 0.2)
    monkeypatch.setattr(counting, "COPY_S", 0.0)
    fit(worker)
    found, more = worker.fits, threading.Semaphore(0)
    found.whole = 3_000

    def preview(*asked: Any, go_on: Callable[[Preview], bool]) -> Preview:
        worker.asked.append(asked)
        for looked in (1_000, 2_000):
            found.looked, found.complete = looked, False
            assert go_on(found), "somebody looks"
            assert more.acquire(timeout=20)
        found.looked, found.complete = 3_000, True
        return found

    monkeypatch.setattr(worker, "preview", preview)
    instants = count(NOW_MS)
    monkeypatch.setattr(Answers, "now_ms", lambda _self: next(instants))
    path = f"{BASE}/jobs/new?verb=discard&reason=exhausted&since=2h"
    async with opened(worker, Operators(local=Role.OPERATE)) as site:
        for shown in ("1,000 of 3,000 are looked at", "2,000 of 3,000 are looked at"):
            body = await site.page(path)
            assert (shown in body, "<b>700 so far</b>" in body) == (True, True)
            assert 'data-live="2"' in body
            assert 'method="post"' not in body, "an admin may begin it before all are counted"
            more.release()
        body = await site.page(path)
        assert ("Discard 700 dead letters?" in body, "data-live" in body) == (True, False)
        assert len(worker.asked) == 1, "counted once"
        sent = {**Form(body, f"{BASE}/command/job").fields, "why": "test data"}
        assert (await site.post(sent, HTML, f"{BASE}/command/job"))[0] == 303
        assert [type(each[1]) for each in worker.asked] == [Verb, Order]


async def test_pages_are_answered_while_others_wait(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for workers or topics has threads of its own; probes do without the loop's, which others take."""
    loop, begun, over = asyncio.get_running_loop(), asyncio.Semaphore(0), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))

    def wait(*_args: Any, **_more: Any) -> Any:
        loop.call_soon_threadsafe(begun.release)
        assert over.wait(20)
        return {}

    for name in ("on_topics", "read_range"):
        monkeypatch.setattr(worker, name, wait)
    monkeypatch.setattr(worker, "read_record", lambda *asked: wait(*asked) or None)
    record = f"{GROUP}/{MAIN}@kq8G0bTz/0/1"
    async with opened(worker) as site:
        waiting = [
            site.post({"verb": "cancel", "failure_id": record}),
            site.post({"verb": "pause", "why": "x"}, path=f"{BASE}/command/job/aa"),
            site.page(f"{BASE}/jobs/new?verb=replay&all=1"),
            site.page(f"{BASE}/journey?id={record}"),
            site.page(f"{BASE}/dead?message=x"),
            site.page(f"{BASE}/dead/1/9"),
            site.page(f"{BASE}/jobs/begun-just-now"),
        ]
        going: list[asyncio.Task[Any]] = [asyncio.create_task(each) for each in waiting]
        try:
            for _ in waiting:
                await begun.acquire()
            assert "Newest first" in await site.page(f"{BASE}/dead")
            going.append(asyncio.create_task(asyncio.to_thread(over.wait)))  # as a handler may
            for probe in ("health", "ready"):
                assert '"ok": true' in await site.page(f"/retries/{probe}")
        finally:
            over.set()
            await asyncio.gather(*going)


async def test_a_preview_ends_when_nobody_looks(worker: FakeWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are counted at once; a third is told to come again."""
    monkeypatch.setattr(web_jobs, "LOOK_S", 0.05)
    ended = threading.Semaphore(0)

    def preview(*_asked: Any, go_on: Callable[[Preview], bool]) -> Preview:
        found = Preview(complete=False)
        while go_on(found):
            found.looked += 1
        ended.release()
        return found

    monkeypatch.setattr(worker, "preview", preview)
    async with opened(worker) as site:
        for key in ("a", "b"):
            assert "counting goes on" in await site.page(f"{BASE}/jobs/new?verb=discard&key={key}")
        assert "Ask again soon" in await site.page(f"{BASE}/jobs/new?verb=discard&key=c")
        monkeypatch.setattr(counting, "UNASKED_S", 0.0)
        for _ in range(2):
            assert await asyncio.to_thread(ended.acquire, timeout=20)
        assert "counting goes on" not in await site.page(f"{BASE}/jobs/new?verb=discard&key=c")


async def test_a_job_page_shows_how_far_it_is_and_steers_it(worker: FakeWorker) -> None:
    """It loads itself again while the job goes on; what it sends needs a reason."""
    async with opened(worker) as site:
        path = f"{BASE}/jobs/3f9ca81b02"
        body = await site.page(path)
        assert 'data-live="2"' in body
        for shown in ("305 of 700", "210 <span", "ledger is back", "recovered", 'value="pause"'):
            assert shown in body, shown
        for job, verbs in (("3f9ca81b02", ["pause", "cancel"]), ("77aa00bb11", ["resume", "cancel"])):
            assert re.findall('name="verb" value="([a-z]+)"', await site.page(f"{BASE}/jobs/{job}")) == verbs
        worker.remembered[MAIN][1][0].state = PartState.PAUSED  # by itself, and the other part goes on
        verbs = re.findall('name="verb" value="([a-z]+)"', await site.page(f"{BASE}/jobs/3f9ca81b02"))
        assert verbs == ["pause", "resume", "cancel"], "else it stood still until the other had ended"
        assert "60 of the last 100 failed again" in await site.page(f"{BASE}/jobs/77aa00bb11")
        for verb in ("pause", "resume", "cancel"):
            sent = {"verb": verb, "why": "lunch"}
            status, _, headers = await site.post(sent, HTML, f"{BASE}/command/job/3f9ca81b02")
            assert (status, headers["Location"]) == (303, path)
            main, job, told, more = worker.asked[-1]
            assert (main, job, told) == (MAIN, "3f9ca81b02", JobVerb(f"job-{verb}"))
            assert (more["by"], more["why"]) == ("local", "lunch")
        listed = await site.page(f"{BASE}/jobs")
        assert listed.index("3f9ca81b02") < listed.index("77aa00bb11"), "the newest first"


async def test_a_job_page_says_what_a_job_has_done_in_the_words_of_its_verb(worker: FakeWorker) -> None:
    for verb, said in (("restore", "restored"), ("discard", "discarded")):
        for part in (part for some in worker.remembered[MAIN].values() for part in some):
            part.verb = verb
        async with opened(worker) as site:
            assert f"What was {said} stays so." in await site.page(f"{BASE}/jobs/3f9ca81b02")


async def test_a_command_about_a_job_that_is_over_is_refused(worker: FakeWorker) -> None:
    """As `retryapp job` says it: no partition has a part that goes on."""
    worker.remembered.clear()
    async with opened(worker) as site:
        for how in (HTML, {}):
            sent = {"verb": "cancel", "why": "lunch"}
            status, body, _ = await site.post(sent, how, f"{BASE}/command/job/3f9ca81b02")
            assert (status, f"no job 3f9ca81b02 of {MAIN} goes on" in body) == (409, True)
        assert json.loads(body)["error"]["code"] == "no-job"


async def test_a_job_page_says_which_partitions_are_paused(worker: FakeWorker) -> None:
    """Else it seems to stand still."""
    async with opened(worker) as site:
        assert "deliveries go on" not in await site.page(f"{BASE}/jobs/3f9ca81b02")
        worker.parts[MAIN][0] = replace(worker.parts[MAIN][0], paused="paused by ann: lunch")
        assert "Deliveries are paused by ann: lunch (partition 0)." in await site.page(f"{BASE}/jobs/3f9ca81b02")
        assert "Deliveries are paused" not in await site.page(f"{BASE}/jobs/77aa00bb11"), "it is paused itself"


async def test_an_operator_resumes_no_job_that_only_an_admin_may_begin(worker: FakeWorker) -> None:
    """Pausing and cancelling are for whoever sees that something goes wrong."""
    (part,) = [part for parts in worker.remembered[MAIN].values() for part in parts if part.job == "77aa00bb11"][:1]
    for letters, status in ((1_000, 303), (1_001, 403), (None, 403)):
        order = JobPart(verb=Verb.REPLAY, filter=LetterFilter(), upto={}, letters=letters)
        worker.known = {"77aa00bb11": {0: part.model_copy(update={"state": "paused", "order": order})}}
        async with opened(worker, Operators(local=Role.OPERATE)) as site:
            for verb in ("resume", "pause", "cancel"):
                sent = {"verb": verb, "why": "lunch"}
                answer = await site.post(sent, HTML, f"{BASE}/command/job/77aa00bb11")
                assert answer[0] == (status if verb == "resume" else 303), (letters, verb)


async def test_the_letters_that_a_job_has_refused_are_named(worker: FakeWorker) -> None:
    """From the job's page, with why; a damaged one has no failure id to lead to."""
    async with opened(worker) as site:
        path = f"{BASE}/jobs/3f9ca81b02/refused"
        assert f'href="{path}"' in await site.page(f"{BASE}/jobs/3f9ca81b02")
        body = await site.page(path)
        for shown in (f"{GROUP}/{MAIN}@kq8G0bTz/1/2", "this letter is &lt;recovered&gt; already", "4 of 4"):
            assert shown in body
        assert body.count("/find?id=") == 3
        assert "no-such-job" in await site.page(f"{BASE}/jobs/other/refused?format=json")


async def test_a_handler_is_paused_and_resumed_on_its_page(worker: FakeWorker) -> None:
    """The button is the other one then; a partition that nobody has is named."""
    async with opened(worker) as site:
        assert 'value="pause"' in await site.page("/retries/flights/")
        sent = {"verb": "pause", "why": "migration"}
        status, _, headers = await site.post(sent, HTML, "/retries/flights/command/handler")
        assert (status, headers["Location"]) == (303, "/retries/flights/")
        assert worker.asked[-1][:2] == ("flights", HandlerVerb.PAUSE)
        worker.parts["flights"] = [partition(0, paused="paused by ann"), partition(1)]
        assert 'value="resume"' in await site.page("/retries/flights/")
        worker.answer = None
        status, body, _ = await site.post(sent, {}, "/retries/flights/command/handler")
        assert json.loads(body)["partitions"][1]["outcome"] == "queued"


async def test_a_circuit_is_forced_open_and_let_go_on_the_page_of_its_handler(worker: FakeWorker) -> None:
    """Where there is one; who did it, why and since when comes first."""
    async with opened(worker) as site:
        assert "outage-" not in await site.page("/retries/flights/")
        worker.parts["flights"] = [partition(0, circuit="closed"), partition(1)]
        assert 'value="outage-open"' in await site.page("/retries/flights/")
        for verb in ("open", "close"):
            sent = {"verb": f"outage-{verb}", "why": "migration"}
            assert (await site.post(sent, HTML, "/retries/flights/command/handler"))[0] == 303
            assert worker.asked[-1][:2] == ("flights", HandlerVerb(f"outage-{verb}"))
        cause = {"circuit_cause": "forced open by ann: migration", "circuit_since_ms": NOW_MS - 60_000}
        worker.parts["flights"] = [partition(0, circuit="forced-open", **cause), partition(1)]
        page = await site.page("/retries/flights/")
        assert "The circuit is forced open by ann: migration (1 min ago). Nothing begins on partition 0." in page
        assert 'value="outage-close"' in page
        ledger = {"ledger": CircuitInfo(state="closed", since_ms=0, cause="")}
        worker.parts["flights"] = [partition(0, circuits=ledger), partition(1)]
        page = await site.page("/retries/flights/")
        assert "<option>ledger</option>" in page
        sent = {"verb": "outage-open", "why": "migration", "circuit": "ledger"}
        await site.post(sent, HTML, "/retries/flights/command/handler")
        assert worker.asked[-1][:3] == ("flights", HandlerVerb.OPEN, "ledger")
        await site.post({**sent, "verb": "pause"}, HTML, "/retries/flights/command/handler")
        assert worker.asked[-1][:3] == ("flights", HandlerVerb.PAUSE, "")
        assert (await site.post({**sent, "circuit": "x" * 501}, {}, "/retries/flights/command/handler"))[0] == 400


async def test_jobs_of_other_workers_are_shown(worker: FakeWorker) -> None:
    """Each worker says what its partitions remember."""
    other = FakeWorker(infos=worker.infos, parts={MAIN: [], "flights": []}, remembered={MAIN: job_parts()})
    worker.remembered.clear()
    async with serving(other) as peer:
        worker.parts[MAIN] = [
            partition(0, state="elsewhere", owner_url=peer),
            partition(1, state="elsewhere", owner_url=peer),
        ]
        async with opened(worker) as site:
            assert "305 of 700" in await site.page(f"{BASE}/jobs/3f9ca81b02")


BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "no reason": ("job", {"why": " "}),
    "a rate that is none": ("job", {"rate": "fast"}),
    "a partition that is not there": ("job", {"scope": '{"letters": {"99": 1}, "upto": {"99": {}}}'}),
    "another topic": ("job", {"scope": '{"letters": {"0": 1}, "upto": {"0": {"passwords": 9}}}'}),
    "no letters": ("job", {"scope": '{"letters": {}, "upto": {}}'}),
    "a filter of a newer version": ("job", {"filter": '{"v": 1, "colour": "red"}'}),
    "a verb of records that wait": ("job", {"verb": "cancel"}),
    "an id with a slash": ("job", {"job": "../x"}),
    "an id that is none": ("job/a%20b", {"verb": "pause"}),
    "half of a character": ("handler", {"verb": "pause", "why": "\ud83d"}),
    "an unknown verb": ("job/3f9ca81b02", {"verb": "fly"}),
    "another unknown verb": ("handler", {"verb": "cancel"}),
    "much": ("job", {"scope": "x" * StartJob.most_bytes}),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_is_no_order_begins_nothing(worker: FakeWorker, name: str) -> None:
    """With a word and a sentence."""
    where, wrong = BAD[name]
    scope = json.dumps({"letters": {"0": 1}, "upto": {"0": {f"{GROUP}.{MAIN}.dlq": 3}}})
    good = {"verb": "replay", "job": "aa", "why": "x", "filter": "{}", "scope": scope}
    async with opened(worker) as site:
        status, body, _ = await site.post({**good, **wrong}, path=f"{BASE}/command/{where}")
        assert status in (400, 413), body
        assert worker.asked == []


@pytest.mark.parametrize(
    "asked",
    [
        "verb=replay",
        "verb=cancel&all=1",
        "verb=replay&since=soon",
        f"verb=replay&key={'x' * 401}",
        "verb=replay&all=0",
        "verb=replay&all=no&key=k",
        "verb=replay&all=1&partition=3",
        "verb=replay&all=1&from_ms=1760000000000",
        "verb=replay&reason=exhausted&eror_type=app.Declined",
    ],
)
async def test_a_preview_of_nothing_or_of_too_much_is_refused(site: Site, worker: FakeWorker, asked: str) -> None:
    """Nobody replays everything by a missing word, nor more than was meant by one that is not known."""
    status, _, body = await site.get(f"{BASE}/jobs/new?{asked}")
    assert (status, json.loads(body)["error"]["code"]) == (400, "bad-parameter")
    assert worker.asked == []
    assert (await site.get(f"{BASE}/jobs/unknown"))[0] == 404


async def test_browsers_are_led_to_the_overview(site: Site) -> None:
    """From the root of the port; programs get what Faust answers there."""
    status, headers, _ = await site.get("/", accept="text/html")
    assert (status, headers["Location"]) == (302, "/retries/")
    assert (await site.get("/"))[0] == 200


@pytest.mark.parametrize(("failures", "said"), [(10, ["every known delivery fails: at least 20 a minute"]), (9, [])])
async def test_a_handler_of_which_every_delivery_fails_needs_action(
    site: Site, worker: FakeWorker, failures: int, said: list[str]
) -> None:
    """Nothing is dead or late for hours then, and the page said that there was nothing to do."""
    worker.lately = Activity(span_s=30, deliveries=10, failures=failures, late_within={})
    todo = (await site.facts("/retries/"))["todo"]
    assert [each["text"] for each in todo if "fails" in each["text"]] == said
    worker.parts[MAIN] = [part for part in worker.parts[MAIN] if part.state != "elsewhere"]
    todo = (await site.facts("/retries/"))["todo"]
    whole = [text.replace("every known", "every").replace("at least ", "") for text in said]
    assert [each["text"] for each in todo if "fails" in each["text"]] == whole, "all workers have answered"


BLOCKED = "partition 0: later records wait for offset 0"


@pytest.mark.parametrize(
    ("since_ms", "partitions", "said"),
    [(None, 2, [f"{BLOCKED}; blocked as well: partition 1"]), (60_000, 1, []), (60_001, 1, [BLOCKED])],
)
async def test_a_partition_that_is_blocked_for_long_needs_action(
    site: Site, worker: FakeWorker, since_ms: int | None, partitions: int, said: list[str]
) -> None:
    """An ordered handler waits at each retry; the partition says so, the overview only where it goes on failing."""
    since = {} if since_ms is None else {"blocked_since_ms": NOW_MS - since_ms}
    worker.parts["flights"] = [
        partition(number, blocked=f"later records wait for offset {number}", **since) for number in range(partitions)
    ]
    todo = [each for each in (await site.facts("/retries/"))["todo"] if "later records" in each["text"]]
    assert [(each["text"], each["path"]) for each in todo] == [(text, "/retries/flights/pending") for text in said]
    assert f"later records wait for offset {partitions - 1}" in await site.page("/retries/flights/")


async def test_a_job_that_is_over_needs_no_action(site: Site, worker: FakeWorker) -> None:
    """However its parts have ended: why stays on its own page, under its own word."""
    (job,) = [part for part in worker.remembered[MAIN][0] if part.paused]
    job.state = PartState.ENDED
    todo = (await site.facts("/retries/"))["todo"]
    assert [each["text"] for each in todo if "job is paused" in each["text"]] == []
    page = await site.page(f"{BASE}/jobs/{job.job}")
    assert f"Ended: {job.paused}" in page


async def test_the_overview_says_first_what_needs_action(site: Site, worker: FakeWorker) -> None:
    """The worst first; nothing where all is well."""
    worker.parts["flights"] = [partition(0, paused="paused by ann", next_due_ms=NOW_MS - 100_000), partition(1)]
    todo = (await site.facts("/retries/"))["todo"]
    assert [each["text"].partition(":")[0] for each in todo] == [
        "nothing goes on at partition 4",
        "no worker is known for partition 3",
        "paused by ann (partition 0)",
        "replay job is paused",
        "the oldest waiting record is overdue 1 min 40 s",
        "135 dead, 122 of them",
        "replay job goes on",
    ]
    worker.parts["flights"][0] = replace(worker.parts["flights"][0], as_of_ms=NOW_MS - 200_000)
    todo = (await site.facts("/retries/"))["todo"]
    assert not any("the oldest waiting record" in each["text"] for each in todo), "it may have been delivered since"
    worker.infos = worker.infos[1:]
    worker.parts["flights"] = [partition(0), partition(1)]
    assert "Nothing. This worker is ready" in await site.page("/retries/")
