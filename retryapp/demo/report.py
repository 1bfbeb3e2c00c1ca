"""The report at the end of a run, by the pipeline on Spark in a process of its own.

The balance does not depend on it: without PySpark, Java, network or memory there is a reason instead of a page.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from retryapp.demo.balance import Balance
from retryapp.demo.settings import GROUP
from retryapp.jvm import missing_jars, spark_jars
from retryapp.stage import Child, ChildFailedError, Run

PAGE: Final = "demo-report.html"
TIMEOUT_S: Final = 900.0

_MEMORY: Final = "1g"
_LONGEST_REASON: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A page, or the reason why there is none; as `--json` prints it."""

    path: Path | None = None
    reason: str | None = None
    """Why there is no page, and what to do."""
    seconds: float = 0.0
    headline: str = ""
    totals: Mapping[str, int] = field(default_factory=dict)
    """Records by fate, as the page has them."""
    problems: tuple[str, ...] = ()
    """Where it differs from balance and ledger, and checks that failed; empty when all agree."""

    @property
    def text(self) -> str:
        if self.path is None:
            return f"No report: {self.reason}"
        agrees = "Balance, ledger and report agree." if not self.problems else "The report does NOT agree:"
        lines = [f"Report after {self.seconds:.0f} s: {self.path}", f"  {self.headline}. {agrees}"]
        return "\n".join([*lines, *(f"  - {problem}" for problem in self.problems)])


class Reporter:
    """Archives, analyses and compares what happened with the balance, in a process that starts before the run's end."""

    def __init__(self, run: Run, console: Console, *, cache_dir: Path, page: Path) -> None:
        self._run = run
        self._console = console
        self._cache_dir = cache_dir
        self._page = page
        self._over = run.folder / "over"
        self._child: Child | None = None

    def start(self, broker: str) -> None:
        """Have Spark start, and archive what is there already; nothing without PySpark, or the second time."""
        if self._child is not None or find_spec("pyspark") is None:
            return
        self._console.print(_announcement(self._cache_dir), highlight=False, soft_wrap=True)
        folder = self._run.folder
        command = _command(folder, broker, self._page, self._over)
        self._child = self._run.child("report", command, env=_variables(folder, self._cache_dir))

    def finish(self, broker: str, balance: Balance) -> Report:
        """Have the rest archived and analysed; wait for the page. An earlier run's page is removed."""
        began_s = time.monotonic()
        self.start(broker)
        if self._child is None:
            return Report(
                reason="PySpark is not installed. Install it: pip install '/path/to/retryapp[spark]' (565 MB)"
            )
        try:
            self._page.parent.mkdir(parents=True, exist_ok=True)
            self._page.unlink(missing_ok=True)
        except OSError as error:
            self._child.kill()
            reason = f"{self._page} cannot be written: {error.strerror}. Name another folder: RETRYAPP_DATADIR"
            return Report(reason=reason)
        self._over.touch()
        with self._console.status("this takes a while"):
            try:
                code = self._child.wait(TIMEOUT_S)
            except ChildFailedError:
                reason = f"it was not there after {TIMEOUT_S:g} s. The machine may be busy: run the demo again"
                return Report(reason=reason)
            finally:
                self._child.kill()
        return read_report(self._child.log, code, balance, page=self._page, seconds=time.monotonic() - began_s)


def read_report(log: str, exit_code: int, balance: Balance, *, page: Path, seconds: float) -> Report:
    """Read the process's output: its result is the last line that is a JSON object."""
    lines = [line for line in log.splitlines() if line.strip()]
    result = next(_objects(lines), None)
    if result is None or "report" not in result:
        last = lines[-1].strip() if lines else "no output"
        error = (result or {}).get("error")
        reason = str(error["message"]) if error else f"{last} (exit code {exit_code})"
        return Report(reason=" ".join(reason.split())[:_LONGEST_REASON], seconds=seconds)
    shown = result["report"]
    return Report(
        path=page.absolute(),
        seconds=round(seconds, 1),
        headline=shown["headline"],
        totals=shown["totals"],
        problems=tuple(_problems(result, balance)),
    )


def _objects(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in reversed(lines):
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _problems(result: Mapping[str, Any], balance: Balance) -> Iterator[str]:
    totals, ledger = result["report"]["totals"], result["ledger"]
    expected = {"dead": balance.dead, "lost": balance.lost}
    if ledger["at_rest"]:  # else some were still on their way when it was counted
        expected |= {"received": balance.fed, "done": balance.done, "pending": 0}
    for name, number in expected.items():
        if totals[name] != number:
            yield f"{name}: the report has {totals[name]:,}, the balance {number:,}"
    if ledger["at_rest"]:
        for row in ledger["differences"]:
            where = f"{row['main']}[{row['partition']}] {row['name']}"
            yield f"{where}: the report has {row['analysis']:,}, the ledger {row['ledger']:,}"
    for check in result["verdicts"]:
        if check["severity"] == "error" and check["failures"]:
            yield f"check {check['name']}: {check['failures']:,} x {check['text']}"


def _command(folder: Path, broker: str, page: Path, over: Path) -> list[str]:
    options = {
        "--broker": broker,
        "--group": GROUP,
        "--lake": str(folder / "lake"),
        "--report": str(page),
        "--memory": _MEMORY,
        "--after": str(over),
    }
    words = [word for pair in options.items() for word in pair]
    analyse = [sys.executable, "-m", "retryapp.cli.main", "pipeline", "analyse", *words, "--compare-ledger", "--json"]
    return ["nice", *analyse]  # workers come first


def _variables(folder: Path, cache_dir: Path) -> dict[str, str]:
    return {
        "RETRYAPP_CACHE_DIR": str(cache_dir),
        "SPARK_LOCAL_DIRS": str(folder / "spark"),  # goes away with the run
        "TMPDIR": str(folder),
        "JDK_JAVA_OPTIONS": f"-Djava.io.tmpdir={folder}",
    }


def _announcement(cache_dir: Path) -> str:
    jars = spark_jars()
    missing = missing_jars(cache_dir, jars)
    size = sum(jar.size for jar in missing)
    first = f" It first downloads {len(missing)} jars of Spark's connectors, {size / 1e6:.0f} MB, once." * bool(missing)
    return f"The pipeline on Spark goes over what happens: archive, then analysis and report.{first}"
