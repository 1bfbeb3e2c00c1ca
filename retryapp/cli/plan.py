"""``retryapp plan``: what topics and rights an application needs, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import wraps
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

import click

from retryapp.cli._app import load_handlers
from retryapp.cli._options import app_option, json_option
from retryapp.cli._output import table
from retryapp.cli.console import ExitCode, emit
from retryapp.core.durations import format_duration_ms
from retryapp.core.errors import InvalidDurationError
from retryapp.core.text import counted
from retryapp.kafka import Action, Plan, PlanOptions, PlanStep, plan_topics, reach
from retryapp.kafka.acls import Pattern, acl_commands, needed_acls

if TYPE_CHECKING:
    from retryapp.retries import Retries

R = TypeVar("R")


def planned(command: Callable[..., R]) -> Callable[..., R]:
    """Add ``-A`` and the options that change the plan; the command gets ``application`` and ``options``."""

    @app_option(required=True)
    @click.option(
        "--create-main",
        type=click.IntRange(1, 100_000),
        metavar="PARTITIONS",
        help="Create missing main topics, and topics that handlers publish to, with this many partitions. "
        "[default: a missing one is an error]",
    )
    @json_option
    @wraps(command)
    def wrapped(*, app_spec: str, create_main: int | None, **more: Any) -> R:
        application = load_handlers(app_spec)
        own = application.plan_options
        options = replace(own, create_main_partitions=create_main or own.create_main_partitions)
        return command(application=application, options=options, **more)

    return wrapped


@click.command(name="plan")
@planned
@click.option("--why", is_flag=True, help="Show the reason for each setting.")
@click.option("--acls", is_flag=True, help="Show the rights that workers need instead of topics. Needs no broker.")
@click.option(
    "--principal",
    metavar="TYPE:NAME",
    help="Principal for --acls. [default: the user of the app's login, else User:GROUP]",
)
def command(
    *,
    application: Retries,
    options: PlanOptions,
    why: bool,
    acls: bool,
    principal: str | None,
    as_json: bool,
) -> ExitCode:
    """Show which topics an application needs, which exist, and what is wrong with them. Changes nothing.

    With --acls: which rights its workers need, as a table and as kafka-acls.sh lines, also on topics that handlers
    declare (publishes=).

    Our topics have as many partitions as their main topic. No retention of theirs depends on the policy.

    \b
    Exit codes: 0 all topics exist or can be created, 1 a main topic is missing or a topic is not as required.

    \b
    Examples:
      retryapp plan -A billing
      retryapp plan -A shop.billing:app --why
      retryapp plan -A billing --create-main 6 --json
      retryapp plan -A billing --acls --principal User:billing
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    if acls:
        return _show_acls(application, options, principal, as_json=as_json)
    if principal is not None:
        raise click.UsageError("--principal goes with --acls")
    plan = plan_topics(reach(application.connection), application.topologies, options)
    paces = {handler.main: handler.pace for handler in application.handlers if handler.pace}
    manners = {handler.main: (f"policy {handler.policy.text}", *handler.manner) for handler in application.handlers}
    emit({**plan_facts(plan), "paces": paces}, plan_text(plan, why=why, manners=manners), as_json=as_json)
    return ExitCode.FINDING if plan.refused else ExitCode.FINE


def _show_acls(application: Retries, options: PlanOptions, principal: str | None, *, as_json: bool) -> ExitCode:
    create_main = options.create_main_partitions is not None
    rights = needed_acls(application.topologies, create_main=create_main)
    silent = [handler for handler in application.handlers if handler.takes_delivery and not handler.topology.publishes]
    may_publish = [handler.name for handler in silent]
    declared = [topic for topology in application.topologies for topic in topology.publishes]
    from retryapp.runtime.clients.security import user_of

    connection, user = application.connection, user_of(application.app)
    who = principal or f"User:{user or application.topologies[0].group}"
    commands = acl_commands(rights, connection, principal=who)
    facts = {
        "principal": who,
        "acls": list(rights),
        "commands": list(commands),
        "publishes": list(dict.fromkeys(declared)),
        "may_publish": may_publish,
    }
    rows = [
        (
            acl.resource.value,
            f"{acl.name}*" if acl.pattern is Pattern.PREFIXED else acl.name,
            acl.operation,
            "yes" if acl.needed else "no",
            acl.why,
        )
        for acl in rights
    ]
    text = [table(("on", "name", "operation", "needed", "why"), rows), "", *commands, ""]
    if may_publish:
        text.append(
            f"{', '.join(may_publish)} may publish (delivery.publish) to topics that the application does not declare: "
            "each needs Describe and Write. Declare them with publishes=..., or grant these yourself."
        )
    if principal is None and not user:
        text.append(f"{who} is a guess: the app has no login with a name. Name the workers' with --principal.")
    if connection.protocol != "PLAINTEXT":
        text.append("FILE has the properties of a login that may grant rights, for Kafka's own tools.")
    text.append("Your own agents, tables and topics need rights of their own.")
    emit(facts, "\n".join(text), as_json=as_json)
    return ExitCode.FINE


