"""The annotation of a handler's first argument, beside what `value=` makes of a record."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Annotated, Any, Generic, TypeVar

import faust
import pytest
from pydantic import BaseModel

from retryapp import Batch, Delivery, Retries
from retryapp.core.errors import InvalidSettingError

T = TypeVar("T")


class Paid(BaseModel):
    """What `value=` may make."""

    id: int


async def takes_model(_order: Paid) -> None: ...


async def takes_list(_orders: list[Paid]) -> None: ...


async def takes_mapping(_order: Mapping[str, Any], _delivery: Delivery) -> None: ...


async def takes_dict(_order: dict[str, Any]) -> None: ...


async def takes_bytes_or_null(_order: bytes | None) -> None: ...


async def takes_anything(_order: Any) -> None: ...


class Envelope(BaseModel, Generic[T]):
    """A model of models."""

    body: T


async def takes_envelope(_order: Envelope[Any]) -> None: ...


async def takes_annotated(_order: Annotated[bytes, "as it came"]) -> None: ...


async def takes_annotated_list(_orders: Annotated[list[Paid], "of one partition"]) -> None: ...


async def takes_list_or_null(_orders: list[Paid] | None) -> None: ...


def parsed(function: Any) -> Any:
    """Return a handler of bytes for a function of what they say."""

    @functools.wraps(function)
    async def parse(_order: bytes) -> None:
        await function(Paid.model_validate_json(_order))

    return parse


async def takes_what_is_not_there(_order: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (takes_model, {}),
        (takes_model, {"value": dict}),
        (takes_mapping, {"value": Paid}),
        (takes_list, {"batch": Batch()}),
        (takes_dict, {}),
        (functools.partial(takes_model), {}),
    ],
)
async def test_a_function_that_takes_what_value_does_not_make_is_refused(
    function: Any, settings: dict[str, Any]
) -> None:
    """Each record would fail in the handler, and use up the policy's attempts, before somebody sees why."""
    with pytest.raises(InvalidSettingError, match=r"setting value=.*takes (Paid|Mapping|dict): write value="):
        Retries(faust.App("app")).handler("orders", policy="1s", **settings)(function)


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (takes_model, {"value": Paid}),
        (takes_model, {"value": Paid | None}),
        (takes_mapping, {"value": dict}),
        (takes_list, {"value": Paid, "batch": Batch()}),
        (takes_list, {"value": list[Paid]}),
        (takes_bytes_or_null, {}),
        (takes_dict, {"value": dict}),
        (takes_anything, {}),
        (takes_what_is_not_there, {}),
        (takes_envelope, {"value": Envelope[Paid]}),
        (takes_annotated, {}),
        (takes_annotated_list, {"value": Paid, "batch": Batch()}),
        (takes_list_or_null, {"value": Paid, "batch": Batch()}),
        (parsed(takes_model), {}),
        (functools.partial(parsed(takes_model)), {}),
        (lambda _order: None, {}),
        (print, {}),
    ],
)
async def test_an_annotation_that_fits_or_says_nothing_is_taken(function: Any, settings: dict[str, Any]) -> None:
    Retries(faust.App("app")).handler("orders", policy="1s", **settings)(function)


async def test_a_class_around_the_function_is_not_taken_for_one_of_the_module() -> None:
    """Annotations are text here: their names are looked up in the module, where another class has this one."""

    class Paid(BaseModel):
        number: int

    async def charge(_order: Paid) -> None: ...

    Retries(faust.App("app")).handler("orders", policy="1s", value=Paid)(charge)
