"""What must hold of sequences: their records begin in order (I16), and no more of them wait than may (I22)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from math import inf

from simulation.damaging import Damages
from simulation.elapsed import Elapsed
from simulation.newest import SUPERSEDED, Starts
from simulation.replayed import Replays
from simulation.stopping import Stops
from simulation.story import Opening, Origin, Story, must
from simulation.waits import Waits


class Sequences:
    """The orders that the workers of a handler keep, and what has begun in them."""

    def __init__(
        self,
        stories: Mapping[Origin, Story],
        waits: Waits,
        elapsed: Elapsed,
        damages: Damages,
        reached: Counter[str],
    ) -> None:
        self.orders: dict[str, str] = {}
        """What order each worker keeps."""
        self.starts = Starts()
        self.stops: Stops | None = None
        """Set where sequences stop behind dead records."""
        self.releases = False
        """A record is dead that too many wait for."""
        self.most = 1 << 30
        """Records of a sequence that may wait."""
        self._started: dict[tuple[Opening, int, bytes], int] = {}
        """Offset of the record that began last, by opening, partition and sequence."""
        self._stories = stories
        self._waits = waits
        self._elapsed = elapsed
        self._damages = damages
        self._reached = reached
        self.replays = Replays(stories, self.orders, self._cannot_have_ended, reached)

    @property
    def stop_by_key(self) -> bool:
        """Whether the sequence of a key stops behind a dead record, whoever has it."""
        return self.stops is not None and set(self.orders.values()) == {"key"}

    def begun(
        self,
        origin: Origin,
        story: Story,
        opening: Opening,
        *,
        resumed_ms: Mapping[int, float],
        lost: Set[Origin],
    ) -> None:
        """In one session the records of a sequence begin in order, each after the end of those before it.

        Args:
            origin: the record that begins.
            story: its story.
            opening: the session.
            resumed_ms: when somebody had all go on, by partition.
            lost: records that the main topic has no more.
        """
        order = self.orders.get(opening.worker, "none")
        if (sequence := story.sequence(order)) is None:
            return
        place, always = (opening, origin[0], sequence), len(set(self.orders.values())) == 1 and not story.replays
        if not story.replays:
            last, self._started[place] = self._started.get(place, -1), origin[1]
            must(origin[1] >= last, "I16", origin, f"begins after {last} of its sequence")
            self._reached["waited for its turn"] += story.held
        for other, each in self._stories.items():
            if other == origin or other[0] != origin[0] or each.sequence(order) != sequence:
                continue
            beside = any(going.worker == opening.worker for going in each.going)
            must(not beside, "I16", origin, f"begins beside {other} of its sequence")
            resumed = other in self._damages.now and resumed_ms.get(other[0], -inf) > opening.fenced_ms
            if self.stops is not None and other[1] < origin[1] and not resumed:
                self.stops.check(origin, other, each, always=always and other not in self._damages.ever)
            passed = each.first is not None or each.replays or each.cancelling or each.gone
            if passed or other in self._damages.ever:
                continue
            if other[1] < origin[1]:
                ended = order == "latest" or self._has_ended(each) or other in lost
                must(ended, "I16", origin, f"begins before the end of {other} of its sequence")
            elif always:
                # an owner of before begins what it has taken in, until it hears that it was replaced
                known = min(each.settled_ms.values(), default=inf) < opening.fenced_ms
                settled = known and SUPERSEDED not in each.fates  # else others of them are behind it
                must(not settled, "I16", origin, f"begins after {other} of its sequence is settled")

    def _has_ended(self, story: Story) -> bool:
        """Tell whether a final outcome is there, or may be on its way."""
        if story.again:
            last = self._waits.last(story.script)
            since = [(n, call) for n, calls in story.calls.items() for call in calls if call.ended_ms >= story.again_ms]
            return (
                story.ended_ms >= story.again_ms
                or any(call.fine or number >= last for number, call in since)
                or self._elapsed.may_end(story)
                or bool({*"XK"} & {*story.script})
                or story.cancelling
                or story.had_stopped
                or (self.releases and any(story.calls.values()))
            )
        if story.fates or story.cancelling or "X" in story.script or "K" in story.script:
            return True
        if self._elapsed.may_end(story):
            return True
        return bool(story.calls[self._waits.last(story.script)]) or (self.releases and any(story.calls.values()))

    def _cannot_have_ended(self, origin: Origin, story: Story) -> bool:
        """Tell whether a replay still waits, as far as readers can know: it has not run, and nothing else ends it."""
        ended = any(story.calls.values()) or self._has_ended(story) or story.gone or origin in self._damages.ever
        return story.replays > 0 and story.again == 0 and not (ended or self.releases)

    def check_latest(self, origin: Origin, *, is_row: bool, now_ms: float, opening: Opening) -> None:
        """Where newer records of a key replace older ones, no row begins after a newer one."""
        key = self._stories[origin].record.key
        if set(self.orders.values()) == {"latest"} and key is not None:
            cancelled = {at for (number, at), each in self._stories.items() if number == origin[0] and each.cancelling}
            self.starts.check(origin, key, cancelled, is_row=is_row, now_ms=now_ms, opening=opening)

    def came_back(self, origin: Origin, now_ms: float, *, forced: bool) -> None:
        """A dead record is replayed, although newer ones of its key may have replaced it."""
        self.replays.came_back(origin, now_ms)
        if (key := self._stories[origin].record.key) is None:
            return
        latest = set(self.orders.values()) == {"latest"}
        must(forced or not latest, "I20", origin, "replayed without force, and a newer one may have replaced it")
        ended: set[int] = set()
        for (partition, offset), story in self._stories.items():
            fine = any(call.fine for calls in story.calls.values() for call in calls)
            if partition == origin[0] and (fine or story.fates):
                ended.add(offset)
        self.starts.came_back(origin, key, ended)

    def check_size(self, origin: Origin, waiting: Sequence[Origin]) -> None:
        """A row is new: so many records of a sequence wait at most, and those that were dead besides.

        Since its offset was set back, the first of a sequence may come again while later ones wait: it joins them.
        """
        story = self._stories[origin]
        if (key := story.record.key) is None or story.replays or self.most == 1 << 30:
            return
        known = [place for place in waiting if place in self._stories.keys() - self._damages.ever]
        same = [place for place in known if (each := self._stories[place]).record.key == key and not each.replays]
        comes_first = story.again > 0 and origin == min(same, default=origin)
        must(comes_first or len(same) <= self.most, "I22", origin, f"{len(same)} of its sequence wait")
        self._reached["one came again before as many as may wait"] += len(same) > self.most
