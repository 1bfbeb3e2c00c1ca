"""``retryapp plan``: what topics and rights an application needs, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar, cast

import click

from retryapp.cli._app import Application, app_option, load_handlers
from retryapp.cli._output import table
from retryapp.cli._target import reach
from retryapp.cli.console import ExitCode, emit, json_option
from retryapp.core.durations import format_duration_ms
from retryapp.core.errors import InvalidDurationError
from retryapp.doctor.acls import Acl, Pattern, acl_commands, needed_acls
from retryapp.kafka import Plan, PlanOptions, PlanStep, plan_topics

F = TypeVar("F", bound=Callable[..., Any])


def plan_choices(command: F) -> F:
    """Add the options that change what is planned: ``create_main``, ``allow_low_replication`` and ``adopt``."""
    command = click.option(
        "--adopt",
        is_flag=True,
        help="Take changelogs that have records and do not say whose they are; look at what they hold first.",
    )(command)
    command = click.option(
        "--allow-low-replication",
        is_flag=True,
        help="Accept fewer than 3 copies on 3 or more brokers: losing one broker may lose waiting records.",
    )(command)
    return click.option(
        "--create-main",
        type=click.IntRange(1, 100_000),
        metavar="PARTITIONS",
        help="Make missing main topics, with so many partitions. [default: a missing main topic is an error]",
    )(command)


def chosen_options(
    application: Application, *, create_main: int | None, allow_low_replication: bool, adopt: bool
) -> PlanOptions:
    """Return the application's options with those of the command line on top."""
    options = application.plan_options
    if create_main is not None:
        options = replace(options, create_main_partitions=create_main)
    return replace(
        options,
        allow_low_replication=allow_low_replication or options.allow_low_replication,
        adopt=adopt or options.adopt,
    )


@click.command(name="plan")
@app_option(required=True)
@plan_choices
@click.option("--why", is_flag=True, help="Say the reason for each setting.")
@click.option("--acls", is_flag=True, help="Show the rights that workers need, instead of topics; asks no broker.")
@click.option(
    "--principal",
    metavar="TYPE:NAME",
    help="Who gets the rights of --acls. [default: User:NAME with the group's name]",
)
@click.option(
    "--publishes",
    metavar="TOPIC",
    multiple=True,
    help="With --acls: a topic that handlers publish to with record.publish; may be given several times.",
)
@json_option
def command(
    *,
    app_spec: str,
    create_main: int | None,
    allow_low_replication: bool,
    adopt: bool,
    why: bool,
    acls: bool,
    principal: str | None,
    publishes: tuple[str, ...],
    as_json: bool,
) -> ExitCode:
    """Show which topics an application needs, which are there, and what is wrong with them. Changes nothing.

    With --acls: which rights its workers need, as a table and as kafka-acls.sh lines. An application does not say which
    topics its handlers publish to (record.publish): name them with --publishes.

    Retention is as long as all workers may be down, plus the policy's longest wait; partitions are the main topic's.

    \b
    Exit codes: 0 all is there or can be made, 1 a main topic is missing or a topic does not serve.

    \b
    Examples:
      retryapp plan -A billing
      retryapp plan -A shop.billing:app --why
      retryapp plan -A billing --create-main 6 --json
      retryapp plan -A billing --acls --principal User:billing
      retryapp plan -A billing --acls --publishes receipts --publishes audit
    """  # noqa: D301 - click reads the backspace character as "do not wrap"
    application = load_handlers(app_spec)
    options = chosen_options(
        application, create_main=create_main, allow_low_replication=allow_low_replication, adopt=adopt
    )
    if acls:
        return _show_acls(application, options, principal, publishes, as_json=as_json)
    if principal is not None or publishes:
        raise click.UsageError(f"{'--publishes' if publishes else '--principal'} goes with --acls")
    plan = plan_topics(reach(application.connection), application.topologies, options)
    emit(plan_facts(plan), plan_text(plan, why=why), as_json=as_json)
    return ExitCode.FINDING if plan.refused else ExitCode.FINE


def _show_acls(
    application: Application,
    options: PlanOptions,
    principal: str | None,
    publishes: tuple[str, ...],
    *,
    as_json: bool,
) -> ExitCode:
    rights = needed_acls(
        application.topologies,
        create_main=options.create_main_partitions is not None,
        publishes=publishes,
    )
    may_publish = [handler.name for handler in cast("Any", application).handlers if handler.takes_delivery]
    who = principal or f"User:{application.topologies[0].group}"
    commands = acl_commands(rights, bootstrap=application.connection.bootstrap, principal=who)
    facts = {
        "principal": who,
        "acls": list(rights),
        "commands": list(commands),
        "publishes": list(publishes),
        "may_publish": may_publish,
    }
    emit(facts, acls_text(rights, commands, may_publish=may_publish, publishes=publishes), as_json=as_json)
    return ExitCode.FINE


