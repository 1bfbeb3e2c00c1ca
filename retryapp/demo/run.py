"""One run of the demo, from the first process to the balance.

1. Read the flights and their fates; start broker, service and two workers; wait until they are ready.
2. Feed at a steady rate and watch the service's log and the topics. In mid-run, while many flights wait, one worker is
   killed with SIGKILL; some seconds after the group has taken its partitions away it is started again.
3. When every flight is done or dead and nothing waits any more, or nothing moves for a long time, stop the workers.
4. Read the log and the topics from their beginning, and count: the balance is printed.
5. While the broker still runs, let the pipeline make its report; without one the balance stands.
"""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import FrameType

from rich.console import Console

from retryapp.core.policy import RetryPolicy
from retryapp.demo.balance import Balance, Evidence, count
from retryapp.demo.clock import monotonic_s, wall_ms
from retryapp.demo.data import TOTAL_FLIGHTS, Fate, fate_of, load_planes, read_flights
from retryapp.demo.feed import Feeder
from retryapp.demo.figures import MANY_WAITING, pause_after
from retryapp.demo.policy import OUTAGE_S, PARTITIONS, POLICY, SESSION_TIMEOUT_S
from retryapp.demo.report import Report, make_report
from retryapp.demo.settings import MAIN_TOPIC
from retryapp.demo.stage import Stage
from retryapp.demo.tally import Snapshot, Tally
from retryapp.demo.view import Scene, View, balance_text
from retryapp.demo.visits import Visit, VisitTail
from retryapp.demo.watch import TopicWatch, read_handoffs, stations
from retryapp.jvm import Progress
from retryapp.ledger import take_ledger

DEFAULT_RECORDS = 20_000
DEFAULT_RATE = 500.0
"""Flights a second, at most."""
LEAST_FEED_S = 12.0
"""Unless told otherwise a small run is fed more slowly, over this time: outage and kill need their time in it."""
OUTAGE_AT = 0.3
"""The outage begins when this share of the flights has been asked for."""
KILL_AT = 0.45
"""A worker is killed when this share has been fed and many wait, at `KILL_LATEST` in any case."""
KILL_LATEST = 0.7
RESTART_AFTER_S = SESSION_TIMEOUT_S + 3.0
"""A worker that comes back sooner would make the whole group wait for its dead self."""
STILL_S = 90.0
"""The run is given up when nothing has moved for so long: longer than a scheduler's longest sleep (60 s), so that a
stall which heals shows as lateness, and only what does not come back as lost."""
QUIET_S = 1.0
"""Everything has settled when it stays so for this long."""

_TURN_S = 0.1
_VICTIM = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What a run is asked for."""

    cache_dir: Path
    records: int = DEFAULT_RECORDS
    rate: float | None = None
    """Flights a second; none: `DEFAULT_RATE`, or less for a small run."""
    seed: int = 1
    keep: bool = False
    live: bool = False
    page: Path | None = None
    """Where the report goes; none: no report."""

    @property
    def flights_per_s(self) -> float:
        """The rate that follows."""
        return min(DEFAULT_RATE, self.records / LEAST_FEED_S) if self.rate is None else self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What a run came to."""

    balance: Balance
    report: Report | None
    """None: it was not asked for."""

    @property
    def is_in_order(self) -> bool:
        """True when every promise was kept, and a report that there is says the same."""
        return self.balance.is_in_order and not (self.report is not None and self.report.problems)

    def as_json(self) -> dict[str, object]:
        """Return the object that `--json` prints."""
        return {**self.balance.as_json(), "report": None if self.report is None else self.report.as_json()}


