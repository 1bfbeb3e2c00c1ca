"""README.md and docs/: their programs run, their commands exist, their tables say what the code says.

`acceptance/test_readme.py` runs the README's own program.
"""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest
import yaml
from docs.commands import ROOT, assert_parses, blocks, prose, subcommand

from retryapp import Delivery
from retryapp.cli.console import ExitCode
from retryapp.cli.ledger import COLUMNS
from retryapp.core.classify import DeadReason
from retryapp.core.durations import parse_duration_ms
from retryapp.core.headers import OUR_HEADERS, SHIELD
from retryapp.core.lifecycle import KINDS
from retryapp.core.topology import HandlerTopology
from retryapp.demo.settings import PREFIX as DEMO_PREFIX
from retryapp.demo.settings import DemoSettings
from retryapp.ledger.journey import Fault
from retryapp.ports import PAGES_PREFIX
from retryapp.settings import Settings, variable_of
from tools import docs_tables, environment

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEPLOYMENT = [ROOT / name for name in ("docker-compose.yml", "Dockerfile", "Procfile")]


def first_cells(text: str, heading: str) -> list[str]:
    """Return the first column of the table that follows a heading, without backticks."""
    section = text.split(heading, 1)[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert table is not None
    return [line.split("|")[1].strip().strip("`") for line in table.group(0).splitlines()[2:]]


@pytest.mark.parametrize(
    ("document", "code"),
    [(path.name, body) for path in DOCUMENTS for body in blocks(path.read_text(), "python") if "/etc/" not in body],
)
def test_python_blocks_run(document: str, code: str) -> None:
    """As they are pasted; those that read certificates are left out."""
    exec(compile(code, document, "exec"), {})  # noqa: S102 - the project's own documents


@pytest.mark.parametrize(
    ("document", "line"),
    [(path.name, line) for path in DOCUMENTS for body in blocks(path.read_text(), "sh") for line in body.splitlines()],
)
def test_commands_exist(document: str, line: str) -> None:
    """Each line is parsed by the program that it starts, up to a redirection or a pipe."""
    words = shlex.split(re.split(" [|<>] ", line, maxsplit=1)[0])
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
    elif words[0] == ".":
        assert words[1] == ".venv/bin/activate"
    else:
        assert_parses(words)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_in_the_text_exist(path: Path) -> None:
    """`retryapp ...` within a sentence names a command that is there, and options that it has."""
    for found in re.findall(r"`retryapp ([^`]+)`", prose(path.read_text())):
        command, words = subcommand(found.split())
        options = {name for parameter in command.params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= options, found


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_up_to_date(path: Path) -> None:
    """`python tools/docs_tables.py` writes them."""
    text = path.read_text()
    assert docs_tables.renewed(text) == text
    for name in re.findall(r"<!-- table: (\S+) -->", text):
        assert docs_tables.TABLES[name]().count("\n") > 2


def test_every_table_is_shown_and_a_stale_one_is_seen() -> None:
    """None is made for nothing; and the check above can fail."""
    shown = {name for path in DOCUMENTS for name in re.findall(r"<!-- table: (\S+) -->", path.read_text())}
    assert shown == set(docs_tables.TABLES)
    assert docs_tables.renewed("<!-- table: settings -->\nold\n<!-- end -->\n").count("RETRYAPP_") >= 5


def test_the_readme_is_short() -> None:
    """A reader sees the whole of it: the rest is in docs/."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_all_headers_are_described() -> None:
    """Ours, each once, and the prefix of those that pass."""
    text = (ROOT / "docs" / "how-it-works.md").read_text()
    names = first_cells(text, "## Headers")
    assert sorted(names) == sorted(OUR_HEADERS)
    assert SHIELD in text


def test_all_reasons_and_exit_codes_are_described() -> None:
    """Each word of `retry-reason`; each code with what a supervisor should do."""
    assert first_cells((ROOT / "docs" / "handlers.md").read_text(), "### Reasons") == list(DeadReason)
    codes = first_cells((ROOT / "docs" / "operating.md").read_text(), "## Starting")
    assert [int(code) for code in codes] == sorted(ExitCode)


def test_all_events_and_the_ledger_are_described() -> None:
    """Kinds of events; columns of `retryapp ledger`, and the words for what does not add up."""
    events = (ROOT / "docs" / "how-it-works.md").read_text()
    assert sorted(first_cells(events, "## Events")) == sorted(KINDS)
    operating = (ROOT / "docs" / "operating.md").read_text()
    assert {name.removesuffix(" (expired)") for name in first_cells(operating, "## The ledger")} == set(COLUMNS)
    assert first_cells(operating, "where its copies are:") == list(Fault)


def test_all_log_messages_are_described() -> None:
    """Each text of the code that is the constant of a log line, and not the name of a module."""
    reference = (ROOT / "docs" / "reference.md").read_text().split("## Log messages")[1].split("\n## ")[0]
    parts = {path.stem for path in (ROOT / "retryapp").iterdir()} | {"events"}  # the name of a logger
    found = set[str]()
    for path in (ROOT / "retryapp").rglob("*.py"):
        texts = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        names = (re.match(r"retryapp\.([a-z_]+)(?=[: ]|$)", text) for text in texts if isinstance(text, str))
        found |= {match[0] for match in names if match is not None and match[1] not in parts}
    assert len(found) > 30
    assert found <= {name.strip("`") for name in re.findall(r"`retryapp\.[a-z_]+`", reference)}


def test_the_second_argument_is_described() -> None:
    """Every field of `Delivery`."""
    text = (ROOT / "docs" / "handlers.md").read_text().split("## The second argument")[1].split("## Values")[0]
    assert all(f"`{field.name}`" in text for field in fields(Delivery))


def test_columns_of_a_page_are_explained() -> None:
    """Every column of the partitions page."""
    text = (ROOT / "docs" / "operating.md").read_text()
    assert f"{PAGES_PREFIX}/metrics" in prose((ROOT / "README.md").read_text())
    page = (ROOT / "retryapp" / "web" / "templates" / "partitions.html").read_text()
    headings = set(re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', page))
    assert headings - {"Partition"} == set(first_cells(text, "Columns of the partitions page:"))


def test_topic_names_in_the_text_are_those_that_are_made() -> None:
    """Also with one topic for each delay."""
    text = (ROOT / "docs" / "how-it-works.md").read_text()
    delays = tuple(parse_duration_ms(delay) for delay in ("5m", "30m", "1h"))
    for tiers in ("single", "per-delay"):
        topology = HandlerTopology("billing", "orders", tiers=tiers, delays_ms=delays)  # type: ignore[arg-type]
        assert all(f"`{name}`" in text for name in topology.owned)


def test_downloads_are_as_large_as_said() -> None:
    """The table in docs/getting-started.md against what is announced before a download."""
    sizes = environment.DOWNLOAD_MB
    rows = re.findall(
        r"^\| `make (demo|demo ARGS=--no-report|test)` \| at most (\d+) MB \| (\d+) MB \|",
        prose((ROOT / "docs" / "getting-started.md").read_text()),
        re.MULTILINE,
    )
    profiles = {
        "demo": environment.PROFILES["demo"],
        environment.WITHOUT_REPORT.removeprefix("make "): environment.PROFILES["demo-without-report"],
        "test": environment.PROFILES["dev"],
    }
    assert {name for name, _, _ in rows} == set(profiles)
    for name, size, java in rows:
        assert int(size) == sizes["base"] + sum(sizes[extra] for extra in profiles[name])
        assert int(java) == sizes["java"]


@pytest.mark.parametrize("path", [*DOCUMENTS, *DEPLOYMENT], ids=lambda path: path.name)
def test_settings_exist(path: Path) -> None:
    """Every RETRYAPP_ variable named is one."""
    known = {*map(variable_of, Settings.model_fields)}
    known |= {DEMO_PREFIX + name.upper() for name in DemoSettings.model_fields}
    named = set(re.findall(r"RETRYAPP_[A-Z_]+", path.read_text())) - {"RETRYAPP_TEST_BROKER"}
    assert named <= known
    assert named or path not in DEPLOYMENT


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Relative ones: the file is there, and the heading in it."""
    for target in re.findall(r"\]\(([^)]+)\)", prose(path.read_text())):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        assert found.is_file(), target
        headings = re.findall(r"^#+ (.*)$", found.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {
            re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings
        }, target


def test_no_service_of_kubernetes_sets_a_variable_of_ours() -> None:
    """One named retryapp-web would be RETRYAPP_WEB_PORT, which no worker takes."""
    examples = map(yaml.safe_load, blocks((ROOT / "docs" / "operating.md").read_text(), "yaml"))
    (pod,) = (example["spec"] for example in examples if "spec" in example)
    assert pod["enableServiceLinks"] is False


def test_the_systemd_unit_agrees_with_the_settings() -> None:
    """Its command exists, and its time to stop is longer than the grace."""
    (unit,) = blocks((ROOT / "docs" / "operating.md").read_text(), "ini")
    values = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    command = values["ExecStart"].split()
    assert_parses([Path(command[0]).name, *command[1:]])
    grace = re.search(r"RETRYAPP_GRACE=(\S+)", values["Environment"])
    assert grace is not None
    assert parse_duration_ms(values["TimeoutStopSec"]) >= parse_duration_ms(grace.group(1)) + 10_000
    assert int(values["RestartPreventExitStatus"]) == ExitCode.USAGE
