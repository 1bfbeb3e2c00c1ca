"""Failures of cluster calls that core does not know."""

from __future__ import annotations

from retryapp.core.errors import EnvironmentFault, RecordError, TopicMismatchError


class KafkaRequestError(EnvironmentFault):
    """A broker answered a request with an error. Operator action: read its reason; the request is safe to repeat."""

    def __init__(self, doing: str, bootstrap: str, reason: str) -> None:
        """Args: doing: what was tried, as the rest of "could not". bootstrap: where. reason: the broker's words."""
        self.doing = doing
        self.bootstrap = bootstrap
        self.reason = reason
        super().__init__(f"could not {doing} on {bootstrap}: {reason.removesuffix('.')}{self.advice}")

    advice = ""


class AccessDeniedError(KafkaRequestError):
    """The cluster refused what this login asked for. Operator action: grant it, on the prefix ``{group}.``."""

    advice = (
        ". Grant the right: 'retryapp plan -A MODULE --acls' prints those of workers, docs/operating.md names those of "
        "people"
    )


class OlderVersionHiddenError(AccessDeniedError):
    """This login may not see what an older `version=` of the app left. Operator action: grant it, as advised."""

    advice = (
        ". What waits there would never come back, so every start of a later version= looks. Grant this login Describe "
        "and Read on that topic, even if it does not exist ('retryapp plan -A MODULE --acls' prints the rights "
        "of the present version only)"
    )


class LoginRefusedError(AccessDeniedError):
    """The cluster refused the login itself. Operator action: correct name, password or mechanism, as advised."""

    advice = (
        ". Correct the login: name, password and mechanism in the credentials of faust.App(...), in "
        "Retries(admin_options=...), or in the file of --client-config. A process reads them when it starts"
    )


class CertificateRefusedError(KafkaRequestError):
    """One side refused the other's certificate. Operator action: give the files that TLS needs, as advised."""

    advice = (
        ". Correct the certificates. The broker's must be valid today, name this address, and be signed by an "
        "authority that is trusted here: cafile of the app's SSL context, or ssl.ca.location. A certificate of our own "
        "cannot be read from an SSL context: give ssl.certificate.location and ssl.key.location. These are librdkafka "
        "properties, for Retries(admin_options=…) or a --client-config file"
    )


class ContextRefusedError(KafkaRequestError):
    """The app's own SSL context and the broker do not agree. Operator action: correct certificates, as advised."""

    advice = (
        ". Correct the certificates. The broker's must be valid today, name this address, and be signed by an "
        "authority that the SSL context of faust.App(...) trusts (cafile). One of our own is what that context shows "
        "(load_cert_chain)"
    )


class GroupUnknownError(KafkaRequestError):
    """The brokers know no such group: it has no members and no offsets. Operator action: start a worker."""


class ReplicationTooLowError(EnvironmentFault):
    """The cluster could keep three copies, and its default is less. Operator action: raise it, or allow it."""


class PartitionMissingError(EnvironmentFault):
    """A topic has no partition of this number. Operator action: correct the number, or the failure id."""

    def __init__(self, topic: str, partition: int, partitions: int, bootstrap: str) -> None:
        self.topic = topic
        self.partition = partition
        self.bootstrap = bootstrap
        has = "partition 0 alone" if partitions == 1 else f"partitions 0 to {partitions - 1}"
        super().__init__(
            f"partition {partition} of topic {topic!r} does not exist on {bootstrap}. It has {has}: correct the number "
            f"(in a failure id it is the one before the offset)"
        )


class OwnerMismatchError(TopicMismatchError):
    """A handler's topics belong to another handler. Operator action: rename the group or main topic of one of them."""

    why = "handlers whose group and main topic join to the same text make the same topic names; rename one of them"
    remedy = "Rename the group or the main topic of one of the two handlers"

    def __init__(self, topic: str, owner: str, expected: str) -> None:
        super().__init__(topic, "owner", owner, expected, self.why)


class DamagedProgressError(EnvironmentFault):
    """A changelog's last progress record cannot be read. Operator action: find what else writes to that topic."""

    def __init__(self, topic: str, partition: int, offset: int, problem: str) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.problem = problem
        super().__init__(
            f"damaged progress record {topic}[{partition}]@{offset}: {problem}. Another program has written it: find "
            f"that one. A worker that runs writes the next one with the next record of this partition"
        )


class UnreadableHeaderError(RecordError):
    """A record has a header whose name is not UTF-8, which the client library cannot hand over."""
