"""Jinja as Hugging Face's renderer offers it to chat templates, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.exceptions import TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.errors import StartupError

_GROWING = ("append", "pop")
"""Methods of lists that some templates keep a queue with. What extends a list by another is not among them:
it would double a list in every round of a loop."""


class GenerationBlock(Extension):
    """{% generation %}…{% endgeneration %} marks what to train on; for rendering it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates may change lists, which therefore have to be nobody else's."""

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in _GROWING) or super().is_safe_attribute(obj, attr, value)


class Sandboxed:
    """A template, compiled."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        """Raises StartupError when source is not Jinja."""
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        offered: dict[str, Any] = environment.globals
        offered |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        offered |= {"bos_token": bos, "eos_token": eos}
        self._changes_lists = any(f".{method}(" in source for method in _GROWING)
        try:
            self._template: Template = environment.from_string(source)
        except TemplateError as error:
            where = f" (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else ""
            raise StartupError(
                f"the model's chat template cannot be read: {error}{where}; "
                "another one can be given with --chat-template-file"
            ) from error

    def generate(self, variables: Mapping[str, Any]) -> Iterator[str]:
        """The text in pieces. Raises whatever the template raises."""
        return self._template.generate(_copied(variables) if self._changes_lists else variables)


def _copied(value: Any) -> Any:
    """With lists and mappings of its own."""
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in cast(Mapping[Any, Any], value).items()}
    return [_copied(one) for one in cast(list[Any], value)] if isinstance(value, list) else value


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_listed,
    )


def _listed(value: Any) -> list[Any]:
    """What filters like map return is no list yet."""
    if isinstance(value, Iterator):
        return list(cast(Iterator[Any], value))
    raise TypeError(f"{type(value).__name__} is no JSON")


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)
