"""Who did what, and when: the commands about a handler and its records, as its events have them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from retryapp.core.control import Refusal
from retryapp.core.errors import DamagedEventError
from retryapp.core.lifecycle import Commanded, decode_event
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.lookup.reading import Reading

MOST_COMMANDS: Final = 500
"""Commands of an answer, the newest ones."""


@dataclass(slots=True)
class AuditEntry:
    """A command, or what a part of a job has done by itself."""

    told: Commanded
    """What the first partition says that has obeyed it, or of none the first."""
    done: int = 0
    """How many partitions have obeyed it."""
    refused: Counter[str] = field(default_factory=Counter)
    """How many have refused it, by `core.control.Refusal`."""

    def note(self, told: Commanded) -> None:
        """Note what another partition says."""
        if told.refused:
            self.refused[told.refused] += 1
            return
        self.told = self.told if self.done else told
        self.done += 1

    @property
    def facts(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        told = self.told
        names = ("at_ms", "verb", "by", "why", "text", "before", "after", "edited")
        about = {name: getattr(told, name) or None for name in ("failure_id", "job", "circuit")}
        # a partition that has no part of a job refuses what goes on on others
        refused = {word: count for word, count in self.refused.items() if not (self.done and word == Refusal.NO_JOB)}
        by_itself = {"partition": None if told.command else told.partition}
        facts = {**{name: getattr(told, name) for name in names}, **about, **by_itself}
        return {**facts, "done": self.done, "refused": refused}


class Audit(NamedTuple):
    """Commands, the newest first."""

    commands: list[dict[str, Any]]
    more: bool
    """Whether there are older ones, which are left out."""
    looked: int
    complete: bool
    """Whether all events of that time were read."""


def read_audit(
    connection: KafkaConnection,
    topology: HandlerTopology,
    since_ms: int,
    until_ms: int | None,
    go_on: Callable[[], bool],
) -> Audit:
    """Read the commands that were obeyed or refused in a time; blocks, and `go_on` ends it with False.

    A command that went to many partitions is one entry. Letters that a job has refused are left out: `read_refused`.

    Raises:
        BrokerUnreachableError: no broker answered.
        TopicMissingError: no worker has started yet.
    """
    entries: dict[tuple[object, ...], AuditEntry] = {}
    reading, more = Reading(connection, go_on), False
    for record in reading.since(topology.events, [*KafkaAdmin(connection).offsets(topology.events)], since_ms):
        if b'"command"' not in (record.value or b""):  # most events are of records
            continue
        with suppress(DamagedEventError):  # of a newer worker
            event = decode_event(record.value or b"")
            if isinstance(event, Commanded) and _is_wanted(event, since_ms, until_ms):
                name = event.command or (event.job, event.partition, record.offset)
                entries.setdefault((name, event.verb), AuditEntry(event)).note(event)
        if len(entries) > 2 * MOST_COMMANDS:
            entries, more = dict(_newest(entries)), True
    newest = _newest(entries)
    facts = [entry.facts for _, entry in newest]
    return Audit(facts, more or len(entries) > len(facts), reading.looked, reading.complete)


def _is_wanted(event: Commanded, since_ms: int, until_ms: int | None) -> bool:
    is_refused_letter = bool(event.refused) and not event.command and bool(event.job)
    return not is_refused_letter and since_ms <= event.at_ms and (until_ms is None or event.at_ms < until_ms)


def _newest(entries: dict[tuple[object, ...], AuditEntry]) -> list[tuple[tuple[object, ...], AuditEntry]]:
    return sorted(entries.items(), key=lambda each: -each[1].told.at_ms)[:MOST_COMMANDS]
