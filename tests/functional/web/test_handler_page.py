"""The pages of a handler say how it is called, and why its records wait."""

from __future__ import annotations

import re
from dataclasses import replace
from unittest.mock import Mock

import pytest
from functional.web.server import Site, words
from functional.web.worker import BASE, NOW_MS, FakeWorker
from samples import partition

from retryapp.core.errors import RetryAppError
from retryapp.ports import CircuitInfo


async def test_lists_and_topics_that_it_publishes_to(site: Site, worker: FakeWorker) -> None:
    plain = await site.page(f"{BASE}/")
    assert "<dt>Lists</dt>" not in plain
    assert "<dt>published</dt>" not in plain
    changes = {"batch": "up to 50 records", "publishes": ("receipts", "audit")}
    worker.infos = [replace(info, **changes) for info in worker.infos]
    page = await site.page(f"{BASE}/")
    assert "<dt>Lists</dt><dd>up to 50 records</dd>" in page
    for topic in ("receipts", "audit"):
        assert f"<dt>published</dt><dd><code>{topic}</code></dd>" in page


async def test_what_has_no_cause_is_counted_where_causes_are_known(site: Site, worker: FakeWorker) -> None:
    """Of a partition that is not open they are not; its records may have run."""
    known = sum(each["records"] for each in (await site.facts(f"{BASE}/"))["waiting_causes"])
    worker.parts["shop.orders"] = [partition(0, pending=known + 3), partition(1, state="opening", pending=40)]
    assert "; 3 more have none" in await site.page(f"{BASE}/")
    worker.parts["shop.orders"][0] = partition(0, pending=known)
    assert "more have none" not in await site.page(f"{BASE}/")


async def test_each_pause_is_told_with_its_partitions(site: Site, worker: FakeWorker) -> None:
    """A rule has paused one before somebody paused all: who pauses the others was not said."""
    texts = "paused by rule 1, pause", *["paused by ann: lunch"] * 2
    worker.parts["shop.orders"] = [partition(number, paused=text) for number, text in enumerate(texts)]
    page = await site.page(f"{BASE}/")
    assert "Paused by rule 1, pause. Nothing is delivered on partition 0" in page
    assert "Paused by ann: lunch. Nothing is delivered on partitions 1, 2" in page


async def test_the_number_of_the_dead_names_the_partitions_that_it_lacks(site: Site, worker: FakeWorker) -> None:
    """They are not known until their topic is read; it looked as if there were no more, or as if fewer waited."""
    worker.parts["shop.orders"] = [partition(0, pending=64, dead=131), partition(1, pending=2, dead=None)]
    for path in ("/retries/", f"{BASE}/"):
        page = await site.page(path)
        said = [re.search(rf">{number}</a>(.*without partition 1)?", page) for number in (131, 66)]
        assert [each and bool(each[1]) for each in said] == [True, False], path


async def test_handler_page_counts_what_becomes_due(site: Site) -> None:
    """60 records are due every 4 s from 1.2 s on, one is overdue, one is due in exactly an hour: exact numbers."""
    due = (await site.facts(f"{BASE}/"))["due"]
    assert due == {
        "overdue": {"count": 1, "more": False},
        "minute": {"count": 15, "more": False},
        "hour": {"count": 60, "more": False},
        "day": {"count": 61, "more": False},
    }


