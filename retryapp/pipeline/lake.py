"""The lake: one URI below which tables and checkpoints lie, and the file that says what it is.

All access goes through Hadoop's file systems in Spark's JVM, so every URI that Spark can write to serves.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from retryapp.pipeline.errors import LakeUnusableError, NewerLakeError
from retryapp.pipeline.schemas import SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK: Final = "lake.json"
SALT_BYTES: Final = 32
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
FORMATS: Final = ("delta", "parquet")
_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"
"""Makes S3 refuse a file that was created meanwhile (Hadoop's S3A, from 3.4.2); other stores do so by themselves."""
_THERE_ALREADY: Final = ("AlreadyExists", "RemoteFileChanged")
"""Hadoop's errors for a file that is there: before it is written, and S3's answer (412) when it is complete."""


@dataclass(frozen=True, slots=True)
class Lake:
    """An opened lake."""

    uri: str
    """Without a slash at its end."""
    format: str
    """``delta`` or ``parquet``."""
    salt: str
    """Put before each key that is hashed; hex."""

    def table(self, name: str) -> str:
        """Return where a table lies."""
        return f"{self.uri}/{name}"

    def checkpoint(self, job: str, name: str) -> str:
        """Return where a job's notes lie."""
        return f"{self.uri}/checkpoints/{job}/v1/{name}"


def lake_uri(text: str) -> str:
    """Return a lake's URI: as given, or ``file:`` and the absolute path where it is a path.

    Raises:
        LakeUnusableError: nothing is named.
    """
    if not text.strip():
        raise LakeUnusableError(text, "it is empty")
    if _SCHEME.match(text):
        return text.rstrip("/")
    return f"file://{Path(text).absolute()}".rstrip("/")  # as it is: Hadoop's paths decode nothing


def open_lake(spark: SparkSession, text: str, *, wanted: str | None = None) -> Lake:
    """Open a lake, or make one where there is none.

    Args:
        spark: the session.
        text: path or URI.
        wanted: ``delta`` or ``parquet`` for a new lake, and to be checked of an old one; None: what it has, else delta.

    Raises:
        LakeUnusableError: it cannot be read or written, or has the other format.
        NewerLakeError: a newer retryapp made it.
    """
    uri = lake_uri(text)
    files = Files(spark, uri)
    mark = files.read(f"{uri}/{MARK}")
    if mark is None:
        facts: dict[str, Any] = {
            "format": SCHEMA_VERSION,
            "tables": wanted or FORMATS[0],
            "salt": secrets.token_hex(SALT_BYTES),
        }
        if not files.create(f"{uri}/{MARK}", json.dumps(facts)):  # somebody else made it meanwhile
            return open_lake(spark, text, wanted=wanted)
    else:
        facts = _facts(uri, mark)
    if wanted is not None and facts["tables"] != wanted:
        raise LakeUnusableError(uri, f"its tables are {facts['tables']}, not {wanted}")
    return Lake(uri, facts["tables"], facts["salt"])


def _facts(uri: str, mark: str) -> dict[str, Any]:
    try:
        facts = json.loads(mark)
        version, _ = int(facts["format"]), (facts["tables"], facts["salt"])
    except (ValueError, KeyError, TypeError) as error:
        raise LakeUnusableError(uri, f"{MARK} in it is not readable ({error})") from error
    if version > SCHEMA_VERSION:
        raise NewerLakeError(f"the lake {uri}", version, SCHEMA_VERSION)
    return dict(facts)


class Files:
    """The few things that are done to files, on the file system of a URI."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        """Find the file system.

        Raises:
            LakeUnusableError: there is none for the URI's scheme.
        """
        from py4j.protocol import Py4JJavaError

        self._uri = uri
        self._jvm: Any = spark._jvm  # noqa: SLF001 - the documented way to Hadoop's classes from Python
        self._failure = Py4JJavaError
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - the same
        try:
            self._system = self._path(uri).getFileSystem(conf)
        except Py4JJavaError as error:
            raise LakeUnusableError(uri, _java_message(error)) from error

    def _path(self, uri: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(uri)

    def read(self, uri: str) -> str | None:
        """Return a small file's text; None where there is none."""
        try:
            if not self._system.exists(self._path(uri)):
                return None
            stream = self._system.open(self._path(uri))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream)).decode("utf-8")
            finally:
                stream.close()
        except self._failure as error:
            raise LakeUnusableError(self._uri, _java_message(error)) from error

    def create(self, uri: str, text: str) -> bool:
        """Write a file that is not there yet; False where it is.

        Of those who try at once one succeeds. S3 looks once more when the file is complete, if it is told to: without
        that the last one wins. Where its answer got lost and it was asked again, the one that succeeded hears False.
        On a disk Hadoop looks first and then writes, so it is not asked.
        """
        place = self.local_folder(uri)
        if place is not None:
            return self._create_local(place, text)
        try:
            builder = self._system.createFile(self._path(uri)).recursive().overwrite(False)
            stream = builder.opt(_CONDITIONAL, True).build()
            stream.write(bytearray(text.encode("utf-8")))
            stream.close()
        except self._failure as error:
            kind = error.java_exception.getClass().getName()
            if any(name in kind for name in _THERE_ALREADY):
                return False
            raise LakeUnusableError(self._uri, _java_message(error)) from error
        return True

    def _create_local(self, place: Path, text: str) -> bool:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            return False
        except OSError as error:
            raise LakeUnusableError(self._uri, error.strerror or str(error)) from error
        return True

    def replace(self, uri: str, text: str) -> None:
        """Write a file, over what is there."""
        try:
            stream = self._system.create(self._path(uri), True)
            stream.write(bytearray(text.encode("utf-8")))
            stream.close()
        except self._failure as error:
            raise LakeUnusableError(self._uri, _java_message(error)) from error

    def modified_ms(self, uri: str) -> int | None:
        """Return when a file was last written, epoch milliseconds; None where there is none."""
        try:
            return int(self._system.getFileStatus(self._path(uri)).getModificationTime())
        except self._failure as error:
            if "FileNotFound" in error.java_exception.getClass().getName():
                return None
            raise LakeUnusableError(self._uri, _java_message(error)) from error

    def local_folder(self, uri: str) -> Path | None:
        """Return the folder of this machine that a URI names; None where it is on another file system."""
        named = self._path(uri).toUri()
        return Path(named.getPath()) if named.getScheme() == "file" else None

    def exists(self, uri: str) -> bool:
        """Tell whether something is there."""
        try:
            return bool(self._system.exists(self._path(uri)))
        except self._failure as error:
            raise LakeUnusableError(self._uri, _java_message(error)) from error

    def remove(self, uri: str) -> None:
        """Remove a file or folder with all that is in it; fine when there is none."""
        try:
            self._system.delete(self._path(uri), True)
        except self._failure as error:
            raise LakeUnusableError(self._uri, _java_message(error)) from error

    def names(self, uri: str) -> Iterable[str]:
        """Return the names in a folder; none where it is not there."""
        try:
            return tuple(status.getPath().getName() for status in self._system.listStatus(self._path(uri)))
        except self._failure as error:
            if "FileNotFound" in error.java_exception.getClass().getName():
                return ()
            raise LakeUnusableError(self._uri, _java_message(error)) from error


def _java_message(error: Any) -> str:
    cause = error.java_exception
    while cause.getCause() is not None:
        cause = cause.getCause()
    return str(cause.getMessage() or cause.getClass().getSimpleName()).splitlines()[0]
