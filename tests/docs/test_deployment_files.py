"""docker-compose.yml, Dockerfile and Procfile: valid, on loopback, and of commands that exist."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from typing import Any

import jsonschema
import yaml
from docs.commands import ROOT, assert_parses

from retryapp.core.durations import parse_duration_ms
from retryapp.demo.service import DEFAULT_PORT
from retryapp.demo.settings import GROUP

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
PROCFILE = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines() if line)
DOCKERFILE = (ROOT / "Dockerfile").read_text()
WORKERS = {name: service for name, service in COMPOSE["services"].items() if "worker" in service.get("command", [])}
IMAGE_COMMANDS: list[list[str]] = [json.loads(line) for line in re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)]
"""What the images run by themselves, in the order of the file."""


def plain_command(line: str) -> list[str]:
    """Take variables, `exec` and what goes before `&&` from a shell line."""
    words = shlex.split(line.split("&&")[-1])
    return [word for index, word in enumerate(words) if word != "exec" and not ("=" in word and index < 2)]


def test_compose_is_valid() -> None:
    """By the schema of the Compose Specification; extension fields and anchors are resolved first."""
    schema = json.loads((ROOT / "tests" / "data" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(COMPOSE)


def test_ports_are_published_on_loopback_only() -> None:
    """Pages and broker have no login."""
    published = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    hosts = [port.rsplit(":", 1)[0] for port in published]
    assert len(set(hosts)) == len(hosts)


def test_images_are_pinned_and_the_broker_is_ours() -> None:
    """The same Kafka as `retryapp broker`, and no floating tags."""
    assert COMPOSE["services"]["broker"]["image"] == "apache/kafka:4.3.1"
    assert re.match(r"(#.*\n)*FROM python:3\.\d+\.\d+-slim-\w+ AS worker\n", DOCKERFILE)


def test_images_are_built_from_parts_that_exist() -> None:
    """Every service of ours names its part and has an image of its own for it; a bare build makes a worker."""
    parts = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", DOCKERFILE, re.MULTILINE)
    named = {name for _, name in parts if name}
    built = {
        service["image"]: service["build"]["target"] for service in COMPOSE["services"].values() if "build" in service
    }
    assert set(built.values()) == named == {"worker", "spark"}
    assert len(built) == 2
    assert parts[-1] == ("worker", "")


def test_the_archive_runs_for_ever_and_is_seen() -> None:
    """It reads the workers' group, keeps its lake in a volume, and serves its metrics on the port that is published."""
    archive = COMPOSE["services"]["archive"]
    words = archive["command"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--group"] == GROUP
    assert options["--broker"] == WORKERS["worker1"]["environment"]["RETRYAPP_DEMO_BROKER"]
    assert [volume.split(":") for volume in archive["volumes"]] == [["lake", options["--lake"]]]
    assert options["--lake"] in re.findall(r"^VOLUME (\S+)$", DOCKERFILE, re.MULTILINE)
    assert parse_duration_ms(options["--every"]) > 0
    port = options["--metrics-port"]
    assert archive["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert port in archive["healthcheck"]["test"][-1]
    assert f"EXPOSE {port}" in DOCKERFILE
    assert archive["restart"] == "unless-stopped"


def test_two_workers_come_back_and_have_time_to_stop() -> None:
    """Restarted unless stopped, when broker and service answer; killed only after their grace."""
    assert all(service["healthcheck"]["test"][0] == "CMD" for service in COMPOSE["services"].values())
    assert len(WORKERS) == 2
    for service in WORKERS.values():
        assert service["environment"]["RETRYAPP_DEMO_SERVICE_URL"] == f"http://service:{DEFAULT_PORT}"
        assert service["restart"] == "unless-stopped"
        needs = {name: need["condition"] for name, need in service["depends_on"].items()}
        assert needs == {"broker": "service_healthy", "service": "service_healthy"}
        grace_s = int(service["environment"]["RETRYAPP_GRACE"].removesuffix("s"))
        assert int(service["stop_grace_period"].removesuffix("s")) >= grace_s + 10


def test_commands_exist() -> None:
    """Each command line is parsed by the program it starts."""
    lines = [plain_command(line) for line in PROCFILE.values()]
    lines += [service["command"] for service in COMPOSE["services"].values() if "command" in service]
    lines += IMAGE_COMMANDS[:1]
    for line in lines:
        assert_parses(line)


def test_compose_and_procfile_run_the_same_worker() -> None:
    """What is tried in development is what runs in containers."""
    commands = [service["command"] for service in WORKERS.values()]
    commands += [plain_command(line) for name, line in PROCFILE.items() if name.startswith("worker")]
    commands.append(IMAGE_COMMANDS[0])
    assert len(commands) == 5
    assert all(command == commands[0] for command in commands)


def test_development_workers_stop_before_the_runner_kills() -> None:
    """Honcho kills after 5 seconds; without a broker a worker needs most of them to give up its connections."""
    for name, line in PROCFILE.items():
        if name.startswith("worker"):
            match = re.search(r"RETRYAPP_GRACE=(\S+) ", line)
            assert match is not None
            assert parse_duration_ms(match.group(1)) <= 500


def test_a_source_distribution_has_what_its_makefile_runs() -> None:
    """Every module, script and file that a target or the image's build names is in the list of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = {f"{ROOT}{name}" for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    makefile = (ROOT / "Makefile").read_text()
    named = {*re.findall(r"-m (\w+)", makefile), *project["tool"]["mypy"]["packages"], ".dockerignore"}
    used = {f"{ROOT / name}" for name in named if (ROOT / name).exists()}
    assert f"{ROOT}/benchmarks" in used
    assert used <= included
