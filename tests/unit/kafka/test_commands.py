"""Commands that are sent while brokers go away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retryapp.core.control import Command, Verb
from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection, commands

REPLAY = Command(id="c", verb=Verb.REPLAY, failure_id="g/orders@kq8G0bTz/0/1")


@pytest.mark.parametrize("error", [BrokerUnreachableError("b:9092", "no answer"), KeyboardInterrupt()])
@pytest.mark.parametrize(
    ("gone", "text"),
    [
        ("offsets", "nothing was sent"),
        ("write", "it is not known whether the command was sent"),
        ("follow", "the command was sent, and its outcome is not known"),
        ("reach", "the command was sent, and its outcome is not known"),
    ],
)
def test_the_error_says_what_was_sent_before_it(
    gone: str, text: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator must know whether to send it again, and what may have come of it; also who has pressed Ctrl-C."""

    def call(name: str, answer: Any) -> Any:
        if name == gone:
            raise error
        return answer

    class Admin:
        def __init__(self, _connection: KafkaConnection) -> None: ...

        def offsets(self, _topic: str, numbers: list[int]) -> dict[int, range]:
            return call("offsets", {number: range(1) for number in numbers})  # type: ignore[no-any-return]

    def follow(*_args: object) -> Iterator[None]:
        yield call("follow", None)

    monkeypatch.setattr(commands, "KafkaAdmin", Admin)
    monkeypatch.setattr(commands, "write_records", lambda *_args: call("write", [7]))
    monkeypatch.setattr(commands, "follow_topic", follow)
    monkeypatch.setattr(commands, "reach", lambda _connection: call("reach", None))
    topology = HandlerTopology(group="g", main="orders")
    with pytest.raises(type(error), match=text + (": no answer" if isinstance(error, BrokerUnreachableError) else "")):
        commands.send_commands(KafkaConnection("b:9092"), topology, [REPLAY], wait_s=0)
