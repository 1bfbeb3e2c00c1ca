"""A worker and the commands against a broker that wants a login, a certificate or both: every client that we open."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness import HandlerSpec, Stage, open_stage, wait_for
from harness.brokers import skip_without_broker
from harness.secured import PASSWORD, USER, SecuredBroker, secured_broker

pytestmark = [pytest.mark.broker, pytest.mark.acceptance, pytest.mark.extended]

PLACE = '    **SPEC["app_options"],\n'
"""Line of the user's program before which its credentials are put."""
START_TIMEOUT_S = 30
"""Longer than any refusal takes: what waits for a broker is told from what does not."""
LOGIN = f"username={USER!r}, password={{password!r}}"
CONTEXT = "ssl.create_default_context(cafile={ca!r})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way in."""

    listener: str
    """Name of the address."""
    arguments: str
    """Arguments of `faust.App`, as the user writes them."""
    prelude: str = ""
    """Lines before them."""
    admin: tuple[str, ...] = ()
    """Properties that have to be said to librdkafka beside, with the client's key as their value."""


PLAIN = Way(listener="sasl", arguments=f"broker_credentials=faust.SASLCredentials({LOGIN})")
WAYS = {
    "PLAIN": PLAIN,
    "SCRAM": Way(
        listener="sasl", arguments=f"broker_credentials=faust.SASLCredentials({LOGIN}, mechanism='SCRAM-SHA-512')"
    ),
    "PLAIN over TLS, private authority": Way(
        listener="sasl_tls",
        prelude=f"context = {CONTEXT}",
        arguments=f"broker_credentials=faust.SASLCredentials({LOGIN}, ssl_context=context)",
    ),
    "client certificate": Way(
        listener="tls",
        prelude=f"context = {CONTEXT}; context.load_cert_chain({{client!r}})",
        arguments="broker_credentials=context",
        admin=("ssl.certificate.location", "ssl.key.location"),
    ),
}


