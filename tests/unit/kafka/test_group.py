"""How the cluster is asked: patience with a coordinator that loads, and names for what is refused."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from retryapp.core.errors import BrokerUnreachableError
from retryapp.kafka import AccessDeniedError, KafkaAdmin, KafkaConnection, KafkaRequestError
from retryapp.kafka.errors import GroupUnknownError, LoginRefusedError

STABLE = SimpleNamespace(state=SimpleNamespace(name="STABLE"))


def group(*answers: Any) -> Any:
    """Read a group from a client with these answers, one after the other; None: it never answers."""
    reader, left = KafkaAdmin(KafkaConnection("127.0.0.1:1"), timeout_s=0.05), list(answers)

    def describe(groups: list[str], **_: Any) -> dict[str, Future[Any]]:
        done: Future[Any] = Future()
        answer = left.pop(0)
        if isinstance(answer, int):
            done.set_exception(KafkaException(KafkaError(answer)))
        elif answer is not None:
            done.set_result(answer)
        return {groups[0]: done}

    reader._client = SimpleNamespace(describe_consumer_groups=describe, poll=lambda _: 0)  # type: ignore[assignment]
    return reader.describe_group("g")


def test_a_group_is_read_once_its_coordinator_is_there() -> None:
    """As on a broker that has just started."""
    assert group(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, STABLE) is STABLE


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AccessDeniedError),
        (KafkaError._TIMED_OUT, BrokerUnreachableError),
        (KafkaError.INVALID_GROUP_ID, KafkaRequestError),
        (KafkaError.GROUP_ID_NOT_FOUND, GroupUnknownError),
        (None, BrokerUnreachableError),
    ],
)
def test_errors_have_names(answer: int | None, named: type[Exception]) -> None:
    """Also where the client library itself does not end the request."""
    with pytest.raises(named, match="describe group g"):
        group(answer)


def test_a_refused_login_is_over_once_a_broker_answers() -> None:
    """Else what is wrong later would be the login's fault. The client hands its words over when it is polled."""
    refused = KafkaError(KafkaError._AUTHENTICATION, "SASL authentication error: no")
    answers, heard = [False, True, False], [refused]
    reader = KafkaAdmin(KafkaConnection("127.0.0.1:1"), timeout_s=0.05)

    def poll(_timeout_s: float) -> None:
        while heard:
            reader._note_error(heard.pop())

    def list_topics(timeout: float) -> Any:
        if answers.pop(0):
            return SimpleNamespace(topics={})
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    reader._client = SimpleNamespace(list_topics=list_topics, poll=poll)  # type: ignore[assignment]
    with pytest.raises(LoginRefusedError):
        reader.topic_names()
    heard.append(refused)
    assert reader.topic_names() == ()
    with pytest.raises(BrokerUnreachableError):
        reader.topic_names()
