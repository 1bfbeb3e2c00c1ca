"""One run of the demo, from the first process to the verdict.

1. Read the flights and their fates; start broker, service and two workers; wait until they are ready.
2. Feed at a steady rate and follow the service's log. In mid-run, while many flights wait, one worker is killed with
   SIGKILL; some seconds after the group has taken its partitions away it is started again.
3. When all are fed, start the process that will make the pipeline's report: processors have time to spare from then on.
4. When every flight has its final answer, or nothing moves for a long time, take the ledger until nothing is pending.
5. Stop the workers and print the balance.
6. While the broker still runs, have the pipeline make its report.
"""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.status import Status

from retryapp.broker import Broker
from retryapp.broker.probe import free_ports
from retryapp.core.policy import RetryPolicy
from retryapp.core.topology import HandlerTopology, Tiers
from retryapp.demo.balance import Balance, count
from retryapp.demo.data import TOTAL_FLIGHTS, fate_of, load_planes, read_flights
from retryapp.demo.feed import Feeder
from retryapp.demo.report import Report, Reporter
from retryapp.demo.settings import GROUP, MAIN_TOPIC, OUTAGE_S, PARTITIONS, POLICY, PREFIX, SESSION_TIMEOUT_S
from retryapp.demo.visits import Outcome, Visit, VisitTail
from retryapp.jvm import Progress
from retryapp.kafka import KafkaAdmin, KafkaConnection
from retryapp.ledger import Ledger, take_ledger
from retryapp.ports import PAGES_PREFIX
from retryapp.stage import Child, Run, stop_all, wait_for

DEFAULT_RECORDS: Final = 20_000
RATE: Final = 500.0
"""Flights a second, at most."""
LEAST_FEED_S: Final = 12.0
"""A small run is fed more slowly: outage and kill need this time."""
OUTAGE_AT: Final = 0.3
"""The outage begins when this share of the flights has been asked for."""
KILL_AT: Final = 0.5
"""A worker is killed when this share has been fed; many wait then, because of the outage."""
RESTART_AFTER_S: Final = SESSION_TIMEOUT_S + 3.0
"""A worker that comes back sooner would make the whole group wait for its dead self."""
STILL_S: Final = 90.0
"""The run is given up when nothing has moved for this long: longer than a scheduler's longest sleep (60 s)."""
_TURN_S: Final = 0.05
_PLAIN_INTERVAL_S: Final = 3.0
"""Time between two lines of progress where there is no terminal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The result of a run."""

    balance: Balance
    report: Report | None
    """None: it was not asked for."""

    @property
    def is_in_order(self) -> bool:
        """True when every promise was kept, and a report that there is agrees."""
        return not self.balance.problems and not (self.report is not None and self.report.problems)

    def as_json(self) -> dict[str, object]:
        return {**asdict(self.balance), "report": None if self.report is None else asdict(self.report)}


def run_demo(
    records: int, console: Console, *, cache_dir: Path, page: Path | None, progress: Progress | None
) -> DemoResult:
    """Run the demo with the first flights; `page`: where the report goes, None: no report. An error keeps the logs."""
    with Run() as run:
        reporter = None if page is None else Reporter(run, console, cache_dir=cache_dir, page=page)
        demo = _Demo(records, run, console, reporter)
        try:
            balance = demo.play(cache_dir, progress)
            report = None
            if reporter is not None:
                report = reporter.finish(demo.broker.bootstrap, balance)
                demo.say(report.text)
            result = DemoResult(balance=balance, report=report)
            run.kept = not result.is_in_order
        except Exception:
            run.kept = any(run.folder.iterdir())  # nothing, where the data are missing
            raise
        finally:
            if run.kept:
                demo.say(f"kept: {run.folder} (all logs, the workers' state, the service's log)")
    return result


