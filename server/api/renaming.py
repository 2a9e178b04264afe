"""Translate field names in a chat completion's errors to those of another API."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from server.errors import InvalidRequestError

Names: TypeAlias = Sequence[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]
"""Patterns of a chat completion's fields, and the names that replace them."""


@contextmanager
def renamed(names: Names) -> Generator[None]:
    """Replace field names in errors raised in this context, applying each pair of `names` in turn."""
    try:
        yield
    except InvalidRequestError as error:
        if error.param is not None:
            name = error.param
            for pattern, here in names:
                name = pattern.sub(here, name)
            error.message = error.message.replace(error.param, name)
            error.param = name
        raise