@pytest.fixture(scope="module")
def secured(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with a listener for each way in."""
    with ExitStack() as stack:
        with skip_without_broker():
            broker = stack.enter_context(secured_broker(cache_dir, tmp_path_factory.mktemp("certificates")))
        yield broker


@pytest.fixture
def inside(secured: SecuredBroker, tmp_path: Path) -> Iterator[Stage]:
    """A stage whose own looks go through the open listener."""
    with open_stage(secured.plain, tmp_path) as stage:
        yield stage


def write_program(
    stage: Stage, broker: SecuredBroker, way: Way, *, start_timeout_s: int = START_TIMEOUT_S, **changed: Any
) -> str:
    """Write the user's program with these credentials and its handler; return the main topic."""
    topic = stage.main_topic()
    files = {"ca": str(broker.certificates.ca), "client": str(broker.certificates.client), "password": PASSWORD}
    admin = {**dict.fromkeys(changed.pop("admin", way.admin), files["client"]), **changed.pop("said", {})}
    stage.program(
        HandlerSpec(topic=topic),
        options={"start_timeout": f"{start_timeout_s}s", "admin_options": admin},
        bootstrap=getattr(broker, way.listener),
    )
    program = stage.folder / "app.py"
    head, found, tail = program.read_text().partition(PLACE)
    assert found, "the harness's program has another form"
    arguments = way.arguments.format(**{**files, **changed})
    prelude = f"import ssl\n{way.prelude.format(**{**files, **changed})}\n\napp = faust.App("
    program.write_text(f"{head}    {arguments},\n{found}{tail}".replace("\napp = faust.App(", f"\n{prelude}", 1))
    return topic


def ask(stage: Stage, *words: str) -> tuple[int, str, str]:
    """Run a command of ours in the program's folder."""
    ended = subprocess.run(
        [sys.executable, "-m", "retryapp.cli.main", *words],
        cwd=stage.folder,
        env={**os.environ, **stage.env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("name", WAYS)
def test_all_clients_get_in(secured: SecuredBroker, inside: Stage, name: str) -> None:
    """Consumer, lanes, tail reader, administration, pages and commands: a retry, a dead letter, a restart, look-ups."""
    topic = write_program(inside, secured, WAYS[name])
    worker = inside.worker()
    inside.produce(topic, [{"id": 0}, {"id": 1, "fail": 1}, {"id": 2, "fail": 99}])
    wait_for(lambda: inside.service.done(topic) == {0, 1}, "healthy and failing records are done")
    inside.wait_settled(topic)
    evidence = inside.evidence(topic)
    assert [metadata.reason for _, metadata in evidence.dead()] == ["exhausted"]
    assert sorted(visit.attempt for visit in inside.service.of(topic)) == [1, 1, 1, 2, 2, 3]
    (_, letter), *_ = evidence.dead()
    status, page = worker.get(f"/retries/{topic}/find?id={letter.failure_id}")
    assert (status, "exhausted" in page) == (200, True)
    assert worker.stop() == 0
    again = inside.worker("again")  # its lanes read the changelog's tail once more
    assert again.stop() == 0
    for words, wanted in (
        (("plan", "-A", "app"), topic),
        (("pending", "list", "-A", "app"), ""),
        (("dead", "list", "-A", "app"), letter.failure_id),
    ):
        code, out, err = ask(inside, *words, "--json")
        assert code == 0, (words, out, err)
        assert wanted in out
    said = worker.log + again.log
    assert "Traceback" not in said
    assert PASSWORD not in said


def refusal(stage: Stage) -> tuple[int, str]:
    """Run a worker to its end; return exit code and its last line."""
    began_s = time.monotonic()
    worker = stage.worker(ready=False)
    code = worker.wait(START_TIMEOUT_S + 15)
    assert time.monotonic() - began_s < START_TIMEOUT_S
    assert "Waiting for a broker" not in worker.log
    assert "Traceback" not in worker.log
    assert PASSWORD not in worker.log
    return code, worker.log.splitlines()[-1]


@pytest.mark.parametrize("name", ["PLAIN", "SCRAM", "PLAIN over TLS, private authority"])
def test_a_wrong_password(secured: SecuredBroker, inside: Stage, name: str) -> None:
    """Exit 3 at once and named, of a worker and of a command; waiting for a broker would mend nothing."""
    write_program(inside, secured, WAYS[name], **{"password": "wrong"})
    code, line = refusal(inside)
    assert code == 3
    assert line.startswith("retryapp: could not list topics on ")
    assert "SASL authentication error" in line
    assert "Correct the login" in line
    if name == "PLAIN":
        code, out, _ = ask(inside, "pending", "list", "-A", "app", "--json")
        assert code == 3
        assert json.loads(out)["error"]["type"] == "AccessDeniedError"


def test_an_authority_that_did_not_sign(secured: SecuredBroker, inside: Stage) -> None:
    """Exit 3 at once, with the setting that says which to trust."""
    way = WAYS["PLAIN over TLS, private authority"]
    write_program(inside, secured, way, ca=str(secured.certificates.other_ca))
    code, line = refusal(inside)
    assert code == 3
    assert "certificate verify failed" in line
    assert "ssl.ca.location" in line


def test_a_client_certificate_that_only_the_context_has(secured: SecuredBroker, inside: Stage) -> None:
    """It cannot be read from there: exit 3 at once, and what to say beside it."""
    write_program(inside, secured, WAYS["client certificate"], admin=())
    code, line = refusal(inside)
    assert code == 3
    for wanted in ("ssl.certificate.location", "ssl.key.location", "admin_options"):
        assert wanted in line


def test_a_password_that_only_the_administration_client_has(secured: SecuredBroker, inside: Stage) -> None:
    """Faust's own clients would be refused: exit 3 at once, and whose credentials it is about."""
    write_program(inside, secured, PLAIN, said={"sasl.password": PASSWORD}, **{"password": "wrong"})
    code, line = refusal(inside)
    assert code == 3
    assert "credentials of faust.App(...)" in line
    assert "Invalid username or password" in line


def test_a_client_certificate_that_only_the_administration_client_has(secured: SecuredBroker, inside: Stage) -> None:
    """The same for a context that shows none."""
    way = replace(WAYS["client certificate"], prelude=f"context = {CONTEXT}")
    write_program(inside, secured, way)
    code, line = refusal(inside)
    assert code == 3
    assert "load_cert_chain" in line


def test_no_credentials_at_all(secured: SecuredBroker, inside: Stage) -> None:
    """The broker hangs up without a word: exit 3 after the start time-out, and security is named as a cause."""
    write_program(inside, secured, Way(listener="sasl", arguments="broker_credentials=None"), start_timeout_s=5)
    worker = inside.worker(ready=False)
    assert worker.wait(5 + 20) == 3
    assert "security settings" in worker.log.splitlines()[-1]
    assert "Traceback" not in worker.log
    assert worker.log.count("Waiting for a broker") < 20
