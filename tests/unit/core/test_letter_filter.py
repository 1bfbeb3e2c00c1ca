"""What a filter of dead letters and waiting records takes, beyond what their metadata say."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from samples import WAITING

from retryapp.core.foreign import shield
from retryapp.core.headers import RETRY_GROUP, encode_metadata
from retryapp.core.jobs import LetterFilter
from retryapp.core.record import Headers, Record

OWN: Headers = (("tenant", b"acme=1"), (RETRY_GROUP, b"mine"), ("empty", None))
VALUE = b'{"id": 17, "open": true, "who": {"a/b": "\xc3\xa9t\xc3\xa9"}, "items": [{"sku": "x"}, {"sku": "y"}]}'


def fits(value: bytes | None = VALUE, **wanted: str) -> bool:
    """Tell whether a record with those headers fits."""
    record = Record("app.orders.dlq", 0, 9, 0, b"k", value, shield(OWN) + encode_metadata(WAITING))
    return LetterFilter(**wanted).fits(WAITING, record, 0)  # type: ignore[arg-type]  # only texts


@pytest.mark.parametrize(
    ("header", "found"),
    [("tenant=acme=1", True), ("tenant=acme", False), ("Tenant=acme=1", False), ("empty=", False)],
)
def test_a_header_of_the_record_is_looked_for(header: str, found: bool) -> None:
    """Name and value; one of the user's with one of our names is found as the user calls it, and ours are not."""
    assert fits(header=header) is found
    assert fits(header=f"{RETRY_GROUP}=mine")
    assert not fits(header=f"{RETRY_GROUP}={WAITING.group}")


@pytest.mark.parametrize(
    ("field", "found"),
    [
        ("/id=17", True), ("/id=1", False), ("/open=true", True), ("/who/a~1b=été", True), ("/items/1/sku=y", True),
        ("/items/0/sku=y", False), ("/items/*/sku=y", True), ("/none=null", False), ("/id/x=17", False),
    ],
)  # fmt: skip
def test_a_field_of_a_json_value_is_looked_for(field: str, found: bool) -> None:
    """By its pointer; numbers and words as JSON writes them."""
    assert fits(field=field) is found


@pytest.mark.parametrize("value", [None, b"", b"no JSON", b"\xff", b"[" * 100_000, b"17"])
def test_what_is_no_object_has_no_field(value: bytes | None) -> None:
    """Nor is it a fault."""
    assert not fits(value, field="/id=17")


@pytest.mark.parametrize("wanted", [{"header": "tenant"}, {"field": "id=17"}, {"field": "/id"}])
def test_half_a_condition_is_refused(wanted: dict[str, str]) -> None:
    """It would take more, or other, letters than was meant."""
    with pytest.raises(ValidationError):
        LetterFilter(**wanted)  # type: ignore[arg-type]  # only texts
