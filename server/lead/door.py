"""The flags of a lead about its clients: API keys, web origins, TLS, limits of requests and replies, the log.

door_of() in listening.py makes a Door of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_settings import BaseSettings

from server.errors import StartupError
from server.llama.model_settings import Texts, separated


def _has_a_key(value: Any) -> Any:
    """Refuses a list without keys, from an empty variable for example. Only the default may be empty."""
    if value != () and not separated(value):
        raise ValueError("there is no key in it, and everybody would be let in")
    return value


class DoorSettings(BaseSettings):
    """The flags about clients. LeadSettings joins them to those about the model."""

    api_key: Annotated[Texts, BeforeValidator(_has_a_key)] = Field(
        (),
        repr=False,
        description="API keys, one of which every request must bring; several with commas between, or the "
        "flag several times (default: none is needed)",
    )
    api_key_file: Path | None = Field(
        None, description="a file with such keys, one to a line; lines with # in front are remarks"
    )
    cors_origins: Texts = Field(
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
        """The API keys of the flag and of the file. Without any, every client is admitted: so a file that has
        none is an error. Raises StartupError."""
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
