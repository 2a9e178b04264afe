"""Start drafter processes beside the lead. The draft model of each runs in a browser."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from server.api.lending import BrowserLender, Lending
from server.lead.site import Site, network_address
from server.local.children import inherited
from server.speculation.wire.messages import hashed_salt

MAX_MODEL_BYTES = 3 << 29  # 1.5 GiB: WebAssembly has 4 GiB for the file and its KV cache, a tablet less
MAX_LINE = 1 << 16  # bytes of a message to a browser: nine times the longest. Bounds memory


def lending_of(site: Site, pool: str) -> Lending | None:
    """Return what a browser needs to draft; None without Redis, or if a browser cannot load the model."""
    if site.redis_url is None or site.lent_model is None:
        return None
    if site.lent_model.stat().st_size > MAX_MODEL_BYTES:
        return None
    start = _Starter(site.lent_model, site.redis_url, pool).start
    return Lending(site.lent_model, start, address=partial(network_address, site.listener))


@dataclass(frozen=True, slots=True)
class _Starter:
    model: Path
    redis_url: str
    pool: str

    async def start(self, lender: BrowserLender) -> Process:
        """Start a drafter, which ends when its standard input closes."""
        flags = ["--kind=browser", f"--vocab-from={self.model}", f"--pool={self.pool}"]
        flags += [f"--name={lender.name}"] + [f"--lent-by={lender.name}"] * lender.is_elsewhere
        secrets = {"DUO_REDIS": self.redis_url, "DUO_DRAFTER_LENT_SALT": hashed_salt(lender.salt)}
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "drafters", *flags),
            stdin=PIPE,
            stdout=PIPE,
            env=inherited() | secrets,
            limit=MAX_LINE,
            start_new_session=True,  # Ctrl-C is for duo, which closes the pipe
        )
