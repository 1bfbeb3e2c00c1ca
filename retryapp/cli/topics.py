"""``retryapp topics``: create an application's topics, and their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from retryapp.cli._app import load_handlers
from retryapp.cli._options import app_option, json_option
from retryapp.cli._target import reach
from retryapp.cli.console import ExitCode, emit
from retryapp.cli.plan import plan_facts, planned
from retryapp.kafka import PlanOptions, ensure_topics, grow_topics, plan_topics

if TYPE_CHECKING:
    from retryapp.retries import Retries


@click.group(name="topics")
def command() -> None:
    """Create an application's topics, or add partitions to them."""


@command.command()
@planned
def create(*, application: Retries, options: PlanOptions, as_json: bool) -> ExitCode:
    """Create missing topics and write their owner marks. Safe to repeat, and while workers start.

    An existing topic is never changed: if one is not as required, nothing is created (exit code 3). 'retryapp plan'
    shows everything beforehand.

    \b
    Exit codes: 0 all topics are as required, 1 topics that handlers publish to are missing; all others are there.

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
    missing = after.unpublishable
    text.append(f"{len(after.steps) - len(missing)} topics are as required on {after.bootstrap}")
    text += [f"{step.topic} does not exist. {step.why['partitions']}" for step in missing]
    emit({"created": created, **plan_facts(after)}, "\n".join(text), as_json=as_json)
    return ExitCode.FINDING if missing else ExitCode.FINE


@command.command()
@app_option(required=True)
@json_option
def grow(*, app_spec: str, as_json: bool) -> ExitCode:
    """Give an application's topics as many partitions as their main topics have. Safe to repeat, while workers run.

    Running workers open the new partitions within 30 s.

    \b
    Example:
      retryapp topics grow -A billing
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    application = load_handlers(app_spec)
    grown = grow_topics(reach(application.connection), application.topologies, application.plan_options)
    text = [f"grown {topic}" for topic in grown] or ["no topic has fewer partitions than its main topic"]
    emit({"grown": grown}, "\n".join(text), as_json=as_json)
    return ExitCode.FINE
