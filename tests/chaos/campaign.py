"""Running rounds side by side, with a log of those that are over, so that a campaign can go on where it was."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from benchmarks.machine import code_version
from chaos.act import Act
from chaos.disks import small_disk
from chaos.eyes import injections, lines
from chaos.ground import Ground, ThreeGrounds
from chaos.matrix import Fault

Result = dict[str, Any]
LOG = "rounds.jsonl"


@dataclass(frozen=True, slots=True)
class Round:
    """One of a campaign's rounds."""

    fault: Fault
    number: int
    seed: int

    @property
    def key(self) -> str:
        """Name in the run's log."""
        return f"{self.fault.id}#{self.number}"


def rounds(faults: Sequence[Fault], seed: int, times: float) -> Iterator[Round]:
    """Name all rounds, a round of each fault in turn, so that a campaign that is cut short has some of each.

    `times`: how often to do all of it; a part of it where less than 1.
    """
    columns = [[(fault, n) for n in range(max(1, round(fault.rounds * times)))] for fault in faults]
    for row in zip_longest(*columns):
        for fault, number in filter(None, row):
            digest = hashlib.sha256(f"{seed}/{fault.id}/{number}".encode()).digest()
            yield Round(fault, number, int.from_bytes(digest[:6], "big"))


@dataclass(slots=True)
class Campaign:
    """The rounds of one run folder."""

    folder: Path
    cache_dir: Path
    ground: Ground
    keep: bool = False
    short: bool = False

    def finished(self) -> dict[str, Result]:
        """Return the rounds that are over, by key."""
        return {line["key"]: line for line in lines(self.folder / LOG)}

    def run(self, left: Sequence[Round], jobs: int, until_s: float, begun: Callable[[str], None]) -> Iterator[Result]:
        """Run rounds, several at a time; yield each result as it is there, and log it.

        None begins after `until_s`, on the monotonic clock; `begun` is called with the key of each.
        """
        todo = iter(left)
        running: set[Future[Result]] = set()
        with ThreadPoolExecutor(jobs, thread_name_prefix="round") as pool:
            while True:
                while len(running) < jobs and time.monotonic() < until_s and (each := next(todo, None)) is not None:
                    begun(each.key)
                    running.add(pool.submit(self._one, each))
                if not running:
                    return
                over, running = wait(running, return_when=FIRST_COMPLETED)
                for future in over:
                    with (self.folder / LOG).open("a") as file:
                        file.write(json.dumps(future.result()) + "\n")
                    yield future.result()

    def _one(self, each: Round) -> Result:
        base: Result = {"key": each.key, "fault": each.fault.id, "number": each.number, "seed": each.seed}
        base["code"] = code_version()
        if reason := each.fault.needs():
            return {**base, "outcome": "skipped", "reason": reason}
        folder = self.folder / f"{each.fault.id}-{each.number}"
        shutil.rmtree(folder, ignore_errors=True)
        began_s = time.monotonic()
        try:
            verdicts = self.play(each, folder)
            passed = all(verdict["passed"] and not verdict["ledger"] for verdict in verdicts)
            result: Result = {"outcome": "passed" if passed else "failed", "verdicts": verdicts}
        except Exception:  # noqa: BLE001 - the edge of a round: whatever it is, the others go on, and it has failed
            result = {"outcome": "failed", "error": traceback.format_exc()[-4000:]}
        noted = folder / "group0" if each.fault.crowd else folder
        result["injections"] = Counter(injection.kind for injection in injections(noted))
        if result["outcome"] == "passed" and not self.keep:
            shutil.rmtree(folder, ignore_errors=True)
        return {**base, "took_s": round(time.monotonic() - began_s, 1), **result}

    def play(self, each: Round, folder: Path) -> list[dict[str, Any]]:
        """Do the fault to one group on the campaign's broker, or to several on one of their own; return verdicts."""
        fault = each.fault
        with ExitStack() as stack:
            if fault.run is not None:
                link = stack.enter_context(self.ground.link()) if fault.link else None
                act = stack.enter_context(self._act(self.ground, folder, each.seed, fault, link=link))
                fault.run(act, each.number)
                if link is not None:
                    link.heal()
                acts = [act]
            else:
                assert fault.crowd is not None
                if fault.disk_mb:
                    stack.enter_context(small_disk(folder / "broker", fault.disk_mb))
                kind = ThreeGrounds if fault.three else Ground
                ground = stack.enter_context(kind(self.cache_dir, folder / "broker", settings=fault.broker))
                acts = [
                    stack.enter_context(self._act(ground, folder / f"group{n}", each.seed + n, fault))
                    for n in range(fault.groups)
                ]
                fault.crowd(acts, each.number)
            for act in acts:
                act.settle()
            return [act.verdict() for act in acts]

    def _act(self, ground: Ground, folder: Path, seed: int, fault: Fault, **more: Any) -> Act:
        return Act(ground, folder, random.Random(seed), short=self.short, **fault.act, **more)
