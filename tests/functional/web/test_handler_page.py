"""The pages of a handler say how it is called, and why its records wait."""

from __future__ import annotations

from dataclasses import replace

from functional.web.house import NOW_MS, FakeWorker, Site

PAGE = "/retries/shop.orders/"


async def test_lists_and_topics_that_it_publishes_to(site: Site, worker: FakeWorker) -> None:
    _, _, plain = await site.get(PAGE)
    assert "<dt>Lists</dt>" not in plain
    assert "<dt>published</dt>" not in plain
    changes = {"batch": "up to 50 records", "publishes": ("receipts", "audit")}
    worker.infos = [replace(info, **changes) for info in worker.infos]
    _, _, page = await site.get(PAGE)
    assert "<dt>Lists</dt><dd>up to 50 records</dd>" in page
    for topic in ("receipts", "audit"):
        assert f"<dt>published</dt><dd><code>{topic}</code></dd>" in page


async def test_partitions_page_says_where_a_circuit_is_not_closed(site: Site, worker: FakeWorker) -> None:
    """Beside its lane, which is open all the same."""
    worker.parts["shop.orders"][0] = replace(worker.parts["shop.orders"][0], circuit="closed", circuit_since_ms=NOW_MS)
    assert "circuit" not in (await site.get(f"{PAGE}partitions"))[2]
    worker.parts["shop.orders"][0] = replace(worker.parts["shop.orders"][0], circuit="open", circuit_cause="8 of 9")
    _, _, page = await site.get(f"{PAGE}partitions")
    assert "circuit open since" in page
    assert "8 of 9" in page
