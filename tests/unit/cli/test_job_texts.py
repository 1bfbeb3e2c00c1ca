"""What the commands of jobs say, and suggest next."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from retryapp.cli import _jobs, job
from retryapp.cli.console import ExitCode
from retryapp.core.control import Verb
from retryapp.core.errors import BrokerUnreachableError
from retryapp.core.jobs import Part, PartState
from retryapp.core.lifecycle import Commanded
from retryapp.lookup.jobs import JobProgress, Refused, job_facts
from retryapp.lookup.previews import Preview

PLACE = ["--broker", "127.0.0.1:1", "--group", "my shop", "--topic", "orders"]


def shown(monkeypatch: pytest.MonkeyPatch, looks: list[JobProgress | None], *words: str) -> Any:
    """Run a command that finds this of job aa, with each look the next one."""
    monkeypatch.setattr(job, "only_handler", lambda _place: (None, None))
    monkeypatch.setattr(_jobs.time, "sleep", lambda _seconds: None)
    coming = iter(looks)

    def progress_of(_connection: object, _topology: object, _now_ms: int) -> dict[str, JobProgress]:
        found = next(coming)
        return {} if found is None else {"aa": found}

    monkeypatch.setattr(job, "progress_of", progress_of)
    monkeypatch.setattr(_jobs, "progress_of", progress_of)
    return CliRunner().invoke(job.command, [words[0], *PLACE, *words[1:]], standalone_mode=False)


def test_what_is_suggested_can_be_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the app or the group, as the command was told them; without them it is refused.

    A part that has paused itself is resumed, also while others go on.
    """
    parts = {0: Part(job="aa", verb="replay", state=PartState.PAUSED, paused="paused by ann", refused={"replayed": 1})}
    parts[1] = Part(job="aa", verb="replay")
    output = shown(monkeypatch, [JobProgress(parts)], "show", "aa").output
    place = "--broker 127.0.0.1:1 --group 'my shop' --topic orders"
    for command in ("refused {} aa", "resume {} aa --why TEXT", "cancel {} aa --why TEXT"):
        assert f"retryapp job {command.format(place)}" in output


@pytest.mark.parametrize(
    ("refused", "said", "code"),
    [
        ({"not-newest": 7, "replayed": 2}, "9 stay as they were before; which", ExitCode.FINE),
        ({"not-newest": 7, "crashed": 2}, "7 stay as they were before and 2 were refused; which", ExitCode.FINDING),
    ],
)
def test_letters_that_a_preview_says_stay_so_are_no_refusals(
    monkeypatch: pytest.MonkeyPatch, refused: dict[str, int], said: str, code: ExitCode
) -> None:
    """A letter that was replayed and died again is passed in each later job: that is no finding."""
    part = Part(job="aa", verb="discard", state=PartState.ENDED, done=11, refused=Counter(refused))
    ended = shown(monkeypatch, [JobProgress({0: part})], "show", "aa", "--watch")
    assert (ended.return_value, said in ended.output) == (code, True)
    left = ", ".join(f"{count} {word}" for word, count in sorted(refused.items()))
    assert f"11 done; left out: {left}; 0 letters looked at" in ended.output, "not as if the job had done that"
    assert job_facts("aa", {0: part})["letters"] == 11 + refused.get("crashed", 0)
    found = Preview(fitting=Counter({0: 11}), done=Counter(replayed=7, crashed=2))
    assert "; 2 are crashed and refused; 7 are replayed and stay so" in _jobs._preview_text(Verb.REPLAY, found)


