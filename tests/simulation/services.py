"""What must hold of circuits with names (I22): who waits for one service waits for no other, and others wait for none.

A record needs the service that its offset gives. Where nothing else goes wrong, a row whose last failure has named a
service begins only as its circuit allows, and any other row is on time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import log
from typing import Final

from retryapp.core.circuit import Circuit, CircuitState
from retryapp.core.rates import parse_rate
from simulation.consumer import DELAYED_S
from simulation.oracle import Oracle
from simulation.plan import Plan
from simulation.quiet import HEALED_MS
from simulation.scripts import SERVICES
from simulation.story import Origin, Violation
from simulation.worker import SimWorker

LATE_MS: Final = 400.0
"""Longest lateness of rows that wait for no circuit, while few runs last longer than 40 ms."""
RETRY_MS: Final = 1_500.0
"""Longest wait of a retry that the policy asks for here."""
_DOUBLINGS: Final = 10


def circuits_of(worker: SimWorker, main: str, number: int) -> dict[str, Circuit]:
    """Return what a worker knows of the circuits of a partition."""
    return next((each.known_circuits.get(number, {}) for each in worker.handlers if each.main == main), {})


class Services:
    """Judges the records of one handler."""

    def __init__(self, plan: Plan, main: str) -> None:
        self._plan = plan
        self._main = main
        self._every_ms = parse_rate(plan.service_rate).share_ms(plan.partitions) if plan.service_rate else 0.0
        self._waiting: dict[Origin, str] = {}
        """Which service the last failure of a record has named."""
        self._begun: Counter[tuple[int, str, float]] = Counter()
        """Rows that have begun since a circuit is in its state, by partition, name and begin of that."""
        self.reached: Counter[str] = Counter()

    def begun(self, worker: SimWorker, origin: Origin, due_at_ms: int | None, now_ms: float) -> None:
        """Judge a call that begins."""
        if due_at_ms is None or not self._plan.calm:
            return
        what, name = f"I22 {origin[0]}/{origin[1]}", self._waiting.get(origin)
        if name is None:
            if now_ms - due_at_ms > LATE_MS + 2 * 1_000 * DELAYED_S * self._plan.through:  # a fetch, and one before it
                raise Violation(f"{what}: {now_ms - due_at_ms:.0f} ms late, and waits for no service")
            return
        circuit = circuits_of(worker, self._main, origin[0])[name]
        place = origin[0], name, circuit.since_ms
        self._begun[place] += 1
        self.reached[f"a row of a service began, {circuit.state}"] += 1
        if self._begun[place] > (most := self._most(circuit, worker.clock.monotonic_s() * 1_000)):
            raise Violation(f"{what}: row {self._begun[place]} of {name}, which is {circuit.state} and lets {most} go")

    def _most(self, circuit: Circuit, now_ms: float) -> float:
        breaker = circuit.breaker
        match circuit.state:
            case CircuitState.CLOSED:
                return float("inf")
            case CircuitState.HALF_OPEN:
                since_ms = now_ms - circuit.since_ms
                return breaker.probes * (1 + since_ms // breaker.break_for_ms)  # some say nothing of the service
            case CircuitState.RECOVERING:
                share = min(1.0, (now_ms - circuit.since_ms) / breaker.ramp_ms)
                grown = (2 ** (_DOUBLINGS * share) - 1) / (_DOUBLINGS * log(2))
                more = 1 + 2 * breaker.probes  # one at once, what is saved up, and what was let go as a probe
                return more + 1.2 * breaker.probes * breaker.ramp_ms / 1_000 * grown
            case _:
                return 0

    def ended(self, origin: Origin, now: str) -> None:
        """Note how a call ends."""
        self._waiting.pop(origin, None)
        if now == "U":
            self._waiting[origin] = SERVICES[origin[1] % len(SERVICES)]

    def at_rest(self, oracle: Oracle, began_ms: float) -> None:
        """Judge when the last records have begun."""
        if not self._plan.calm:
            return
        paced_ms = self._every_ms * len(oracle.stories)
        healed_ms = began_ms + max(until_s for _, _, until_s in self._plan.services) * 1_000
        for origin, story in oracle.stories.items():
            begun_ms = max((call.started_ms for calls in story.calls.values() for call in calls), default=healed_ms)
            retries = max(story.calls, default=1) - 1
            late_ms = begun_ms - max(healed_ms, story.sent_ms)
            if late_ms > HEALED_MS + RETRY_MS * retries + paced_ms:
                raise Violation(f"I22 {origin[0]}/{origin[1]}: began {late_ms:.0f} ms after all services were back")


def spends(circuits: Iterable[Circuit | None], now_ms: float) -> bool:
    """Tell whether a failure that these circuits count spends an attempt: closed ones, or those that were not for long.

    Not by `Circuit.free`, which a planted fault replaces.
    """
    return all(
        each is None
        or each.closed
        or (each.state is not CircuitState.FORCED_OPEN and each.used_ms(now_ms) >= each.breaker.max_open_ms)
        for each in circuits
    )
