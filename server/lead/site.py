"""Where a lead serves, and what it says about that when it begins to."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass
from pathlib import Path

from server.lead.listening import Door

logger = logging.getLogger("duo.lead")


@dataclass(frozen=True, slots=True)
class Site:
    """Where a lead serves, and who drafts for it."""

    listener: socket.socket  # listens
    redis_url: str | None  # where its drafters are
    n_threads: int  # of the model on the CPU
    draft_model: Path | None = None  # drafts in this process, between steps
    join: str | None = None  # the command with which drafters join from this machine
    join_elsewhere: str | None = None  # from others, with a password: it is printed and not logged
    reach: str = ""  # from where the one that is told can be used, if that is known
    remark: str | None = None  # who drafts here, and why


def announce(site: Site, door: Door) -> None:
    """Tell the page, the API, who is let in, and how drafters join."""
    host, port = site.listener.getsockname()[:2]
    scheme = "http" if door.tls is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    if site.remark:
        logger.info("  drafts   %s", site.remark)
    logger.info("  page     %s", url)
    logger.info("  API      %s/v1", url)
    if door.made_key:
        print(f"  clients  with this API key, made for this start: {door.made_key}", flush=True)
    else:
        logger.info("  clients  %s", door.clients)
    if site.join_elsewhere:
        print(f"  drafters join, {site.reach}, with: {site.join_elsewhere}", flush=True)
    elif site.join:
        logger.info("  join     %s%s", f"{site.reach}: " if site.reach else "", site.join)