def plan_facts(plan: Plan) -> dict[str, Any]:
    return {
        "bootstrap": plan.bootstrap,
        "brokers": plan.brokers,
        "ok": plan.ok,
        "to_create": topics_of(plan.to_create),
        "refused": topics_of(plan.refused),
        "topics": [{name: value for name, value in asdict(step).items() if name != "spec"} for step in plan.steps],
    }


def topics_of(steps: Iterable[PlanStep]) -> list[str]:
    """Return the names of topics; several handlers may publish to one."""
    return [*dict.fromkeys(step.topic for step in steps)]


def plan_text(plan: Plan, *, why: bool, manners: Mapping[str, Sequence[str]]) -> str:
    parts = [f"{plan.bootstrap}, {plan.brokers} broker{'s' if plan.brokers != 1 else ''}"]
    for (group, main), steps in groupby(plan.steps, key=lambda step: (step.group, step.main)):
        parts += ["", f"handler of {main} in group {group}"]
        parts += manners.get(main, ())
        parts += ["", _topics(list(steps))]
    if why:
        parts += ["", _reasons(plan)]
    for step in plan.refused:
        if step.action is Action.MISSING:
            parts += ["", f"{step.topic} does not exist. {step.why['partitions']}"]
        for problem in step.problems:
            expected = f"{step.topic} has {problem.setting}={problem.have}, needed is {problem.want}: {problem.why}."
            parts += ["", expected, f"  {problem.remedy}"]
    return "\n".join([*parts, "", _summary(plan)])


def _topics(steps: list[PlanStep]) -> str:
    rows = [
        (
            step.action.value,
            step.topic,
            step.role,
            "?" if step.partitions is None else str(step.partitions),
            "default" if step.replication is None else str(step.replication),
            step.config.get("cleanup.policy", "-"),
            _retention(step.config.get("retention.ms")),
        )
        for step in steps
    ]
    return table(("", "topic", "role", "partitions", "replicas", "clean-up", "retention"), rows)


def _retention(retention_ms: str | None) -> str:
    if retention_ms is None:
        return "-"
    if retention_ms == "-1":
        return "unlimited"
    try:
        return format_duration_ms(int(retention_ms))
    except InvalidDurationError:
        return f"{retention_ms}ms"


def _reasons(plan: Plan) -> str:
    """List every setting with its reason; topics of like settings share a line."""
    seen: dict[tuple[str, str, str], list[str]] = {}
    for step in plan.steps:
        for setting, reason in step.why.items():
            number = step.partitions if setting == "partitions" else step.replication
            value = step.config.get(setting) or str(number or "-")
            seen.setdefault((setting, value, reason), []).append(step.role)
    rows = [
        (setting, value, ", ".join(dict.fromkeys(roles)), reason)
        for (setting, value, reason), roles in sorted(seen.items())
    ]
    return table(("setting", "value", "for", "why"), rows)


def _summary(plan: Plan) -> str:
    if refused := topics_of(plan.refused):
        verb = "prevents" if len(refused) == 1 else "prevent"
        return f"{len(refused)} of {counted(len(topics_of(plan.steps)), 'topic')} {verb} the application from starting"
    if new := topics_of(plan.to_create):
        return f"{len(new)} to create: a worker does it when it starts; 'retryapp topics create -A MODULE' does it now"
    return "all topics are as required"
