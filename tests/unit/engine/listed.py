"""A handler of lists that marks and raises where the values say so, and what tests ask of its failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from doubles import BankDownError

from retryapp.engine.handler.handler import Delivery
from retryapp.testing import MemoryPartition


class Listed:
    """A handler of lists: marks values that begin with `fail`, raises for those that begin with `raise`."""

    def __init__(self, error: Callable[[bytes], BaseException] = lambda _value: BankDownError()) -> None:
        self.calls: list[list[bytes]] = []
        self.deliveries: list[list[Delivery]] = []
        self.error = error

    async def __call__(self, values: list[bytes], deliveries: list[Delivery]) -> None:
        """Publish for each, and fail where the values say so."""
        self.calls.append(values)
        self.deliveries.append(deliveries)
        await asyncio.sleep(0)
        for value, delivery in zip(values, deliveries, strict=True):
            delivery.publish("out", value)
            if value.startswith(b"fail"):
                delivery.fail(BankDownError("marked"))
        for value in values:
            if value.startswith(b"raise"):
                raise self.error(value)


def out(orders: MemoryPartition) -> list[bytes | None]:
    return [record.value for record in orders.records("out")]


def failed(orders: MemoryPartition) -> dict[bytes | None, tuple[int, int]]:
    """Return the copies of failures: attempt and tries by value."""
    found: dict[bytes | None, tuple[int, int]] = {}
    for record in orders.records("app.orders.retry"):
        headers = dict(record.headers)
        tries = int(headers.get("retry-hot-attempts") or b"1")
        found[record.value] = int(headers["retry-attempt"] or b""), tries
    return found
