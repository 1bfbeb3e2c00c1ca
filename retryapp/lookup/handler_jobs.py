"""Jobs over the dead letters of one handler, for programs: `Retries.jobs(topic)`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from retryapp.core.checks import check_kind, check_word, first_problem
from retryapp.core.control import JOB_ID, MAX_WORDS, OF_LETTERS, Verb
from retryapp.core.durations import Duration, named_duration_ms
from retryapp.core.errors import InvalidSettingError
from retryapp.core.jobs import JobVerb, LetterFilter
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaConnection
from retryapp.lookup.jobs import Order, Told, Words, begin, progress_of, tell_job
from retryapp.lookup.previews import Preview, preview


def check_reason(why: object, by: object) -> None:
    """Raise `InvalidSettingError` unless the audit can take the reason and the name of who asks."""
    expected = f"a text of 1 to {MAX_WORDS} characters: the reason, for the audit"
    check_kind("why", why, str, expected)
    if not str(why).strip() or len(str(why)) > MAX_WORDS:
        raise InvalidSettingError("why", why, f"expected {expected}")
    if not isinstance(by, str) or len(by) > MAX_WORDS:
        raise InvalidSettingError("by", by, f"expected a text of at most {MAX_WORDS} characters: who asks")


@dataclass(frozen=True, slots=True)
class JobPreview:
    """What a job would do, and would be begun with."""

    order: Order
    counted: Preview

    @property
    def letters(self) -> int:
        """How many letters it would take."""
        return self.counted.letters

    @property
    def facts(self) -> dict[str, Any]:
        """The same as JSON has it: `letters`, `refused`, `causes` with their counts, `samples` (failure ids)."""
        return self.counted.facts


@dataclass(frozen=True, slots=True)
class HandlerJobs:
    """Previews, begins, shows and steers the jobs of one handler.

    All raise `BrokerUnreachableError` if no broker answers, and `InvalidSettingError` for an argument that is none.
    """

    connection: KafkaConnection
    topology: HandlerTopology
    wall_ms: Callable[[], int]

    async def preview(self, verb: str, *, all: bool = False, **wanted: str | int) -> JobPreview:
        """Count the letters that a job would take.

        Args:
            verb: `replay`, `discard` or `restore`.
            all: take all letters; needed where nothing else is given.
            wanted: fields of `core.jobs.LetterFilter`, all of which a letter must fit: `cause` (its id), `reason`,
                `error_type`, `message`, `key`, `header`, `field`, `from_ms`, `until_ms` (epoch milliseconds).
        """
        check_word("verb", verb, OF_LETTERS)
        try:
            chosen = LetterFilter.model_validate(wanted)
        except ValidationError as error:
            raise InvalidSettingError(*first_problem(error)) from error
        if chosen == LetterFilter() and not all:
            raise InvalidSettingError("all", all, "expected all=True, or which letters: cause=..., reason=..., key=...")
        order = Order(Verb(verb), chosen)
        return JobPreview(order, await asyncio.to_thread(preview, self.connection, self.topology, order.verb, chosen))

    async def begin(
        self,
        found: JobPreview,
        *,
        why: str,
        by: str = "",
        rate: str | None = None,
        force: bool = False,
        wait: Duration = "30s",
    ) -> tuple[str, Told]:
        """Begin what was previewed; begun again, the same preview is refused as `job-known`.

        Args:
            found: its preview: letters that came after it are not taken.
            why: the reason, for the audit; not empty.
            by: who asks, for the audit.
            rate: at most, for the whole job: `"100/s"`; None: as fast as it goes.
            force: also letters that a newer record of their key may have replaced, with `order="latest"`.
            wait: how long to wait for the answers.

        Returns:
            The job's id, and what each partition says; None: it waits for a worker, for 24 hours.
        """
        check_reason(why, by)
        wait_s = named_duration_ms("wait", wait) / 1000
        order, scope = replace(found.order, rate=rate, force=force, by=by, why=why), found.counted.scope
        told = await asyncio.to_thread(begin, self.connection, self.topology, order, scope, wait_s=wait_s)
        return order.id, told

    async def show(self, job: str) -> Mapping[str, Any] | None:
        """Return how far a job is, as `retryapp job show --json` does; None: no partition knows it."""
        asked = self.connection, self.topology, self.wall_ms()
        found = (await asyncio.to_thread(progress_of, *asked)).get(job)
        return None if found is None else found.details(job)

    async def command(self, verb: str, job: str, *, why: str, by: str = "", wait: Duration = "30s") -> Told:
        """Steer a job: `pause`, `resume` or `cancel`; return what the partitions say that have a part of it."""
        check_word("verb", verb, ("pause", "resume", "cancel"))
        expected = "the id of a job, as begin returns it"
        check_kind("job", job, str, expected)
        if not re.fullmatch(JOB_ID, job):
            raise InvalidSettingError("job", job, f"expected {expected}")
        check_reason(why, by)
        words: Words = {"by": by, "why": why, "wait_s": named_duration_ms("wait", wait) / 1000}
        return await asyncio.to_thread(tell_job, self.connection, self.topology, job, JobVerb(f"job-{verb}"), **words)
