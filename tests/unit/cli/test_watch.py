"""How `retryapp top` follows a group whose members come and go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from retryapp.cli import top
from retryapp.cli._options import Place
from retryapp.cli._target import Target
from retryapp.cli._workers import Workers, _Worker
from retryapp.core.errors import BrokerUnreachableError, RetryAppError
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import AccessDeniedError, KafkaConnection

PLACE = Place(app_spec=None, broker="b:9092", group="billing", client_config=None, topic=None)
TARGET = Target(KafkaConnection("b:9092"), (HandlerTopology("billing", "orders", delays_ms=(1_000,)),))


class World:
    """A group and a clock: hosts of its members, or what asking for them raises, and addresses that answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[str] | RetryAppError = []
        self.answering: set[str] = set()
        self.guarded: set[str] = set()
        self.now_s = 1_000.0
        self.looks = 0
        monkeypatch.setattr(top, "_hosts", self._hosts)
        monkeypatch.setattr(top, "resolve", lambda _place, **_: TARGET)
        monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        monkeypatch.setattr(Workers, "_worker", self._worker)

    def _hosts(self, _target: Target) -> tuple[list[str], int]:
        self.looks += 1
        if isinstance(self.hosts, RetryAppError):
            raise self.hosts
        return self.hosts, len(self.hosts)

    async def _worker(self, _session: object, url: str) -> _Worker | None:
        if url in self.guarded:
            self.workers.refused.add(url)
        if url not in self.answering:
            return None
        return _Worker(url, url, {"group": "billing", "handlers": [], "workers": []})

    def watch(self, *urls: str) -> top._Watch:
        watch = top._Watch(PLACE, urls)
        self.workers = watch._workers
        return watch


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_members_that_come_later_are_found(world: World) -> None:
    """It was opened before the workers ran, and said "no running members" for ever."""
    watch = world.watch()
    assert watch.look().note == "the group has no running members"
    world.hosts, world.answering = ["10.0.0.1"], {"http://10.0.0.1:6066"}
    found = watch.look()
    assert (found.workers, found.note) == (["http://10.0.0.1:6066"], "")


def test_members_that_are_gone_are_forgotten(world: World) -> None:
    """Neither their pages are missed nor their addresses asked, or named; hosts are looked for each 10 s."""
    first, second = "http://10.0.0.1:6066", "http://10.0.0.2:6066"
    world.hosts, world.answering, world.guarded = ["10.0.0.1", "10.0.0.2"], {first}, {second}
    watch = world.watch()
    assert "not let in by http://10.0.0.2:6066" in watch.look().note
    world.hosts, world.guarded = ["10.0.0.1"], set()
    world.now_s += 9
    assert "no pages of 1 of 2 members" in watch.look().note
    world.now_s += 2
    assert (watch.look().note, world.looks) == ("", 2)
    assert second not in world.workers.urls


@pytest.mark.parametrize(
    "error", [BrokerUnreachableError("b:9092", "gone"), AccessDeniedError("describe group", "b:9092", "no")]
)
def test_hosts_stay_known_while_the_broker_is_silent(world: World, error: RetryAppError) -> None:
    world.hosts, world.answering = ["10.0.0.1"], {"http://10.0.0.1:6066"}
    watch = world.watch()
    assert watch.look().workers
    world.hosts = error
    world.now_s += 11
    assert (watch.look().workers, world.looks) == (["http://10.0.0.1:6066"], 2)


def test_what_keeps_it_from_looking_is_said(world: World) -> None:
    """Where there is no broker, the workers may be on this machine. A refusal was told as a group without members."""
    world.hosts = AccessDeniedError("describe group billing", "b:9092", "no")
    with pytest.raises(AccessDeniedError):
        world.watch().look()
    world.hosts = BrokerUnreachableError("b:9092", "gone")
    assert "no worker's pages answer at 127.0.0.1, ports 6066 to 6073" in world.watch().look().note


def test_addresses_that_were_given_are_asked_for_ever(world: World) -> None:
    """And no broker is asked."""
    given = "http://10.0.0.1:6066"
    watch = world.watch(given)
    assert watch.look().workers == []
    world.answering = {given}
    assert (watch.look().workers, world.looks) == ([given], 0)
    world.answering = set()
    assert (watch.look().workers, world.workers.urls) == ([], [given])


@pytest.mark.parametrize("facts", [None, [], ["x"], 7, "text", {"group": "billing", "url": None, "handlers": 7}])
async def test_what_is_no_page_of_a_worker_is_passed_over(monkeypatch: pytest.MonkeyPatch, facts: Any) -> None:
    """Another program has the port, and answers with JSON of its own."""

    async def answer(*_args: object) -> Any:
        return facts

    monkeypatch.setattr("retryapp.cli._workers._json", answer)
    session: Any = None
    assert await Workers("billing", [])._worker(session, "http://10.0.0.1:6066") is None
