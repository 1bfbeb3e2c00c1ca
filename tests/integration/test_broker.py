"""A real Kafka: quick to start, on loopback only, kept data, and every way it can fail has a name."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
from harness import wait_for
from harness.brokers import running_broker, skip_without_broker
from one_broker import RunBroker

from retryapp.broker.kept import stop_kept_broker
from retryapp.broker.node import Broker, BrokerFailedError
from retryapp.broker.probe import broker_count, free_ports, port_is_free
from retryapp.core.errors import DiskFullError, PortTakenError

pytestmark = pytest.mark.broker


@pytest.fixture
def kept_data(tmp_path: Path) -> Iterator[Path]:
    """A data folder with a name as people give them; whatever runs on it is stopped."""
    yield tmp_path / "données, 2"
    stop_kept_broker(tmp_path / "données, 2")


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_it_listens_on_loopback_only(broker: RunBroker) -> None:
    """No development broker is reachable from another machine."""
    pid = broker.pid
    listening = {row.laddr.ip for row in psutil.Process(pid).net_connections("tcp") if row.status == psutil.CONN_LISTEN}
    assert {address.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


@pytest.mark.parametrize("seen", [True, pytest.param(False, marks=pytest.mark.extended)])
def test_a_taken_port_is_named(
    cache_dir: Path, kept_data: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """Before anything is started; if somebody was quicker, by Kafka's own message."""
    if not seen:
        monkeypatch.setattr("retryapp.broker.probe.port_is_free", lambda _: True)
    with skip_without_broker(), pytest.raises(PortTakenError, match=f"port {taken_port} .*--port"):
        Broker(cache_dir, data=kept_data, port=taken_port).start()


@pytest.mark.extended
def test_a_free_port_that_is_lost_is_replaced(
    cache_dir: Path, taken_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker without a port of its own takes another one."""
    answers = iter([[taken_port, *free_ports(1)], free_ports(2)])
    monkeypatch.setattr("retryapp.broker.probe.free_ports", lambda _: next(answers))
    with running_broker(cache_dir) as broker:
        assert broker.port != taken_port


@pytest.mark.extended
def test_a_refused_setting_is_named_with_the_log(cache_dir: Path, kept_data: Path) -> None:
    """The broker's own error stands in the message, and its log is named; wherever folder and jars are."""
    broker = Broker(Path(os.path.relpath(cache_dir)), data=kept_data, settings={"num.io.threads": "none"})
    with pytest.raises(BrokerFailedError, match=r"num\.io\.threads") as caught:
        broker.start()
    assert "num.io.threads" in Path(caught.value.log).read_text()


@pytest.mark.extended
def test_a_second_broker_on_one_folder_is_refused(cache_dir: Path, kept_data: Path) -> None:
    """Also when started without the command that notices it first; the one that runs goes on.

    Kafka finds out too late: its controller has written to the folder by then, and the one that runs ended of it.
    """
    first = Broker(cache_dir, data=kept_data)
    try:
        first.start()
        running = first.pid
        before = {path: path.read_bytes() for path in kept_data.glob("*.properties")}
        second = Broker(cache_dir, data=kept_data, log=kept_data / "second.log")
        with pytest.raises(BrokerFailedError, match="another one runs"):
            second.start()
        assert not second.log.exists(), "it was started all the same"
        assert {path: path.read_bytes() for path in kept_data.glob("*.properties")} == before
        wait_for(lambda: broker_count(first.port) == 1, "the first broker serves clients", every_s=0.2)
        assert first.pid == running, first.log.read_text()[-2_000:]
    finally:
        first.stop()


@pytest.mark.extended
def test_two_that_start_on_one_folder_at_once(cache_dir: Path, kept_data: Path) -> None:
    """One of them runs, whatever the other one does meanwhile."""
    both = [Broker(cache_dir, data=kept_data, log=kept_data / f"{number}.log") for number in range(2)]
    begin, refused = threading.Barrier(2), []

    def start(broker: Broker) -> None:
        begin.wait()
        try:
            broker.start()
        except BrokerFailedError as error:
            refused.append(str(error))

    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(start, both))
        assert len(refused) == 1
        assert "another one runs" in refused[0]
        (runs,) = (broker for broker in both if broker.pid is not None)
        wait_for(lambda: broker_count(runs.port) == 1, "it serves clients", every_s=0.2)
    finally:
        for broker in both:
            broker.stop()


def test_too_little_room_is_named(cache_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before the start: Kafka would end in mid-run."""

    class Usage(NamedTuple):
        free: int

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free=1_000_000))
    with skip_without_broker(), pytest.raises(DiskFullError, match="1000000 bytes free"):
        Broker(cache_dir, data=tmp_path / "data").start()


def test_free_ports_are_distinct_and_below_outgoing_ones() -> None:
    """A client cannot connect to itself on them."""
    ports = free_ports(5)
    assert len(set(ports)) == 5
    assert all(20_000 <= port < 32_000 and port_is_free(port) for port in ports)


def test_a_listener_that_is_no_kafka_counts_as_not_ready(taken_port: int) -> None:
    """It never answers; the question times out."""
    assert broker_count(taken_port, timeout_s=0.2) == 0
