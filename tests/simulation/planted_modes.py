"""Planted faults of how retries come, of old stores, and of a main topic that grows; see `simulation.mutants`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from retryapp.core import skew
from retryapp.core.decide import decide
from retryapp.core.policy import RetryPolicy
from retryapp.core.rules import Rule
from retryapp.core.verdicts import RetryLater
from retryapp.engine.delivery import judge
from retryapp.engine.delivery.pace import Pace
from retryapp.engine.delivery.pool import DeliveryPool
from retryapp.engine.delivery.run import Run
from retryapp.engine.handler.places import Places, Wake
from retryapp.engine.partition.partition import PartitionEngine
from retryapp.engine.worker.ownership import Ownership
from retryapp.engine.worker.placement import Served
from retryapp.testing import MemoryPendingTable
from simulation.disk import SimDisk
from simulation.plan import MODES
from simulation.scripts import POLICIES


def _one_more(self: DeliveryPool) -> None:
    """Retries have one runner more than they may."""
    _start(self)
    if self._name.startswith("redeliver"):
        self._add_runner()


_start = DeliveryPool.start


def _by_state_alone(self: Pace, waiting: Mapping[str, int], wake: Wake) -> dict[str, int]:
    """Circuits have no rate."""
    buckets = [(gate, gate.bucket) for gate in self.gates.values()]
    for gate, _ in buckets:
        gate.bucket = None
    limits = _limits(self, waiting, wake)
    for gate, bucket in buckets:
        gate.bucket = bucket
    return limits


_limits = Pace.limits


def _any_room(self: Places, _wake: Wake) -> int:
    """A service has places without end."""
    return 99


def _unwoken(_self: Places) -> None:
    """Nobody hears that a place is free."""


def _kept(_self: PartitionEngine, _run: Run) -> None:
    """A run that is over keeps its place."""


def _begin_with_the_first(self: PartitionEngine, *given: Any) -> None:
    """A partition's fence is that of its first session in the worker."""
    _begin(self, *given)
    if self.session is not None:
        self._fence = self.session._fence = getattr(self, "_fence", self.session._fence)  # type: ignore[attr-defined]


_begin = PartitionEngine.begin


def _unconditional(self: Rule, error: BaseException, _delivery: Any, _on_fault: Any) -> bool:
    """A rule matches by type alone."""
    return issubclass(type(error), self.error_types)


def _of_no_record(self: Rule, error: BaseException, _delivery: Any, on_fault: Any) -> bool:
    """Conditions do not see the delivery."""
    return _matches(self, error, None, on_fault)


_matches = Rule._matches


def _broken_matches(self: Rule, error: BaseException, delivery: Any, on_fault: Any) -> bool:
    """A rule whose condition raises matches."""
    faults = list[str]()

    def note(name: str, fault: BaseException) -> None:
        faults.append(name)
        on_fault(name, fault)

    return _matches(self, error, delivery, note) or bool(faults)


def _by_then(self: RetryLater, now_ms: int) -> int:
    """An instant is only a limit: half of the time until it is enough."""
    return _wait_ms(self, now_ms) // (1 if self.at_ms is None else 2)


def _from_now(self: RetryLater, now_ms: int) -> int:
    """A second is added to the wait for an instant."""
    return _wait_ms(self, now_ms) + 1_000 * (self.at_ms is not None and self.at_ms > now_ms)


_wait_ms = RetryLater.wait_ms


def _always_young(_self: SimDisk, _store: str) -> int:
    """The age of a store is not looked at."""
    return 1 << 60


def _not_looked_for(_self: MemoryPendingTable) -> None:
    """What a store wrote last, which would tell that too, is not looked for."""


def _by_the_first(policy: RetryPolicy, **told: Any) -> Any:
    """How often a record is tried is said by the policy that was there first."""
    return _decide(policy if len(policy.delays_ms) == len(POLICIES[0].delays_ms) else POLICIES[0], **told)


_decide = decide


def _place_all(self: Ownership, served: Served) -> None:
    """Partitions are opened that our topics do not have."""
    complete, served.complete = served.complete, served.partitions
    _place_actives(self, served)
    served.complete = complete


_place_actives = Ownership._place_actives


def _learnt(_self: Ownership, served: Served, partitions: int) -> None:
    """What has become complete waits for the next assignment."""
    served.complete = min(partitions, served.partitions)


def _untold(_self: Ownership, _served: Served) -> None:
    """No worker reports partitions that our topics lack."""


MODED: Final[tuple[tuple[str, tuple[tuple[Any, str, Any], ...], int], ...]] = (
    ("one retry more at once than may", ((DeliveryPool, "start", _one_more),), MODES + 4),
    ("the rate of a service holds nothing back", ((Pace, "limits", _by_state_alone),), MODES + 51),
    (
        "more of a service run than may",
        ((Places, "full", property(lambda _self: False)), (Places, "room", _any_room)),
        MODES + 17,
    ),
    ("nobody hears of a place that is free", ((Places, "_wake", _unwoken),), MODES + 43),
    ("a run that is over keeps its place", ((PartitionEngine, "_free", _kept),), MODES + 13),
    ("a fence is that of a former opening", ((PartitionEngine, "begin", _begin_with_the_first),), 54),
    ("conditions are not asked", ((Rule, "_matches", _unconditional),), MODES + 7),
    ("conditions do not see the record", ((Rule, "_matches", _of_no_record),), MODES + 7),
    ("a condition that raises matches", ((Rule, "_matches", _broken_matches),), MODES + 7),
    ("an instant is taken for the latest time", ((RetryLater, "wait_ms", _by_then),), MODES + 4),
    (
        "stores are trusted however old",
        ((SimDisk, "used_ms", _always_young), (MemoryPendingTable, "last_written", property(_not_looked_for))),
        MODES + 25,
    ),
    ("a clock that was set stays in doubt", ((skew, "AGREEING", 1 << 30),), MODES + 12),
    ("a partition is opened that our topics lack", ((Ownership, "_place_actives", _place_all),), MODES + 63),
    ("partitions that became complete stay shut", ((Ownership, "complete", _learnt),), MODES + 39),
    ("partitions that our topics lack are not reported", ((Ownership, "_report_lacking", _untold),), MODES + 63),
    ("a changed policy counts for nothing", ((judge, "decide", _by_the_first),), MODES + 21),
    ("a row waits on after its instant", ((RetryLater, "wait_ms", _from_now),), MODES + 4),
)
"""Names, what is replaced (owner, attribute, by what), and a seed that finds it."""
