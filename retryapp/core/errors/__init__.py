"""The exception tree: every error that retryapp raises by name.

Each class has its facts as typed attributes and builds its own message: what happened, to which thing, with which
value, what was expected and what to do. ``exit_code`` is a command's exit code when the error ends it:

* 1: a finding about records (``RecordError``),
* 2: the caller's program or settings are wrong (``ConfigurationError``),
* 3: the surroundings are not as needed (``EnvironmentFault``),
* 4: this process must start again (``LaneError``).
"""

from __future__ import annotations

from retryapp.core.errors.base import MAX_SHOWN_CHARS, RetryAppError, shown
from retryapp.core.errors.configuration import (
    ConfigurationError,
    DuplicateHandlerError,
    InvalidDurationError,
    InvalidPolicyError,
    InvalidSettingError,
    InvalidTopicNameError,
    NameClashError,
    NoHandlersError,
)
from retryapp.core.errors.environment import (
    BrokerUnreachableError,
    DiskFullError,
    EnvironmentFault,
    JavaMissingError,
    MissingCodecError,
    NewerRecordError,
    OfflineError,
    PortTakenError,
    StoreBrokenError,
    TopicMismatchError,
    TopicMissingError,
    UnreadableTopicError,
)
from retryapp.core.errors.lanes import (
    ChangelogReplacedError,
    FormerRowsError,
    LaneClosedError,
    LaneError,
    MembershipLapsedError,
    OffsetsGoneError,
    OffsetsMissingError,
    PositionGoneError,
    StoreAheadError,
)
from retryapp.core.errors.publishing import DestinationError, LatePublishError, PublishError, PublishRefusedError
from retryapp.core.errors.records import (
    DamagedEventError,
    DamagedMetadataError,
    DamagedRowError,
    NewerFormatError,
    NewerRowError,
    RecordError,
    UndecodableError,
    UnreadableRecordsError,
)

__all__ = [
    "MAX_SHOWN_CHARS",
    "BrokerUnreachableError",
    "ChangelogReplacedError",
    "ConfigurationError",
    "DamagedEventError",
    "DamagedMetadataError",
    "DamagedRowError",
    "DestinationError",
    "DiskFullError",
    "DuplicateHandlerError",
    "EnvironmentFault",
    "FormerRowsError",
    "InvalidDurationError",
    "InvalidPolicyError",
    "InvalidSettingError",
    "InvalidTopicNameError",
    "JavaMissingError",
    "LaneClosedError",
    "LaneError",
    "LatePublishError",
    "MembershipLapsedError",
    "MissingCodecError",
    "NameClashError",
    "NewerFormatError",
    "NewerRecordError",
    "NewerRowError",
    "NoHandlersError",
    "OfflineError",
    "OffsetsGoneError",
    "OffsetsMissingError",
    "PortTakenError",
    "PositionGoneError",
    "PublishError",
    "PublishRefusedError",
    "RecordError",
    "RetryAppError",
    "StoreAheadError",
    "StoreBrokenError",
    "TopicMismatchError",
    "TopicMissingError",
    "UndecodableError",
    "UnreadableRecordsError",
    "UnreadableTopicError",
    "shown",
]
