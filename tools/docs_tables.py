"""Write the tables of README.md and docs/ that say what the code says: ``python tools/docs_tables.py [--check]``.

A table stands between ``<!-- table: name -->`` and ``<!-- end -->``; what is between the two is replaced. With
``--check`` nothing is written and the exit code is 1 when a file is not up to date.
"""

from __future__ import annotations

import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from retryapp.core.durations import format_duration_ms, parse_duration_ms
from retryapp.core.policy import RetryPolicy
from retryapp.core.publication import DEFAULT_MAX_BYTES
from retryapp.core.topology import HandlerTopology, TopicSpec, topic_specs
from retryapp.demo.settings import PREFIX as DEMO_PREFIX
from retryapp.demo.settings import DemoSettings
from retryapp.retries import Retries
from retryapp.runtime.observe.metrics import Gauges, MetricsObserver
from retryapp.runtime.observe.observers import EVENT_IDS, NEW_CAUSE, SUMMARY
from retryapp.runtime.options import SETTINGS
from retryapp.settings import Settings, variable_of

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def settings() -> str:
    """Variables of the environment."""
    rows = []
    for name, field in Settings.model_fields.items():
        default = format_duration_ms(field.default) if name == "grace" else str(field.default)
        shown = "the user's cache folder" if name == "cache_dir" else f"`{default}`"  # differs by system and user
        rows.append((f"`{variable_of(name)}`", shown, " ".join((field.description or "").split())))
    return table(("variable", "default", "meaning"), rows)


def records_columns() -> str:
    """Columns of the archive."""
    from retryapp.pipeline.schemas import RECORDS  # loads PySpark

    rows = ((f"`{field.name}`", _column_type(field), field.metadata["comment"]) for field in RECORDS)
    return table(("column", "type", "meaning"), rows)


def derived_tables() -> str:
    """Columns of the analysis' tables, a section each."""
    from retryapp.pipeline.analysis.schemas import (
        ATTEMPT,
        DERIVED_TABLES,
        SAID,
    )  # loads PySpark

    sections = []
    for name, schema in DERIVED_TABLES.items():
        rows = ((f"`{field.name}`", _column_type(field), field.metadata["comment"]) for field in schema)
        sections.append(f"### {name}\n\n{table(('column', 'type', 'meaning'), rows)}")
        if name == "journeys":
            sections.append(f"An attempt has `{'`, `'.join(ATTEMPT.fieldNames())}`.\n")
        if name == "readings":
            sections.append(f"`said` has `{'`, `'.join(SAID.fieldNames())}`.\n")
    return "\n".join(sections)


def _column_type(field: Any) -> str:
    text = str(field.dataType.simpleString())
    return text if len(text) < 40 else text.split("<")[0]


def demo_settings() -> str:
    rows = (
        (f"`{DEMO_PREFIX}{name.upper()}`", f"`{field.default}`", field.description or "")
        for name, field in DemoSettings.model_fields.items()
    )
    return table(("variable", "default", "meaning"), rows)


