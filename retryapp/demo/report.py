"""The report at the end of a run: the pipeline on Spark goes over what has just happened.

It runs as a process of its own, the command that anybody can type. The run's result is there before it begins and does
not hang on it: where there is no PySpark, no Java, no network or no memory there is a reason instead of a page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from retryapp.demo.balance import Balance
from retryapp.demo.clock import monotonic_s
from retryapp.demo.processes import Child
from retryapp.demo.stage import Stage
from retryapp.demo.view import View
from retryapp.jvm import missing_jars, spark_jars

PAGE: Final = "demo-report.html"
"""Name of the page."""
TIMEOUT_S: Final = 900.0
"""A report that is not there after so long is given up."""

# Compiled once over, the JVM is through with so short a job before a better compiler would have paid for itself.
_QUICK_JVM: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
_MEMORY: Final = "1g"
_POLL_S: Final = 0.2
_LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of it: a page, or the reason why there is none."""

    path: Path | None = None
    reason: str | None = None
    """Why there is no page, and what to do."""
    seconds: float = 0.0
    headline: str = ""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Records by fate, as the page has them: received, done, first_try_ok, recovered, pending, dead, lost, failed."""
    problems: tuple[str, ...] = ()
    """Where it differs from the balance or from the ledger, and checks that do not hold; empty when all agree."""

    def as_json(self) -> dict[str, object]:
        """Return the object that `--json` prints."""
        return {
            "path": None if self.path is None else str(self.path),
            "reason": self.reason,
            "seconds": round(self.seconds, 1),
            "headline": self.headline or None,
            "totals": dict(self.totals),
            "problems": list(self.problems),
        }

    @property
    def text(self) -> str:
        """The same for people."""
        if self.path is None:
            return f"No report: {self.reason}"
        agrees = "Balance, ledger and report agree." if not self.problems else "The report does NOT agree:"
        lines = [f"Report after {self.seconds:.0f} s: {self.path}", f"  {self.headline}. {agrees}"]
        return "\n".join([*lines, *(f"  - {problem}" for problem in self.problems)])


def make_report(stage: Stage, balance: Balance, view: View, *, cache_dir: Path, page: Path) -> Report:
    """Archive what the run left on its topics, analyse it, and write the page.

    Args:
        stage: what the run stands on; its broker still runs.
        balance: what it came to; the page is held against it.
        view: told before it begins.
        cache_dir: where Spark's jars are, or will be.
        page: where the page goes; its folder is made.

    Returns:
        A report with a page, or with a reason; nothing is raised for want of anything.

    Raises:
        KeyboardInterrupt: Ctrl-C; the process has been ended.
    """
    if find_spec("pyspark") is None:
        return Report(reason="PySpark is not installed. Install it: pip install 'retryapp[spark]' (565 MB)")
    began_s = monotonic_s()
    child = Child("report", _command(stage, page), log=stage.logs / "report.log", env=_variables(stage, cache_dir))
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        page.unlink(missing_ok=True)  # the page of an earlier run is not this one's
        with view.busy(_announcement(cache_dir)):
            child.start()
            while not child.wait(_POLL_S) and monotonic_s() - began_s < TIMEOUT_S:
                pass
    except OSError as error:
        return Report(reason=f"{page} cannot be written: {error.strerror}. Name another folder: RETRYAPP_DATADIR")
    finally:
        ended = child.pid is None
        child.kill()
    if not ended:
        return Report(reason=f"it was not there after {TIMEOUT_S:g} s. The machine may be busy: run the demo again")
    return read_report(child.log, child.exit_code or 0, balance, page=page, seconds=monotonic_s() - began_s)


def read_report(log: Path, exit_code: int, balance: Balance, *, page: Path, seconds: float) -> Report:
    """Read what the process has said.

    Args:
        log: its output; the result is the last line that is a JSON object.
        exit_code: what it ended with.
        balance: what the run came to.
        page: the page that it was to write.
        seconds: how long it took.
    """
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    told = next(_objects(lines), None)
    if told is None or "report" not in told:
        last = lines[-1].strip() if lines else "it said nothing"
        reason = str(told["error"]["message"]) if told is not None and "error" in told else f"{last} (code {exit_code})"
        return Report(reason=" ".join(reason.split())[:_LONGEST_REASON], seconds=seconds)
    shown = told["report"]
    return Report(
        path=page.absolute(),
        seconds=seconds,
        headline=shown["headline"],
        totals=shown["totals"],
        problems=tuple(_problems(told, balance)),
    )


def _objects(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects, the last one first."""
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _problems(told: Mapping[str, Any], balance: Balance) -> Iterator[str]:
    """Say where the page differs from what was counted otherwise."""
    totals, ledger = told["report"]["totals"], told["ledger"]
    expected = {"dead": balance.dead, "lost": balance.lost}
    if ledger["at_rest"]:  # else some were still on their way when it was counted
        expected |= {"received": balance.fed, "done": balance.done, "pending": 0}
    for name, number in expected.items():
        if totals[name] != number:
            yield f"{name}: the report has {totals[name]:,}, the balance {number:,}"
    if ledger["at_rest"]:
        for each in ledger["differences"]:
            where = f"{each['main']}[{each['partition']}] {each['name']}"
            yield f"{where}: the report has {each['analysis']:,}, the ledger {each['ledger']:,}"
    for check in told["verdicts"]:
        if check["severity"] == "error" and check["failures"]:
            yield f"check {check['name']}: {check['failures']:,} x {check['text']}"


def _command(stage: Stage, page: Path) -> list[str]:
    options = {
        "--broker": stage.connection.bootstrap,
        "--group": stage.topology.group,
        "--lake": str(stage.folder / "lake"),
        "--format": "parquet",  # it goes away with the run, and Delta's log costs as much as all the rest
        "--report": str(page),
        "--memory": _MEMORY,
    }
    words = [word for pair in options.items() for word in pair]
    words += ["--conf", f"spark.sql.warehouse.dir={stage.folder / 'warehouse'}"]  # else a folder where the user stands
    return [sys.executable, "-m", "retryapp.cli.main", "pipeline", "analyse", *words, "--compare-ledger", "--json"]


def _variables(stage: Stage, cache_dir: Path) -> dict[str, str]:
    return {
        "RETRYAPP_CACHE_DIR": str(cache_dir),
        "SPARK_LOCAL_DIRS": str(stage.folder / "spark"),  # goes away with the run
        "JDK_JAVA_OPTIONS": f"{_QUICK_JVM} -Djava.io.tmpdir={stage.folder}",
    }


def _announcement(cache_dir: Path) -> str:
    jars = spark_jars()
    missing = missing_jars(cache_dir, jars)
    size = sum(jar.size for jar in missing)
    first = f" It first downloads {len(missing)} jars of Spark's connectors, {size / 1e6:.0f} MB, once." * bool(missing)
    return f"The pipeline on Spark goes over what happened: archive, analysis, report.{first}"
