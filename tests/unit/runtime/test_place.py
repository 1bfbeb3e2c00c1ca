"""A folder and a port of one's own among workers that start at once."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from retryapp.core.errors import DiskFullError, InvalidSettingError, PortTakenError, StoreBrokenError
from retryapp.runtime.machine.place import claim_place, free_port

CHOOSE = """
import sys
from retryapp.runtime.machine.place import free_port
print(free_port("127.0.0.1", int(sys.argv[1])), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def first() -> int:
    """A port that was free a moment ago, with room above it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return min(int(server.getsockname()[1]), 65_000)


def test_processes_that_look_before_they_listen_choose_different_ports(first: int) -> None:
    """None of them listens yet; a port is free again when the process that chose it has ended."""
    command = [sys.executable, "-c", CHOOSE, str(first)]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    chosen = []
    for process in processes:
        assert process.stdout is not None
        chosen.append(int(process.stdout.readline()))
    assert len(set(chosen)) == 3
    for process in processes:
        process.communicate()
    assert free_port("127.0.0.1", min(chosen)) == min(chosen)


def test_a_port_that_someone_listens_on_is_passed_over(first: int) -> None:
    """Also by a program that is no worker."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = int(server.getsockname()[1])
        with pytest.raises(PortTakenError, match=f"port {taken} .*set RETRYAPP_METRICS_PORT"):
            free_port("127.0.0.1", taken, attempts=1, setting="RETRYAPP_METRICS_PORT")
    assert free_port("127.0.0.1", taken, attempts=1) == taken


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"], ids=["another machine's", "unknown name"])
def test_an_address_that_is_not_of_this_machine_is_named(host: str) -> None:
    """Its ports are not in use, and no other port helps."""
    with pytest.raises(InvalidSettingError, match=rf"RETRYAPP_WEB_BIND or web_bind=.?{host}.* address of this"):
        free_port(host, 7_000)


def test_a_port_that_only_root_may_listen_on_is_named_with_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else has it, and the setting of another port does not help."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(InvalidSettingError, match=r"RETRYAPP_METRICS_PORT.*=80: .* may not listen .* below 1024"):
        free_port("127.0.0.1", 80, setting="RETRYAPP_METRICS_PORT or --metrics-port")


def test_too_many_open_files_are_no_wrong_address(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is right, and another one does not help."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("retryapp.runtime.machine.place.socket.socket", refuse)
    with pytest.raises(OSError, match="Too many open files"):
        free_port("127.0.0.1", first)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_folder_without_room_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Also where it is the user's quota that is used up: no right is missing."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DiskFullError, match=os.strerror(code)):
        claim_place(tmp_path)


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other worker has the folder, and there is none to stop."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(StoreBrokenError, match=r"No locks available.*lock files there"):
        claim_place(tmp_path)
