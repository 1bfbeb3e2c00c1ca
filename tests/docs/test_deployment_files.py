"""docker-compose.yml, Dockerfile and Procfile: valid, on loopback, and of commands that exist."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from retryapp.core.durations import parse_duration_ms
from retryapp.demo.service import DEFAULT_PORT
from retryapp.demo.settings import PREFIX as DEMO_PREFIX
from retryapp.demo.settings import DemoSettings
from retryapp.settings import settings_table


@pytest.fixture(scope="module")
def compose(project_root: Path) -> dict[str, Any]:
    """The compose file."""
    loaded: dict[str, Any] = yaml.safe_load((project_root / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def procfile(project_root: Path) -> dict[str, str]:
    """Process name to command line."""
    lines = (project_root / "Procfile").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


@pytest.fixture(scope="module")
def dockerfile(project_root: Path) -> str:
    """The image's recipe."""
    return (project_root / "Dockerfile").read_text()


def workers(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that run a worker."""
    return {name: service for name, service in compose["services"].items() if "worker" in service.get("command", [])}


def plain_command(line: str) -> list[str]:
    """Take variables, `exec` and what goes before `&&` from a shell line."""
    words = shlex.split(line.split("&&")[-1])
    return [word for index, word in enumerate(words) if word != "exec" and not ("=" in word and index < 2)]


def image_commands(dockerfile: str) -> list[list[str]]:
    """What the images run by themselves, in the order of the file."""
    return [json.loads(line) for line in re.findall(r"^CMD (.*)$", dockerfile, re.MULTILINE)]


def test_compose_is_valid(compose: dict[str, Any], project_root: Path) -> None:
    """By the schema of the Compose Specification; extension fields and anchors are resolved first."""
    schema = json.loads((project_root / "tests" / "data" / "compose-spec.json").read_text())
    jsonschema.Draft7Validator(schema).validate(compose)


def test_the_schema_refuses_a_mistake(compose: dict[str, Any], project_root: Path) -> None:
    """The check above can fail."""
    schema = json.loads((project_root / "tests" / "data" / "compose-spec.json").read_text())
    broken = {**compose, "services": {"broker": {"image": "apache/kafka", "port": ["9092"]}}}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft7Validator(schema).validate(broken)


def test_ports_are_published_on_loopback_only(compose: dict[str, Any]) -> None:
    """Pages and broker have no login."""
    published = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)
    hosts = [port.rsplit(":", 1)[0] for port in published]
    assert len(set(hosts)) == len(hosts)


def test_images_are_pinned_and_the_broker_is_ours(compose: dict[str, Any], dockerfile: str) -> None:
    """The same Kafka as `retryapp broker`, and no floating tags."""
    assert compose["services"]["broker"]["image"] == "apache/kafka:4.3.1"
    assert re.match(r"(#.*\n)*FROM python:3\.\d+\.\d+-slim-\w+ AS worker\n", dockerfile)


def test_images_are_built_from_parts_that_exist(compose: dict[str, Any], dockerfile: str) -> None:
    """Every service of ours names its part and has an image of its own for it; a bare build makes a worker."""
    parts = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", dockerfile, re.MULTILINE)
    named = {name for _, name in parts if name}
    built = {
        service["image"]: service["build"]["target"] for service in compose["services"].values() if "build" in service
    }
    assert set(built.values()) == named == {"worker", "spark"}
    assert len(built) == 2
    assert parts[-1] == ("worker", "")


def test_the_archive_runs_for_ever_and_is_seen(compose: dict[str, Any], dockerfile: str) -> None:
    """It reads the workers' group, keeps its lake in a volume, and serves its metrics on the port that is published."""
    archive = compose["services"]["archive"]
    words = archive["command"]
    options = dict(zip(words[3::2], words[4::2], strict=True))
    assert options["--group"] == DemoSettings.model_fields["group"].default
    assert options["--broker"] == workers(compose)["worker1"]["environment"]["RETRYAPP_DEMO_BROKER"]
    assert [volume.split(":") for volume in archive["volumes"]] == [["lake", options["--lake"]]]
    assert options["--lake"] in re.findall(r"^VOLUME (\S+)$", dockerfile, re.MULTILINE)
    assert parse_duration_ms(options["--every"]) > 0
    port = options["--metrics-port"]
    assert archive["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert port in archive["healthcheck"]["test"][-1]
    assert f"EXPOSE {port}" in dockerfile
    assert archive["restart"] == "unless-stopped"


def test_two_workers_come_back_and_have_time_to_stop(compose: dict[str, Any]) -> None:
    """Restarted unless stopped; killed only after their grace."""
    assert len(workers(compose)) == 2
    for service in workers(compose).values():
        assert service["restart"] == "unless-stopped"
        grace_s = int(service["environment"]["RETRYAPP_GRACE"].removesuffix("s"))
        assert int(service["stop_grace_period"].removesuffix("s")) >= grace_s + 10


def test_every_service_has_a_health_check_and_waits_for_it(compose: dict[str, Any]) -> None:
    """Workers start when broker and service answer."""
    assert all(service["healthcheck"]["test"][0] == "CMD" for service in compose["services"].values())
    for service in workers(compose).values():
        assert {name: need["condition"] for name, need in service["depends_on"].items()} == {
            "broker": "service_healthy",
            "service": "service_healthy",
        }


def test_settings_exist(compose: dict[str, Any], procfile: dict[str, str], dockerfile: str) -> None:
    """Every RETRYAPP_ variable named is a setting."""
    known = {row.name for row in settings_table()} | {DEMO_PREFIX + name.upper() for name in DemoSettings.model_fields}
    text = json.dumps(compose) + json.dumps(procfile) + dockerfile
    named = set(re.findall(r"RETRYAPP_[A-Z_]+", text))
    assert named
    assert named <= known


def test_commands_exist(
    compose: dict[str, Any],
    procfile: dict[str, str],
    dockerfile: str,
    assert_parses: Callable[[list[str]], None],
) -> None:
    """Each command line is parsed by the program it starts."""
    lines = [plain_command(line) for line in procfile.values()]
    lines += [service["command"] for service in compose["services"].values() if "command" in service]
    lines += image_commands(dockerfile)[:1]
    for line in lines:
        assert_parses(line)


def test_the_services_port_is_the_one_that_workers_call(compose: dict[str, Any]) -> None:
    """Its default, as in development."""
    for service in workers(compose).values():
        assert service["environment"]["RETRYAPP_DEMO_SERVICE_URL"] == f"http://service:{DEFAULT_PORT}"


def test_compose_and_procfile_run_the_same_worker(
    compose: dict[str, Any], procfile: dict[str, str], dockerfile: str
) -> None:
    """What is tried in development is what runs in containers."""
    commands = [service["command"] for service in workers(compose).values()]
    commands += [plain_command(line) for name, line in procfile.items() if name.startswith("worker")]
    commands.append(image_commands(dockerfile)[0])
    assert len(commands) == 5
    assert all(command == commands[0] for command in commands)


def test_development_workers_stop_before_the_runner_kills(procfile: dict[str, str]) -> None:
    """Honcho kills after 5 seconds; without a broker a worker needs most of them to give up its connections."""
    for name, line in procfile.items():
        if name.startswith("worker"):
            match = re.search(r"RETRYAPP_GRACE=(\S+) ", line)
            assert match is not None
            assert parse_duration_ms(match.group(1)) <= 500
