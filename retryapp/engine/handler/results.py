"""What a handler returned: it counts only where it shows that a record is not done."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Generator, Iterable
from concurrent.futures import Future
from types import CoroutineType

from retryapp.core.errors import RetryAppError


class HandlerResultError(RetryAppError):
    """A handler returned an error, or what has not run: its record is not done."""

    def __init__(self, handler: str, wrong: object, *, in_list: bool) -> None:
        self.handler = handler
        self.result_type = (wrong if isinstance(wrong, type) else type(wrong)).__qualname__
        problem = "whose work may not be done: await it, or iterate over it, in the handler"
        if _is_error(wrong):
            problem = f"and an error counts only if it is raised: write `raise {self.result_type}(...)`"
            if in_list:
                problem += ", or of a list of records `deliveries[i].fail(error)`"
        super().__init__(f"handler {handler} returned {self.result_type}, {problem}")


def check_result(handler: str, result: object, given: Iterable[object]) -> None:
    """Return if a result says nothing of what was `given`: a list may have errors, which are those of `fail(error)`.

    Raises:
        HandlerResultError: it is an error or would still have to run, or has an error or a coroutine in it, as
            `asyncio.gather(..., return_exceptions=True)` has.
    """
    if inspect.isawaitable(result) or isinstance(result, Generator | AsyncGenerator | Future):
        discard(result)
        raise HandlerResultError(handler, result, in_list=False)
    wrong = [each for each in parts(result) if _is_error(each) or isinstance(each, CoroutineType)]
    if wrong:
        outboxes = (getattr(each, "outbox", None) for each in given)
        marked = {id(outbox.failed) for outbox in outboxes if outbox is not None}
        wrong = [each for each in wrong if id(each) not in marked]
    if wrong:
        discard(result)
        raise HandlerResultError(handler, wrong[0], in_list=wrong[0] is not result)


def parts(result: object) -> Iterable[object]:
    """Return the elements of a list, or what is none alone."""
    return result if isinstance(result, list | tuple) else (result,)


def discard(result: object) -> None:
    """Close the coroutines in a result: Python warns of those that were never awaited."""
    for each in parts(result):
        if inspect.iscoroutine(each):
            each.close()


def _is_error(value: object) -> bool:
    return isinstance(value, BaseException) or (isinstance(value, type) and issubclass(value, BaseException))
