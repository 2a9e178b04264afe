"""Fetch the remote pictures of a chat, before a prompt thread prepares its prompt."""

from __future__ import annotations

import time

from server.api.body import OtherPart
from server.api.chat.chat_request import ChatRequest
from server.errors import FieldError
from server.pictures.fetching import MAX_REMOTE, REQUEST_S, RemotePictures, is_remote
from server.pictures.pixels import picture_place


async def fetch_pictures(remote: RemotePictures, body: ChatRequest) -> None:
    """Fetch the pictures of a chat that have remote URLs, and replace these URLs in `body` by data URLs.

    Raises:
        FieldError: There are more than MAX_REMOTE such pictures, or one cannot be fetched.
    """
    deadline, n_fetched = time.monotonic() + REQUEST_S, 0
    for at, message in enumerate(body.messages):
        for i, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if not (isinstance(part, OtherPart) and part.is_picture and is_remote(part.url)):
                continue
            place = picture_place(at, i)
            if n_fetched == MAX_REMOTE:
                raise FieldError(place, f"a request may have {MAX_REMOTE} remote pictures: send data URLs")
            n_fetched += 1
            part.image_url = await remote.data_url(part.url, place, deadline)
