"""Errors of a chat completion in the words of the form that was turned into one."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from server.errors import InvalidRequestError

Names: TypeAlias = Sequence[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]
"""What fields of a chat completion are called in another form: what matches, and what stands in its place."""


@contextmanager
def renamed(names: Names) -> Generator[None]:
    """Raise errors that name a field with the names of another form, each of `names` in turn."""
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
