"""What must hold of dead letters that have a handler (I28): each is handled or replayed, not both, and is not lost.

So it is of letters that are not as others (`simulation.odd_letters`): their handler gets what they say, and is told of
damage; only one of ours that says which record died has a mark. What retention deletes behind their handler's offset
has its end, too.

Letters are the records of their handler, so the oracle judges its attempts, its rows and what becomes of each. Here
their marks are judged: by one who reads the dead-letter topic, and knows the calls of the handler and the commands.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from retryapp.core.control import mark_of
from retryapp.core.letters import Letter
from retryapp.core.record import Origin as Place
from retryapp.core.record import Record
from retryapp.ports import TopicPartition
from simulation.broker import Broker
from simulation.odd_letters import COUNTLESS, NONE, ODD, PLACELESS
from simulation.oracle import GIVEN_UP_MS, Oracle
from simulation.plan import Plan
from simulation.scripts import INVALID
from simulation.steering import Steering
from simulation.story import Opening, Origin, must

LETTERS: Final = "sim.orders.dlq"
"""The topic of the letters: the main topic of their handler."""
NAMED: Final = f"{LETTERS}.{INVALID}"
"""The same of what a rule sends there."""
TOPICS: Final = frozenset({LETTERS, NAMED})
_FATES: Final = {"handled": "done", "skipped": "skipped", "failed": "dead"}
"""Marks of the handler, and what became of the letter as the record that it is."""
_CLOSED: Final = {"replayed", "recovered", "discarded"}
"""Marks of commands, behind which the handler passes the letter."""


class Letters:
    """Judges the letters of one topic."""

    def __init__(self, plan: Plan, oracle: Oracle, topic: str = LETTERS) -> None:
        self.steering: Steering | None = None
        """Of the handler whose records die; set where the history has commands."""
        self._plan = plan
        self._topic = topic
        self._oracle = oracle
        self._marks: defaultdict[Origin, list[tuple[str, float, int]]] = defaultdict(list)
        """Marks of each letter, when they were visible, and where they are."""
        self._headers: dict[Origin, dict[str, bytes | None]] = {}
        self._odd: dict[Origin, str] = {}
        """Letters that are not as others, and how."""
        self._died: set[bytes | None] = set()
        """Records that have a letter."""
        self._gone: set[Origin] = set()
        """Letters that retention has deleted."""

    # -- what is visible ------------------------------------------------------------------------------------------

    def appeared(self, records: Sequence[Record], now_ms: float) -> None:
        """Take records of the dead-letter topic: letters, which their handler is to get, and marks."""
        for record in records:
            ours = {name: value for name, value in record.headers if name.startswith("retry-")}
            if "retry-mark" in ours:
                self._marked(record, str((ours["retry-mark"] or b"").decode()), now_ms)
                continue
            place = record.partition, record.offset
            if (odd := dict(record.headers).get(ODD)) is not None:
                self._odd[place] = odd.decode()
            else:
                of_orders = (ours["retry-origin"] or b"").startswith(b"orders@")
                must(of_orders, "I28", place, f"a letter of {ours['retry-origin']!r}, which is one itself")
            foreign = tuple(each for each in record.headers if not each[0].startswith("retry-"))
            died = ours.get("retry-origin")
            self._oracle.named["a record has died again since its offset was set back"] += (
                odd is None and ours.get("retry-replays") is None and died in self._died
            )
            self._died.add(died)
            self._headers[place] = ours
            script = self._plan.letters[(record.offset + record.partition) % len(self._plan.letters)]
            self._oracle.add(replace(record, headers=foreign), script)

    def _marked(self, record: Record, mark: str, now_ms: float) -> None:
        told = json.loads(record.value or b"{}")
        place, name = (record.partition, told["letter"]), told["command"]
        must(place in self._headers, "I28", place, f"{mark}, and no letter")
        must(self._odd.get(place, COUNTLESS) == COUNTLESS, "I28", place, f"{mark}, and it is {self._odd.get(place)}")
        of = (self._headers[place]["retry-origin"] or b"").decode()
        must(told["failure_id"] == f"sim/{of}", "I28", place, f"{mark} as a letter of {told['failure_id']}, not {of}")
        marks, story = self._marks[place], self._oracle.story(place)
        before, last = [kind for kind, *_ in marks], marks[-1][0] if marks else "none"
        reached = self._oracle.named
        if mark in _FATES:
            must(not _FATES.keys() & {*before}, "I28", place, f"{mark}, and it was {before}")
            shut = last in _CLOSED and not self._restored_in_vain(place)
            must(not shut, "I28", place, f"{mark} by its handler, and it is {last}")
            fine = any(call.fine for calls in story.calls.values() for call in calls)
            must(fine or mark != "handled", "I28", place, "handled, and no call of it was fine")
            reached["a letter of a rule has its end"] += self._topic == NAMED
            reached["a letter ends that is gone"] += place in self._gone
        elif mark in ("replayed", "discarded"):
            forced = self.steering is not None and name in self.steering.forced and mark == "replayed"
            must(forced or "handled" not in before, "I28", place, f"{mark} by {name}, and it is handled")
            must(last not in _CLOSED, "I28", place, f"{mark} by {name}, and it is {last}")
            calm = self._oracle.steering is not None and self._oracle.steering.calm
            runs = calm and any(now_ms - each.cancelled_ms < GIVEN_UP_MS for each in story.going)
            must(not runs, "I28", place, f"{mark} by {name}, and its handler has it")
            reached[f"a letter is {mark}, and it was {last}"] += 1
        marks.append((mark, now_ms, record.offset))

    def _restored_in_vain(self, place: Origin) -> bool:
        """Tell whether somebody may take the letter for restored, whatever its marks say: the broker took that back."""
        if self.steering is None:
            return False
        return self.steering.restored_in_vain(Place(self._topic, "", *place), self._marks[place][-1][2])

    def retain(self, broker: Broker) -> None:
        """Have retention delete what the handler's offset has passed; no mark of a letter that the handler has yet."""
        for number in range(broker.partitions):
            tp = TopicPartition(self._topic, number)
            stories = {place: each for place, each in self._oracle.stories.items() if place[0] == number}
            needed = [self._marks[place][0][2] for place in stories if self._marks[place] and not stories[place].fates]
            offset = min([broker.committed.get(tp, 0), *needed])
            broker.delete_before(tp, offset)
            self._gone.update(place for place in self._oracle.stories if place[0] == number and place[1] < offset)

    # -- what begins ----------------------------------------------------------------------------------------------

    def begun(self, place: Origin, letter: Letter | None, opening: Opening | None) -> None:
        """Judge a call of the handler that begins: no mark that its lane has found says that it must not."""
        ours = {name: (value or b"").decode() for name, value in self._headers[place].items()}
        odd = self._odd.get(place, "")
        origin = None if letter is None or letter.origin is None else letter.origin.text
        told = None if letter is None else (letter.reason, origin, letter.attempts, letter.damage is not None)
        attempts = None if odd in (COUNTLESS, NONE) else int(ours["retry-attempt"])
        place_of = None if odd in (PLACELESS, NONE) else ours["retry-origin"]
        right = ours.get("retry-reason"), place_of, attempts, odd in (COUNTLESS, PLACELESS, NONE)
        must(told == right, "I28", place, f"its handler gets {told}, the letter has {right}")
        self._oracle.named[f"a letter begins, {odd}"] += bool(odd)
        if opening is None or not (marks := self._marks[place]):
            return
        calm = self._oracle.steering is not None and self._oracle.steering.calm
        known = [kind for kind, at_ms, _ in marks if calm or at_ms < opening.fenced_ms]
        restored = "restored" in [kind for kind, *_ in marks[len(known) :]]  # its lane may have heard of these, too
        shut = bool(known) and known[-1] in _CLOSED and not (restored or self._restored_in_vain(place))
        must(not (shut or _FATES.keys() & {*known}), "I28", place, f"begins, and it was {known}")

    # -- the end --------------------------------------------------------------------------------------------------

    def _marked_in_vain(self, place: Origin, broker: Broker) -> list[str]:
        """Return the marks of a letter that the broker has acknowledged and taken back."""
        records = broker.acknowledged_in_vain(TopicPartition(self._topic, place[0]))
        marks = (mark_of(each.headers, each.value) for each in records)
        return [str(mark.mark) for mark in marks if mark is not None and mark.letter == place[1]]

    def at_rest(self, broker: Broker) -> None:
        """Judge the end: each letter has the mark of what became of it, or a command has decided about it.

        Where the broker has taken the mark back, and the lane has heard of nothing since, it has none until it is
        delivered again.
        """
        for place, story in self._oracle.stories.items():
            kinds = [kind for kind, *_ in self._marks[place]]
            if self._odd.get(place, COUNTLESS) != COUNTLESS:
                continue
            mine = [kind for kind in kinds if kind in _FATES]
            fate = story.fates[0] if story.fates else "done"
            if fate == "dead" and not mine and place in self._oracle.damages.ever:
                continue  # its row did not say any more whose letter it is
            passed = not mine and (fate == "skipped" or (fate == "dead" and story.cancelling))
            must(not passed or bool(_CLOSED & {*kinds}), "I28", place, f"{fate} without a command: {kinds}")
            if not (passed or mine) and fate in map(_FATES.get, self._marked_in_vain(place, broker)):
                continue
            right = passed or (len(mine) == 1 and _FATES[mine[0]] == fate)
            must(right, "I28", place, f"is {fate}, and its marks are {kinds}")
            self._oracle.named["a letter was passed" if passed else f"a letter ends {mine[0]}"] += 1
            self._oracle.named["a letter was tried again"] += len(story.copies) > 0
