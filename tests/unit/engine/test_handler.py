"""What may be a handler, what is refused, and what becomes of what it returns."""

from __future__ import annotations

import asyncio
import functools
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from operator import itemgetter
from types import GenericAlias
from typing import Annotated, Any, Literal

import pytest
from doubles import deliver_once, failing, make_context, make_record, the
from pydantic import BaseModel, Field, create_model

from retryapp import Reject, RetryLater
from retryapp.core.errors import InvalidSettingError, UndecodableError
from retryapp.engine.handler.handler import Delivery, HandlerSignatureError
from retryapp.testing import MemoryPartition

seen: list[tuple[bytes, int | None, bool]] = []
"""Value, attempt, and whether it ran in the event loop's thread."""


@pytest.fixture(autouse=True)
def nothing_seen() -> Iterator[None]:
    seen.clear()
    yield
    seen.clear()


def note(value: bytes, delivery: Delivery | None = None) -> None:
    seen.append((value, delivery.attempt if delivery else None, threading.current_thread() is threading.main_thread()))


async def note_async(value: bytes, delivery: Delivery | None = None) -> None:
    await asyncio.sleep(0)
    note(value, delivery)


async def with_extra(extra: str, value: bytes, delivery: Delivery) -> None:
    assert extra == "extra"
    await note_async(value, delivery)


class Methods:
    """Bound methods and callable objects."""

    async def bound(self, value: bytes) -> None:
        await note_async(value)

    def plain(self, value: bytes, delivery: Delivery) -> None:
        note(value, delivery)

    @staticmethod
    async def static(value: bytes) -> None:
        await note_async(value)


async def returns_coroutine(value: bytes) -> Any:
    return note_async(value)


class Holds:
    """A class whose objects could be called."""

    def __init__(self, value: bytes) -> None:
        note(value)

    async def __call__(self, value: bytes) -> None:
        await note_async(value)


class CallableAsync:
    """An object with an asynchronous call."""

    async def __call__(self, value: bytes, delivery: Delivery) -> None:
        await note_async(value, delivery)


class CallablePlain:
    """An object with a plain call."""

    def __call__(self, value: bytes) -> None:
        note(value)


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap as a decorator does that knows nothing of coroutines."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def adding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap as a decorator does that wants the delivery for itself."""

    @functools.wraps(function)
    async def wrapper(value: bytes, delivery: Delivery) -> None:
        assert delivery.attempt == 1
        await function(value)

    return wrapper


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap as a decorator does that knows values only."""

    @functools.wraps(function)
    async def wrapper(value: bytes) -> None:
        await function(value)

    return wrapper


def of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method as a decorator does that knows values only."""

    @functools.wraps(function)
    async def wrapper(self: object, value: bytes) -> None:
        await function(self, value)

    return wrapper


