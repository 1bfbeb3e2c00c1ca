"""Failures of each handler by cause and minute: what pages show as a trend. Only this worker's, since its start."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Final

from typing_extensions import override

from retryapp.core.causes import MAX_CAUSES, OTHER_CAUSE, cause_id
from retryapp.ports import CauseTrends, Clock, Event, Observation, Observer

MINUTES: Final = 5
"""Minutes that count as the last ones, the present one included, and as those before."""
_MINUTE_S: Final = 60


class CauseWatch(Observer):
    """Counts failures; of one handler it tells at most `MAX_CAUSES` causes apart."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock.monotonic_s()
        self._minutes = defaultdict[str, dict[int, Counter[str]]](dict)

    @override
    def observe(self, observation: Observation) -> None:
        if observation.event is not Event.FAILED:
            return
        minutes, minute = self._minutes[observation.handler], int(self._age_s() // _MINUTE_S)
        if minute not in minutes:
            for old in [each for each in minutes if each <= minute - 2 * MINUTES]:
                del minutes[old]
            minutes[minute] = Counter()
        cause = cause_id(observation.error_type or "", observation.fingerprint or "", observation.message or "")
        if cause not in minutes[minute]:
            known = set().union(*minutes.values()) - {OTHER_CAUSE}
            cause = cause if cause in known or len(known) < MAX_CAUSES else OTHER_CAUSE
        minutes[minute][cause] += observation.count

    def of(self, handler: str) -> CauseTrends:
        """Return what has failed in the last minutes and before, as of now."""
        age_s = self._age_s()
        began = int(age_s // _MINUTE_S) + 1 - MINUTES
        lately, before = Counter[str](), Counter[str]()
        for minute, counts in self._minutes.get(handler, {}).items():
            if minute >= began - MINUTES:
                (lately if minute >= began else before).update(counts)
        start_s, before_s = (max(0, each * _MINUTE_S) for each in (began, began - MINUTES))
        return CauseTrends(
            lately_s=age_s - start_s, before_s=start_s - before_s, lately=dict(lately), before=dict(before)
        )

    def _age_s(self) -> float:
        return self._clock.monotonic_s() - self._began_s
