"""The log has a line for each command, once what came of it is durable."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from doubles import CONTROL, about, post, serving
from test_commands import FIRST, Calls
from test_jobs import begin, with_letters

from retryapp.core.control import Verb
from retryapp.core.jobs import HandlerCommand, HandlerVerb
from retryapp.testing import MemoryPartition
from retryapp.testing.lane import Step


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "retryapp.command"):
        yield


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "retryapp.command"]


async def test_a_command_has_a_line_with_who_why_and_what_came_of_it(caplog: pytest.LogCaptureFixture) -> None:
    """Obeyed or refused; with states before and after it as fields; nothing in it forges another line."""
    async with serving(Calls(), "1h*3", b"a secret", key=b"a key") as (orders, _):
        done = await orders.command("cancel", 0, by="ann", why="mended\nERROR \x1b[31m all is lost")
        await orders.command("cancel", 0, by="bob")
        await orders.obey(HandlerCommand(id="p", verb=HandlerVerb.PAUSE, by="ann", why="ledger migrates"))
    why = r"'mended\nERROR \x1b[31m all is lost'"
    assert lines(caplog) == [
        f"retryapp.command: cancel '{FIRST}' on orders[0] by 'ann', {why}: 'it is dead, and not tried again'",
        f"retryapp.command: cancel '{FIRST}' on orders[0] by 'bob', '': refused, not-waiting: "
        "'it does not wait: it is done, dead, or not tried yet'",
        "retryapp.command: handler-pause on orders[0] by 'ann', 'ledger migrates': 'nothing begins; what runs goes on'",
    ]
    first, second, _ = (vars(each) for each in caplog.records if each.name == "retryapp.command")
    named = "verb", "failure_id", "by", "before", "after", "refused", "command"
    assert [first[name] for name in named] == [done[name] for name in named]
    assert (first["handler"], first["partition"], second["refused"]) == ("orders", 0, "not-waiting")
    assert "secret" not in caplog.text
    assert "a key" not in caplog.text


@pytest.mark.parametrize("durable", [True, False])
async def test_a_command_that_a_crash_undoes_has_no_line(caplog: pytest.LogCaptureFixture, durable: bool) -> None:
    """The next session obeys it, and has the line; of one that was durable nobody knows any more but its event."""
    orders = MemoryPartition(Calls(), "1h*3")
    async with orders:
        await orders.send(b"one")
        dying = orders.transport.pause(Step.COMMIT, durable=durable)
        post(orders, about("c", Verb.CANCEL, 0))
        await orders.settle()
        assert dying.reached
        assert lines(caplog) == []
    async with MemoryPartition(Calls(), "1h*3", transport=orders.transport) as orders:
        await orders.settle()
        assert len(lines(caplog)) == (0 if durable else 1)


async def test_many_records_that_are_no_commands_have_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Ten thousand of them would bury the others."""
    async with MemoryPartition(Calls(), "1h*3") as orders:
        for _ in range(50):
            orders.transport.append(CONTROL, None, b"{}")
        await orders.settle()
    (line,) = lines(caplog)
    assert line.startswith("retryapp.command: 50 for orders[0] refused that are none, the first as malformed: ")


async def test_a_job_has_lines_for_its_begin_and_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """And none for each letter: marks and events say what became of these."""
    async with with_letters(3) as (orders, _):
        await begin(orders)
        await orders.to_rest()
    assert lines(caplog) == [
        "retryapp.command: job-start job 'j1' on orders[0] by 'ann', '': 'it begins'",
        "retryapp.command: job-end job 'j1' on orders[0]: 'ended: 3 done; 3 letters looked at'",
    ]