class Decorator:
    """A decorator that is a class."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


class Decorated:
    """Two decorators, of which the outer one passes on whatever it gets."""

    @wrapped
    @of_values
    async def method(self, value: bytes, delivery: Delivery | None = None) -> None:
        await note_async(value, delivery)

    __call__ = method


@pytest.mark.parametrize(
    ("function", "is_async", "in_loop", "attempt", "name"),
    [
        pytest.param(note_async, True, True, 1, "note_async", id="coroutine function"),
        pytest.param(note, False, False, 1, "note", id="function"),
        pytest.param(functools.partial(with_extra, "extra"), True, True, 1, "with_extra", id="partial"),
        pytest.param(functools.partial(CallableAsync()), True, True, 1, "CallableAsync", id="partial of an object"),
        pytest.param(Methods().bound, True, True, None, "Methods.bound", id="bound method"),
        pytest.param(Methods().plain, False, False, 1, "Methods.plain", id="plain bound method"),
        pytest.param(vars(Methods)["static"], False, True, None, "Methods.static", id="static method in its class"),
        pytest.param(functools.lru_cache(note), False, False, 1, "note", id="wrapper in C"),
        pytest.param(CallableAsync(), True, True, 1, "CallableAsync", id="callable object"),
        pytest.param(CallablePlain(), False, False, None, "CallablePlain", id="plain callable object"),
        pytest.param(returns_coroutine, True, True, None, "returns_coroutine", id="forgotten await"),
        pytest.param(wrapped(note_async), False, True, 1, "note_async", id="plain wrapper of a coroutine function"),
        pytest.param(adding(Methods().bound), True, True, None, "Methods.bound", id="decorator that takes more"),
        pytest.param(hiding(note_async), True, True, None, "note_async", id="decorator that takes less"),
        pytest.param(wrapped(hiding(note_async)), False, True, None, "note_async", id="decorators of both kinds"),
        pytest.param(
            functools.partial(wrapped(hiding(note_async))), False, True, None, "note_async", id="partial of both"
        ),
        pytest.param(Decorator(hiding(note_async)), False, True, None, "note_async", id="decorator that is a class"),
        pytest.param(Decorated().method, False, True, None, "Decorated.method", id="decorators of a method"),
        pytest.param(Decorated(), False, True, None, "Decorated", id="decorators of a call"),
        pytest.param(lambda value: note_async(value), False, True, None, "<lambda>", id="lambda"),
    ],
)
async def test_whatever_can_be_called_with_a_value_can_be_a_handler(
    function: Callable[..., Any], is_async: bool, in_loop: bool, attempt: int | None, name: str
) -> None:
    """It runs once, to its end, and its name is the same in every process."""
    context = make_context(function)
    turn = await deliver_once(context, make_record(b"v"))
    assert turn.publishes == ()
    assert seen == [(b"v", attempt, in_loop)]
    assert context.handler.is_async == is_async
    assert context.handler.name == f"{__name__}.{name}"


async def generator(value: bytes) -> AsyncIterator[None]:
    note(value)
    yield


def plain_generator(value: bytes) -> Iterator[None]:
    note(value)
    yield


@pytest.mark.parametrize(
    "function", [generator, plain_generator, functools.partial(generator)], ids=["async", "plain", "partial"]
)
def test_a_generator_is_refused_where_it_is_declared(function: Any) -> None:
    """Calling it runs nothing: every record would count as done."""
    with pytest.raises(HandlerSignatureError, match="it is a generator"):
        make_context(function)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="newer Pythons know that it takes one argument, so it is taken")
def test_an_object_in_c_whose_arguments_are_not_known_is_refused(clock: object) -> None:
    """That all objects in C may be called with anything is all that Python says of its call."""
    with pytest.raises(HandlerSignatureError, match="its signature cannot be read"):
        make_context(itemgetter(0))


@pytest.mark.parametrize("function", [Holds, functools.partial(Holds)], ids=["class", "partial"])
def test_a_class_is_refused_where_it_is_declared(function: Any) -> None:
    """Calling it makes an object and runs no method: every record would count as done."""
    with pytest.raises(HandlerSignatureError, match=r"it is a class: .* retries\.handler\(\.\.\.\)\(obj\.method\)"):
        make_context(function)


async def fail(value: bytes) -> None:
    raise ValueError(value)


async def fails_later(value: bytes) -> Any:
    return fail(value)


async def nested(value: bytes) -> Any:

    async def inner() -> Any:
        return note_async(value)

    return inner()


async def gathered(value: bytes) -> Any:
    return await asyncio.gather(asyncio.sleep(0), fail(value), return_exceptions=True)


@pytest.mark.parametrize(
    ("function", "error_type"),
    [
        pytest.param(fails_later, "ValueError", id="a coroutine that fails"),
        pytest.param(nested, "HandlerResultError", id="a coroutine in a coroutine"),
        pytest.param(lambda value: generator(value), "HandlerResultError", id="an asynchronous generator"),
        pytest.param(lambda value: plain_generator(value), "HandlerResultError", id="a generator"),
        pytest.param(lambda value: RetryLater(after="90s"), "HandlerResultError", id="a verdict"),
        pytest.param(lambda value: Reject, "HandlerResultError", id="a class of errors"),
        pytest.param(lambda value: gathered(value), "HandlerResultError", id="a list with an error"),
        pytest.param(lambda value: [note_async(value)], "HandlerResultError", id="a list of coroutines"),
        pytest.param(lambda value: Future[None](), "HandlerResultError", id="a future of a thread"),
    ],
)
async def test_what_was_returned_and_cannot_be_run_or_fails_is_a_failure(function: Any, error_type: str) -> None:
    """Its record is not done."""
    turn = await deliver_once(make_context(function), make_record(b"v"))
    _, metadata = the(turn)
    assert metadata.error_type.rsplit(".", 1)[-1] == error_type
    assert seen == []


async def test_bytes_that_may_be_null_are_bytes() -> None:
    """They are what a handler of bytes gets; read as JSON each would be dead."""
    values: list[bytes | None] = [b"no JSON", None]
    taken = list[Any]()

    async def take(value: Any) -> None:
        taken.append(value)

    async with MemoryPartition(take, "1s", value_type=bytes | None) as orders:
        for value in values:
            await orders.send(value)
        await orders.to_rest()
    assert taken == values


class Holder(BaseModel):
    """A value with a field whose class comes later."""

    held: Later


EARLY = [make_context(note, value_type=declared).handler for declared in (list["Later"], Holder)]
"""Handlers that are declared before the class that their types name."""


class Later(BaseModel):
    """A value that is defined after the handlers of it."""

    number: int


class Order(BaseModel):
    """A value whose name is that of a class of ours."""

    number: int


def test_a_value_type_may_name_what_is_defined_after_the_declaration() -> None:
    """Its names are those of the function's module: of a class of ours that is called so nothing is known there."""
    for handler, value in zip(EARLY, ([Later(number=1)], Holder(held=Later(number=1))), strict=True):
        handler.values.check()
        assert handler.decode(b'[{"number": 1}]' if value == [Later(number=1)] else b'{"held": {"number": 1}}') == value
    assert make_context(note, value_type=list["Order"]).handler.decode(b'[{"number": 2}]') == [Order(number=2)]


