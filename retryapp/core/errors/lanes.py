"""A lane cannot go on."""

from __future__ import annotations

from typing import ClassVar

from retryapp.core.errors.base import RetryAppError


class LaneError(RetryAppError):
    """A lane cannot go on with what it was doing; its turns were dropped and nothing of them was committed."""

    exit_code: ClassVar[int] = 4

    def __init__(self, lane: str, problem: str) -> None:
        self.lane = lane
        self.problem = problem
        super().__init__(f"lane {lane}: {problem}")


class LaneClosedError(LaneError):
    """A turn was handed to a lane that is not open.

    The caller's work is given back, not lost: it will be read again.
    """


class MembershipLapsedError(LaneError):
    """The group's coordinator was silent for a whole session: another worker may have the lane's records by now.

    None of them starts here until it has been asked. The lane closes and opens again.
    """

    def __init__(self, lane: str) -> None:
        super().__init__(lane, "the group's coordinator was silent for a whole session, so it may be another's by now")
