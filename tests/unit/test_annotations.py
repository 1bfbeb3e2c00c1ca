"""The annotation of a handler's first argument, beside what `value=` makes of a record."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, SupportsInt, TypeVar

import faust
import pytest
from pydantic import BaseModel

from retryapp import Batch, Delivery, Retries
from retryapp.core.errors import InvalidSettingError
from retryapp.engine.handler.handler import HandlerSignatureError
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
        (taking(list), {"value": list, "batch": Batch()}),
        (taking(Any), {"value": Any, "batch": Batch()}),
        (parsed(takes_model), {}),
        (functools.partial(parsed(takes_model)), {}),
        (Parsed(takes_model), {}),
        (functools.partial(Parsed(takes_model)), {}),
        (taking(list[list[Any]]), {"value": list, "batch": Batch()}),
        (taking(Sequence), {"value": Sequence, "batch": Batch()}),
        (taking(dict | list), {"value": dict | list, "batch": Batch()}),
        (lambda _order: None, {}),
        (print, {}),
    ],
)
async def test_an_annotation_that_fits_or_says_nothing_is_taken(function: Any, settings: dict[str, Any]) -> None:
    Retries(faust.App("app")).handler("orders", policy="1s", **settings)(function)


async def test_a_function_of_one_record_with_lists_or_of_the_delivery_alone_is_refused() -> None:
    """The first would get a list for each value, the other a value for the delivery: each record would fail."""
    for made, annotation in (
        (Paid, Paid),
        (dict, dict[str, Any]),
        (list[Paid], list[Paid]),
        (int, int),
        (Paid | None, Paid | None),
    ):
        with pytest.raises(InvalidSettingError, match=r"takes a list: annotate it as list\["):
            MemoryPartition(taking(annotation), "1s", value=made, batch=Batch())
    for annotation, settings in (
        (Delivery, {"value": dict}),
        (Delivery | None, {}),
        (list[Delivery], {"batch": Batch()}),
    ):
        with pytest.raises(HandlerSignatureError, match="says that it takes the delivery"):
            MemoryPartition(taking(annotation), "1s", **settings)


def second(annotation: Any, default: Any = None) -> Any:
    """Return a function that says so of its second argument."""

    async def take(_value: Any, _other: Any = default) -> None: ...

    take.__annotations__["_other"] = annotation
    return take


@pytest.mark.parametrize(
    ("annotation", "settings"),
    [
        (int, {}),
        (dict[str, bytes] | None, {}),
        (Paid, {}),
        (list[Delivery], {}),
        (Delivery, {"batch": Batch()}),
        (Annotated[bytes, "the key"], {}),
    ],
)
async def test_a_second_argument_that_is_no_delivery_is_refused(annotation: Any, settings: dict[str, Any]) -> None:
    """A key, headers or a session that defaults to None got the delivery, without a word."""
    with pytest.raises(HandlerSignatureError, match=r"its second argument gets the .*, and _other is annotated as"):
        MemoryPartition(second(annotation), "1s", **settings)


@pytest.mark.parametrize(
    ("annotation", "settings"),
    [
        (Delivery, {}),
        (Delivery | None, {}),
        (Annotated[Delivery, "of the record"], {}),
        (Annotated[Delivery, "of the record"] | None, {}),
        (object, {}),
        (Any, {}),
        (SupportsInt, {}),
        ("Missing", {}),
        (int | str, {}),
        (Sequence[Delivery], {"batch": Batch()}),
        (list[Delivery] | None, {"batch": Batch()}),
    ],
)
async def test_a_second_argument_that_may_be_a_delivery_is_taken(annotation: Any, settings: dict[str, Any]) -> None:
    assert MemoryPartition(second(annotation), "1s", **settings).handler.takes_delivery


async def test_a_second_argument_with_a_default_of_its_own_may_be_anything() -> None:
    """It keeps its default."""
    assert not MemoryPartition(second(bool, default=False), "1s").handler.takes_delivery


async def any_arguments(*_values: Any, **_others: int) -> None: ...


async def any_values(*_values: Any, _key: bytes = b"") -> None: ...


@pytest.mark.parametrize("function", [any_arguments, any_values])
async def test_what_is_passed_by_name_is_no_second_argument(function: Any) -> None:
    """The delivery is passed by its place."""
    assert MemoryPartition(function, "1s").handler.takes_delivery


async def test_a_class_around_the_function_is_not_taken_for_one_of_the_module() -> None:
    """Annotations are text here: their names are looked up in the module, where another class has this one."""

    class Paid(BaseModel):
        number: int

    async def charge(_order: Paid) -> None: ...

    Retries(faust.App("app")).handler("orders", policy="1s", value=Paid)(charge)

    class Delivery(BaseModel):
        parcel: int

    async def deliver(_parcel: Delivery) -> None: ...

    MemoryPartition(deliver, "1s", value=Delivery)
