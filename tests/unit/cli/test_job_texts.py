"""What the commands of jobs say, and suggest next."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from click.testing import CliRunner

from retryapp.cli import _jobs, job
from retryapp.cli.console import ExitCode
from retryapp.core.control import Verb
from retryapp.core.jobs import Part, PartState
from retryapp.lookup.jobs import job_facts
from retryapp.lookup.previews import Preview

PLACE = ["--broker", "127.0.0.1:1", "--group", "my shop", "--topic", "orders"]


def shown(monkeypatch: pytest.MonkeyPatch, jobs: dict[str, dict[int, Part]], *words: str) -> Any:
    monkeypatch.setattr(job, "only_handler", lambda _place: (None, None))
    monkeypatch.setattr(job, "parts_of", lambda _connection, _topology: jobs)
    return CliRunner().invoke(job.command, [words[0], *PLACE, *words[1:]], standalone_mode=False)


def test_what_is_suggested_can_be_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the app or the group, as the command was told them; without them it is refused."""
    parts = {0: Part(job="aa", verb="replay", state=PartState.PAUSED, paused="paused by ann", refused={"replayed": 1})}
    output = shown(monkeypatch, {"aa": parts}, "show", "aa").output
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
    monkeypatch.setattr(_jobs, "parts_of", lambda _connection, _topology: {"aa": {0: part}})
    ended = shown(monkeypatch, {}, "show", "aa", "--watch")
    assert (ended.return_value, said in ended.output) == (code, True)
    assert job_facts("aa", {0: part})["letters"] == 11 + refused.get("crashed", 0)
    found = Preview(fitting=Counter({0: 11}), done=Counter(replayed=7, crashed=2))
    assert "; 2 are crashed and refused; 7 are replayed and stay so" in _jobs._preview_text(Verb.REPLAY, found)


@pytest.mark.parametrize(
    ("words", "told"),
    [(["list"], "no jobs; one that still waits for a worker"), (["show", "aa"], "no worker has taken it yet")],
)
def test_a_job_that_waits_for_a_worker_is_not_said_to_be_none(
    monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    """It was begun, and its partitions learn of it when a worker has them."""
    assert told in shown(monkeypatch, {}, *words).output
