"""Requests between a worker and the broker: they take time, come in order, and may get lost on either way.

A request that was sent arrives whether its sender still lives or not. One that is lost, or whose answer is, ends with
`TimeoutError` at the sender, who cannot tell the two apart.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import Any

from simulation.loop import current_process

REQUEST_S = 6.0
"""Request time-out."""


class Network:
    """What lies between all workers and the broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, random: Random, reached: Counter[str]) -> None:
        self.loop = loop
        self.random = random
        self.reached = reached
        self.context = Context()
        """Of nobody: what is on its way does not die with a process."""
        self.down_until_s = 0.0
        """The broker does not answer before."""
        self.lossy_until_s = 0.0
        """A fifth of all requests or answers get lost before."""
        self.slow_until_s = 0.0
        """Requests take up to two seconds before."""
        self.late_until_s: dict[str, float] = {}
        """What a process sends before arrives many seconds later: on a way of which its machine was cut off."""

        self.last_s = 0.0
        """When the last request arrives that is on its way."""
        self.longer_s: dict[str, float] = {}
        """So much longer take the answers to a process."""


class Wire:
    """The connection of one worker: what it sends arrives in the order in which it was sent."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self._last_s = 0.0

    def request(self, name: str, effect: Callable[[], Any]) -> asyncio.Future[Any]:
        """Send a request; `effect` is what it does at the broker, which may raise or return a future."""
        network = self.network
        loop = network.loop
        answer: asyncio.Future[Any] = loop.create_future()
        now_s = loop.time()
        process = current_process()
        late = process is not None and now_s < network.late_until_s.get(process.name, 0.0)
        takes_s = network.random.uniform(2.0, 14.0) if late else self._latency_s(now_s)
        back_s = network.longer_s.get(process.name if process else "", 0.0)
        arrives_s = max(now_s + takes_s, self._last_s + 1e-5)
        self._last_s = arrives_s
        network.last_s = max(network.last_s, arrives_s)

        def time_out(what: str) -> None:
            network.reached[f"{what} lost: {name}"] += 1
            loop.call_at(max(loop.time(), now_s + REQUEST_S), fail, TimeoutError(name), context=network.context)

        def fail(error: BaseException) -> None:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # looked at: nobody may be left to

        def succeed(result: Any) -> None:
            if not answer.done():
                answer.set_result(result)

        def respond(result: Any) -> None:
            if self._lost():
                time_out("answer")
            else:
                loop.call_later(back_s + self._latency_s(loop.time()), succeed, result, context=network.context)

        def settle(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                time_out("answer")
            else:
                respond(done.result())

        def arrive() -> None:
            if loop.time() < network.down_until_s or self._lost():
                time_out("request")
                return
            try:
                result = effect()
            except Exception as exc:  # noqa: BLE001 - the broker's answer
                loop.call_later(self._latency_s(loop.time()), fail, exc, context=network.context)
                return
            if isinstance(result, asyncio.Future):
                result.add_done_callback(settle, context=network.context)
            else:
                respond(result)

        loop.call_at(arrives_s, arrive, context=network.context)
        return answer

    def _latency_s(self, now_s: float) -> float:
        network = self.network
        return network.random.uniform(0.001, 2.0 if now_s < network.slow_until_s else 0.008)

    def _lost(self) -> bool:
        network = self.network
        return network.loop.time() < network.lossy_until_s and network.random.random() < 0.2
