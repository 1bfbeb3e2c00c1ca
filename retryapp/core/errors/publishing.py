"""A handler cannot publish what it wants to, where it wants to, or any more."""

from __future__ import annotations

from retryapp.core.errors.base import RetryAppError, shown


class PublishError(RetryAppError):
    """A handler's ``publish`` cannot be done; the attempt fails, and nothing that it published is."""

    def __init__(self, topic: object, problem: str) -> None:
        self.topic = topic
        self.problem = problem
        super().__init__(f"publish to {shown(topic)}: {problem}")


class PublishRefusedError(PublishError):
    """What was to be published cannot be: its type, its size, its partition, or a topic of our own."""


class DestinationError(PublishError):
    """The topic does not take it: it is not there, we may not write, or its broker refused.

    Operator action: create the topic, or grant the right; until then attempts fail and are tried again by the policy.
    """


class LatePublishError(PublishError):
    """A task or thread that outlived its handler published: that attempt is over. Await it in the handler."""