def acls_text(
    rights: Sequence[Acl], commands: Sequence[str], *, may_publish: Sequence[str] = (), publishes: Sequence[str] = ()
) -> str:
    """Return rights for people: each with its reason, the lines that grant them, and what nobody here can know.

    Args:
        rights: what is needed.
        commands: the lines that grant it.
        may_publish: names of the handlers that take a second argument, and so may publish.
        publishes: the topics that were named for that.
    """
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
    own = "Your own agents, tables and topics need rights of their own."
    unknown = (
        f"{', '.join(may_publish)} may publish (record.publish), and no application says where: each such topic needs "
        f"Describe and Write. Name them with --publishes TOPIC."
    )
    told = [unknown] if may_publish and not publishes else []
    return "\n".join([table(("on", "name", "operation", "needed", "why"), rows), "", *commands, "", *told, own])


def plan_facts(plan: Plan) -> dict[str, Any]:
    """Return a plan for programs."""
    return {
        "bootstrap": plan.bootstrap,
        "brokers": plan.brokers,
        "ok": plan.ok,
        "to_create": [step.topic for step in plan.to_create],
        "refused": [step.topic for step in plan.refused],
        "topics": [
            {
                "topic": step.topic,
                "role": step.role,
                "action": step.action.value,
                "group": step.group,
                "main": step.main,
                "partitions": step.partitions,
                "replication": step.replication,
                "config": dict(step.config),
                "why": dict(step.why),
                "problems": [
                    {
                        "setting": problem.setting,
                        "have": problem.have,
                        "want": problem.want,
                        "why": problem.why,
                        "remedy": problem.remedy,
                    }
                    for problem in step.problems
                ],
            }
            for step in plan.steps
        ],
    }


def plan_text(plan: Plan, *, why: bool) -> str:
    """Return a plan for people."""
    parts = [f"{plan.bootstrap}, {plan.brokers} broker{'s' if plan.brokers != 1 else ''}"]
    for (group, main), steps in groupby(plan.steps, key=lambda step: (step.group, step.main)):
        parts += ["", f"handler of {main} in group {group}", "", _topics(list(steps))]
    if why:
        parts += ["", _reasons(plan)]
    for step in plan.refused:
        if step.action.value == "missing":
            parts += ["", f"{step.topic} does not exist. {step.why['partitions']}"]
        for problem in step.problems:
            parts += [
                "",
                f"{step.topic} has {problem.setting}={problem.have}, needed is {problem.want}: {problem.why}.",
            ]
            parts += [f"  {problem.remedy}"]
    return "\n".join([*parts, "", _summary(plan)])


def _topics(steps: list[PlanStep]) -> str:
    rows = [
        (
            step.action.value,
            step.topic,
            step.role,
            "?" if step.partitions is None else str(step.partitions),
            "broker's" if step.replication is None else str(step.replication),
            step.config.get("cleanup.policy", "-"),
            _retention(step.config.get("retention.ms")),
        )
        for step in steps
    ]
    return table(("", "topic", "role", "partitions", "copies", "clean-up", "retention"), rows)


def _retention(retention_ms: str | None) -> str:
    if retention_ms is None:
        return "-"
    if retention_ms == "-1":
        return "for ever"
    try:
        return format_duration_ms(int(retention_ms))
    except InvalidDurationError:
        return f"{retention_ms}ms"


def _reasons(plan: Plan) -> str:
    """List every setting with its reason; topics of like settings share a line."""
    seen: dict[tuple[str, str, str], list[str]] = {}
    for step in plan.steps:
        for setting, reason in step.why.items():
            value = step.config.get(setting) or _number(step, setting)
            seen.setdefault((setting, value, reason), []).append(step.role)
    rows = [
        (setting, value, ", ".join(dict.fromkeys(roles)), reason)
        for (setting, value, reason), roles in sorted(seen.items())
    ]
    return table(("setting", "value", "for", "why"), rows)


def _number(step: PlanStep, setting: str) -> str:
    known = step.partitions if setting == "partitions" else step.replication
    return "-" if known is None else str(known)


def _summary(plan: Plan) -> str:
    if plan.refused:
        return f"{len(plan.refused)} of {len(plan.steps)} topics keep the application from starting"
    if plan.to_create:
        return f"{len(plan.to_create)} to make: a worker makes them at its start, and so does 'retryapp topics create'"
    return "all topics are as they have to be"
