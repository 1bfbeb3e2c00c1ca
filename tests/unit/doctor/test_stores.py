"""Local stores: real ones are looked at and left exactly as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from retryapp.core.topology import HandlerTopology
from retryapp.doctor import stores
from retryapp.doctor.findings import Finding, Severity
from retryapp.doctor.stores import inspect_folders, judge_folders, judge_neighbours
from retryapp.kafka import TopicState
from retryapp.runtime import store as runtime_store
from retryapp.runtime.place import claim_place
from retryapp.runtime.store import FORMAT_VERSION, Store, StoreIdentity

ORDERS = HandlerTopology(group="g", main="orders")
NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


def state(name: str, topic_id: str = "abcd1234") -> TopicState:
    """A topic as the cluster has it."""
    return TopicState(name=name, topic_id=topic_id, partitions=2, replication=1, config={})


STATES = {name: state(name) for name in (ORDERS.pending_changelog, ORDERS.dlq)}


@contextmanager
def opened(
    worker: Path, *, table: str = "pending", topic_id: str = "abcd1234", used_ms: int = NOW_MS
) -> Iterator[Store]:
    """A store as a worker makes it."""
    topic = ORDERS.pending_changelog if table == "pending" else ORDERS.dlq
    identity = StoreIdentity(topic=topic, topic_id=topic_id, partition=0)
    store = Store(worker / "retryapp" / "g.orders" / table / "0", identity, now_ms=used_ms, max_age_ms=None)
    store.write(store.batch(), used_ms)
    try:
        yield store
    finally:
        store.close()


def judged(base: Path, **changes: object) -> list[Finding]:
    """Judge the folders below `base`."""
    known = {"topologies": [ORDERS], "states": STATES, "store_format": FORMAT_VERSION, "now_ms": NOW_MS, **changes}
    return list(judge_folders(inspect_folders(base), **known))  # type: ignore[arg-type]


def everything(folder: Path) -> dict[str, tuple[int, int]]:
    """Names, times and sizes of all files."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*") if path.is_file()}


def test_where_a_store_describes_itself_is_the_runtimes() -> None:
    """The doctor stands below the runtime, so it says the key again."""
    assert stores.META_KEY == runtime_store._META


def test_idle_stores_are_read_and_left_alone(tmp_path: Path) -> None:
    """No file changes, none comes."""
    with opened(tmp_path / "worker-1"), opened(tmp_path / "worker-1", table="dead"):
        pass
    before = everything(tmp_path)
    (found,) = judged(tmp_path)
    assert everything(tmp_path) == before
    assert found.severity is Severity.OK
    assert found.name == "store folder worker-1"
    assert "2 stores" in found.seen


def test_a_running_workers_folder_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock file names its process, and the process has it open."""

    def never(path: Path) -> None:
        raise AssertionError(f"opened {path}")

    monkeypatch.setattr(stores, "_read_meta", never)
    place = claim_place(tmp_path)
    try:
        with opened(place.path):
            before = everything(tmp_path)
            (found,) = judged(tmp_path)
            assert everything(tmp_path) == before
        assert found.severity is Severity.OK
        assert f"in use by process {os.getpid()}" in found.seen
    finally:
        place.release()
    assert stores.running_worker(place.path) is None, "the lock file stays, and names a process that has let go of it"


@pytest.mark.parametrize("text", ["", "no number", "4194999"])
def test_a_lock_file_of_nobody_is_no_worker(tmp_path: Path, text: str) -> None:
    """Empty, damaged, or of a process that is gone."""
    (tmp_path / "lock").write_text(text)
    assert stores.running_worker(tmp_path) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"store_format": FORMAT_VERSION + 1}, f"its format is {FORMAT_VERSION}"),
        (
            {"states": {ORDERS.pending_changelog: state(ORDERS.pending_changelog, "new00000")}},
            "a copy of another topic",
        ),
        ({"now_ms": NOW_MS + 13 * HOUR_MS}, "not used for 13h"),
    ],
)
def test_a_store_that_will_be_dropped_is_a_note(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    """It is a copy: nothing is lost, the next start is slower."""
    with opened(tmp_path / "worker-1"):
        pass
    (found,) = judged(tmp_path, **changes)
    assert found.severity is Severity.NOTE
    assert reason in found.seen
    assert "g.orders/pending/0" in found.seen


def test_dead_letter_stores_do_not_age(tmp_path: Path) -> None:
    """Their topic forgets no tombstones: it has none."""
    with opened(tmp_path / "worker-1", table="dead"):
        pass
    (found,) = judged(tmp_path, now_ms=NOW_MS + 100 * HOUR_MS)
    assert found.severity is Severity.OK


def test_a_damaged_store_is_a_note_with_the_stores_words(tmp_path: Path) -> None:
    """It is dropped at the next start."""
    with opened(tmp_path / "worker-1") as store:
        path = store.path
    (path / "CURRENT").write_text("nonsense")
    (found,) = judged(tmp_path)
    assert found.severity is Severity.NOTE
    assert "cannot be opened" in found.seen


def test_stores_of_another_handler_are_named(tmp_path: Path) -> None:
    """Unless nobody could be asked which handlers there are."""
    with opened(tmp_path / "worker-1"):
        pass
    other = HandlerTopology(group="g", main="cards")
    foreign, folder = judged(tmp_path, topologies=[other])
    assert foreign.severity is Severity.NOTE
    assert "belongs to no handler" in foreign.seen
    assert folder.severity is Severity.OK
    assert len(judged(tmp_path, topologies=[])) == 1


def test_a_folder_of_another_user_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker that takes it would not start."""
    (tmp_path / "worker-1").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    (found,) = judged(tmp_path)
    assert found.severity is Severity.PROBLEM
    assert str(tmp_path / "worker-1") in found.remedy


def test_no_folder_is_fine(tmp_path: Path) -> None:
    """They are copies."""
    (found,) = judged(tmp_path / "none")
    assert found.severity is Severity.OK


def test_folders_of_groups_without_topics_are_told(tmp_path: Path) -> None:
    """Not those of groups that are there, of running workers, or that are no stores."""
    for group in ("g", "old", "other", "running"):
        with opened(tmp_path / group / "worker-1"):
            pass
    (tmp_path / "notes" / "worker-1").mkdir(parents=True)
    topics = ["other.orders.pending.changelog", "old-and-new.orders.pending.changelog", "old.txt"]
    place = claim_place(tmp_path / "running")
    try:
        (found,) = judge_neighbours(tmp_path / "g", "g", topics)
    finally:
        place.release()
    assert (found.name, found.severity) == ("store folder old", Severity.NOTE)
    assert found.seen.startswith("1 store, ")
    assert found.remedy.endswith(str(tmp_path / "old"))
    assert list(judge_neighbours(tmp_path / "elsewhere", "g", topics)) == []
