"""Threads of the pages and metrics."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from retryapp.runtime.machine.threads import Daemons


def test_no_more_threads_than_it_may_have() -> None:
    """Calls that find none free wait, and one that was given up meanwhile is not begun."""
    go_on, began = threading.Event(), list[int]()

    def call(number: int) -> int:
        began.append(number)
        assert go_on.wait(60)
        return number

    threads = Daemons(2, "test")
    first, second, third, fourth = (threads.submit(call, number) for number in range(4))
    assert third.cancel()
    go_on.set()
    assert [each.result(60) for each in (first, second, fourth)] == [0, 1, 3]
    assert sorted(began) == [0, 1, 3]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a niceness for each thread")
def test_pages_come_after_records() -> None:
    """The thread of the event loop keeps its priority."""

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    assert Daemons(1, "test").submit(niceness).result(60) == min(19, before + 5)
    assert niceness() == before


def test_where_priorities_are_refused_pages_answer_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a filter of system calls."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "setpriority", refuse)
    assert Daemons(1, "test").submit(lambda: 7).result(60) == 7
