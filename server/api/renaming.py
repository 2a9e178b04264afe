"""Errors of a chat completion in the words of the form that was turned into one."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from server.errors import InvalidRequestError


@contextmanager
def renamed(names: Sequence[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]) -> Generator[None]:
    """Raises errors that name a field with the names of another form. names: what matches, and what stands
    in its place; each in turn."""
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
