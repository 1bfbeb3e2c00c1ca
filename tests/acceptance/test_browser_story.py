"""An operator at a real browser puts right what failed: found, previewed, replayed, watched, paused, resumed."""

from __future__ import annotations

import re
import socket
import threading
from collections import defaultdict

import pytest
from harness import Answer, HandlerSpec, Stage, wait_for
from harness.browser import open_browser

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended, pytest.mark.timeout(300)]
OF_LEDGER, PARTITIONS, RECORDS = 700, 3, 2_000
SLOW_MS = 20_000
BY_STATUS = """
_call = call_service


async def call_service(*facts):
    try:
        await _call(*facts)
    except ServiceError as error:
        raise ServiceError(f"HTTP {error}") from None
"""
"""More of the program: statuses are different causes."""


def test_an_operator_puts_right_what_failed(stage: Stage) -> None:
    """2,000 fail of three causes; one service is mended, its 700 letters are replayed, each once; one is edited."""
    with open_browser() as browser:
        topic, mended = stage.main_topic(partitions=PARTITIONS), threading.Event()
        stage.program(HandlerSpec(topic=topic, policy="50ms"), code=BY_STATUS)

        def rule(facts: dict[str, int]) -> Answer:
            if facts["id"] < OF_LEDGER:
                return Answer(200 if mended.is_set() else 503)
            return Answer(500 if facts["id"] % 2 else 422)

        stage.service.rule = lambda visit: rule(visit.facts)
        stage.produce(topic, [{"id": n} for n in range(RECORDS)], PARTITIONS)
        stage.produce(topic, [{"id": RECORDS + n, "waits": "1h"} for n in range(2)], PARTITIONS)
        workers = [stage.worker(f"worker{n}", env={"RETRYAPP_WEB_OPERATORS": "local"}) for n in (1, 2)]
        evidence = stage.evidence(topic)
        wait_for(lambda: len(evidence.records(evidence.topology.dlq)) == RECORDS, "all are dead", timeout_s=120)
        wait_for(lambda: evidence.waiting() == 2, "two wait")
        mended.set()

        page = browser.new_page()
        page.set_default_timeout(SLOW_MS)
        page.goto(workers[0].url + "/")
        assert page.url.endswith("/retries/"), "the root leads to the overview"
        page.get_by_role("region", name="Handlers").get_by_role("link", name=topic).click()
        cause = page.get_by_role("row").filter(has_text="503 from the service")
        assert f"{OF_LEDGER}" in cause.inner_text(), "of both workers"
        cause.get_by_role("link", name="Replay these…").click()
        page.get_by_role("heading", name=f"Replay {OF_LEDGER} dead letters?").wait_for()
        page.get_by_label("Why, for the audit").fill("ledger is back")
        page.get_by_label("At most, for the whole job").fill("100/s")
        page.get_by_role("button", name=f"Replay {OF_LEDGER}").click()

        job = page.url
        done = page.locator(".figures b").first
        wait_for(lambda: int(done.inner_text().split()[0]) >= 50, "it goes on by itself", timeout_s=60)
        page.get_by_label("Why, for the audit").fill("lunch")
        page.get_by_role("button", name="Pause").click()
        page.get_by_text("Paused: lunch.").wait_for()
        wait_for(lambda: evidence.waiting() == 2, "what was replayed is done", timeout_s=60)
        paused = int(done.inner_text().split()[0])
        assert 50 <= paused < OF_LEDGER
        page.get_by_label("Why, for the audit").fill("lunch is over")
        page.get_by_role("button", name="Resume").click()
        page.locator("h1 + p .state.ended").wait_for(timeout=60_000)
        assert page.url == job
        assert done.inner_text() == f"{OF_LEDGER} of {OF_LEDGER}"
        wait_for(lambda: evidence.waiting() == 2, "all replays are done", timeout_s=60)

        def again() -> str:
            page.reload()
            return page.get_by_role("listitem").filter(has_text="failed again at their first attempt").inner_text()

        wait_for(lambda: again().startswith(f"0 of {OF_LEDGER}"), "both workers have seen all of theirs")

        name = next(visit.failure_id for visit in stage.service.visits if visit.replays)
        page.goto(f"{workers[0].url}/retries/{topic}/")
        page.get_by_label("Failure id").fill(name)
        page.get_by_role("button", name="Find").click()
        page.get_by_role("heading", name="Journey of").wait_for()
        shown = page.get_by_role("row").locator(".state").all_inner_texts()
        assert shown == ["failed", "dead", "replayed", "succeeded", "recovered"], "a recovered record is found, too"
        assert page.get_by_text("HTTP 503 from the service").count() == 2
        ran = page.get_by_text(f"on {socket.gethostname()}/worker-").all_inner_texts()
        assert len(ran) == 3, "the failed attempt, as waiting and as dead, and the one that succeeded"
        assert page.get_by_role("row").filter(has_text="replay 1,").count() == 1, "the one that succeeded"
        page.get_by_role("link", name=job.rpartition("/")[2]).first.click()
        assert page.url == job, "a record leads to the job that has replayed it"
        page.goto(f"{job.rpartition('/jobs/')[0]}/audit")
        said = page.get_by_role("region", name="Commands").get_by_role("row").all_inner_texts()
        assert [sum(verb in row for row in said) for verb in ("job-start", "job-pause", "job-resume")] == [1, 1, 1]
        assert any("lunch is over" in row for row in said)

        page.goto(f"{workers[0].url}/retries/{topic}/dead")
        page.get_by_role("row").get_by_role("link").filter(has_text=f"{topic}@").first.click()
        edit = page.locator("details").filter(has_text="Edit and replay")
        edit.locator("summary").click()
        edit.locator("[name=value]").fill(f'{{"id": {OF_LEDGER - 1}}}')
        edit.get_by_label("the same: a service").check()
        edit.get_by_label("Why, for the audit").fill("its id was mistyped")
        edit.get_by_role("button", name="Replay with these changes").click()
        page.get_by_role("heading", name="replay: done").wait_for()
        wait_for(lambda: evidence.waiting() == 2, "the edited record is done")
        edited = stage.service.visits[-1]
        assert (edited.facts["id"], edited.replays) == (OF_LEDGER - 1, 1)
        assert edited.failure_id != name

        page.goto(f"{workers[0].url}/retries/{topic}/pending")
        names = [link.inner_text() for link in page.get_by_role("row").get_by_role("link").filter(has_text="/").all()]
        for name, verb in zip(sorted(names), ("Cancel", "Reschedule"), strict=True):
            page.goto(f"{workers[0].url}/retries/{topic}/find?id={name}")
            page.get_by_label("Why, for the audit").fill("test data")
            if verb == "Reschedule":
                page.get_by_label("When, for reschedule").fill("2h")
            page.get_by_role("button", name=re.compile(verb)).click()
            page.get_by_role("heading", name=f"{verb.lower()}: done").wait_for()
        wait_for(lambda: evidence.waiting() == 1, "one is cancelled, and one waits on")
        assert [worker.stop() for worker in workers] == [0, 0]

    keys, taken = defaultdict(set), defaultdict(int)
    for visit in stage.service.visits:
        keys[visit.failure_id].add(visit.idempotency_key)
        taken[visit.failure_id] += stage.service.finished.get(visit.number) == 200
    assert sum(taken.values()) == OF_LEDGER + 1
    assert max(taken.values()) == 1, "none twice, by the service's own log"
    assert all(len(each) == 1 for each in keys.values()), "a replay has the key of the first attempt"
    total = evidence.balance()
    assert (total.received, total.done, total.dead, total.pending, total.lost) == (2_002, 701, 1_300, 1, 0)