async def test_what_waits_comes_to_the_function_and_type_that_are_there_when_it_is_due() -> None:
    """The next deploy may have other ones, other tiers too; what does not fit the new type is a dead letter."""
    taken: list[Any] = []

    async def take(value: Any) -> None:
        taken.append(value)

    async with MemoryPartition(failing(ConnectionError()), "20s 1m", value=dict, tiers="per-delay") as orders:
        await orders.send(b'{"number": 1}', b'{"id": 2}')
        assert orders.waiting == {"20s": 2}
    async with MemoryPartition(take, "5s", value=Order, transport=orders.transport) as orders:
        await orders.to_rest()
        assert taken == [Order(number=1)]
        assert [letter.reason for letter in orders.dead_letters] == ["undecodable"]


NOWHERE: Any = GenericAlias(list, ("Nowhere",))
"""As ``list["Nowhere"]``, which would not pass the checks of types."""
LOST: Any = create_model("LOST", held=(NOWHERE, ...))
OF_MODULE: Any = GenericAlias(list, ("re.Nowhere",))


@pytest.mark.parametrize("declared", [NOWHERE, dict[str, NOWHERE], LOST, list[LOST], OF_MODULE])
def test_a_value_type_that_names_what_is_nowhere_is_refused_at_the_start(declared: Any) -> None:
    """Each record spent all its attempts on it."""
    refusal = r"setting value=.*'Nowhere' is not defined, so handler .*note cannot decode"
    problem = rf"{refusal}.* module of the handler's function \(of a model's field: .*TYPE_CHECKING"
    with pytest.raises(InvalidSettingError, match=problem):
        make_context(note, value_type=declared).handler.values.check()
    with pytest.raises(InvalidSettingError, match=problem):
        MemoryPartition(note, "1s", value=declared)


@pytest.mark.parametrize("declared", [str, str | None])
def test_a_text_that_is_no_json_is_referred_to_bytes(declared: Any) -> None:
    """It looks like a value of the type, and JSON has quotes around it."""
    handler = make_context(note, value_type=declared).handler
    assert handler.decode(b'"a text"') == "a text"
    with pytest.raises(UndecodableError, match=r"decoded in the handler, which takes bytes$"):
        handler.decode(b"a text")


def test_a_value_type_that_is_a_text_or_content_is_refused_where_it_is_declared() -> None:
    """Nothing that is defined later makes it one."""
    with pytest.raises(InvalidSettingError, match=r"setting value=.*a text in it is no type"):
        make_context(note, value_type=GenericAlias(list, ("no type",)))
    for content in ("dict", {}):
        with pytest.raises(InvalidSettingError, match="not its name or content"):
            make_context(note, value_type=content)


class Card(BaseModel):
    """A value."""

    kind: Literal["card"]


class Cash(BaseModel):
    """Another one."""

    kind: Literal["cash"]


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (dict, "dict"),
        (Card, "Card"),
        (list[Card], "list[Card]"),
        (dict[str, list[Card | None]], "dict[str, list[Card | None]]"),
        (Card | Cash, "Card | Cash"),
        (Annotated[Card | Cash, Field(discriminator="kind")], "Card | Cash"),
        (tuple[Literal["a"], int | None], "tuple[Literal['a'], int | None]"),
        (tuple[int, ...], "tuple[int, ...]"),
    ],
)
def test_a_value_that_cannot_be_decoded_is_not_of_its_declared_type(declared: Any, name: str) -> None:
    """It was not `list`, or not `Annotated`."""
    with pytest.raises(UndecodableError, match=rf"^value is not {re.escape(name)}: "):
        make_context(note, value_type=declared).handler.decode(b'"secret"')
    with pytest.raises(UndecodableError, match=rf"^value is not {re.escape(name)}: it is null$"):
        make_context(note, value_type=declared).handler.decode(None)
