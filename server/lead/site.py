"""Describe the addresses of a lead, and announce it."""

from __future__ import annotations

import logging
import socket
import sys
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.lead.listening import ClientPolicy

logger = logging.getLogger("duo.lead")

NOBODY = "192.0.2.1", 9  # address and port that no machine has (RFC 5737)


@dataclass(frozen=True, slots=True)
class Site:
    """A lead's addresses and drafting: socket, Redis, threads, draft models, join commands."""

    listener: socket.socket  # the listening socket
    redis_url: str | None  # the Redis through which drafters connect
    n_threads: int  # CPU threads of the model
    draft_model: Path | None = None  # the model that drafts in this process, between steps
    lent_model: Path | None = None  # the draft model that browsers get, to draft with
    join: str | None = None  # command by which drafters on this machine join
    join_elsewhere: str | None = None  # command for other machines; never logged, since it has a password
    reach: str = ""  # which machines can use the printed join command
    remark: str | None = None  # text that says who drafts here, and why


def announce(site: Site, policy: ClientPolicy) -> None:
    """Print the addresses of pages and API, which clients are admitted, and how drafters join."""
    from server.api.lend_link import in_url, lines_of  # the API is imported while models load

    host, port = site.listener.getsockname()[:2]
    scheme = "http" if policy.tls is None else "https"
    url = f"{scheme}://{in_url(host)}:{port}"
    if site.remark:
        logger.info("  drafts   %s", site.remark)
    logger.info("  page     %s", url)
    logger.info("  API      %s/v1", url)
    if site.redis_url and site.lent_model:
        address = network_address(site.listener)
        link = f"{scheme}://{in_url(address or host)}:{port}/lend"
        logger.info("  lend     %s: a device that opens this page drafts", link)
        if address and sys.stdout.isatty():
            print(lines_of(link), flush=True)
    if policy.made_key:
        print(f"  clients  with this API key, made for this start: {policy.made_key}", flush=True)
    else:
        logger.info("  clients  %s", policy.clients)
    if site.join_elsewhere:
        print(f"  drafters join, {site.reach}, with: {site.join_elsewhere}", flush=True)
    elif site.join:
        logger.info("  join     %s%s", f"{site.reach}: " if site.reach else "", site.join)


def network_address(listener: socket.socket) -> str:
    """Return the address at which other machines reach this socket, "" if they cannot reach it."""
    host = str(listener.getsockname()[0])
    address = ip_address(host)
    if not address.is_unspecified:
        return "" if address.is_loopback else host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(NOBODY)  # sends nothing, but chooses an address of this machine
        except OSError:  # there is no network yet
            return socket.gethostname()
        return str(probe.getsockname()[0])
