"""``retryapp topics``: create an application's topics, and their partitions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from retryapp.cli._app import load_handlers
from retryapp.cli._options import LENGTH, app_option, json_option
from retryapp.cli.console import ExitCode, Group, emit, stderr_console
from retryapp.cli.plan import plan_facts, planned, topics_of
from retryapp.engine.handler.handler import Order
from retryapp.kafka import PlanOptions, ensure_topics, grow_topics, plan_topics, reach
from retryapp.kafka.behind import Behind, wait_for_old

if TYPE_CHECKING:
    from retryapp.retries import Retries


@click.group(name="topics", cls=Group)
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
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    admin = reach(application.connection)
    before = plan_topics(admin, application.topologies, options)
    after = ensure_topics(admin, application.topologies, options)
    created = topics_of(before.to_create)
    text = [f"created {topic}" for topic in created]
    missing = after.unpublishable
    fine = {*topics_of(after.steps)} - {*topics_of(missing)}
    text.append(f"{len(fine)} topics are as required on {after.bootstrap}")
    text += [f"{step.topic} does not exist. {step.why['partitions']}" for step in missing]
    emit({"created": created, **plan_facts(after)}, "\n".join(text), as_json=as_json)
    return ExitCode.FINDING if missing else ExitCode.FINE


@command.command()
@app_option(required=True)
@click.option(
    "--wait",
    "wait_ms",
    type=LENGTH,
    default="30s",
    show_default=True,
    help="With an order: how long to wait for what came before the command.",
)
@click.option("--force", is_flag=True, help="With an order: do not wait. Records of a key may pass earlier ones.")
@json_option
def grow(*, app_spec: str, wait_ms: int, force: bool, as_json: bool) -> ExitCode:
    """Give an application's topics as many partitions as their main topics have. Safe to repeat, while workers run.

    Running workers open the new partitions within 30 s.

    With more partitions keys move to others. Where a handler keeps an order, the command waits until all records that
    came before it have ended; if some have not, nothing grows, and it says how many are unread or wait.

    \b
    Exit codes: 0 all have as many, 1 earlier records have not ended: nothing has grown.

    \b
    Examples:
      retryapp topics grow -A billing
      retryapp topics grow -A billing --wait 2h
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    application = load_handlers(app_spec)
    ordered = [handler.topology for handler in application.handlers if handler.order is not Order.NONE]

    def tell(left: Sequence[Behind]) -> None:
        stderr_console.print("\n".join(map(_told, left)), markup=False, highlight=False)

    admin = reach(application.connection)
    left = () if force else wait_for_old(admin.connection, ordered, wait_s=wait_ms / 1000, on_wait=tell)
    if left:
        remedy = "Nothing has grown. Wait longer with --wait, or grow with --force and have keys lose their order"
        emit({"grown": [], "left": [each._asdict() for each in left]}, "\n".join([*map(_told, left), remedy]),
             as_json=as_json)  # fmt: skip
        return ExitCode.FINDING
    grown = grow_topics(admin, application.topologies, application.plan_options)
    text = [f"grown {topic}" for topic in grown] or ["no topic has fewer partitions than its main topic"]
    emit({"grown": grown, "left": []}, "\n".join(text), as_json=as_json)
    return ExitCode.FINE


def _told(left: Behind) -> str:
    return f"{left.main} keeps an order: {left.unread} unread and {left.waiting} waiting records have to end first"
