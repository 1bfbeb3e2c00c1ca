"""The names that users import, and that importing them loads no more than needed."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest

import retryapp
from retryapp.core.traces import qualified_name


def test_the_public_names_are_these() -> None:
    """A name added or removed here is a decision, not an accident."""
    assert retryapp.__all__ == [
        "Batch",
        "CircuitBreaker",
        "Deduplicate",
        "Defer",
        "Delivery",
        "Edit",
        "HandlerTimeoutError",
        "Reject",
        "ReleaseTimeoutError",
        "Retries",
        "RetryAppError",
        "RetryLater",
        "RetryPolicy",
        "Skip",
        "Unavailable",
        "UndecodableError",
        "exp",
        "forever",
        "http_errors",
        "non_retryable",
        "pausing",
        "retryable",
        "sequence",
        "skippable",
    ]
    assert set(retryapp._HOME) == set(retryapp.__all__)


@pytest.mark.parametrize("name", retryapp.__all__)
def test_each_public_name_can_be_loaded(name: str) -> None:
    """Every name leads to something of that name."""
    assert getattr(retryapp, name).__name__ == name


def test_public_errors_are_named_as_they_are_imported() -> None:
    """In headers, causes and texts of policies: `retryapp.Reject`."""
    public = [getattr(retryapp, name) for name in retryapp.__all__]
    errors = [each for each in public if isinstance(each, type) and issubclass(each, Exception)]
    assert len(errors) == 9
    for each in errors:
        assert qualified_name(each) == f"retryapp.{each.__name__}"
        assert pickle.loads(pickle.dumps(each)) is each  # noqa: S301 - our own bytes


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        _ = retryapp.nope  # type: ignore[attr-defined]


SPARK = {"pyspark", "py4j", "pyarrow", "pandas"}
CLIENTS = {"faust", "mode", "aiokafka", "confluent_kafka", "rocksdict", "jgo"}


@pytest.mark.parametrize(
    ("statement", "left_out"),
    [
        ("import retryapp.core.errors", SPARK | CLIENTS),
        ("from retryapp import HandlerTimeoutError, RetryAppError", SPARK | CLIENTS),
        ("import retryapp.cli.main", SPARK | CLIENTS),
        ("import retryapp.cli.pipeline, retryapp.pipeline", SPARK),
    ],
)
def test_light_imports_load_no_faust_and_no_clients(statement: str, left_out: set[str]) -> None:
    """The pure core and the command line's frame stay quick to import, and Spark is only where a pipeline runs."""
    code = f"import sys; {statement}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not left_out & set(loaded)
