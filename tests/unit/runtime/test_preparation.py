"""What refuses a start before anything is consumed or made."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import GenericAlias
from typing import Any, cast

import faust
import pytest

from retryapp import Retries
from retryapp.core.errors import (
    BrokerUnreachableError,
    DuplicateHandlerError,
    InvalidSettingError,
    MissingCodecError,
    RetryAppError,
    TopicMissingError,
)
from retryapp.kafka import AccessDeniedError, Plan, TopicState
from retryapp.runtime import preparation as module
from retryapp.runtime.app import Runtime
from retryapp.runtime.worker import runtime_of


class _Cluster:
    """The broker as the preparation asks it."""

    def __init__(self) -> None:
        self.answers_after = 0
        self.connection = None
        self.waiting: dict[str, int] = {}
        """Records that wait, by changelog."""
        self.denied: Collection[str] = ()
        """Topics that this login may not describe."""
        self.unreadable: Collection[str] = ()
        """Topics that it may not read."""
        self.made: list[Any] = []

    def topic_names(self) -> list[str]:
        if self.answers_after > 0:
            self.answers_after -= 1
            raise BrokerUnreachableError("127.0.0.1:1", "nobody listens")
        return []

    def describe(self, name: str) -> None:
        if name in self.denied:
            raise AccessDeniedError(f"describe topic {name}", "kafka:9092", "Authorization failed. Needed: Describe")
        if name not in self.waiting:
            raise TopicMissingError(name, "kafka:9092")

    def fold_changelog(self, _connection: Any, name: str, _convert: Any) -> list[None]:
        if name in self.unreadable:
            raise AccessDeniedError(f"read topic {name}", "kafka:9092", "Authorization failed")
        return [None] * self.waiting[name]

    def ensure_topics(self, _admin: Any, topologies: Any, _options: Any) -> Any:
        self.made.extend(topologies)
        raise _ReachedError


class _ReachedError(RetryAppError):
    """Nothing refused: topics would be made now."""


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> _Cluster:
    """A broker that is there, with nothing on it; pauses take no time."""
    made = _Cluster()
    monkeypatch.setattr(module, "KafkaAdmin", lambda *_, **__: made)
    monkeypatch.setattr(module, "ensure_topics", made.ensure_topics)
    monkeypatch.setattr(module, "fold_changelog", made.fold_changelog)
    monkeypatch.setattr(module.time, "sleep", lambda _s: None)
    return made


async def test_topics_are_made_when_nothing_refuses(runtime: Runtime, cluster: _Cluster) -> None:
    """Also after a wait for the broker."""
    cluster.answers_after = 2
    with pytest.raises(_ReachedError):
        runtime.prepare()
    assert [topology.main for topology in cluster.made] == ["orders"]


async def test_an_agent_on_a_topic_that_a_handler_reads_is_refused(runtime: Runtime, cluster: _Cluster) -> None:
    """One record has one fate in a group."""

    @runtime.app.agent(runtime.app.topic("orders"))
    async def mine(_stream: Any) -> None:
        """Read what a handler reads."""

    with pytest.raises(DuplicateHandlerError) as raised:
        runtime.prepare()
    assert raised.value.topic == "orders"
    assert raised.value.second.endswith("mine")
    assert cluster.made == []


async def test_a_value_type_that_names_what_is_nowhere_is_refused(runtime: Runtime, cluster: _Cluster) -> None:
    """No record of the handler could be decoded."""

    async def handle(_value: object) -> None:
        """Never called."""

    retries = cast("Any", runtime.app)._retryapp_retries
    retries.handler("returns", value=GenericAlias(list, ("Nowhere",)), policy="1s")(handle)
    with pytest.raises(InvalidSettingError, match=r"'Nowhere' is not defined, so handler .*handle cannot decode"):
        runtime.prepare()
    assert cluster.made == []


async def test_a_version_that_would_strand_records_is_refused(runtime: Runtime, cluster: _Cluster) -> None:
    """It renames the group, so all our topics: what waits under the old names would never come back."""
    runtime.app.conf.version, runtime.app.conf._id = 3, "app-v3"
    cluster.waiting = {"app.orders.pending.changelog": 0, "app-v2.orders.pending.changelog": 7}
    with pytest.raises(InvalidSettingError, match="7 records of version 2 still wait in app-v2"):
        runtime.prepare()
    assert cluster.made == []


async def test_dead_letters_that_wait_are_stranded_by_a_version_too(cluster: _Cluster, tmp_path: Path) -> None:
    """`version=` renames the topic that their handler reads; its old name was not looked at."""
    app = faust.App("app", version=2, broker="kafka://127.0.0.1:1", store="memory://", datadir=str(tmp_path))
    retries = Retries(app)
    retries.handler("orders", policy="1s")(lambda _value: None)
    retries.dead_letters("orders", policy="1s")(lambda _value: None)
    changelog = "app.app.orders.dlq.pending.changelog"
    cluster.waiting = {changelog: 7}
    with pytest.raises(InvalidSettingError, match=f"7 records of version 1 still wait in {changelog}"):
        cast("Runtime", runtime_of(app)).prepare()
    assert cluster.made == []


@pytest.mark.parametrize("hidden", ["denied", "unreadable"])
async def test_an_older_version_that_this_login_may_not_see_is_named_with_the_right(
    runtime: Runtime, cluster: _Cluster, hidden: str
) -> None:
    """What the plan prints is of the present version: following it would change nothing."""
    runtime.app.conf.version, runtime.app.conf._id = 2, "app-v2"
    changelog = "app.orders.pending.changelog"
    cluster.waiting = {changelog: 0}
    setattr(cluster, hidden, {changelog})
    with pytest.raises(
        AccessDeniedError, match=f"records of version 1 still wait in {changelog} .* Grant .* Describe and Read on that"
    ):
        runtime.prepare()
    assert cluster.made == []


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_worker_that_could_not_read_what_is_written_does_not_start(
    runtime: Runtime, cluster: _Cluster, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    """Its partitions would stop at the first such batch, whoever had written it."""
    monkeypatch.setattr(f"aiokafka.codec.has_{codec}", lambda: False)
    with pytest.raises(MissingCodecError, match=codec):
        runtime.prepare()
    assert cluster.made == []


async def test_the_smallest_of_our_topics_decides_what_fits(runtime: Runtime) -> None:
    """A record goes through all of them, and an operator may have raised the limit of one."""
    served = runtime.served["orders"]
    sizes = dict.fromkeys(served.handler.topology.owned, 2000000) | {served.handler.topology.events: 1_100_000}
    states = {topic: TopicState(topic, "x" * 8, 4, 3, {"max.message.bytes": str(n)}) for topic, n in sizes.items()}
    states["orders"] = TopicState("orders", "y" * 8, 4, 3, {"max.message.bytes": "1000000"})
    module._learn(served, Plan((), 3, "kafka:9092", states))
    assert (served.partitions, served.max_bytes) == (4, 1_100_000)
