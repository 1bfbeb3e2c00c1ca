"""What a broker process starts with: properties, logging, formatted storage and the command line."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from retryapp.broker.probe import LOOPBACK
from retryapp.core.errors import EnvironmentFault

NODE_ID = 1
_FORMAT_S = 120.0
_BOOTSTRAP = "bootstrap.checkpoint"
_LOG4J = "log4j2.properties"

_DEVELOPMENT = {
    "auto.create.topics.enable": "false",  # as production should be: a typo in a name is an error, not a topic
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",  # 50 by default: they are all made when the first group appears
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "broker.heartbeat.interval.ms": "500",  # a broker is let in by its second heartbeat: 2 s by default
    "broker.session.timeout.ms": "4000",  # after a kill the next start waits so long: 9 s by default
    "log.cleaner.dedupe.buffer.size": "16777216",  # 128 MB of heap by default
    "num.network.threads": "2",
    "num.io.threads": "4",
}

NEVER_RESTARTED = {"broker.session.timeout.ms": "120000"}
"""Of a broker that does not start again after a kill: on a busy machine 4 s pass without a heartbeat, and it is fenced.

One that does has to wait for the end of its former session, also where its controller is new (measured: 30 s of 30).
"""

_LOGGING = """\
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log}
appender.file.filePattern = {log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = [%d] %p %m (%c)%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 50MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
"""


class FormatFailedError(EnvironmentFault):
    """Kafka's storage tool refused to prepare a data folder. Operator action: read its output."""


def properties(data: Path, *, port: int, controller_port: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Return all settings of the broker: one node that is broker and controller, on loopback."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(NODE_ID),
        "controller.quorum.voters": f"{NODE_ID}@{LOOPBACK}:{controller_port}",
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": log_dir(data).name,  # it runs in the folder: Kafka would split a path at commas
        **_DEVELOPMENT,
        **extra,
    }


def log_dir(data: Path) -> Path:
    return data / "kafka"


def lock_file(data: Path) -> Path:
    """Return the file that Kafka keeps locked while it runs on a data folder."""
    return log_dir(data) / ".lock"


def properties_file(data: Path) -> Path:
    """Return the file with a broker's settings, the last word of its command line."""
    return data / "server.properties"


def write_files(data: Path, settings: Mapping[str, str], log: Path) -> Path:
    """Write the properties and the logging configuration; return the properties file."""
    (data / _LOG4J).write_text(_LOGGING.format(log=_escaped(str(log))))
    return _write_properties(properties_file(data), settings)


def _write_properties(path: Path, settings: Mapping[str, str]) -> Path:
    path.write_text("".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()))
    return path


def _escaped(value: str) -> str:
    """Return a value as Java reads it from a file of properties: as Latin-1, with JSON's escapes."""
    return json.dumps(value)[1:-1]


def java_command(java: Path, jars: tuple[Path, ...], *, heap_mb: int, main_class: str) -> list[str]:
    """Return the command line of a Java program of Kafka's, without its own arguments; it runs in the data folder."""
    return [
        str(java),
        f"-Xmx{heap_mb}m",
        f"-Xms{min(heap_mb, 256)}m",
        "-XX:+UseSerialGC",  # one small heap: less memory and a quicker start than with G1
        "-XX:TieredStopAtLevel=1",  # a quick start and small code matter more here than the last tenth of throughput
        "-XX:+ExitOnOutOfMemoryError",
        f"-Dlog4j2.configurationFile={_LOG4J}",
        "-cp",
        ":".join(str(jar) for jar in jars),
        main_class,
    ]


def ensure_formatted(
    data: Path, java: Path, jars: tuple[Path, ...], templates: Path, *, node_id: str, cluster_id: str | None
) -> None:
    """Prepare a data folder, once; with a new cluster id if none is given.

    Kafka's storage tool writes which features a new cluster begins with; that takes a Java start of its own, so its
    result is kept in the folder `templates`. The identities in ``meta.properties`` are the folder's own.

    Raises:
        FormatFailedError: the tool ended with an error.
    """
    folder = log_dir(data)
    if (folder / "meta.properties").exists():
        return
    checkpoint = templates / _BOOTSTRAP
    if not checkpoint.exists():
        _make_template(checkpoint, java, jars)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(checkpoint, folder / _BOOTSTRAP)
    cluster_id = cluster_id or new_id()
    meta = {"version": "1", "cluster.id": cluster_id, "node.id": node_id, "directory.id": new_id()}
    partial = _write_properties(folder / "meta.properties.new", meta)
    partial.replace(folder / "meta.properties")


def _make_template(checkpoint: Path, java: Path, jars: tuple[Path, ...]) -> None:
    with tempfile.TemporaryDirectory(prefix=".format-", dir=checkpoint.parent) as name:
        data = Path(name)
        settings = write_files(data, properties(data, port=1, controller_port=2, extra={}), data / "format.log")
        command = java_command(java, jars, heap_mb=256, main_class="kafka.tools.StorageTool")
        command += ["format", "--cluster-id", new_id(), "--config", str(settings)]
        try:
            result = subprocess.run(  # noqa: S603 - all words are ours
                command, cwd=data, capture_output=True, text=True, timeout=_FORMAT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise FormatFailedError(f"Kafka's storage tool did not end within {_FORMAT_S:g} s") from error
        made = log_dir(data) / _BOOTSTRAP
        if result.returncode != 0 or not made.exists():
            output = (result.stderr or result.stdout).strip()[-500:]
            raise FormatFailedError(f"cannot prepare the data folder {name} for Kafka: {output}")
        made.replace(checkpoint)


def new_id() -> str:
    """Return a random Kafka id: 16 bytes in URL-safe base 64, not beginning with a dash."""
    while True:
        text = base64.urlsafe_b64encode(secrets.token_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text
