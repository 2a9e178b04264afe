"""Settings of commands that ask a running lead."""

from __future__ import annotations

import os
from typing import Annotated

import httpx
from pydantic import AfterValidator, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from server.errors import StartupError


def _lead_address(url: str) -> str:
    """Return a lead's address with http:// and without /v1, however a person wrote it."""
    whole = url if "://" in url else f"http://{url}"
    return whole.rstrip("/").removesuffix("/v1").rstrip("/")


class ClientSettings(BaseSettings):
    """Settings of commands that ask a running lead."""

    model_config = SettingsConfigDict(frozen=True)

    url: Annotated[str, AfterValidator(_lead_address)] = Field(
        default_factory=lambda: _lead_address(os.environ.get("DUO_URL", "http://127.0.0.1:5555")),
        description="the lead's address, DUO_URL unless given; with or without http:// and /v1",
    )
    api_key: str = Field(
        default_factory=lambda: os.environ.get("DUO_API_KEY", "none"),
        description="the API key, where the lead wants one; DUO_API_KEY unless given",
    )

    def client(self, timeout: httpx.Timeout) -> httpx.Client:
        """Return an HTTP client that sends requests to the lead. Raises StartupError for an invalid URL."""
        headers = {b"Authorization": f"Bearer {self.api_key}".encode(errors="surrogateescape")}
        try:
            return httpx.Client(base_url=self.url, headers=headers, timeout=timeout)
        except httpx.InvalidURL as error:
            raise StartupError(f"{self.url} is no address of a lead ({error}): see --url") from error


def answer_of(client: httpx.Client, path: str) -> httpx.Response:
    """Return the answer to a GET of `path`, whatever its status. Raises StartupError if no lead answers."""
    try:
        return client.get(path)
    except httpx.HTTPError as error:
        what = f"no lead answers at {client.base_url} ({error})"
        raise StartupError(f"{what}: start one with duo up, or name another with --url") from error
