"""Compares an existing topic with its specification.

Only what could lose, hide or delay a record is a problem; other settings (compression, segment size) may differ.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from retryapp.core.topology import GROW, TopicRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from retryapp.core.topology import TopicSpec
    from retryapp.kafka.admin import TopicState

UNLIMITED: Final = -1
_COPY: Final = "let copies wait (payload='copy')"
SAFE_REPLICATION: Final = 3
"""Copies that a cluster of at least as many brokers must keep, unless low replication is allowed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One property of an existing topic that does not serve."""

    setting: str
    """Topic setting, or ``partitions``, ``replication``, ``owner``."""
    have: str
    want: str
    why: str
    remedy: str


def _same_policies(have: str, want: str) -> bool:  # lists: ``compact,delete`` is not ``compact``
    return {part.strip() for part in have.split(",")} == {part.strip() for part in want.split(",")}


def _at_least(have: str, want: str) -> bool:
    return int(have) >= int(want)


def _at_least_or_unlimited(have: str, want: str) -> bool:
    if int(have) == UNLIMITED:
        return True
    return int(want) != UNLIMITED and int(have) >= int(want)


SERVES: Final[dict[str, tuple[Callable[[str, str], bool], str]]] = {
    "cleanup.policy": (_same_policies, "{want}"),
    "message.timestamp.type": (operator.eq, "{want}"),
    "max.message.bytes": (_at_least, "{want} or more"),
    "retention.ms": (_at_least_or_unlimited, "{want} or more"),
    "retention.bytes": (_at_least_or_unlimited, "{want}"),
    "delete.retention.ms": (_at_least, "{want} or more"),
    "min.insync.replicas": (_at_least, "{want} or more"),
}
"""Setting → (does what is there serve, how to say what is wanted). Other settings are not checked."""


def kept_ms(config: Mapping[str, str]) -> int | None:
    """Return how long a topic with this configuration keeps every record at least; None: no limit of time."""
    return min((kept for kept in _bounds(config).values() if kept != UNLIMITED), default=None)


def _bounds(config: Mapping[str, str]) -> dict[str, int]:
    policies = {part.strip() for part in config.get("cleanup.policy", "delete").split(",")}
    settings = {"delete": "retention.ms", "compact": "min.compaction.lag.ms"}
    return {setting: int(config.get(setting, UNLIMITED)) for each, setting in settings.items() if each in policies}


def keeps(state: TopicState, waits_ms: int) -> Iterator[Problem]:
    """Yield why a main topic does not keep records for those that wait by reference, together so long."""
    why = "records wait by reference (payload='reference'), and are read from there again"
    if (size := state.config.get("retention.bytes", str(UNLIMITED))) != str(UNLIMITED):
        problem = f"{why}: no time says when a bound of size deletes them"
        yield Problem("retention.bytes", size, str(UNLIMITED), problem, f"Take it away, with retention.ms, or {_COPY}")
    for setting, kept in _bounds(state.config).items():
        if kept != UNLIMITED and kept < 2 * waits_ms:
            problem = f"{why} at the end of all waits; as much time again is for workers that are away"
            wanted = f"{2 * waits_ms} or more"
            yield Problem(setting, str(kept), wanted, problem, f"Raise it, shorten the policy, or {_COPY}")


def takes_copies(state: TopicState) -> Iterator[Problem]:
    """Yield why a main topic does not serve for copies of what is due again."""
    if "compact" in (policy := state.config.get("cleanup.policy", "delete")):
        why = (
            "copies of what is due again go through it (redelivery='main'), and would take away the keys' newer records"
        )
        yield Problem("cleanup.policy", policy, "delete", why, "Change it, or take redelivery='direct'")


def compare(
    spec: TopicSpec, state: TopicState, *, main: str, brokers: int, allow_low_replication: bool
) -> Iterator[Problem]:
    """Yield what is wrong with an existing topic of the handler of `main`; `brokers`: how many the cluster has."""
    if state.partitions != spec.partitions:
        remedy = (
            f"{GROW}: it adds what is missing to all topics of the handler"
            if state.partitions < spec.partitions
            else f"Kafka cannot remove partitions: give the main topic as many (kafka-topics.sh --alter --topic {main} "
            f"--partitions {state.partitions}), and what waits goes on; or delete this one, if its records are not "
            "needed: the next start makes it again"
        )
        why = spec.why.get("partitions", "")
        yield Problem("partitions", str(state.partitions), str(spec.partitions), why, remedy)
    if not allow_low_replication and brokers >= SAFE_REPLICATION > state.replication:
        yield Problem(
            "replication",
            str(state.replication),
            f"{SAFE_REPLICATION} or more",
            f"{brokers} brokers could keep {SAFE_REPLICATION} copies; losing {state.replication} would lose what waits",
            "Add copies with kafka-reassign-partitions.sh, or accept it: Retries(app, allow_low_replication=True)",
        )
    for setting, want in spec.config.items():
        if setting not in SERVES or (allow_low_replication and setting == "min.insync.replicas"):
            continue
        if spec.role is TopicRole.RETRY and setting.startswith("retention."):
            continue  # history, which no worker reads: its owner decides how much of it is kept
        serves, wording = SERVES[setting]
        have = state.config.get(setting)
        if have is None or not serves(have, want):
            yield Problem(
                setting,
                "(unknown)" if have is None else have,
                wording.format(want=want),
                spec.why.get(setting, ""),
                f"Set it: kafka-configs.sh --alter --topic {spec.name} --add-config {setting}={want}",
            )
