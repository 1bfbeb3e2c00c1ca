"""Lists of one worker's pages are those of the whole group: each record once, in the one order."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from functional.web.server import serving
from functional.web.test_group import dead_and_waiting, facts, page, pair
from functional.web.worker import BASE, MAIN, FakeWorker, handler, metadata
from samples import partition

from retryapp.core.row_keys import in_queue, queue_of
from retryapp.web import peers


async def walk(url: str, path: str) -> list[int]:
    """Return the offsets of a list, page by page: of records that wait, of first deliveries."""
    found: list[int] = []
    while path:
        listed = json.loads(await page(url, path))
        assert len(listed["records"]) <= listed["limit"]
        assert listed["first"] == 1 + len(found)
        name = "offset" if "/dead?" in path else "origin_offset"
        found += [each[name] for each in listed["records"]]
        path = listed["next"]
    return found


@pytest.mark.parametrize("scan", [2_000, 3], ids=["", "few rows a page"])
@pytest.mark.parametrize("limit", [1, 4, 50])
async def test_lists_are_those_of_all_workers(monkeypatch: pytest.MonkeyPatch, scan: int, limit: int) -> None:
    """Each record once, in the one order, over pages of any size, whichever worker is asked."""
    monkeypatch.setattr("retryapp.web.lists.SCAN_ROWS", scan)
    left, right = dead_and_waiting(range(0, 20, 2), 0), dead_and_waiting(range(1, 30, 2), 1)
    offsets = [*range(20), *range(21, 30, 2)]
    ours, theirs = partition(0, pending=10, dead=10), partition(1, pending=15, dead=15)
    async with pair(left, ours, right, theirs) as (one, two):
        for url in (one, two):
            for path, expected in {
                "dead?": offsets[::-1],
                "pending?": offsets,
                "dead?partition=1": [*range(29, 0, -2)],
                "pending?partition=1": [*range(1, 30, 2)],
                "dead?key=k7": [7],
                "pending?key=k7": [7],
                "dead?since=1m": offsets[::-1],
                "dead?until=1m": [],
            }.items():
                assert await walk(url, f"{BASE}/{path}&format=json&limit={limit}") == expected, path
        if scan > limit:
            assert f"1-{min(limit, 25)} of 25" in await page(one, f"{BASE}/dead?limit={limit}")


@pytest.mark.parametrize(
    ("kind", "theirs", "limits"),
    [
        ("pending", range(1, 200, 2), ["72"]),
        ("pending", range(100), ["72", "100"]),
        ("dead", range(1, 200, 2), ["72"]),
        ("dead", range(100, 200), ["72", "100"]),
    ],
)
async def test_a_worker_lists_its_share_of_a_page_and_is_asked_again_if_it_has_more(
    monkeypatch: pytest.MonkeyPatch, kind: str, theirs: range, limits: list[str]
) -> None:
    """Each listed a whole page: with ten workers, nine tenths of their work were thrown away."""
    left, right = dead_and_waiting(sorted({*range(200)} - {*theirs}), 0), dead_and_waiting(theirs, 1)
    asked, get = list[str](), peers.Peers._get

    async def noted(self: peers.Peers, url: str, path: str) -> bytes | None:
        asked.extend(parse_qs(urlsplit(path).query).get("limit", []))
        return await get(self, url, path)

    monkeypatch.setattr(peers.Peers, "_get", noted)
    async with pair(left, partition(0, pending=100), right, partition(1, pending=100)) as (one, _):
        listed = await facts(one, f"{BASE}/{kind}?limit=100")
    wanted = [*range(100)] if kind == "pending" else [*range(199, 99, -1)]
    name = "origin_offset" if kind == "pending" else "offset"
    assert ([each[name] for each in listed["records"]], listed["partitions_left_out"]) == (wanted, [])
    assert asked == limits


async def test_waiting_records_are_listed_by_due_time_whatever_circuit_they_wait_for() -> None:
    """Those of a circuit have keys of their own, which sort elsewhere."""
    left, right = dead_and_waiting(range(0, 12, 2), 0), dead_and_waiting(range(1, 12, 2), 1)
    for worker in (left, right):
        worker.waiting[::2] = [
            replace(each, key=in_queue(each.key, queue_of("ledger"))) for each in worker.waiting[::2]
        ]
    async with pair(left, partition(0, pending=6), right, partition(1, pending=6)) as (one, _):
        for limit in (1, 2, 50):
            assert await walk(one, f"{BASE}/pending?format=json&limit={limit}") == [*range(12)]


async def test_a_page_of_the_longest_messages_comes_from_another_worker() -> None:
    """In JSON each of their letters is six or twelve bytes."""
    left, right = FakeWorker(infos=[handler(partitions=1)]), FakeWorker(infos=[handler(partitions=1)])
    for offset in range(500):
        right.wait(metadata(offset, error_message="\N{GRINNING FACE}" * 400), key=None, value=b"{}")
    async with serving(left) as one, serving(right) as two:
        left.parts[MAIN] = [partition(0, state="elsewhere", owner_url=two)]
        right.parts[MAIN] = [partition(0, pending=500)]
        listed = await facts(one, f"{BASE}/pending?limit=500")
        assert (len(listed["records"]), listed["partitions_left_out"]) == (500, [])


@pytest.mark.parametrize("kind", ["dead", "pending"])
async def test_lists_while_partitions_move_double_nothing_and_name_what_is_missing(kind: str) -> None:
    """A worker that has joined or comes back has other partitions than the asked one knows of."""
    left, right = dead_and_waiting(range(4), 0), dead_and_waiting(range(4), 0)
    both_have = partition(0, pending=4, dead=4)
    async with pair(left, both_have, right, both_have) as (one, _):
        listed = await facts(one, f"{BASE}/{kind}")
        assert sorted(each["offset"] if kind == "dead" else each["origin_offset"] for each in listed["records"]) == [
            *range(4)
        ]
        assert (listed["partitions_left_out"], listed["silent"]) == ([1], [])


async def test_letters_that_lie_there_no_more_are_shown_if_asked_for() -> None:
    """A list is of what can be put right; the others are in it with what became of them."""
    worker = dead_and_waiting(range(40), 0)
    worker.parts[MAIN] = [partition(0, dead=10), partition(1)]
    worker.letters[0] = [replace(row, mark="recovered") if row.offset % 4 else row for row in worker.letters[0]]
    async with serving(worker) as url:
        assert await walk(url, f"{BASE}/dead?format=json&limit=3") == [*range(36, -1, -4)]
        assert await walk(url, f"{BASE}/dead?format=json&limit=30&marked=1") == [*range(39, -1, -1)]