def test_a_job_that_waits_for_a_worker_is_not_said_to_be_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was begun, and its partitions learn of it when a worker has them; a replay waits for deliveries, too."""
    assert "no worker has taken it yet" in shown(monkeypatch, [None], "show", "aa").output, "or it is unknown"
    start = Part(job="aa", verb="replay", by="ann", why="ledger is back")
    waits = JobProgress({}, [0, 1], start, {1: "paused by bob: lunch"})
    listed = shown(monkeypatch, [waits], "list").output
    for said in ("waits, 2 partitions have not begun, deliveries are paused", "ann", "ledger is back"):
        assert said in " ".join(listed.split())
    text = shown(monkeypatch, [waits], "show", "aa").output
    for said in (
        "job aa: replay, waits; 0 done",
        "2 partitions have not begun, as no worker has taken it there yet: 0, 1",
        "deliveries are paused by bob: lunch (partitions: 1): what it replays there waits for 'handler resume'",
    ):
        assert said in text
    ended = JobProgress({0: start.model_copy(update={"state": PartState.ENDED})})
    assert shown(monkeypatch, [waits, ended], "show", "aa", "--watch").return_value == ExitCode.FINE


def test_a_job_has_not_ended_while_a_partition_has_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lane is closed: the third part starts later, so who waits for the end waits for it, too."""
    ended = {number: Part(job="aa", verb="replay", state=PartState.ENDED, done=3) for number in range(3)}
    late = JobProgress({0: ended[0], 1: ended[1]}, [2])
    assert late.facts("aa") | {"state": "running", "not_begun": [2], "letters": None, "done": 6} == late.facts("aa")
    text = shown(monkeypatch, [late], "show", "aa").output
    assert "job aa: replay, running" in text
    assert "1 partition has not begun, as no worker has taken it there yet: 2" in text
    assert "running, 1 partition has not begun" in shown(monkeypatch, [late], "list").output
    watched = shown(monkeypatch, [late, late, JobProgress(ended)], "show", "aa", "--watch")
    assert (watched.return_value, "job aa: replay, ended; 9" in watched.output) == (ExitCode.FINE, True)
    cancelled = {0: Part(job="aa", verb="replay", state=PartState.CANCELLED)}
    assert JobProgress(cancelled, [2]).whole.state is PartState.CANCELLED


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_says_what_has_come_of_the_command(monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    """By the word of a refusal its table says what to do."""
    facts: dict[str, Any] = {"command": "c", "verb": "job-pause", "failure_id": "", "text": "8 jobs go on"}
    where: dict[str, Any] = {"group": "app", "handler": "h", "main": "orders", "partition": 0, "at_ms": 1}
    done = facts | {"text": "paused: 3 done; 3 letters looked at"}
    told = {0: Commanded(**where, **facts, refused="too-many"), 1: Commanded(**where, **done), 2: None}
    monkeypatch.setattr(job, "only_handler", lambda _place: (None, None))
    monkeypatch.setattr(job, "tell_job", lambda *_args, **_more: told)
    words = ["pause", *PLACE, "aa", "--why", "x", *(["--json"] if as_json else [])]
    output = CliRunner().invoke(job.command, words, standalone_mode=False).stdout
    if as_json:
        assert [each["refused"] for each in json.loads(output)["partitions"]] == ["too-many", None, None]
    else:
        assert "refused   too-many: 8 jobs go on" in output
        assert "done      paused: 3 done; 3 letters looked at" in output
        assert "None" not in output


def test_json_of_a_job_that_was_watched_is_that_of_one_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had no partitions."""
    found = JobProgress({0: Part(job="aa", verb="replay", state=PartState.ENDED, done=3)})
    plain, watched = (
        json.loads(shown(monkeypatch, [found], "show", "aa", "--json", *more).stdout) for more in ([], ["--watch"])
    )
    assert watched == plain
    assert watched["partitions"]["0"]["done"] == 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokerUnreachableError("127.0.0.1:1", "gone")])
def test_what_ends_the_watching_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """An error after the start was sent did not say so: it looked as if nothing was done."""

    def progress_of(*_args: object) -> dict[str, JobProgress]:
        raise error

    monkeypatch.setattr(job, "only_handler", lambda _place: (None, None))
    monkeypatch.setattr(_jobs, "progress_of", progress_of)
    ended = CliRunner().invoke(job.command, ["show", *PLACE, "--group", "[red]shop", "aa", "--watch"])
    assert "job aa goes on: retryapp job show --broker 127.0.0.1:1 --group '[red]shop' --topic orders" in ended.stderr


def test_refusals_that_retention_has_deleted_are_not_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A week later it was "0 of 7 letters", without a reason."""
    part = Part(job="aa", verb="discard", state=PartState.ENDED, refused=Counter({"crashed": 7}))
    monkeypatch.setattr(job, "parts_of", lambda *_args: {"aa": {0: part}})
    monkeypatch.setattr(job, "read_refused", lambda *_args: Refused([], complete=True))
    said = shown(monkeypatch, [], "refused", "aa").output
    assert "0 of 7 letters" in said
    assert "until the retention of the events topic deletes them" in said
