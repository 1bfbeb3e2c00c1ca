"""How `retryapp top` follows a group whose members come and go."""

from __future__ import annotations

from typing import Any

import pytest

from retryapp.cli import top
from retryapp.cli._options import Place
from retryapp.cli._target import Target
from retryapp.cli._workers import Workers
from retryapp.core.errors import BrokerUnreachableError, RetryAppError
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import AccessDeniedError, KafkaConnection

PLACE = Place(app_spec=None, broker="b:9092", group="billing", client_config=None, topic=None)
TARGET = Target(KafkaConnection("b:9092"), (HandlerTopology("billing", "orders", delays_ms=(1_000,)),))


class World:
    """A group: hosts of its members, or what asking for them raises, and addresses that answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hosts: list[str] | RetryAppError = []
        self.answering: set[str] = set()
        self.guarded: set[str] = set()
        self.looks = 0
        monkeypatch.setattr(top, "_hosts", self._hosts)
        monkeypatch.setattr(top, "resolve", lambda _place, **_: TARGET)
        monkeypatch.setattr(Workers, "_index", self._index)

    def _hosts(self, _target: Target) -> tuple[list[str], int]:
        self.looks += 1
        if isinstance(self.hosts, RetryAppError):
            raise self.hosts
        return self.hosts, len(self.hosts)

    async def _index(self, _session: object, url: str) -> dict[str, Any] | None:
        if url in self.guarded:
            self.workers.refused.append(url)
        if url not in self.answering:
            return None
        return {"group": "billing", "url": url, "handlers": [], "workers": [], "silent": [], "todo": []}

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


def test_hosts_are_looked_for_when_no_worker_answers_any_more(world: World) -> None:
    """Until then only those are asked that have answered: they say all of the group."""
    first, second = "http://10.0.0.1:6066", "http://10.0.0.2:6067"
    world.hosts, world.answering = ["10.0.0.1"], {first}
    watch = world.watch()
    assert (watch.look().note, world.workers.urls) == ("", [first])
    world.hosts = ["10.0.0.2"]
    assert (watch.look().workers, world.looks) == ([first], 1)
    world.answering = {second}
    assert (watch.look().workers, world.looks) == ([second], 2)


def test_pages_that_want_a_token_are_named_if_no_others_answer(world: World) -> None:
    first, second = "http://10.0.0.1:6066", "http://10.0.0.2:6066"
    world.hosts, world.guarded = ["10.0.0.1", "10.0.0.2"], {first, second}
    watch = world.watch()
    assert f"not let in by {first}, {second}: set RETRYAPP_TOKEN" in watch.look().note
    world.answering = {second}
    assert watch.look().note == ""


@pytest.mark.parametrize(
    "error", [BrokerUnreachableError("b:9092", "gone"), AccessDeniedError("describe group", "b:9092", "no")]
)
def test_hosts_stay_known_while_the_broker_is_silent(world: World, error: RetryAppError) -> None:
    world.hosts, world.answering = ["10.0.0.1"], {"http://10.0.0.1:6066"}
    watch = world.watch()
    assert watch.look().workers
    world.hosts, world.answering = error, set()
    assert "10.0.0.1, ports 6066 to 6074" in watch.look().note
    world.answering = {"http://10.0.0.1:6066"}
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
    assert not watch.look().workers
    world.answering = {given}
    assert (watch.look().workers, world.looks) == ([given], 0)
    world.answering = set()
    assert (watch.look().workers, world.workers.urls) == ((), [given])


async def test_a_main_topic_without_a_handler_is_said(world: World) -> None:
    """With --url nothing else knows which there are: a misspelt one was a group in which nothing happens."""
    world.answering = {"http://10.0.0.1:6066"}
    found = await Workers(None, ["http://10.0.0.1:6066"], only="oders")._ask(0)
    assert (found.handlers, found.note) == ([], "no handler of oders")


@pytest.mark.parametrize("facts", [None, [], ["x"], 7, "text", {"group": "billing", "url": None, "handlers": 7}])
async def test_what_is_no_page_of_a_worker_is_passed_over(monkeypatch: pytest.MonkeyPatch, facts: Any) -> None:
    """Another program has the port, and answers with JSON of its own."""

    async def answer(*_args: object) -> Any:
        return facts

    monkeypatch.setattr(Workers, "_json", answer)
    assert (await Workers("billing", ["http://10.0.0.1:6066"])._ask(0)).workers == ()
