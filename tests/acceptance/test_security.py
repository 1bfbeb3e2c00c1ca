"""A worker and the commands against a broker that wants a login, a certificate or both: every client that we open."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from harness import HandlerSpec, Stage, wait_for
from harness.secured import PASSWORD, USER, SecuredBroker, secured_broker
from harness.terminal import retryapp

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
    with secured_broker(cache_dir, tmp_path_factory.mktemp("certificates")) as broker:
        yield broker


@pytest.fixture
def bootstrap(secured: SecuredBroker) -> str:
    """The open listener, for the stage's own looks."""
    return secured.plain


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


@pytest.mark.parametrize("name", WAYS)
def test_all_clients_get_in(secured: SecuredBroker, stage: Stage, name: str) -> None:
    """Consumer, lanes, tail reader, administration, pages and commands: a retry, a dead letter, a restart, look-ups."""
    topic = write_program(stage, secured, WAYS[name])
    worker = stage.worker()
    stage.produce(topic, [{"id": 0}, {"id": 1, "fail": 1}, {"id": 2, "fail": 99}])
    wait_for(lambda: stage.service.done(topic) == {0, 1}, "healthy and failing records are done")
    stage.wait_settled(topic)
    evidence = stage.evidence(topic)
    assert [metadata.reason for _, metadata in evidence.dead()] == ["exhausted"]
    assert sorted(visit.attempt for visit in stage.service.of(topic)) == [1, 1, 1, 2, 2, 3]
    (_, letter), *_ = evidence.dead()
    status, page = worker.get(f"/retries/{topic}/find?id={letter.failure_id}")
    assert (status, "exhausted" in page) == (200, True)
    assert worker.stop() == 0
    again = stage.worker("again")  # its lanes read the changelog's tail once more
    assert again.stop() == 0
    for words, wanted in (
        (("plan", "-A", "app"), topic),
        (("pending", "list", "-A", "app"), ""),
        (("dead", "list", "-A", "app"), letter.failure_id),
    ):
        code, shown = retryapp(stage, *words)
        assert code == 0, (words, shown)
        assert wanted in json.dumps(shown)
    said = worker.log + again.log
    assert "Traceback" not in said
    assert PASSWORD not in said


TLS, CERTIFICATE = WAYS["PLAIN over TLS, private authority"], WAYS["client certificate"]
REFUSALS: dict[str, tuple[Way, dict[str, Any], tuple[str, ...]]] = {
    "a wrong password, PLAIN": (
        PLAIN, {"password": "wrong"}, ("SASL authentication error", "Correct the login")
    ),
    "a wrong password over TLS": (TLS, {"password": "wrong"}, ("SASL authentication error", "Correct the login")),
    "an authority that did not sign": (TLS, {"ca": "{other_ca}"}, ("certificate verify failed", "ssl.ca.location")),
    "a client certificate that only the context has": (
        CERTIFICATE, {"admin": ()}, ("ssl.certificate.location", "ssl.key.location", "admin_options")
    ),
    "a password that only the administration client has": (
        PLAIN,
        {"password": "wrong", "said": {"sasl.password": PASSWORD}},
        ("credentials of faust.App(...)", "Invalid username or password"),
    ),
    "a client certificate that only the administration client has": (
        replace(CERTIFICATE, prelude=f"context = {CONTEXT}"), {}, ("load_cert_chain",)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_what_is_refused_is_named_at_once(secured: SecuredBroker, stage: Stage, name: str) -> None:
    """Exit 3, of a worker and of a command, with the remedy; waiting for a broker would mend nothing."""
    way, changed, wanted = REFUSALS[name]
    if "ca" in changed:
        changed = {"ca": str(secured.certificates.other_ca)}
    write_program(stage, secured, way, **changed)
    began_s = time.monotonic()
    worker = stage.worker(ready=False)
    assert worker.wait(START_TIMEOUT_S + 15) == 3
    assert time.monotonic() - began_s < START_TIMEOUT_S
    last = worker.log.splitlines()[-1]
    for text in wanted:
        assert text in last
    for text in ("Waiting for a broker", "Traceback", PASSWORD):
        assert text not in worker.log
    if name == "a wrong password, PLAIN":
        code, shown = retryapp(stage, "pending", "list", "-A", "app")
        assert (code, shown["error"]["type"]) == (3, "LoginRefusedError")


def test_no_credentials_at_all(secured: SecuredBroker, stage: Stage) -> None:
    """The broker hangs up without a word: exit 3 after the start time-out, and security is named as a cause."""
    write_program(stage, secured, Way(listener="sasl", arguments="broker_credentials=None"), start_timeout_s=5)
    worker = stage.worker(ready=False)
    assert worker.wait(5 + 20) == 3
    last = worker.log.splitlines()[-1]
    assert secured.sasl in last
    assert "security settings" in last
    assert "Traceback" not in worker.log
    assert 0 < worker.log.count("Waiting for a broker") < 20
