"""Spark's reader of Kafka, and its settings: librdkafka's properties in the words of Java's client.

A property that begins with ``kafka.`` is meant for Java as it is, and wins; librdkafka never sees it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from retryapp.core.errors import InvalidSettingError
from retryapp.kafka import KafkaConnection
from retryapp.kafka.connection import JAVA_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from retryapp.pipeline.positions import Offsets

_SAME: Final = frozenset({"security.protocol", "client.id", "request.timeout.ms", "metadata.max.age.ms"})
_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_TIMEOUTS: Final = {"request.timeout.ms": "15000", "default.api.timeout.ms": "15000"}
_PATIENCE: Final = {"fetchOffset.numRetries": "2", "kafkaConsumer.pollTimeoutMs": "30000"}


def read_range(spark: SparkSession, connection: KafkaConnection, begin: Offsets, end: Offsets) -> DataFrame:
    """Return the committed records from ``begin`` to before ``end``; both have the same partitions.

    Returns:
        key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int,
        headers array<struct<key: string, value: binary>>.
    """
    begins, ends = _by_topic(begin), _by_topic(end)
    options = {
        **source_options(connection),
        "kafka.bootstrap.servers": connection.bootstrap,
        "kafka.isolation.level": "read_committed",  # the default reads records of aborted transactions too
        "includeHeaders": "true",
        "assign": json.dumps({topic: list(offsets) for topic, offsets in begins.items()}),
        "startingOffsets": json.dumps(begins),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
    }
    return spark.read.format("kafka").options(**options).load()


def _by_topic(positions: Offsets) -> dict[str, dict[int, int]]:
    nested: dict[str, dict[int, int]] = {}
    for (topic, partition), offset in positions.items():
        nested.setdefault(topic, {})[partition] = offset
    return nested


def source_options(connection: KafkaConnection) -> dict[str, str]:
    """Return the options of Spark's reader of Kafka: whom it asks, and how long it waits for an answer.

    With Spark's own it says after minutes that no broker answers. Timeouts of the user's stay, both of them: Java
    refuses a first one that is longer than the second.
    """
    java = java_options(connection)
    timeouts = {} if _TIMEOUTS.keys() & java.keys() else _TIMEOUTS
    return {**_PATIENCE, **{f"kafka.{name}": value for name, value in (java | timeouts).items()}}


def java_options(connection: KafkaConnection) -> dict[str, str]:
    given = dict(connection.options)
    passed = {name.removeprefix(JAVA_PREFIX): value for name, value in given.items() if name.startswith(JAVA_PREFIX)}
    options = {name: value for name, value in given.items() if name in _SAME}
    if "security.protocol" in options:
        options["security.protocol"] = options["security.protocol"].upper()
    return {**options, **_login(given), **_certificates(given), **passed}


def _login(given: dict[str, str]) -> dict[str, str]:
    mechanism = given.get("sasl.mechanism") or given.get("sasl.mechanisms")
    if mechanism is None:
        return {}
    options = {"sasl.mechanism": mechanism}
    username, password = given.get("sasl.username"), given.get("sasl.password")
    if username is None and password is None:
        return options  # the rest comes as kafka.sasl.jaas.config
    if mechanism not in _LOGIN_MODULES:
        known = ", ".join(sorted(_LOGIN_MODULES))
        problem = (
            f"the pipeline makes logins of {known}; for others give Java's own properties, as kafka.sasl.jaas.config"
        )
        raise InvalidSettingError("sasl.mechanism", mechanism, problem)
    module = _LOGIN_MODULES[mechanism]
    login = f"{module} required username={_quoted(username or '')} password={_quoted(password or '')};"
    return {**options, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _certificates(given: dict[str, str]) -> dict[str, str]:
    options: dict[str, str] = {}
    trusted, certificate, key = (_pem(given, f"ssl.{name}") for name in ("ca", "certificate", "key"))
    if trusted is not None:
        options |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": trusted}
    if "ssl.keystore.location" in given:
        # librdkafka's is PKCS#12, whose one password is the key's too. It is bytes, which Java takes from a file only.
        place = given["ssl.keystore.location"]
        if not Path(place).is_file():
            raise InvalidSettingError("ssl.keystore.location", place, "expected a PKCS#12 file, and there is none")
        options |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": str(Path(place).resolve())}
        options["ssl.keystore.password"] = given.get("ssl.keystore.password", "")  # without one Java opens no store
    elif certificate is not None and key is not None:
        options |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": certificate, "ssl.keystore.key": key}
        if "ssl.key.password" in given:
            options["ssl.key.password"] = given["ssl.key.password"]
    checked = given.get("ssl.endpoint.identification.algorithm")
    if checked is not None:
        options["ssl.endpoint.identification.algorithm"] = "" if checked == "none" else checked
    return options


def _pem(given: dict[str, str], name: str) -> str | None:
    """Return PEM as text, also that of a file: it travels to the executors, which do not have the file."""
    place = given.get(f"{name}.location")
    if place is None or f"{name}.pem" in given:
        return given.get(f"{name}.pem")
    try:
        return Path(place).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidSettingError(f"{name}.location", place, f"cannot be read: {error.strerror}") from error
