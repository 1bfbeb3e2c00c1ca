"""The lake: one URI with its tables, accessed through Hadoop's file systems in Spark's JVM."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from retryapp.pipeline.errors import LakeUnusableError, NewerLakeError, problem_of
from retryapp.pipeline.schemas import SCHEMA_VERSION

MARK: Final = "lake.json"
_TABLES: Final = "delta"
_FOLDERS: Final = (".", "records", "gaps", "acknowledged", "decisions", "erasures", "derived")
_CONDITIONAL: Final = "fs.option.create.conditional.overwrite"  # for S3 (Hadoop 3.4.2); others refuse by themselves
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_OF_PATTERNS: Final = re.compile(r"[][{}*?\\]")


@dataclass(frozen=True, slots=True)
class Lake:
    """An opened lake."""

    uri: str  # without a slash at its end
    salt: str  # put before each key that is hashed; hex
    spark: SparkSession
    files: Files  # of its file system

    def table(self, name: str) -> str:
        return f"{self.uri}/{name}"

    def key_hash(self, key: Column) -> Column:
        """Return the salted SHA-256 of a binary column, in hex; null for null."""
        return F.sha2(F.concat(F.unhex(F.lit(self.salt)), key), 256)

    @property
    def id(self) -> str:
        """Its identity, which does not tell its salt."""
        return hashlib.sha256(f"lake {self.salt}".encode()).hexdigest()[:16]


def lake_uri(text: str) -> str:
    """Return a lake's URI: as given, or ``file:`` and the absolute path where it is a path."""
    if not text.strip():
        raise LakeUnusableError(text, "its name is empty")
    if text.encode(errors="ignore").decode() != text:
        raise LakeUnusableError(text, "its name is not UTF-8")
    if _SCHEME.match(text):
        return text.rstrip("/")
    return f"file://{Path(text).absolute()}".rstrip("/")  # as it is: Hadoop's paths decode nothing


def literal(uri: str) -> str:
    """Return a URI for Spark's reader of files, which takes some characters for a pattern."""
    return _OF_PATTERNS.sub(r"\\\g<0>", uri)


def open_lake(spark: SparkSession, text: str, *, before_new: Callable[[str], object] | None = None) -> Lake:
    """Open a lake, or make one; where there is none ``before_new`` is called with its URI, and may refuse."""
    uri = lake_uri(text)
    files = Files(spark, uri)
    files.check_readable()
    place = f"{uri}/{MARK}"
    mark = files.read(place)
    if mark is None:
        if before_new is not None:
            before_new(uri)
        facts = {"format": SCHEMA_VERSION, "tables": _TABLES, "salt": secrets.token_hex(32)}
        files.create(place, json.dumps(facts))
        mark = files.read(place)  # another process may have made it meanwhile
    return Lake(uri, _salt(uri, mark or ""), spark, files)


def _salt(uri: str, mark: str) -> str:
    try:
        facts = json.loads(mark)
        version, tables, salt = int(facts["format"]), facts["tables"], str(facts["salt"])
    except (ValueError, KeyError, TypeError) as error:
        problem = f"not readable ({error})" if mark else "empty, as a first run that was killed leaves it: remove it"
        raise LakeUnusableError(uri, f"{MARK} in it is {problem}") from error
    if version > SCHEMA_VERSION:
        raise NewerLakeError(f"the lake {uri}", version, SCHEMA_VERSION)
    if tables != _TABLES:
        raise LakeUnusableError(uri, f"its tables are {tables}, and only Delta tables are read: begin a new lake")
    return salt


class Files:
    """File operations on the file system of a URI."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self._uri = uri
        jvm: Any = spark._jvm  # noqa: SLF001 - the documented way to Hadoop's classes from Python
        self._path: Any = getattr(jvm, "org.apache.hadoop.fs.Path")  # once, and whole: each dot searches all jars
        self._bytes_of: Any = getattr(jvm, "org.apache.commons.io.IOUtils").toByteArray
        conf = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - the same
        with self._errors_named():
            self._system = self._path(uri).getFileSystem(conf)

    @contextmanager
    def _errors_named(self, *passed: str) -> Iterator[None]:
        """Turn Java's errors into a ``LakeUnusableError``; suppress those with one of these words in their class."""
        try:
            yield
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getName()
            if not any(word in kind for word in passed):
                raise LakeUnusableError(self._uri, problem_of(error)) from error

    def check_readable(self) -> None:
        """Raise where this user may not look into a folder of the lake: to Java its files are not there."""
        place = self.local_folder(self._uri)
        if place is None:
            return
        for name in _FOLDERS:
            try:
                os.scandir(place / name).close()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise LakeUnusableError(self._uri, f"{error.filename}: {error.strerror}") from error

    def read(self, uri: str) -> str | None:
        """Return a small file's text; None where there is none."""
        with self._errors_named():
            if not self._system.exists(self._path(uri)):
                return None
            stream = self._system.open(self._path(uri))
            try:
                return bytes(self._bytes_of(stream)).decode("utf-8")
            finally:
                stream.close()

    def create(self, uri: str, text: str) -> bool:
        """Create a file; False where it exists (or S3 repeated the request). Of concurrent callers one succeeds."""
        place = self.local_folder(uri)
        if place is not None:  # Hadoop would look first and then write
            return self._create_local(place, text)
        created = False
        with self._errors_named("AlreadyExists", "RemoteFileChanged"):  # the second is S3's answer (412) at the close
            builder = self._system.createFile(self._path(uri)).recursive().overwrite(False)
            stream = builder.opt(_CONDITIONAL, True).build()
            stream.write(bytearray(text.encode("utf-8")))
            stream.close()
            created = True
        return created  # noqa: RET504 - the error may be suppressed

    def _create_local(self, place: Path, text: str) -> bool:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("x", encoding="utf-8") as file:
                try:
                    file.write(text)
                    file.flush()
                except OSError:  # on a full disk there is room for its name: an empty one would stay for good
                    place.unlink()
                    raise
        except FileExistsError:
            return False
        except OSError as error:
            raise LakeUnusableError(self._uri, error.strerror or str(error)) from error
        return True

    def local_folder(self, uri: str) -> Path | None:
        """Return the folder of this machine that a URI names; None where it is on another file system."""
        named = self._path(uri).toUri()
        return Path(named.getPath()) if named.getScheme() == "file" else None

    def exists(self, uri: str) -> bool:
        with self._errors_named():
            return bool(self._system.exists(self._path(uri)))

    def remove(self, uri: str) -> None:
        """Remove a file or folder with everything in it; fine when there is none."""
        with self._errors_named():
            self._system.delete(self._path(uri), True)

    def below(self, uri: str) -> list[str]:
        """Return the URIs of all files in a folder and in those below it."""
        found = []
        with self._errors_named():
            listing = self._system.listFiles(self._path(uri), True)
            while listing.hasNext():
                found.append(str(listing.next().getPath().toString()))
        return found

    def names(self, uri: str) -> Iterable[str]:
        """Return the names in a folder; none where it does not exist."""
        place, names = self.local_folder(uri), tuple[str, ...]()
        if place is not None:  # through Hadoop each name costs three calls of Java
            return [each.name for each in place.iterdir()] if place.is_dir() else []
        with self._errors_named("FileNotFound"):
            names = tuple(status.getPath().getName() for status in self._system.listStatus(self._path(uri)))
        return names  # noqa: RET504 - the error may be suppressed