class _Demo:
    """The processes and the counts of one run."""

    broker: Broker
    _service: Child

    def __init__(self, records: int, run: Run, console: Console, reporter: Reporter | None) -> None:
        self._records = records
        self._rate = min(RATE, records / LEAST_FEED_S)
        self._run = run
        self._console = console
        self._reporter = reporter
        self._began_s = time.monotonic()
        self._shown_s = 0.0
        self._schedule = RetryPolicy(POLICY).schedule
        self._workers: list[Child] = []
        self._victim: Child | None = None
        """The killed worker, until it is started again."""
        self._killed_s: float | None = None
        self._fates: dict[int, Outcome] = {}
        self._log = run.folder / "visits.jsonl"
        self._tail = VisitTail(self._log)
        self._visits: list[Visit] = []
        self._final: set[int] = set()
        self._waiting: set[int] = set()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)

    def play(self, cache_dir: Path, progress: Progress | None) -> Balance:
        self._announce()
        self._open(cache_dir, progress)
        feeder = Feeder(self._connection, read_flights(self._records), rate=self._rate)
        self._watch(feeder)
        ledger = self._settle(feeder)
        stop_all(self._workers)
        self._read_log()
        balance = count(
            {flight_id: self._fates[flight_id] for flight_id in feeder.fed},
            self._visits,
            ledger,
            delays_ms=self._schedule.all_nominal_ms,
            kills=int(self._killed_s is not None),
            seconds=time.monotonic() - self._began_s,
        )
        self.say(balance.text)
        return balance

    def _announce(self) -> None:
        planes = load_planes()
        self._fates = {flight.id: fate_of(flight, planes) for flight in read_flights(self._records)}
        fates = list(self._fates.values())
        self.say(
            f"{len(fates):,} flights of {TOTAL_FLIGHTS:,}, {self._rate:.0f} a second; "
            f"policy: {RetryPolicy(POLICY).text}, one retry topic per delay\n"
            f"By the data alone {len(fates) - fates.count(Outcome.DONE):,} flights must end dead, about one in six: "
            f"{fates.count(Outcome.NOT_FOUND):,} have a tail number that no plane has (404), "
            f"{fates.count(Outcome.UNPROCESSABLE):,} never arrived (422). "
            f"Everything else must recover, through 503s, time-outs, resets and an outage of {OUTAGE_S:g} s."
        )

    def _open(self, cache_dir: Path, progress: Progress | None) -> None:
        run, outage_after = self._run, max(1, int(self._records * OUTAGE_AT))
        self.broker = run.broker(cache_dir, progress=progress)
        self._connection = KafkaConnection(self.broker.bootstrap)
        admin = KafkaAdmin(self._connection)
        admin.create_main_topic(MAIN_TOPIC, partitions=PARTITIONS)
        admin.wait_for_topics([MAIN_TOPIC])
        options = ["--port", "0", "--log", str(self._log), "--outage-after", str(outage_after)]
        self._service = run.child("service", [sys.executable, "-m", "retryapp.demo.service", *options])
        url = self._service.wait_for_line(r"^listening on (http://\S+)").group(1)
        worker = [sys.executable, "-m", "faust", "-A", "retryapp.demo.app", "worker", "-l", "info"]
        pages = []
        for number, port in enumerate(free_ports(2), start=1):
            env = {
                f"{PREFIX}BROKER": self.broker.bootstrap,
                f"{PREFIX}SERVICE_URL": url,
                "RETRYAPP_DATADIR": str(run.folder / f"worker-{number}"),
                "RETRYAPP_WEB_PORT": str(port),
                "RETRYAPP_WEB_OPERATORS": "local:admin",
                "TMPDIR": str(run.folder),  # for their port locks
            }
            self._workers.append(run.child(f"worker-{number}", worker, env=env))
            pages.append(f"http://127.0.0.1:{port}{PAGES_PREFIX}/")
        self.say(f"pages of the workers: {'   '.join(pages)}   broker: {self.broker.bootstrap}")
        wait_for(self._are_ready, "both workers have lanes", timeout_s=60)

    def _are_ready(self) -> bool:
        for worker in filter(Child.ended, self._workers):
            raise worker.failure(f"ended with exit code {worker.exit_code} before it was ready")
        return all("retryapp.lane_opened" in worker.log for worker in self._workers)

    def _check(self) -> None:
        """Start a worker again that ended by itself; raise `ChildFailedError` if broker or service ended."""
        if self._service.ended():
            raise self._service.failure(f"ended with exit code {self._service.exit_code}")
        if self.broker.pid is None:
            raise Child("broker", [], log_file=self.broker.log).failure("ended")
        for worker in self._workers:
            if worker.ended() and worker is not self._victim:
                self.say(f"{worker.name} ended by itself with exit code {worker.exit_code}; it is started again")
                worker.start()

    def _watch(self, feeder: Feeder) -> None:
        """Feed and disturb until every flight has its final answer and the killed worker is back, or nothing moves."""
        moved_s, before = time.monotonic(), (-1, -1)
        with self._console.status("feeding") as status:
            while not (feeder.finished and feeder.fed <= self._final and self._victim is None):
                time.sleep(_TURN_S)
                feeder.turn()
                if feeder.finished and self._reporter is not None:
                    self._reporter.start(self.broker.bootstrap)
                self._check()
                self._read_log()
                self._disturb(feeder)
                self._show(feeder, status)
                state = (len(feeder.fed), len(self._visits))
                if state != before:
                    before, moved_s = state, time.monotonic()
                if time.monotonic() - moved_s > STILL_S:
                    self.say(f"nothing has moved for {STILL_S:g} s: giving up")
                    return

    def _read_log(self) -> None:
        for visit in self._tail.read():
            self._visits.append(visit)
            if visit.outcome.is_final:
                self._final.add(visit.flight_id)
                self._waiting.discard(visit.flight_id)
            elif visit.flight_id not in self._final:
                self._waiting.add(visit.flight_id)

    def _disturb(self, feeder: Feeder) -> None:
        """Kill one worker in mid-run, and start it again later."""
        if self._killed_s is None and len(feeder.fed) >= KILL_AT * self._records:
            self._victim = self._workers[0]
            self._victim.kill()
            self._killed_s = time.monotonic()
            self.say(f"killed {self._victim.name} with SIGKILL while {len(self._waiting):,} flights wait")
        if self._victim and self._killed_s is not None and time.monotonic() - self._killed_s > RESTART_AFTER_S:
            self._victim.start()
            self.say(f"started {self._victim.name} again")
            self._victim = None

    def _show(self, feeder: Feeder, status: Status) -> None:
        elapsed_s = time.monotonic() - self._began_s
        line = (
            f"{elapsed_s:5.0f} s  fed {len(feeder.fed):,}/{self._records:,}  "
            f"done or dead {len(self._final):,}  waiting {len(self._waiting):,}"
        )
        status.update(line)
        if not self._console.is_terminal and elapsed_s - self._shown_s >= _PLAIN_INTERVAL_S:
            self._shown_s = elapsed_s
            self.say(line)

    def _settle(self, feeder: Feeder) -> Ledger:
        """Take the ledger until it has every flight done or dead, or for `STILL_S`."""
        topology = HandlerTopology(GROUP, MAIN_TOPIC, Tiers.PER_DELAY, self._schedule.nominal_delays_ms)
        deadline_s = time.monotonic() + STILL_S
        while True:
            self._check()
            ledger = take_ledger(self._connection, topology)
            settled = ledger.total.done + ledger.total.dead
            if (settled >= len(feeder.fed) and ledger.adds_up) or time.monotonic() > deadline_s:
                return ledger
            time.sleep(1.0)
