"""``retryapp topics``: create an application's topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retryapp.cli._target import reach
from retryapp.cli.console import ExitCode, emit
from retryapp.cli.plan import plan_facts, planned
from retryapp.kafka import PlanOptions, ensure_topics, plan_topics

if TYPE_CHECKING:
    from retryapp.retries import Retries


@click.group(name="topics")
def command() -> None:
    """Create an application's topics."""


@command.command()
@planned
def create(*, application: Retries, options: PlanOptions, as_json: bool) -> ExitCode:
    """Create missing topics and write their owner marks. Safe to repeat, and while workers start.

    An existing topic is never changed: if one is not as required, nothing is created (exit code 3). 'retryapp plan'
    shows everything beforehand.

    \b
    Examples:
      retryapp topics create -A billing
      retryapp topics create -A billing --create-main 6
      retryapp topics create -A billing --adopt
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    admin = reach(application.connection)
    before = plan_topics(admin, application.topologies, options)
    after = ensure_topics(admin, application.topologies, options)
    created = [step.topic for step in before.to_create]
    text = [f"created {topic}" for topic in created]
    text.append(f"{len(after.steps)} topics are as required on {after.bootstrap}")
    emit({"created": created, **plan_facts(after)}, "\n".join(text), as_json=as_json)
    return ExitCode.FINE
