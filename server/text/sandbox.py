"""Jinja as Hugging Face's renderer offers it to chat templates, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn, TypeVar, cast

from jinja2 import Template, TemplateError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateRuntimeError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from server.errors import StartupError

MOST = 1 << 22
"""Characters of the longest text that a template may make, where the context is not longer: some thirty times
what long lists of tools take. If it were double, a template out of hand would take 8 MiB more."""
_PER_ITEM = 8  # bytes
T = TypeVar("T")

_GROWING = ("append", "pop")
"""Methods of lists that some templates keep a queue with. What extends a list by another is not among them:
it would double a list in every round of a loop."""

_UNREADABLE = (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError)
"""From Jinja, and from the interpreter: too many brackets, an integer of too many digits."""


class GenerationBlock(Extension):
    """{% generation %}…{% endgeneration %} marks what to train on; for rendering it is nothing."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounded(CodeGenerator):
    """a ~ b has to be checked, too, which Jinja compiles to a function of its own."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - as jinja2 calls it
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates may change lists, which therefore have to be nobody else's. No text that they make is longer
    than `most`, and no list takes more: what doubles in every round of a loop would fill the memory before
    any time limit."""

    code_generator_class = _Bounded
    intercepted_binops = frozenset(("+", "*", "%"))
    most = MOST

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in _GROWING) or super().is_safe_attribute(obj, attr, value)

    def check(self, length: int) -> None:
        if length > self.most:
            raise TemplateRuntimeError(f"it makes a text or a list of more than {self.most} bytes")

    def bounded(self, value: T) -> T:
        if isinstance(value, str):
            self.check(len(value))
        elif isinstance(value, list):
            self.check(len(cast(Sized, value)) * _PER_ITEM)
        return cast(T, value)

    def concat(self, parts: Iterable[str]) -> str:
        return self.bounded("".join(parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for factor, other in ((left, right), (right, left)):
                if isinstance(factor, int) and isinstance(other, str | list):
                    self.check(factor * len(cast(Sized, other)))
        return self.bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        return self.bounded(super().call(context, obj, *args, **kwargs))


class Sandboxed:
    """A template, compiled."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "", most: int = MOST) -> None:
        """most: characters of the longest text that it may make. Raises StartupError when source is not
        Jinja."""
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock]
        )
        environment.most = max(MOST, most)
        environment.filters["tojson"] = _tojson
        offered: dict[str, Any] = environment.globals
        offered |= {"raise_exception": _refuse, "strftime_now": _strftime_now}
        offered |= {"bos_token": bos, "eos_token": eos}
        self._changes_lists = any(f".{method}(" in source for method in _GROWING)
        try:
            self._template: Template = environment.from_string(source)
        except _UNREADABLE as error:
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
