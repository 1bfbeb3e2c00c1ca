"""How long a record waits after an attempt, by its script and the policies of a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from simulation.story import FINE, Story, step


class Waits:
    """The policies, as lists of waits, and what handlers ask for instead (by step of a script)."""

    def __init__(
        self,
        policies_ms: Sequence[Sequence[int]],
        asked_ms: Mapping[str, int],
        own_ms: Sequence[int] = (),
        *,
        per_delay: bool,
    ) -> None:
        self.followed: dict[str, int] = {}
        """Numbers of the policies of workers; the first one unless it is here."""
        self._policies_ms = policies_ms
        self._asked_ms = {**asked_ms, "A": 0}  # `simulation.modes` knows the instant
        self._own_ms = own_ms
        """Waits of the rule for busy services (step Y)."""
        self._per_delay = per_delay

    @property
    def count(self) -> int:
        """How many there are; policies have as many."""
        return len(self._policies_ms[0])

    def fate(self, script: str) -> str:
        return _ENDS.get(step(script, self.last(script)), "dead")

    def last(self, script: str) -> int:
        """Return the attempt by which a record's script ends."""
        for attempt in range(1, self.count + 1):
            now = step(script, attempt)
            waits_ms = self._own_ms if now == "Y" else self._policies_ms[0]
            if now in _ENDS or (now == "E" and attempt > 1) or _in_a_row(script, attempt) > len(waits_ms):
                return attempt
        return self.count + 1

    def _usual_ms(self, policy_ms: Sequence[int], script: str, attempt: int) -> int:
        waits_ms = self._own_ms if step(script, attempt) == "Y" else policy_ms
        return waits_ms[min(_in_a_row(script, attempt), len(waits_ms)) - 1]

    def allows(self, worker: str, attempt: int) -> bool:
        """Tell whether the policy of a worker has an attempt after this one."""
        return attempt <= len(self._policies_ms[self.followed.get(worker, 0)])

    def least_ms(self, story: Story, attempt: int, worker: str) -> int:
        policy_ms = self._policies_ms[self.followed.get(worker, 0)]
        if story.stopped and "Y" in story.script:  # one that is stopped is no busy service
            return min(*self._own_ms, *policy_ms)
        usual_ms = self._usual_ms(policy_ms, story.script, attempt)
        asked_ms = self._asked_ms.get(step(story.script, attempt), usual_ms)
        return min(usual_ms, asked_ms) if story.stopped else asked_ms  # stopped, it did not ask

    def most_ms(self, story: Story, attempt: int, worker: str) -> int:
        """Return the longest wait that may follow an attempt, in milliseconds."""
        usual_ms = self._usual_ms(self._policies_ms[self.followed.get(worker, 0)], story.script, attempt)
        return self._asked_ms.get(step(story.script, attempt), usual_ms)

    def are_told_by(self, topic: str, base: str, story: Story, attempt: int) -> bool:
        """Tell whether a retry topic is the one, or that of the delay of a policy that is nearest to the wait."""
        if not self._per_delay:
            return topic == base
        asked_ms = self._asked_ms.get(step(story.script, attempt))
        if story.stopped and "Y" in story.script:
            return topic.startswith(f"{base}.")
        if step(story.script, attempt) == "A":  # how long that is depends on when it was asked for
            return topic.startswith(f"{base}.")
        for policy_ms in self._policies_ms:
            usual_ms = self._usual_ms(policy_ms, story.script, attempt)
            may_be_ms = {usual_ms} if asked_ms is None else {asked_ms, usual_ms if story.stopped else asked_ms}
            steps_ms = self._own_ms if step(story.script, attempt) == "Y" else policy_ms
            if topic in {f"{base}.{_nearest(steps_ms, wait_ms)}" for wait_ms in may_be_ms}:
                return True
        return False


_ENDS = {**dict.fromkeys(FINE, "done"), "Q": "done", "R": "dead", "V": "dead", "P": "skipped", "W": "done"}


def _in_a_row(script: str, attempt: int) -> int:
    """Return how many attempts up to this one a busy service has failed, or something else has."""
    first = attempt
    while first > 1 and (step(script, first - 1) == "Y") == (step(script, attempt) == "Y"):
        first -= 1
    return attempt - first + 1


def _nearest(policy_ms: Sequence[int], wait_ms: int) -> str:
    delay_ms = min(policy_ms, key=lambda each: (abs(each - wait_ms), each))
    return f"{delay_ms}ms" if delay_ms % 1_000 else f"{delay_ms // 1_000}s"
