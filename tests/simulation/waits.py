"""How long a record waits after an attempt, by its script and the policies of a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulation.story import Story, step


class Waits:
    """The policies, as lists of waits, and what handlers ask for instead (by step of a script)."""

    def __init__(self, policies_ms: Sequence[Sequence[int]], asked_ms: Mapping[str, int], *, per_delay: bool) -> None:
        self.followed: dict[str, int] = {}
        """Numbers of the policies of workers; the first one unless it is here."""
        self._policies_ms = policies_ms
        self._asked_ms = asked_ms
        self._per_delay = per_delay

    @property
    def count(self) -> int:
        """How many there are; policies have as many."""
        return len(self._policies_ms[0])

    def least_ms(self, story: Story, attempt: int, worker: str) -> int:
        """Return how long it waits at least after an attempt that failed in a worker."""
        usual_ms = self._policies_ms[self.followed.get(worker, 0)][attempt - 1]
        asked_ms = self._asked_ms.get(step(story.script, attempt), usual_ms)
        return min(usual_ms, asked_ms) if story.stopped else asked_ms  # stopped, it did not ask

    def are_told_by(self, topic: str, base: str, story: Story, attempt: int) -> bool:
        """Tell whether a retry topic is the one, or that of the delay of a policy that is nearest to the wait."""
        if not self._per_delay:
            return topic == base
        asked_ms = self._asked_ms.get(step(story.script, attempt))
        for policy_ms in self._policies_ms:
            usual_ms = policy_ms[attempt - 1]
            may_be_ms = {usual_ms} if asked_ms is None else {asked_ms, usual_ms if story.stopped else asked_ms}
            if topic in {f"{base}.{_nearest(policy_ms, wait_ms)}" for wait_ms in may_be_ms}:
                return True
        return False


def _nearest(policy_ms: Sequence[int], wait_ms: int) -> str:
    delay_ms = min(policy_ms, key=lambda each: (abs(each - wait_ms), each))
    return f"{delay_ms}ms" if delay_ms % 1_000 else f"{delay_ms // 1_000}s"
