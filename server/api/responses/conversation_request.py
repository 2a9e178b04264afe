"""The bodies of requests about OpenAI's conversations."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from server.api.body import Body, at_most
from server.api.generation_fields import MAX_SALT
from server.api.responses.response_items import Item
from server.api.responses.response_request import MAX_METADATA

MOST_ADDED = 20
"""Maximum items added by one request, as in OpenAI's API."""

Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA), at_most(MAX_METADATA)]


class SaltedBody(Body):
    cache_salt: Annotated[str, Field(max_length=MAX_SALT)] | None = None
    """Requests with another cache_salt do not find the conversation."""

    @property
    def salt(self) -> str:
        """Return the salt that a request must have to find the conversation."""
        return self.cache_salt or ""


class ConversationRequest(SaltedBody):
    """Body of POST /v1/conversations."""

    items: Annotated[list[Item], Field(max_length=MOST_ADDED, fail_fast=True)] = Field(
        default_factory=list[Item]
    )
    """The first items of the conversation."""
    metadata: Metadata = Field(default_factory=dict[str, str])


class MetadataRequest(SaltedBody):
    """POST /v1/conversations/{id}."""

    metadata: Metadata = Field(default_factory=dict[str, str])
    """Replaces all earlier metadata."""


class ItemsRequest(SaltedBody):
    """Body of POST /v1/conversations/{id}/items."""

    items: Annotated[list[Item], Field(min_length=1, max_length=MOST_ADDED, fail_fast=True)]
