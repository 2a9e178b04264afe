"""Compute embeddings on a thread, a few inputs at a time, while the event loop serves streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from server.errors import BusyError
from server.llama.embedding import Embedder, Vectors
from server.tenants import FairSemaphore, Places

MAX_EMBED_WAITING = 32  # maximum requests, the running one included; each holds at most one body


class EmbeddingWorker:
    """Embeds one request after another on a thread. Await embed() on an event loop; close() ends it."""

    def __init__(self, embedder: Embedder, *, max_queued: int = MAX_EMBED_WAITING) -> None:
        self.embedder = embedder
        self._turns = FairSemaphore(1, Places(max_queued - 1))
        self._closing = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="duo-embed")

    async def embed(self, inputs: Sequence[Sequence[int]], tenant: str = "") -> Vectors:
        """Return vectors, (number of inputs, n_embd), as Embedder.embed() does.

        If cancelled, the request leaves the queue, or ends after the current group of inputs.

        Args:
            inputs: Token ids of each input: at least one, at most the embedder's n_ctx.
            tenant: The tenant that the request belongs to; tenants take turns.

        Raises:
            BusyError: The queue is full.
            BackendError: The model fails.
        """
        await self._turns.enter(tenant)
        unwanted = threading.Event()
        try:
            if self._closing.is_set():
                raise BusyError("the server is shutting down", draining=True)
            return await asyncio.wrap_future(self._thread.submit(self._embed_groups, inputs, unwanted))
        finally:
            unwanted.set()
            self._turns.leave(tenant)

    def close(self) -> None:
        """End the thread, after the group of inputs that is being embedded. Leaves the embedder open."""
        self._closing.set()
        self._thread.shutdown(cancel_futures=True)

    def _embed_groups(self, inputs: Sequence[Sequence[int]], unwanted: threading.Event) -> Vectors:
        vectors: list[Vectors] = []
        for group in grouped(inputs, self.embedder.n_ctx, self.embedder.n_seqs):
            if unwanted.is_set() or self._closing.is_set():
                raise BusyError("the server is shutting down", draining=True)
            vectors.append(self.embedder.embed(group))
        return np.concatenate(vectors)


def grouped(
    inputs: Sequence[Sequence[int]], n_tokens: int, n_inputs: int
) -> Iterator[Sequence[Sequence[int]]]:
    """Yield the inputs in order, in groups of at most n_tokens tokens and n_inputs inputs.

    No input may have more than n_tokens tokens.
    """
    start = total = 0
    for end, one in enumerate(inputs):
        if end > start and (total + len(one) > n_tokens or end - start == n_inputs):
            yield inputs[start:end]
            start, total = end, 0
        total += len(one)
    if inputs:
        yield inputs[start:]
