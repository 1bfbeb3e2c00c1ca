"""Runs that go on without a say: nothing of their sequences runs beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from retryapp.engine.delivery.run import Run


class GivenUp:
    """The runs of a partition that go on without a say, by sequence: of ended sessions and assignments, and orphans."""

    def __init__(self) -> None:
        self.ended: Callable[[bytes], None] | None = None
        """Called with the sequence of a run that has ended."""
        self._counts: Counter[bytes] = Counter()
        self._former: set[Run] = set()

    def __contains__(self, name: bytes) -> bool:
        return self._counts[name] > 0

    def leave(self, runs: Iterable[Run]) -> None:
        """Take the runs of a session that ends."""
        for run in runs:
            if run.sequence is not None and run not in self._former:
                self._counts[run.sequence] += 1
                self._former.add(run)

    def note(self, run: Run) -> None:
        """Take note of a run that has ended for its partition; as an orphan it may go on."""
        if (name := run.sequence) is None:
            return
        if run.delivery is not None:
            orphan = run.context.handler.orphans.of(run.delivery.failure_id)
            if orphan is not None:
                self._counts[name] += 1
                orphan.add_done_callback(lambda _orphan: self._end(name))
        if run in self._former:
            self._former.remove(run)
            self._end(name)

    def _end(self, name: bytes) -> None:
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]
        if self.ended is not None:
            self.ended(name)
