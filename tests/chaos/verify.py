"""The verifier: a process of its own that knows only input, deliveries log, injections and topics.

``python -m chaos.verify FOLDER`` prints its verdict as one JSON object. It never asks a worker, and imports nothing of
retryapp.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos.eyes import Copy, Injection, Input, Place, Run, Told, injections, inputs, look, runs

EDGE_MS = 5
"""Broker and service are one machine here; the rest is the acknowledgement by which a worker knows the time."""
COMMITTED_MS = 2_000
"""A hand-off that is visible was committed at most so long after the broker took it."""
OFFSETS_MS = 2_000
"""First attempts that go well are durable by their offsets, which move four times a second; so long to be sure."""
NEVER_MS = 1 << 62
_SHOWN = 12


@dataclass(slots=True)
class Verdict:
    """The outcome of a round. Lists name records; all of them but `repeated` must be empty for it to pass."""

    records: int = 0
    done: int = 0
    dead: int = 0
    lost: list[str] = field(default_factory=list)
    """No durable fate."""
    wrong: list[str] = field(default_factory=list)
    """A fate that is not the policy's, or two of them."""
    early: list[str] = field(default_factory=list)
    over_policy: list[str] = field(default_factory=list)
    """An attempt beyond the policy, out of row, or after its outcome was durable."""
    altered: list[str] = field(default_factory=list)
    """Bytes, headers or timestamp are not those of the input."""
    copied: list[str] = field(default_factory=list)
    """Hand-offs that a committed reader sees twice; allowed where the broker took back commits."""
    leftover: list[str] = field(default_factory=list)
    """Rows, offsets or records of ours that should not be there at rest."""
    runs: int = 0
    repeated: int = 0
    """Runs of an attempt that had begun before."""
    unexplained: int = 0
    """Of those: how many without an injection in between."""
    faults: list[dict[str, Any]] = field(default_factory=list)
    """Each injection: kind, runs in flight, runs repeated because of it, and of how many attempts those are."""
    late_ms: dict[str, int] = field(default_factory=dict)
    """Begin minus due time of later attempts: p50, p99, max."""
    single: bool = True
    """The broker took back no commit: no hand-off may be there twice, and no failure may be gone."""

    @property
    def passed(self) -> bool:
        broken = [self.lost, self.wrong, self.early, self.over_policy, self.altered, self.leftover]
        return not any(broken) and not (self.single and self.copied)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for JSON; of long lists the first entries, and their lengths."""
        names = ("lost", "wrong", "early", "over_policy", "altered", "copied", "leftover")
        lists = {name: getattr(self, name) for name in names}
        counts = {name: len(entries) for name, entries in lists.items()}
        shown = {name: entries[:_SHOWN] for name, entries in lists.items()}
        return {**asdict(self), **counts, "shown": shown, "passed": self.passed}


def judge(
    facts: dict[str, Any], published: list[Input], ran: list[Run], done_to: list[Injection], told: Told
) -> Verdict:
    """Compare what was published with what was run and with what the topics say at rest.

    `facts`: `waits_ms` of the policy, `single`, `truncated`, whether retry records were deleted by a fault, and
    `unheard`, whether attempts may have failed before they reached the service.
    """
    verdict = Verdict(records=len(published), runs=len(ran), single=facts["single"])
    ours = [copy for injection in done_to for copy in injection.copies]
    copies = [c for c in told.copies if [c.topic, c.partition, c.offset] not in ours]
    by_place: dict[Place, list[Run]] = defaultdict(list)
    for run in ran:
        by_place[run.place].append(run)
    _fates(verdict, facts, published, by_place, copies)
    _times(verdict, facts, by_place, copies)
    _attempts(verdict, facts, by_place, copies)
    known = {record.place: record for record in published}
    for run in ran:
        record = known.get(run.place)
        if record is not None and (run.content, run.timestamp_ms) != (record.content, record.timestamp_ms):
            verdict.altered.append(f"{run.place} attempt {run.attempt}: what the handler got")
    for copy in copies:
        record = known.get(copy.origin)
        if record is not None and copy.station != "succeeded" and copy.content != record.content:
            verdict.altered.append(f"{copy.origin}: on {copy.station}")
    seen = Counter((copy.origin, copy.delivery) for copy in copies)
    verdict.copied = [f"{origin} delivery {n}: {k} hand-offs" for (origin, n), k in seen.items() if k > 1]
    _faults(verdict, published, ran, done_to, copies)
    expected = sum(each.fate == "waiting" for each in published)
    if told.waiting != expected:
        verdict.leftover.append(f"{told.waiting} rows wait, {expected} should")
    if told.unsettled:
        verdict.leftover.append(f"{told.unsettled} records are past the group's offsets")
    verdict.leftover += told.damaged
    return verdict


def _fates(
    verdict: Verdict, facts: dict[str, Any], published: list[Input], ran: dict[Place, list[Run]], copies: list[Copy]
) -> None:
    dead: dict[Place, set[str]] = defaultdict(set)
    for copy in copies:
        if copy.station == "dlq":
            dead[copy.origin].add(copy.reason)
    succeeded = {copy.origin for copy in copies if copy.station == "succeeded"}
    failed = {copy.origin for copy in copies if copy.station == "retry"}
    for each in published:
        at_once = any(run.attempt == 1 and run.status == 200 for run in ran.get(each.place, ()))
        done = each.place in succeeded or (at_once and each.place not in failed)
        verdict.done += done
        verdict.dead += each.place in dead
        name = f"{each.id} {each.place}"
        if each.place in dead and each.place in succeeded:
            verdict.wrong.append(f"{name}: done and dead")
        elif each.place in dead and facts.get("unheard") and dead[each.place] == {"exhausted"}:
            continue  # attempts that could not reach the service used it up
        elif each.place in dead and each.fate not in ("dead", "any"):
            verdict.wrong.append(f"{name}: dead ({', '.join(dead[each.place])}), should be {each.fate}")
        elif each.place in dead and each.reasons and not dead[each.place] <= set(each.reasons):
            verdict.wrong.append(f"{name}: dead ({', '.join(dead[each.place])}), not {each.reasons}")
        elif each.place not in dead and done and each.fate not in ("done", "any"):
            verdict.wrong.append(f"{name}: done, should be {each.fate}")
        elif each.place not in dead and not done and each.fate != "waiting":
            verdict.lost.append(f"{name}: {len(ran.get(each.place, ()))} runs, no fate; should be {each.fate}")
    strangers = (set(dead) | set(ran)) - {each.place for each in published}
    verdict.wrong += [f"{place}: was not published" for place in strangers]


def _times(verdict: Verdict, facts: dict[str, Any], ran: dict[Place, list[Run]], copies: list[Copy]) -> None:
    due: dict[tuple[Place, int], set[int]] = defaultdict(set)
    for copy in copies:
        if copy.station == "retry":
            due[copy.origin, copy.attempt + 1].add(copy.due_ms or 0)
    late = []
    for place, here in ran.items():
        for run in here:
            if run.attempt == 1:
                continue
            known = due.get((place, run.attempt))
            if known is None and verdict.single and not facts.get("truncated"):
                verdict.over_policy.append(f"{place} attempt {run.attempt}: no failure before it is on the retry topic")
            if known and verdict.single and run.begun_ms < min(known):  # else the failure before it may be taken back
                verdict.early.append(f"{place} attempt {run.attempt}: began {min(known) - run.begun_ms} ms early")
            if known:
                late.append(run.begun_ms - max(known))
            ended = [r.answered_ms for r in here if r.attempt == run.attempt - 1 and r.answered_ms is not None]
            least = facts["waits_ms"][run.attempt - 2] if run.attempt - 2 < len(facts["waits_ms"]) else 0
            if ended and run.begun_ms < min(ended) + least - EDGE_MS:
                verdict.early.append(f"{place} attempt {run.attempt}: {run.begun_ms - min(ended)} ms after the failure")
    if late:
        late.sort()
        verdict.late_ms = {"p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100], "max": late[-1]}


def _attempts(verdict: Verdict, facts: dict[str, Any], ran: dict[Place, list[Run]], copies: list[Copy]) -> None:
    most = len(facts["waits_ms"]) + 1
    settled: dict[tuple[Place, int], int] = {}
    for copy in copies:
        if copy.station in ("retry", "dlq", "succeeded"):
            key = (copy.origin, copy.attempt)
            settled[key] = min(copy.at_ms, settled.get(key, NEVER_MS))
            if copy.attempt > most:
                verdict.over_policy.append(f"{copy.origin}: {copy.station} of attempt {copy.attempt}")
    for place, here in ran.items():
        numbers = {run.attempt for run in here}
        gaps = numbers != set(range(1, len(numbers) + 1)) and not facts.get("unheard")
        if max(numbers) > most or gaps:
            verdict.over_policy.append(f"{place}: attempts {sorted(numbers)}, at most {most}")
        if verdict.single:
            for run in here:
                behind = run.begun_ms - settled.get((place, run.attempt), NEVER_MS)
                if behind > COMMITTED_MS:
                    verdict.over_policy.append(f"{place} attempt {run.attempt}: ran {behind} ms after its outcome")


def _faults(
    verdict: Verdict, published: list[Input], ran: list[Run], done_to: list[Injection], copies: list[Copy]
) -> None:
    """Say for each injection what was in flight, and which runs are repeated because of it."""
    durable = _durable(ran, copies)
    moments = sorted(done_to, key=lambda each: each.at_ms)
    starts = [each.at_ms for each in moments]
    repeated: Counter[int] = Counter()
    again: dict[int, set[tuple[Place, int]]] = defaultdict(set)
    first: dict[tuple[Place, int], Run] = {}
    for run in ran:
        before = first.setdefault((run.place, run.attempt), run)
        if before is run:
            continue
        verdict.repeated += 1
        for number in range(bisect_right(starts, run.begun_ms) - 1, -1, -1):
            if before.begun_ms <= moments[number].until_ms + COMMITTED_MS:
                repeated[number] += 1
                again[number].add((run.place, run.attempt))
                break
        else:
            verdict.unexplained += 1
    for number, each in enumerate(moments):
        flying = sum(run.begun_ms <= each.until_ms and durable[key] > each.at_ms for key, run in first.items())
        counts = {"in_flight": flying, "repeated": repeated[number], "attempts": len(again[number])}
        verdict.faults.append({"kind": each.kind, **counts})


def _durable(ran: list[Run], copies: list[Copy]) -> dict[tuple[Place, int], int]:
    """Say by when the outcome of each attempt was durable."""
    found = {(c.origin, c.attempt): c.at_ms for c in copies if c.station in ("retry", "dlq", "succeeded")}
    ends: dict[int, int] = {}
    for run in sorted(ran, key=lambda each: each.place):
        if run.attempt == 1:  # those that go well at once become durable by their offsets, in the order of these
            ends[run.place[0]] = max(ends.get(run.place[0], 0), run.answered_ms or 0)
        found.setdefault((run.place, run.attempt), ends.get(run.place[0], 0) + OFFSETS_MS)
    return found


def main(folder: Path) -> int:
    facts = json.loads((folder / "round.json").read_text())
    verdict = judge(facts, inputs(folder), runs(folder), injections(folder), look(facts))
    sys.stdout.write(json.dumps(verdict.as_dict()) + "\n")
    return 0 if verdict.passed else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
