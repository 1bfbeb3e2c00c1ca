"""Handlers that follow a list of steps and record their calls."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from retryapp.core.durations import parse_duration_ms
from retryapp.core.policy import RetryPolicy
from retryapp.core.topology import HandlerTopology
from retryapp.core.verdicts import Reject, RetryLater
from retryapp.engine.handler.handler import Delivery, Handler, HandlerFunction, call


@dataclass(frozen=True, slots=True)
class Seen:
    """One call of a scripted handler."""

    value: Any
    attempt: int
    at_ms: int
    """Milliseconds since the first call of all."""
    came_to: str
    """``ok``, ``stopped`` (cancelled), or the type of the error."""


class Script:
    """A handler that follows a list of steps, then calls `then` (the handler under test) if given.

    Steps, one for each attempt of a record: ``"fail"``, ``"hang"`` (until it is stopped), ``"reject"``, ``"later 90s"``
    (asks for a wait), ``"ok"``, or an exception to raise. It takes one record at a time: not with ``batch=``::

        charge = Script("fail", "hang", then=charge_card)
        async with MemoryPartition(charge, RetryPolicy("5m 1h", timeout="30s")) as orders:
            await orders.send(b"order 1")
            await orders.to_rest()
        assert [(seen.attempt, seen.came_to) for seen in charge.calls] == [
            (1, "ConnectionError"), (2, "stopped"), (3, "ok"),
        ]
    """

    def __init__(self, *steps: str | BaseException | type[BaseException], then: HandlerFunction | None = None) -> None:
        for step in steps:
            made: object = step() if isinstance(step, type) else step  # one that needs arguments fails here
            if isinstance(made, str) and made.startswith("later "):
                parse_duration_ms(made.removeprefix("later "))
            elif not isinstance(made, BaseException) and made not in ("fail", "hang", "reject", "ok"):
                raise ValueError(f"expected fail, hang, reject, ok, 'later 90s' or an exception, got {step!r}")
        self.calls: list[Seen] = []
        """All calls, in the order of their ends."""
        self._steps = steps
        self._then = None if then is None else _called(then)
        self._began_s: float | None = None

    async def __call__(self, value: Any, delivery: Delivery) -> None:
        """Follow the step of this attempt, and record the call."""
        now_s = asyncio.get_running_loop().time()
        self._began_s = now_s if self._began_s is None else self._began_s
        at_ms = round((now_s - self._began_s) * 1000)
        came_to = "ok"
        try:
            await self._do(value, delivery)
        except asyncio.CancelledError:
            came_to = "stopped"
            raise
        except BaseException as exc:
            came_to = type(exc).__name__
            raise
        finally:
            self.calls.append(Seen(value, delivery.attempt, at_ms, came_to))

    async def _do(self, value: Any, delivery: Delivery) -> None:
        if delivery.attempt > len(self._steps):
            if self._then is not None:
                await call(self._then, value, delivery, deadline_s=0.0)  # the script's own time-out counts
            return
        step = self._steps[delivery.attempt - 1]
        if not isinstance(step, str):
            raise step
        match step.split():
            case ["fail"]:
                raise ConnectionError(f"scripted failure of attempt {delivery.attempt}")
            case ["hang"]:
                await asyncio.Event().wait()
            case ["reject"]:
                raise Reject("scripted")
            case ["later", wait]:
                raise RetryLater(after=wait)


def _called(function: HandlerFunction) -> Handler:
    """Return a handler that is called as a worker calls it: plain functions too, with or without the delivery."""
    policy = RetryPolicy("1s")
    topology = HandlerTopology("script", "script", delays_ms=policy.delays_ms)
    return Handler(function=function, topology=topology, policy=policy)