def arguments(function: Callable[..., Any], documented: str | None) -> str:
    """Arguments of a function: defaults from its signature, meaning from the ``Args`` of a docstring."""
    section = re.search(r"Args:\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(documented or ""), re.DOTALL)
    if section is None:
        raise ValueError(f"{function!r} has no Args section")
    meanings = {
        name: re.sub(r"\s+", " ", text).replace("``", "`").strip()
        for name, text in re.findall(r"^ {4}(\w+): (.*?)(?=^ {4}\w|\Z)", section.group(1), re.DOTALL | re.MULTILINE)
    }
    rows = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        rows.append((f"`{name}`", _default(parameter), meanings[name]))
    return table(("argument", "default", "meaning"), rows)


def _default(parameter: inspect.Parameter) -> str:
    default = parameter.default
    if default is parameter.empty:
        return "(needed)"
    if default == ():
        return "none"
    shown = (
        default.__name__ if isinstance(default, type) else repr(str(default) if isinstance(default, str) else default)
    )
    return f"`{shown}`"


def faust_settings() -> str:
    """Faust settings that we change."""
    rows = ((f"`{name}`", f"`{ours}`", why) for name, (ours, why) in SETTINGS.items())
    return table(("Faust setting", "ours", "why"), rows)


def example() -> tuple[TopicSpec, ...]:
    """The topics of the README's program on a cluster of three brokers."""
    policy = RetryPolicy("5m*2 30m*3 1h")
    topology = HandlerTopology("billing", "orders", delays_ms=policy.delays_ms)
    return topic_specs(topology, partitions=6, main_max_message_bytes=DEFAULT_MAX_BYTES, replication=3)


def topic_names() -> str:
    rows = ((f"`{spec.name}`", spec.role.value, _clean_up(spec), _retention(spec)) for spec in example())
    return table(("topic", "role", "clean-up", "retention"), rows)


def topic_settings() -> str:
    """Every setting of every role with its reason."""
    seen: dict[tuple[str, str, str], list[str]] = {}
    for spec in example():
        for setting, value in spec.config.items():
            seen.setdefault((setting, value, spec.why[setting]), []).append(spec.role.value)
    rows = []
    for (setting, value, why), roles in seen.items():
        shown = "all" if len(roles) == len({spec.role for spec in example()}) else ", ".join(roles)
        rows.append((f"`{setting}`", f"`{value}`", shown, why))
    return table(("setting", "value", "of", "why"), rows)


def _clean_up(spec: TopicSpec) -> str:
    return spec.config["cleanup.policy"]


def _retention(spec: TopicSpec) -> str:
    retention = spec.config.get("retention.ms")
    return "as long as it is needed" if retention is None else format_duration_ms(parse_duration_ms(f"{retention}ms"))


def metrics() -> str:
    """Metrics as a worker's page serves them."""
    text = MetricsObserver().collect(Gauges(partitions={"orders": []})).text().decode()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    helps = dict(re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE))
    rows = ((f"`{name}`", kinds[name], helps[name]) for name in helps)
    return table(("metric", "type", "meaning"), rows)


def log_events() -> str:
    rows = ((f"`{name}`", logging.getLevelName(level)) for name, level in (*EVENT_IDS.values(), NEW_CAUSE, SUMMARY))
    return table(("message", "level"), rows)


def alert_rules() -> str:
    (group,) = yaml.safe_load((ROOT / "docs" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    rows = (
        (
            f"`{rule['alert']}`",
            rule["labels"]["severity"],
            rule["annotations"]["description"],
            re.sub(r"'(retryapp [^']*)'", r"`\1`", rule["annotations"]["action"]),
        )
        for rule in group["rules"]
    )
    return table(("alert", "severity", "meaning", "what to do"), rows)


TABLES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "records-columns": records_columns,
    "derived-tables": derived_tables,
    "demo-settings": demo_settings,
    "retries-arguments": lambda: arguments(Retries.__init__, Retries.__doc__),
    "handler-arguments": lambda: arguments(Retries.handler, Retries.handler.__doc__),
    "policy-arguments": lambda: arguments(RetryPolicy.__init__, RetryPolicy.__init__.__doc__),
    "faust-settings": faust_settings,
    "alerts": alert_rules,
    "topic-names": topic_names,
    "topic-settings": topic_settings,
    "metrics": metrics,
    "log-events": log_events,
}


def renewed(text: str) -> str:
    """Return a document with its tables as they have to be.

    Raises:
        KeyError: a table has an unknown name.
    """
    return BLOCK.sub(lambda match: f"{match.group(1)}{TABLES[match.group(2)]()}{match.group(3)}", text)


def documents() -> list[Path]:
    """Return the files that may have tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main(words: list[str]) -> int:
    wanted = {path: renewed(path.read_text(encoding="utf-8")) for path in documents()}
    stale = []
    for path, text in wanted.items():
        if path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path.relative_to(ROOT).as_posix())
        if "--check" not in words:
            path.write_text(text, encoding="utf-8")
    print("\n".join(stale) or "all tables are up to date")
    return 1 if stale and "--check" in words else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
