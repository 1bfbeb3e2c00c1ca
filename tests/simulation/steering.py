"""Commands of a history: what people ask of its records, and what must come of it (I19).

Each control record has one `command` event in the end, whatever dies meanwhile. One that is obeyed changes what its
record comes to: a cancelled one is dead, unless the run that went on was fine; a replayed one begins anew, once for
each letter; one that is hurried may be early by its policy; one that is held does not begin before its release, by a
command or at its deadline, is told. A release by a token is not refused while its delivery has not ended, and one that
is obeyed comes before the deadline. A part of a job ends, has looked at each letter once, and
has left as many marks as it says.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from random import Random
from typing import Any, Final

from retryapp.core.circuit import MOST_SPELLS
from retryapp.core.control import Command, Edit, MarkKind, Verb, mark_of
from retryapp.core.hops import Outgoing
from retryapp.core.jobs import HandlerCommand, HandlerVerb, JobCommand, JobPart, JobVerb, LetterFilter
from retryapp.core.record import Origin as Place
from retryapp.core.record import Record, failure_id
from retryapp.core.topology import HandlerTopology
from retryapp.ports import TopicPartition
from simulation.broker import Broker
from simulation.lives import SPAN, id_of, key_in
from simulation.story import Opening, Origin, Story, Violation

_VERBS: Final = (
    "retry-now", "retry-now", "reschedule", "cancel", "cancel", "replay", "replay", "replay", "replay", "discard",
    "restore", "", "job", "job", "job", "job-pause", "job-resume", "job-resume", "job-cancel",
    "handler-pause", "handler-resume",
)  # fmt: skip
_LEVELS: Final = ("outage-open", "outage-close", "outage-close", "handler-resume")
_ENDS: Final = {"handler-resume": "handler-pause", "outage-close": "outage-open"}
"""What takes back what."""
_SAYS: Final = re.compile(r"(\d+) done.*; (\d+) letters? looked at$")
"""What a part has done, behind why it has ended."""
_HOLDS: Final = ("hold",) * 6 + ("release",) * 2


class Steering:
    """Sends the commands of one handler, and judges them."""

    def __init__(
        self,
        topology: HandlerTopology,
        broker: Broker,
        stories: dict[Origin, Story],
        random: Random,
        *,
        keys: bool,
        holds: bool,
        calm: bool,
        levels: bool = False,
        letters: bool = True,
    ) -> None:
        self._topology = topology
        self._broker = broker
        self._stories = stories
        self._random = random
        self._keys = keys
        """A key may be edited."""
        self._edits: dict[str, Edit] = {}
        """By command."""
        verbs = _VERBS if letters else tuple(verb for verb in _VERBS if not verb.startswith("job"))
        self._verbs = verbs + _HOLDS if holds else verbs
        self.calm = calm
        """Nobody dies or is cut off."""
        self._levels = levels
        """Somebody forces circuits open, and has partitions go on that rules have paused."""
        self.circuits: Sequence[str] = ()
        """Names of the handler's circuits; its own has none."""
        self.newest = False
        """Newer records of a key replace older ones."""
        self.stepped = False
        """The broker's clock is set, so a deadline may have passed at once."""
        self._count = 0
        self.forced: set[str] = set()
        """Commands about one record that say so."""
        self._forced_jobs: set[str] = set()
        self.asked: dict[str, tuple[str, Origin]] = {}
        """Verb and record of each command."""
        self.told: Counter[str] = Counter()
        """Visible events of each command."""
        self.reached: Counter[str] = Counter()
        self._tokens: dict[str, tuple[Origin, int]] = {}
        """Of releases by token: record and delivery."""
        self.shut_ms: dict[str, defaultdict[int, float]] = {verb: defaultdict(lambda: inf) for verb in _ENDS.values()}
        """By verb and partition: since when it is paused, or its circuit forced open."""
        self._paused_at: dict[int, int] = {}
        """By partition: the offset, on the control topic, of the pause that no command ends."""
        self.paused: set[int] = set()
        """Partitions that somebody, or a rule, has paused once."""
        self.resumed_ms: dict[int, float] = {}
        """When somebody had a partition go on last."""
        self._pauses: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
        """The same, from when until when."""
        self._over: dict[str, set[str]] = {verb: set() for verb in _ENDS.values()}
        """By verb: commands before the last one that takes it back."""
        self._jobs: dict[str, Verb] = {}
        self._parts: dict[tuple[str, int], str] = {}
        """By job and partition: what its events say last."""
        self._upto: dict[tuple[str, int], Mapping[str, int]] = {}

    def send(self, now_ms: float) -> None:
        """Send a command about some record, or one that is none."""
        if not self._stories:
            return
        random, self._count = self._random, self._count + 1
        failed = [origin for origin, story in self._stories.items() if story.copies or story.fates]
        origin = random.choice(failed if failed and random.random() < 0.8 else list(self._stories))
        verb, name = random.choice(self._verbs), f"c{self._count}"
        if self._levels and random.random() < 0.4:
            verb = random.choice(_LEVELS)
        if verb.startswith("job"):
            self._send_job(verb, name)
            return
        if verb.startswith(("handler", "outage")):
            circuit = random.choice(self.circuits) if verb.startswith("outage") and self.circuits else ""
            self.send_to_handler(verb, name, circuit)
            return
        tp = TopicPartition(self._topology.control, origin[0])
        if not verb:
            self._broker.append(tp, Outgoing(*tp, None, b'{"v": 1, "id": "%s"}' % name.encode(), ()))
            self.reached["a command that is none"] += 1
            return
        due_at_ms = int(now_ms + random.uniform(-500, 3_000)) if verb == "reschedule" else None
        record = self._name(origin)
        facts: dict[str, Any] = {"due_at_ms": due_at_ms, "force": random.random() < 0.5}
        if verb == "replay" and (edit := self._edit(name, now_ms)) is not None:
            self._edits[name] = facts["edit"] = edit
        if verb == "hold":
            facts["hold_ms"] = random.choice((1, 500, 3_000, 12_000))
        self.forced.update([name] * facts["force"])
        command = Command(id=name, verb=Verb(verb), failure_id=record, **facts)
        story = self._stories[origin]
        story.hurried = story.hurried or verb in ("retry-now", "reschedule")
        story.cancelling = story.cancelling or verb == "cancel"
        self.asked[name] = verb, origin
        self._broker.append(tp, command.to_record(*tp))

    def _name(self, origin: Origin) -> str:
        place = Place(self._topology.main, id_of(origin[1] // SPAN), origin[0], origin[1] % SPAN)
        return failure_id(self._topology.group, place)

    def decides(self, origin: Origin) -> bool:
        """Tell whether a command about a record may be on its way."""
        waiting = [self.asked[name] for name in self.waiting]
        return "running" in self._parts.values() or any(at == origin or verb == "job" for verb, at in waiting)

    def decide(self, origin: Origin) -> None:
        """Have a sequence go on that has stopped behind a dead record."""
        self._count += 1
        verb, name = self._random.choice(("release", "release", "replay", "discard")), f"d{self._count}"
        verb = verb if self._stories[origin].replays < 1 else "release"  # each takes its time
        record = self._name(origin)
        self.asked[name], tp = (verb, origin), TopicPartition(self._topology.control, origin[0])
        self.forced.add(name)
        self._broker.append(tp, Command(id=name, verb=Verb(verb), failure_id=record, force=True).to_record(*tp))

    def release(self, origin: Origin, delivery: int, *, later: Callable[[float, Callable[[], None]], object]) -> None:
        """Have somebody release a delivery that goes on: now, in a while, or never."""
        wait_s = self._random.choice((0.0, 0.0, 0.05, 1.0, None))
        if wait_s is not None:
            later(wait_s * self._random.random(), lambda: self._send_release(origin, delivery))

    def _send_release(self, origin: Origin, delivery: int) -> None:
        self._count += 1
        name, tp = f"t{self._count}", TopicPartition(self._topology.control, origin[0])
        record = self._name(origin)
        command = Command(id=name, verb=Verb.RELEASE, failure_id=record, delivery=delivery)
        self.asked[name], self._tokens[name] = ("token", origin), (origin, delivery)
        self._broker.append(tp, command.to_record(*tp))

    def deferred(self, origin: Origin, story: Story, ours: Mapping[str, bytes], now_ms: float) -> bool:
        """Take a visible copy; tell whether it waits for a release.

        Raises:
            Violation: its deadline has passed, and it was released.
        """
        delivery = int(ours.get("retry-delivery", ours["retry-attempt"]))
        if ours.get("retry-error-type", b"").endswith(b".ReleaseTimeoutError"):
            self.reached["a deadline has passed"] += 1
            story.held_ms = inf
            _must_not(delivery - 1 in story.freed, f"I19: {origin} was released, and its deadline has passed")
        if ours.get("retry-tier") != b"deferred":
            return False
        self.reached["a record waits for its release"] += 1
        story.stopped, story.held_ms = True, min(story.held_ms, now_ms)
        story.deferred[delivery] = int(ours["retry-due-ms"])
        return True

    def _released(self, name: str, told: Mapping[str, Any], now_ms: float) -> None:
        """Take what was said of a release by token."""
        origin, delivery = self._tokens[name]
        if (story := self._stories.get(origin)) is None:  # somebody has given its record up
            return
        if told["refused"] is None:
            story.freed.add(delivery)
            self.reached["a release came early"] += told["after"] == "released"
        elif told["refused"] in ("too-late", "not-held", "not-waiting"):
            waits = delivery in story.deferred and now_ms < story.deferred[delivery] and delivery not in story.freed
            ended = max(story.copies, default=0) >= delivery or any(call.fine for call in story.calls[1])
            over = story.fates or story.replays or story.cancelling or (ended and not waits)
            over = over or story.again > 0 or self.stepped or (self.newest and self._may_be_replaced(origin, story))
            # the delivery before, which had ended: the broker takes even what it has acknowledged back
            gone = self._broker.taken_back[self._topology.pending_changelog]
            over = over or (gone and delivery > max(story.copies, default=0) + 1)
            _must_not(not over, f"I19: the release of {origin}, delivery {delivery}, is {told['refused']}")

    def _may_be_replaced(self, origin: Origin, story: Story) -> bool:
        """Tell whether a newer record has the key of this one: nothing changes a row that is to go."""
        newer = (each for (number, at), each in self._stories.items() if number == origin[0] and at > origin[1])
        return story.sent_key is not None and any(each.sent_key == story.sent_key for each in newer)

    def restored_in_vain(self, letter: Place, since: int) -> bool:
        """Tell whether the broker has acknowledged that a letter is restored, and takes that back.

        Its mark, which no reader sees, is behind the offset `since`. Who has the acknowledgement goes by it.
        """
        records = self._broker.acknowledged_in_vain(TopicPartition(letter.topic, letter.partition))
        marks = (mark_of(each.headers, each.value) for each in records if each.offset > since)
        return any(mark and (mark.letter, mark.mark) == (letter.offset, MarkKind.RESTORED) for mark in marks)

    def _edit(self, name: str, now_ms: float) -> Edit | None:
        random = Random(f"{name} at {now_ms}")  # of its own: without edits a seed takes the same course
        if random.random() < 0.5:
            return None
        value, key = b"\xfe of " + name.encode(), b"key of " + name.encode()
        changes: dict[str, Any] = (
            {"headers": {"edit": name.encode()}} if random.random() < 0.5 else {"drop": ("trace",)}
        )
        changes |= {"value": value} if random.random() < 0.7 else {}
        changes |= {"key": key} if random.random() < (0.4 if self._keys else 0.1) else {}
        return Edit.of(random.choice(("keep", "new")), **changes)

    def edited(self, story: Story, command: str) -> None:
        """Take a record that a command has replayed: with what it has edited.

        Raises:
            Violation: it has edited what may not be edited.
        """
        if (edit := self._edits.get(command)) is None:
            return
        _must_not(edit.key is not None and not self._keys, f"I19: {command} has edited a key")
        story.record = _as_edited(story.record, command, edit)
        story.renewed += edit.idempotency == "new"
        self.reached[f"an edited replay, {edit.idempotency} key"] += 1

    def may_have_edited(self, record: Record, seen: tuple[object, ...]) -> bool:
        """Tell whether a record is as a command that was sent has edited it: its transaction may be taken back."""
        edited = (_as_edited(record, command, edit) for command, edit in self._edits.items())
        return any(seen == (each.key, each.value, each.headers, each.timestamp_ms) for each in edited)

    def send_to_handler(self, verb: str, name: str, circuit: str = "") -> None:
        """Pause the handler, force its circuit open, or take that back: all partitions get the command together."""
        command = HandlerCommand(id=name, verb=HandlerVerb(verb), circuit=circuit)
        if verb in _ENDS and not circuit:  # its event may become visible after records have begun
            self.shut_ms[_ENDS[verb]].clear()
            self._over[_ENDS[verb]] = set(self.asked)
        for number in range(self._broker.partitions):
            self.asked[f"{name}@{number}"] = verb, (number, -1)
            tp = TopicPartition(self._topology.control, number)
            if verb == "handler-pause":
                self._paused_at.setdefault(number, self._broker.logs[tp].end)
            elif verb == "handler-resume":
                self._paused_at.pop(number, None)
            self._broker.append(tp, command.to_record(*tp))

    def _send_job(self, verb: str, name: str) -> None:
        """Begin a job on all partitions, or steer one; all get the command together."""
        random, topology = self._random, self._topology
        partitions = range(self._broker.partitions)
        parts: dict[int, JobPart] = {}
        job = name if verb == "job" or not self._jobs else random.choice(list(self._jobs))
        if verb == "job":
            self._jobs[job] = random.choice((Verb.REPLAY, Verb.REPLAY, Verb.DISCARD, Verb.RESTORE))
            facts: dict[str, Any] = {
                "verb": self._jobs[job],
                "filter": LetterFilter(reason=random.choice((None, None, "exhausted", "rejected"))),
                "every_ms": random.choice((None, None, 50.0, 400.0)),
                "canary": random.choice((0, 0, 3)),
                "force": random.random() < 0.5,
            }
            self._forced_jobs.update([name] * facts["force"])
            for number in partitions:
                upto = {topic: self._end(TopicPartition(topic, number)) for topic in topology.dlqs}
                parts[number], self._upto[job, number] = JobPart(upto=upto, **facts), upto
        for number in partitions:
            kind = JobVerb.START if verb == "job" else JobVerb(verb)
            command = JobCommand(id=name, job=job, verb=kind, part=parts.get(number))
            self.asked[f"{name}@{number}"] = verb, (number, -1)
            tp = TopicPartition(topology.control, number)
            self._broker.append(tp, command.to_record(*tp))

    def is_forced(self, command: str) -> bool:
        """Tell whether a command, or a job, says so."""
        return command in self.forced or command in self._forced_jobs

    def _end(self, tp: TopicPartition) -> int:
        records = self._broker.visible(tp)
        return records[-1].offset + 1 if records else 0

    def answered(self, value: bytes, now_ms: float) -> None:
        """Take a visible `command` event.

        Raises:
            Violation: its command has one already.
        """
        told = json.loads(value)
        name, place = told["command"], (told["job"], told["partition"])
        if told["job"] and told["refused"] is None:
            _must_not(self._parts.get(place) in ("ended", "cancelled"), f"I19: job {place} is told of after its end")
            self._parts[place] = told["after"]
            self.reached[f"a part of a job is {told['after']}"] += 1
            if told["after"] == "ended":
                self._judge_part(*place, told["text"])
        if name in self._tokens:
            self._released(name, told, now_ms)
        if told["verb"] in ("hold", "release") and told["refused"] is None and told["after"] != "released":
            self._hold(told["verb"], told["failure_id"], now_ms, loudly=not name)
            self._stories[key_in(told["failure_id"])].holding = told["after"] == "holding"
        if told["verb"] == "handler-pause":
            self.paused.add(told["partition"])
            self._pauses[told["partition"]] += [(now_ms, inf)] * (told["refused"] is None)
        if told["verb"] == "handler-resume" and told["refused"] is None:
            self.resumed_ms[told["partition"]] = now_ms
            pauses = self._pauses[told["partition"]]
            pauses[:] = [(begin_ms, min(end_ms, now_ms)) for begin_ms, end_ms in pauses]
        if not name:
            self._gated(told, now_ms)
            return
        if told["verb"].startswith(("job", "handler", "outage")):
            name = f"{name}@{told['partition']}"
        self.told[name] += 1
        verb, origin = self.asked[name]
        if (
            verb in self.shut_ms
            and not told.get("circuit")
            and told["refused"] is None
            and name not in self._over[verb]
        ):
            self.shut_ms[verb][told["partition"]] = now_ms
        self.reached[f"{verb} {'obeyed' if told['refused'] is None else 'refused'}"] += 1
        if told["refused"] is not None:
            self.reached[f"refused as {told['refused']}"] += 1
        if self.told[name] > 1:
            raise Violation(f"I19 {origin[0]}/{origin[1]}: {verb} {name} has {self.told[name]} events")
        if verb == "cancel" and told["refused"] is None:
            self._stories[origin].stopped = True
            self._stories[origin].cancelled_ms = now_ms

    def _gated(self, told: Mapping[str, Any], now_ms: float) -> None:
        """Take the event of a rule that has paused a partition."""
        if told["verb"] != "handler-pause":
            return
        self.reached["a rule has paused a partition"] += 1
        number = told["partition"]
        resumed = [name for name, (verb, at) in self.asked.items() if verb == "handler-resume" and at[0] == number]
        if all(self.told[name] for name in resumed):  # else it may go on already
            self.shut_ms["handler-pause"][number] = now_ms

    @property
    def has_stopped(self) -> bool:
        """Whether somebody, or a rule, has had records wait."""
        told = "handler-pause obeyed", "outage-open obeyed", "a rule has paused a partition"
        return any(self.reached[each] for each in told)

    def away(self, number: int, story: Story, since_ms: float, until_ms: float) -> tuple[float, int]:
        """Return for how long a record was held, or its partition paused, between two times, and how often.

        A pause that goes on at the end is none: the run had begun before it.
        """
        spells = [*story.holds, *self._pauses[number][-MOST_SPELLS:]]
        ended = [(max(begin_ms, since_ms), end_ms) for begin_ms, end_ms in spells if end_ms < until_ms]
        away_ms, at_ms = 0.0, since_ms
        for begin_ms, end_ms in sorted(ended):
            away_ms += max(0.0, end_ms - max(begin_ms, at_ms))
            at_ms = max(at_ms, end_ms)
        return away_ms, sum(begin_ms < end_ms for begin_ms, end_ms in ended)

    def _hold(self, verb: str, name: str, now_ms: float, *, loudly: bool) -> None:
        story = self._stories[key_in(name)]
        if verb == "release" and story.held_ms < now_ms:
            story.holds.append((story.held_ms, now_ms))
        story.held_ms = inf if verb == "release" else min(story.held_ms, now_ms)
        story.freed_ms = now_ms if verb == "release" else story.freed_ms
        self.reached[f"{verb} by its deadline or a crash"] += loudly
        if verb == "release" and not loudly:
            story.freed.update(story.deferred)

    def _judge_part(self, job: str, number: int, text: str) -> None:
        found = _SAYS.search(text)
        done, looked = (-1, -1) if found is None else map(int, found.groups())
        letters = marks = 0
        cut = False
        for topic, end in self._upto[job, number].items():
            tp = TopicPartition(topic, number)
            cut = cut or self._broker.logs[tp].start > 0
            # readers see them later where an older transaction is still open
            for record in (entry.record for entry in self._broker.logs[tp].entries if entry.visible):
                mark = mark_of(record.headers, record.value)
                letters += mark is None and record.offset < end
                marks += mark is not None and mark.command == job and mark.mark is not MarkKind.RECOVERED
        if cut:  # what retention has deleted is not seen here
            done, looked = min(done, marks), min(looked, letters)
        _must_not(marks != done, f"I19: part {number} of job {job} has left {marks} marks and says {text!r}")
        _must_not(letters != looked, f"I19: part {number} of job {job} says {text!r}, of {letters} letters")

    def begins(self, origin: Origin, story: Story, opening: Opening) -> None:
        """Take a call that begins.

        Raises:
            Violation: its record was cancelled before its lane opened, or long before and nobody was cut off.
        """
        if opening.fenced_ms > story.cancelled_ms or (self.calm and story.cancelled_ms < inf):
            raise Violation(f"I19 {origin[0]}/{origin[1]}: begins, and it was cancelled")
        freed = story.holding and any(self.asked[name] == ("release", origin) for name in self.waiting)
        if opening.fenced_ms > story.held_ms or (self.calm and story.held_ms < inf and not freed):
            raise Violation(f"I19 {origin[0]}/{origin[1]}: begins, and it is held")
        if opening.commands > self._paused_at.get(origin[0], inf):
            raise Violation(f"I19 {origin[0]}/{origin[1]}: begins although its lane has found a pause")
        for verb, shut in self.shut_ms.items():
            since_ms = shut[origin[0]]
            if opening.fenced_ms > since_ms or (self.calm and since_ms < inf):
                raise Violation(f"I19 {origin[0]}/{origin[1]}: begins after {verb}")

    @property
    def unanswered(self) -> list[str]:
        """Commands without an event, and parts of jobs that go on."""
        running = [f"{job}@{number}" for (job, number), state in self._parts.items() if state == "running"]
        return self.waiting + running

    @property
    def waiting(self) -> list[str]:
        """Commands without an event."""
        return [name for name in self.asked if not self.told[name]]

    def judge(self) -> None:
        """Judge the end.

        Raises:
            Violation: a command has no event.
        """
        if missing := self.unanswered:
            raise Violation(
                f"I19: {len(missing)} commands without an end, {self.asked.get(missing[0], missing[0])} first"
            )


def _must_not(wrong: bool, text: str) -> None:
    if wrong:
        raise Violation(text)


def begin_again(story: Story, replays: int) -> None:
    """Begin a record anew: it was dead, and is replayed.

    Raises:
        Violation: it was not dead, or was replayed before.
    """
    place = f"{story.record.partition}/{story.record.offset}"
    died = story.fates == ["dead"] or (story.again > 0 and "dead" in story.fates)
    if not died or replays != story.replays + 1:
        raise Violation(f"I19 {place}: replay {replays} after {story.replays}, of a record that is {story.fates}")
    fresh = Story(story.record, story.script)
    for name in ("calls", "begun", "runs", "fates", "settled_ms", "seen", "spent", "overdue", "free", "holds"):
        setattr(story, name, getattr(fresh, name))
    story.replays, story.stopped, story.cancelled_ms, story.held_ms = replays, True, inf, inf


def _as_edited(record: Record, command: str, edit: Edit) -> Record:
    own = command.encode()
    headers = tuple(each for each in record.headers if each[0] not in (*edit.headers, *edit.drop))
    return replace(
        record,
        key=record.key if edit.key is None else b"key of " + own,
        value=record.value if edit.value is None else b"\xfe of " + own,
        headers=(*headers, ("edit", own)) if edit.headers else headers,
    )
