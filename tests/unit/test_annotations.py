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
from retryapp.testing import MemoryPartition

T = TypeVar("T")


class Paid(BaseModel):
    """What `value=` may make."""

    id: int


class Envelope(BaseModel, Generic[T]):
    """A model of models."""

    body: T


def taking(annotation: Any) -> Any:
    """Return a function that says so of its first argument."""

    async def take(_value: Any) -> None: ...

    take.__annotations__["_value"] = annotation
    return take


async def takes_model(_order: Paid) -> None: ...


async def takes_mapping(_order: Mapping[str, Any], _delivery: Delivery) -> None: ...


def parsed(function: Any) -> Any:
    """Return a handler of bytes for a function of what they say."""

    @functools.wraps(function)
    async def parse(_order: bytes) -> None:
        await function(Paid.model_validate_json(_order))

    return parse


class Parsed:
    """The same, as a decorator that is a class."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    async def __call__(self, _order: bytes) -> None:
        await self.function(Paid.model_validate_json(_order))


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (takes_model, {}),
        (takes_model, {"value": dict}),
        (takes_mapping, {"value": Paid}),
        (taking(list[Paid]), {"batch": Batch()}),
        (taking(dict[str, Any]), {}),
        (taking(Paid | None), {}),
        (functools.partial(takes_model), {}),
    ],
)
async def test_a_function_that_takes_what_value_does_not_make_is_refused(
    function: Any, settings: dict[str, Any]
) -> None:
    """Each record would fail in the handler, and use up the policy's attempts, before somebody sees why."""
    with pytest.raises(InvalidSettingError, match=r"setting value=.*takes (Paid|Mapping|dict): write value="):
        Retries(faust.App("app")).handler("orders", policy="1s", **settings)(function)
    with pytest.raises(InvalidSettingError, match=r"setting value=.*takes (Paid|Mapping|dict): write value="):
        MemoryPartition(function, "1s", **settings)


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        (takes_model, {"value": Paid}),
        (takes_model, {"value": Paid | None}),
        (takes_mapping, {"value": dict}),
        (taking(list[Paid]), {"value": Paid, "batch": Batch()}),
        (taking(list[Paid]), {"value": list[Paid]}),
        (taking(bytes | None), {}),
        (taking(dict[str, Any]), {"value": dict}),
        (taking(Any), {}),
        (taking("Missing"), {}),
        (taking(Envelope[Any]), {"value": Envelope[Paid]}),
        (taking(Annotated[bytes, "as it came"]), {}),
        (taking(Annotated[list[Paid], "of one partition"]), {"value": Paid, "batch": Batch()}),
        (taking(list[Paid] | None), {"value": Paid, "batch": Batch()}),
        (parsed(takes_model), {}),
        (functools.partial(parsed(takes_model)), {}),
        (Parsed(takes_model), {}),
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
