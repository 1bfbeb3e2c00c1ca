"""How the cluster is asked: patience with a coordinator that loads, and names for what is refused."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from retryapp.core.errors import BrokerUnreachableError
from retryapp.doctor.cluster import ClusterReader
from retryapp.kafka import AccessDeniedError, KafkaConnection, KafkaRequestError

STABLE = SimpleNamespace(
    state=SimpleNamespace(name="STABLE"),
    type=SimpleNamespace(name="CLASSIC"),
    partition_assignor="faust",
    members=[SimpleNamespace(host="/10.0.0.1")],
    authorized_operations=None,
)


def future(result: Any) -> Future[Any]:
    """A future that has ended."""
    done: Future[Any] = Future()
    if isinstance(result, BaseException):
        done.set_exception(result)
    else:
        done.set_result(result)
    return done


def reader(answers: list[Any], *, timeout_s: float = 5.0) -> ClusterReader:
    """A reader whose client gives these answers about the group, one after the other."""
    made = ClusterReader(KafkaConnection("127.0.0.1:1"), timeout_s)

    def describe(groups: list[str], **_: Any) -> dict[str, Future[Any]]:
        return {groups[0]: future(answers.pop(0))}

    made._client = SimpleNamespace(describe_consumer_groups=describe)  # type: ignore[assignment]
    return made


def refusal(code: int) -> KafkaException:
    """An answer that is an error."""
    return KafkaException(KafkaError(code))


def test_a_group_is_read_once_its_coordinator_is_there() -> None:
    """As on a broker that has just started."""
    facts = reader([refusal(KafkaError.COORDINATOR_LOAD_IN_PROGRESS), STABLE]).group("g")
    assert (facts.state, facts.kind, facts.protocol, facts.hosts) == ("stable", "classic", "faust", ("10.0.0.1",))
    assert facts.operations is None


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (KafkaError.GROUP_AUTHORIZATION_FAILED, AccessDeniedError),
        (KafkaError._TIMED_OUT, BrokerUnreachableError),
        (KafkaError.INVALID_GROUP_ID, KafkaRequestError),
    ],
)
def test_other_errors_have_names_at_once(code: int, named: type[Exception]) -> None:
    """Waiting would not mend them."""
    with pytest.raises(named, match="describe group g"):
        reader([refusal(code)]).group("g")


def test_no_answer_in_time_is_a_broker_that_is_gone() -> None:
    """Where the client library itself does not end the request."""
    made = reader([], timeout_s=0.05)
    made._client = SimpleNamespace(describe_consumer_groups=lambda *_, **__: {"g": Future()})  # type: ignore[assignment]
    with pytest.raises(BrokerUnreachableError):
        made.group("g")
