"""Estimate the least size of a text that a template is about to pad, indent or format. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

_NUMBER = re.compile(r"\d+")
_PERCENT = re.compile(r"(\d+)(?=[.\d*]*[hlL]?[diouxXeEfFgGcrsa%])")  # widths, not digits in keys
_STAR = re.compile(r"%[-#0 +]*(?:\d*\.)?\*")


def _padded_length(text: Any, width: int = 0, *_: Any) -> int:
    return width


def _expanded_length(text: str | bytes, tabsize: int = 8) -> int:
    return tabsize * (text.count("\t") if isinstance(text, str) else text.count(b"\t"))


def _indented_length(text: Any, width: int | str = 4, *_: Any, **__: Any) -> int:
    return _width_length(width) * (1 + str(text).count("\n"))


def _dumped_length(
    value: Any, ensure_ascii: bool = False, indent: int | str | None = None, *_: Any, **__: Any
) -> int:
    return _width_length(indent) * (1 + str(value).count(",")) if indent else 0


def _width_length(width: int | str) -> int:
    return len(width) if isinstance(width, str) else width


LEAST: dict[str, Callable[..., int]] = {
    "center": _padded_length,
    "ljust": _padded_length,
    "rjust": _padded_length,
    "zfill": _padded_length,
    "to_bytes": _padded_length,
    "expandtabs": _expanded_length,
    "indent": _indented_length,
    "tojson": _dumped_length,
}
"""Minimum length of a result, computed from a call's arguments, by the name of a method or filter."""


def of_percent(text: str | bytes, values: Any) -> int:
    """Return the sum of all widths in `text % values`; if `*` is used, add all integers in the values."""
    said = text if isinstance(text, str) else text.decode("latin-1")
    total = sum(map(int, _PERCENT.findall(said)))
    if not _STAR.search(said):
        return total
    given = cast(tuple[Any, ...], values) if isinstance(values, tuple) else (values,)
    return total + sum(abs(one) for one in given if isinstance(one, int))


def of_spec(spec: str) -> int:
    """Return the sum of width and precision in a format specification."""
    return sum(map(int, _NUMBER.findall(spec)))