def run_demo(
    options: DemoOptions,
    console: Console,
    *,
    progress: Progress | None = None,
    on_result: Callable[[DemoResult], None] | None = None,
) -> DemoResult:
    """Run the demo.

    Args:
        options: size, speed and manner.
        console: for everything that is shown on the way (stderr).
        progress: told of the broker's downloads.
        on_result: called with the result as soon as it is there, before `keep` lingers.

    Returns:
        The result; with `keep` only after the run was interrupted.

    Raises:
        EnvironmentFault: something is missing or failed.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP; everything has been stopped and removed.
    """
    began_s = monotonic_s()
    result: DemoResult | None = None
    interrupted = False
    with _signals_interrupt(), View(console, live=options.live) as view:
        stage = _new_stage(options)
        try:
            balance = _Run(options, stage, view, began_s).play(progress)
            result = DemoResult(balance=balance, report=_report(options, stage, view, balance))
            if on_result is not None:
                on_result(result)
            if options.keep:
                _linger(stage, view)
        except KeyboardInterrupt:
            interrupted = True
            raise
        finally:
            with _signals_ignored():
                in_order = result is not None and result.is_in_order
                keep_logs = options.keep or not (in_order or interrupted)
                stage.close(keep_logs=keep_logs)
                if keep_logs:
                    view.say(f"kept: {stage.folder} (all logs, the workers' state, the service's deliveries)")
    return result


def _report(options: DemoOptions, stage: Stage, view: View, balance: Balance) -> Report | None:
    if options.page is None:
        return None
    report = make_report(stage, balance, view, cache_dir=options.cache_dir, page=options.page)
    view.say(report.text)
    return report


def _new_stage(options: DemoOptions) -> Stage:
    return Stage(
        Path(tempfile.mkdtemp(prefix="retryapp-demo-")),
        cache_dir=options.cache_dir,
        seed=options.seed,
        outage_after=max(1, int(options.records * OUTAGE_AT)),
    )


