"""Emulate a network to a server: a TCP proxy that delays and loses data, can be cut, and heals."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

RESENT_S = 0.2  # delay of a lost packet: the least time until TCP sends it again


class Link:
    """A network to host:port that may be slow and lose packets, in a thread.

    Args:
        latency_s: Seconds of delay, one way; may change at any time.
        loss: Share of reads that are late by RESENT_S, with a fixed seed; may change at any time.
    """

    def __init__(self, host: str, port: int, *, latency_s: float = 0.0, loss: float = 0.0) -> None:
        self._to = host, port
        self.latency_s, self.loss = latency_s, loss
        self._random = random.Random(7)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link")
        self._thread.start()
        self.port = 0
        self.heal()

    def heal(self) -> None:
        """Accept connections, always on the first call's port."""
        self._run(self._listen())

    def cut(self) -> None:
        """Drop every connection, and refuse new ones."""
        self._run(self._drop())

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._joined, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _drop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)
        if joined := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(joined, timeout=1)

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        self._writers -= {writer, far_writer}

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward data in order: each read arrives no earlier than those before it."""
        last = asyncio.get_running_loop().time()
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                now = asyncio.get_running_loop().time()
                late_s = RESENT_S if self._random.random() < self.loss else 0.0
                last = max(last, now + self.latency_s + late_s)
                asyncio.get_running_loop().call_at(last, _write, writer, data)
        writer.transport.abort() if reader.at_eof() and writer.is_closing() else writer.close()


def _write(writer: asyncio.StreamWriter, data: bytes) -> None:
    if not writer.is_closing():
        writer.write(data)
