"""Running rounds side by side, with a log of those that are over, so that a campaign can go on where it was."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos.act import Act
from chaos.disks import small_disk
from chaos.eyes import injections, lines
from chaos.ground import Ground
from chaos.plan import Round

Result = dict[str, Any]
LOG = "rounds.jsonl"


class Campaign:
    """The rounds of one run folder."""

    def __init__(
        self, folder: Path, cache_dir: Path, ground: Ground, *, keep: bool = False, short: bool = False
    ) -> None:
        self.folder = folder
        self._cache_dir = cache_dir
        self._ground = ground
        self._keep = keep
        self._short = short
        self._lock = threading.Lock()

    def finished(self) -> dict[str, Result]:
        """Return the rounds that are over, by key."""
        return {line["key"]: line for line in lines(self.folder / LOG)}

    def run(self, rounds: Sequence[Round], jobs: int, until_s: float, told: Callable[[str], None]) -> Iterator[Result]:
        """Run rounds, several at a time; yield each result as it is there, and note it.

        Args:
            rounds: which.
            jobs: how many groups at a time.
            until_s: no round begins after this, on the monotonic clock.
            told: called with the key of a round that begins.
        """
        left = iter(rounds)
        running: set[Future[Result]] = set()
        with ThreadPoolExecutor(jobs, thread_name_prefix="round") as pool:
            while True:
                while len(running) < jobs and time.monotonic() < until_s and (each := next(left, None)) is not None:
                    told(each.key)
                    running.add(pool.submit(self._one, each))
                if not running:
                    return
                over, running = wait(running, return_when=FIRST_COMPLETED)
                for future in over:
                    result = future.result()
                    with (self.folder / LOG).open("a") as file:
                        file.write(json.dumps(result) + "\n")
                    yield result

    def _one(self, each: Round) -> Result:
        reason = each.fault.needs()
        base: Result = {"key": each.key, "fault": each.fault.id, "number": each.number, "seed": each.seed}
        if reason:
            return {**base, "outcome": "skipped", "reason": reason}
        folder = self.folder / f"{each.fault.id}-{each.number}"
        shutil.rmtree(folder, ignore_errors=True)
        began_s = time.monotonic()
        try:
            told = self._crowd(each, folder) if each.fault.crowd else self._single(each, folder)
        except Exception:  # noqa: BLE001 - the edge of a round: whatever it is, the others go on, and it has failed
            told = {"outcome": "failed", "error": traceback.format_exc()[-4000:], "injections": _counted(folder)}
        if told["outcome"] == "passed" and not self._keep:
            shutil.rmtree(folder, ignore_errors=True)
        return {**base, "took_s": round(time.monotonic() - began_s, 1), **told}

    def _single(self, each: Round, folder: Path) -> Result:
        with ExitStack() as stack:
            link = stack.enter_context(self._ground.link()) if each.fault.link else None
            act = stack.enter_context(
                Act(
                    self._ground,
                    folder,
                    random.Random(each.seed),
                    link=link,
                    short=self._short,
                    **each.fault.act,
                )
            )
            assert each.fault.run is not None
            each.fault.run(act, each.number)
            if link is not None:
                link.heal()
            act.settle()
            return _result([act.verdict()], _counted(folder))

    def _crowd(self, each: Round, folder: Path) -> Result:
        with ExitStack() as stack:
            if each.fault.disk_mb:
                stack.enter_context(small_disk(folder / "broker", each.fault.disk_mb))
            ground = stack.enter_context(Ground(self._cache_dir, folder / "broker"))
            acts = [
                stack.enter_context(
                    Act(
                        ground,
                        folder / f"group{n}",
                        random.Random(each.seed + n),
                        short=self._short,
                        **each.fault.act,
                    )
                )
                for n in range(each.fault.groups)
            ]
            assert each.fault.crowd is not None
            each.fault.crowd(acts, each.number)
            for act in acts:
                act.settle()
            return _result([act.verdict() for act in acts], _counted(folder / "group0"))


def _counted(folder: Path) -> dict[str, int]:
    where = folder if (folder / "injections.jsonl").exists() else folder / "group0"
    return dict(Counter(each.kind for each in injections(where)))


def _result(verdicts: list[dict[str, Any]], injected: dict[str, int]) -> Result:
    passed = all(verdict["passed"] and not verdict["ledger"] for verdict in verdicts)
    return {"outcome": "passed" if passed else "failed", "injections": injected, "verdicts": verdicts}
