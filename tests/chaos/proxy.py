"""Links: TCP proxies between workers and their broker that can be made slow, deaf, dumb or rude at any time.

A link that is closed in a direction holds what comes and passes it on when it opens, as TCP does over a network that
loses everything for a while. One link is what one listener of the broker advertises, so no client finds a way around.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Self

_CHUNK = 65_536
_RST = struct.pack("ii", 1, 0)  # SO_LINGER with no time: closing sends a reset


@dataclass(frozen=True, slots=True)
class Weather:
    """What a link does to its traffic."""

    latency_s: float = 0.0
    """Each way."""
    bytes_per_s: int = 0
    """Each way and connection; 0 is without limit."""
    up: bool = True
    """What clients send gets through."""
    down: bool = True
    """What the broker sends gets through."""
    refuse: bool = False
    """New connections are reset at once."""


class Link:
    """One proxy, in a thread of its own: listens on `port`, passes on to `target`. As a context manager it runs."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self.target = target
        self._weather = Weather()
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"link-{port}", daemon=True)

    def change(self, **weather: Any) -> None:
        """Change the weather for all connections, those that are open too."""
        self._call(self._change(replace(self._weather, **weather)))

    def heal(self) -> None:
        """Let everything through again, at once."""
        self._call(self._change(Weather()))

    def reset(self) -> int:
        """Reset every open connection; return how many ends that were."""
        return int(self._call(self._reset()))

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _call(self, what: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    async def _serve(self) -> None:
        self._changed = asyncio.Event()
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)

    async def _change(self, weather: Weather) -> None:
        self._weather = weather
        self._changed.set()
        self._changed = asyncio.Event()

    async def _reset(self) -> int:
        ends = list(self._open)
        for writer in ends:
            self._abort(writer)
        return len(ends)

    async def _close(self) -> None:
        self._server.close()
        await self._reset()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _abort(self, writer: asyncio.StreamWriter) -> None:
        sock = writer.get_extra_info("socket")
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST)
        writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._weather.refuse:
            self._abort(writer)
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            self._abort(writer)
            return
        ends = {writer, far_writer}
        self._open |= ends
        try:
            ways = [self._pass(reader, far_writer, up=True), self._pass(far_reader, writer, up=False)]
            await asyncio.gather(*ways)
        except OSError:
            pass  # one end has gone: so does the other
        finally:
            self._open -= ends
            for end in ends:
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        sending = asyncio.create_task(self._send(queue, writer, up=up))
        try:
            while chunk := await reader.read(_CHUNK):
                await queue.put((asyncio.get_running_loop().time(), chunk))
            await queue.put((0.0, b""))
            await sending
        finally:
            sending.cancel()

    async def _send(self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, *, up: bool) -> None:
        loop = asyncio.get_running_loop()
        while True:
            came_s, chunk = await queue.get()
            if not chunk:
                with contextlib.suppress(OSError, RuntimeError):
                    writer.write_eof()
                return
            while not (self._weather.up if up else self._weather.down):
                await self._changed.wait()
            await asyncio.sleep(max(0.0, came_s + self._weather.latency_s - loop.time()))
            if self._weather.bytes_per_s:
                await asyncio.sleep(len(chunk) / self._weather.bytes_per_s)
            writer.write(chunk)
            await writer.drain()
