"""What the commands of jobs say, and suggest next."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from retryapp.cli import job
from retryapp.core.jobs import Part, PartState

PLACE = ["--broker", "127.0.0.1:1", "--group", "my shop", "--topic", "orders"]


def shown(monkeypatch: pytest.MonkeyPatch, jobs: dict[str, dict[int, Part]], *words: str) -> Any:
    monkeypatch.setattr(job, "only_handler", lambda _place: (None, None))
    monkeypatch.setattr(job, "parts_of", lambda _connection, _topology: jobs)
    return CliRunner().invoke(job.command, [words[0], *PLACE, *words[1:]])


def test_what_is_suggested_can_be_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the app or the group, as the command was told them; without them it is refused."""
    parts = {0: Part(job="aa", verb="replay", state=PartState.PAUSED, paused="paused by ann", refused={"replayed": 1})}
    output = shown(monkeypatch, {"aa": parts}, "show", "aa").output
    place = "--broker 127.0.0.1:1 --group 'my shop' --topic orders"
    for command in ("refused {} aa", "resume {} aa --why TEXT", "cancel {} aa --why TEXT"):
        assert f"retryapp job {command.format(place)}" in output


@pytest.mark.parametrize(
    ("words", "told"),
    [(["list"], "no jobs; one that still waits for a worker"), (["show", "aa"], "no worker has taken it yet")],
)
def test_a_job_that_waits_for_a_worker_is_not_said_to_be_none(
    monkeypatch: pytest.MonkeyPatch, words: list[str], told: str
) -> None:
    """It was begun, and its partitions learn of it when a worker has them."""
    assert told in shown(monkeypatch, {}, *words).output