async def test_a_count_that_failed_is_unknown_on_a_page_that_is_shown(
    site: Site, worker: FakeWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lane closed its table while it was read: the whole page was a 503, for the 5 s that a count is kept.

    So was that of the partitions, and other workers' pages said that this one gives no answer.
    """
    monkeypatch.setattr(worker, "due_times", Mock(side_effect=RetryAppError("the table is closed")))
    handler = await site.facts(f"{BASE}/")
    assert handler["due"]["overdue"] == {"count": None, "more": False}
    assert handler["due_left_out"] == [each["partition"] for each in handler["everywhere"]]
    page = await site.page(f"{BASE}/")
    for said in ("<b>unknown</b><span>overdue</span>", "is not in these numbers", ">135</a>"):
        assert said in page
    assert (await site.facts(f"/retries/part/{BASE.rpartition('/')[2]}/due"))["partitions"] == []
    lanes = (await site.facts(f"{BASE}/partitions"))["partitions"]
    assert [(each["due"], each["main_lag"]) for each in lanes[:2]] == [(None, 12), (None, 0)]


async def test_a_circuit_that_is_not_closed_is_shown_with_its_cause(site: Site, worker: FakeWorker) -> None:
    """Where it is and since when; one that is closed is no news."""
    cause = {"circuit_since_ms": NOW_MS - 60_000, "circuit_cause": "9 of 20 records failed: <E>"}
    worker.parts["shop.orders"][:2] = [partition(0, circuit="open", **cause), partition(1, circuit="closed")]
    for path in (f"{BASE}/", f"{BASE}/partitions"):
        page = await site.page(path)
        assert "circuit open since" in page
        assert "9 of 20 records failed: &lt;E&gt;" in page
        assert "circuit closed" not in page
    assert "circuit open at partition 0: 9 of 20 records failed: &lt;E&gt;" in await site.page("/retries/")
    ledger = {"ledger": CircuitInfo(state="half-open", since_ms=NOW_MS - 60_000, cause="4 of 4: <E>")}
    worker.parts["shop.orders"][:2] = [partition(0, circuits=ledger), partition(1)]
    page, index = await site.page(f"{BASE}/"), await site.page("/retries/")
    assert "circuit ledger half-open since" in page
    assert "4 of 4: &lt;E&gt;" in page
    assert "circuit ledger half-open at partition 0: 4 of 4: &lt;E&gt;" in index


async def test_a_service_whose_circuit_somebody_has_forced_open_is_said_first(site: Site, worker: FakeWorker) -> None:
    """It was said of a handler's own circuit only: that of a service was words in a table of partitions."""
    forced = {"ledger": CircuitInfo(state="forced-open", since_ms=NOW_MS - 60_000, cause="forced open by ann: <mends>")}
    closed = {"ledger": CircuitInfo(state="closed", since_ms=NOW_MS, cause="")}
    worker.parts["shop.orders"][:3] = [partition(n, circuits=forced if n else closed) for n in range(3)]
    page = await site.page(f"{BASE}/")
    said = "The circuit ledger is forced open by ann: &lt;mends&gt; (1 min ago). What waits for it does not begin on "
    assert f"{said}partitions 1, 2" in page
    worker.parts["shop.orders"][:3] = [partition(n, circuits=closed) for n in range(3)]
    assert "What waits for it" not in await site.page(f"{BASE}/")


async def test_a_dead_record_that_stops_its_sequence_is_no_waiting_one(site: Site, worker: FakeWorker) -> None:
    """It counted twice, as waiting and as dead; its list has it, and so that list's total does."""
    assert "sequences stopped" not in await site.page(f"{BASE}/")
    worker.parts["shop.orders"] = [partition(n, pending=2, stopped=25, dead=25) for n in range(2)]
    group = (await site.facts(f"{BASE}/"))["handler"]["group"]
    assert (group["pending"], group["stopped"], group["dead"]) == (4, 50, 50)
    assert "50 sequences stopped behind dead records" in words(await site.page(f"{BASE}/"))
    assert (await site.facts(f"{BASE}/pending"))["total"] == 54
    assert (await site.facts(f"{BASE}/pending?cause=c1-0000000000"))["total"] is None, "the causes leave them out"


async def test_the_audit_says_which_part_of_a_job_has_ended(site: Site) -> None:
    """A job of four partitions had ended four times, each time with other numbers."""
    page = words(await site.page(f"{BASE}/audit"))
    assert "job-end job 0ld0ld0ld0 on partition 0" in page
    assert "job-start job 3f9ca81b02 a sentence" in page, "a command to all is about the job"
