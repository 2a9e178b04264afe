"""Settings for clients: addresses, keys, limits, logs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode

from server.errors import StartupError


def _split(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _some(value: object) -> object:
    """Refuses a list without keys, from an empty variable for example; the default may be empty."""
    if _split(value) == () and value != ():
        raise ValueError("there is no key in it, and everybody would be let in")
    return value


Listed: TypeAlias = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""A flag given several times, or once with commas between."""


class DoorSettings(BaseSettings):
    """The part of LeadSettings that is about clients."""

    api_key: Annotated[Listed, BeforeValidator(_some)] = Field(
        (),
        repr=False,
        description="API keys, one of which every request must bring; several with commas between, or the "
        "flag several times (default: none is needed)",
    )
    api_key_file: Path | None = Field(
        None, description="a file with such keys, one to a line; lines with # in front are remarks"
    )
    cors_origins: Listed = Field(
        ("*",), description="web origins whose pages may use the API, with commas between; *: all"
    )
    ssl_key_file: Path | None = Field(None, description="serve TLS: a PEM file with the private key")
    ssl_cert_file: Path | None = Field(None, description="serve TLS: a PEM file with its certificate")
    max_body: int = Field(32, ge=1, le=4096, description="MiB of a request's body, at most")
    timeout: float = Field(600, gt=0, description="seconds within which a request's body must have arrived")
    write_timeout: float = Field(60, gt=0, description="seconds that a reply may wait for its client to read")
    request_timeout: float = Field(0, ge=0, description="seconds that a reply may take, at most; 0: any")
    max_tokens: int = Field(
        0, ge=0, description="tokens of a reply, at most: who asks for more gets these; 0: any number"
    )
    grace: float = Field(5, ge=0, description="seconds that running replies have when the server shall end")
    log_format: Literal["text", "json"] = Field("text", description="json: each line of the log is an object")
    log_requests: bool = Field(False, description="log a line for each request, without what was said")
    log_prompts: bool = Field(False, description="the same with the requests' bodies")

    def keys(self) -> tuple[str, ...]:
        """All API keys; none admits everybody, so a file without keys is an error. Raises StartupError."""
        if self.api_key_file is None:
            return self.api_key
        try:
            lines = self.api_key_file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise StartupError(f"cannot read the API keys in {self.api_key_file}: {error}") from error
        found = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
        if not found:
            raise StartupError(f"there is no API key in {self.api_key_file}: give one to a line")
        return (*self.api_key, *found)