class _Run:
    """The state of one run."""

    def __init__(self, options: DemoOptions, stage: Stage, view: View, began_s: float) -> None:
        self._options = options
        self._stage = stage
        self._view = view
        self._began_s = began_s
        self._tally = Tally()
        self._visits: list[Visit] = []
        self._tail = VisitTail(stage.visits)
        self._fates: dict[int, Fate] = {}
        self._killed_ms: int | None = None
        self._restart_s: float | None = None
        self._note = ""
        self._told_ends = 0

    def play(self, progress: Progress | None) -> Balance:
        """Steps 1 to 4."""
        self._announce()
        self._stage.open_broker(progress)
        self._stage.open_service()
        self._stage.open_workers()
        self._say_addresses()
        self._stage.await_workers()
        flights = islice(read_flights(), self._options.records)
        feeder = Feeder(self._stage.connection, MAIN_TOPIC, flights, rate=self._options.flights_per_s)
        watch = TopicWatch(self._stage.connection, stations(self._stage.topology), partitions=PARTITIONS)
        try:
            feeder.start()
            self._watch(feeder, watch)
        finally:
            feeder.stop()
            watch.close()
        return self._balance(feeder)

    def _announce(self) -> None:
        planes = load_planes()
        self._fates = {flight.id: fate_of(flight, planes) for flight in read_flights(self._options.records)}
        fates = list(self._fates.values())
        total, dead = len(fates), len(fates) - fates.count(Fate.DONE)
        self._view.say(
            f"{total:,} flights of {TOTAL_FLIGHTS:,}, {self._options.flights_per_s:.0f} a second, "
            f"seed {self._options.seed}\n"
            f"policy: {RetryPolicy(POLICY).text}, one retry topic per delay\n"
            f"By the data alone {dead:,} flights must end dead, about one in six: {fates.count(Fate.NOT_FOUND):,} have "
            f"a tail number that no plane has (404), {fates.count(Fate.UNPROCESSABLE):,} never arrived (422). "
            f"Everything else must recover, through 503s, time-outs, resets and an outage of {OUTAGE_S:g} s."
        )

    def _say_addresses(self) -> None:
        pages = "   ".join(self._stage.pages)
        self._view.say(
            f"pages of the workers: {pages}\n"
            f"service: {self._stage.service_url}/stats   broker: {self._stage.connection.bootstrap}"
        )

    def _watch(self, feeder: Feeder, watch: TopicWatch) -> None:
        moved_s = settled_s = monotonic_s()
        before = (-1, -1, -1)
        while True:
            time.sleep(_TURN_S)
            self._stage.check()
            feeder.check()
            now = self._take_in(feeder, watch)
            now_s = monotonic_s()
            self._disturb(feeder, now, now_s)
            self._show(feeder, now)
            state = (feeder.fed, now.requests, now.settled)
            if state != before:
                before, moved_s = state, now_s
            if not (feeder.finished and now.settled >= feeder.fed and now.pending == 0):
                settled_s = now_s
            if now_s - settled_s > QUIET_S and self._restart_s is None:
                return
            if now_s - moved_s > STILL_S:
                self._view.say(f"nothing has moved for {STILL_S:g} s: giving up")
                return

    def _take_in(self, feeder: Feeder, watch: TopicWatch) -> Snapshot:
        handoffs = watch.read()  # before the log: the service logs its verdict before a dead letter can follow
        visits = self._tail.read()
        self._visits += visits
        self._tally.add_visits(visits, feeder.fed_ms)
        self._tally.add_handoffs(handoffs)
        return self._tally.snapshot(wall_ms())

    def _disturb(self, feeder: Feeder, now: Snapshot, now_s: float) -> None:
        """Kill one worker in mid-run, and start it again later."""
        share = 1.0 if feeder.finished else feeder.fed / self._options.records
        if self._killed_ms is None and share >= KILL_AT and (now.pending >= MANY_WAITING or share >= KILL_LATEST):
            self._killed_ms = wall_ms()
            self._stage.kill_worker(_VICTIM)
            self._restart_s = now_s + RESTART_AFTER_S
            self._note = "worker 1 was killed with SIGKILL"
            self._view.say(f"killed worker 1 with SIGKILL while {now.pending:,} flights wait")
        if self._restart_s is not None and now_s >= self._restart_s:
            self._restart_s = None
            self._stage.restart_worker(_VICTIM)
            self._note = "worker 1 was killed and is back"
            self._view.say("started worker 1 again")
        for end in self._stage.unasked_ends[self._told_ends :]:
            self._view.say(f"{end} ended by itself and was started again")
        self._told_ends = len(self._stage.unasked_ends)

    def _show(self, feeder: Feeder, now: Snapshot) -> None:
        self._view.show(
            Scene(
                total=self._options.records,
                fed=feeder.fed,
                now=now,
                now_ms=wall_ms(),
                elapsed_s=monotonic_s() - self._began_s,
                note=self._note,
            )
        )

    def _balance(self, feeder: Feeder) -> Balance:
        if not self._options.keep:
            self._stage.stop_workers()
        self._visits += self._tail.read()
        pauses = []
        if self._killed_ms is not None:
            # Half a second before: what had been fed and not yet fetched waits for the failover as well.
            end_ms = pause_after(self._killed_ms, feeder.fed_ms, feeder.partitions, self._visits)
            pauses.append((self._killed_ms - 500, end_ms))
        balance = count(
            Evidence(
                expected={flight_id: self._fates[flight_id] for flight_id in feeder.partitions},
                fed_ms=feeder.fed_ms,
                visits=self._visits,
                handoffs=read_handoffs(self._stage.connection, stations(self._stage.topology)),
                ledger=take_ledger(self._stage.connection, self._stage.topology),
                delays_ms=[RetryPolicy(POLICY).schedule.nominal_ms(n) for n in _retries()],
                pauses=pauses,
                kills=int(self._killed_ms is not None),
                seconds=monotonic_s() - self._began_s,
            )
        )
        self._view.say(balance_text(balance))
        return balance


def _retries() -> range:
    return range(1, RetryPolicy(POLICY).max_attempts)


def _linger(stage: Stage, view: View) -> None:
    """Leave everything running until Ctrl-C."""
    view.say(
        f"All is left running. Pages: {'   '.join(stage.pages)}   broker: {stage.connection.bootstrap}   "
        f"service: {stage.service_url}\nPress Ctrl-C here (or send SIGTERM to this process) to stop it."
    )
    try:
        while True:
            time.sleep(1.0)
            stage.check()
    except KeyboardInterrupt:
        view.say("stopping")


@contextmanager
def _signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the body as Ctrl-C does."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(on_signal, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Let nothing break the clean-up that an earlier signal began; it is bounded by the children's time to stop."""
    with _handlers(signal.SIG_IGN, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
        yield


@contextmanager
def _handlers(handler: signal._HANDLER, numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
