"""Run chat templates in sandboxed Jinja, with the extensions that Hugging Face's renderer offers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from typing import Any, NoReturn, TypeVar, cast

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import TemplateRuntimeError, TemplateSyntaxError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter

from server.errors import StartupError
from server.text import padding

MAX_TEMPLATE_BYTES = 1 << 22
"""Maximum bytes of a text or list that a template may make; a longer context raises this limit.

About 30 times what long lists of tools need. If doubled, a runaway template takes 8 MiB more.
"""
_PER_ITEM = 8  # bytes that a list takes for each item
T = TypeVar("T")

_GROWING = ("append", "pop")
"""Methods of lists that templates may call; some templates use a list as a queue.

Methods that add a whole list are not allowed, because they can double a list in every round of a loop.
"""

_UNREADABLE = (TemplateError, RecursionError, SyntaxError, ValueError, MemoryError)
"""Errors of Jinja, and of the interpreter: too many brackets, an integer of too many digits."""


class GenerationBlock(Extension):
    """The tag {% generation %}…{% endgeneration %}, which marks text to train on. Rendering ignores it."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Bounded(CodeGenerator):
    """Compiles a ~ b, which joins texts, to a call that checks the length of the result."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802 - as jinja2 calls it
        self.write("environment.concat(map(str, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


class _Measure(SandboxedFormatter):
    """Checks the total width of the fields in a str.format text, before the real formatting fills them."""

    def __init__(self, env: _Sandbox) -> None:
        super().__init__(env)
        self._check = env.check
        self._total = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        self._total += padding.of_spec(format_spec)
        self._check(self._total)
        return super().format_field(value, format_spec)


class _Sandbox(ImmutableSandboxedEnvironment):
    """A sandbox with limits on memory.

    No text or list that a template makes may take more than `most` bytes. Otherwise a text that doubles in
    every round of a loop would fill the memory before the time limit. Templates may change lists, so callers
    pass copies.
    """

    code_generator_class = _Bounded
    intercepted_binops = frozenset(("+", "*", "%"))
    most = MAX_TEMPLATE_BYTES

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return (isinstance(obj, list) and attr in _GROWING) or super().is_safe_attribute(obj, attr, value)

    def check(self, length: int) -> None:
        """Raise an error if a text or list of `length` bytes would be too large."""
        if length > self.most:
            raise TemplateRuntimeError(f"it makes a text or a list of more than {self.most} bytes")

    def bounded(self, value: T) -> T:
        """Return the value; raise an error if it is a text or list that is too large."""
        if isinstance(value, str | bytes):
            self.check(len(value))
        elif isinstance(value, list | tuple):
            self.check(len(cast(Sized, value)) * _PER_ITEM)
        return cast(T, value)

    def concat(self, parts: Iterable[str]) -> str:
        return self.bounded("".join(parts))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for factor, other in ((left, right), (right, left)):
                if isinstance(factor, int) and isinstance(other, str | bytes | list | tuple):
                    self.check(factor * len(cast(Sized, other)))
        if operator == "%" and isinstance(left, str | bytes):
            self.check(padding.of_percent(left, right))
        return self.bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        text = getattr(obj, "__self__", None)
        if isinstance(text, str | bytes | int) and (least := padding.LEAST.get(obj.__name__)):
            self.check(least(text, *args, **kwargs))
        return self.bounded(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        made = super().wrap_str_format(value)
        if made is None:
            return None

        def checked(*args: Any, **kwargs: Any) -> str:
            named = args[0] if args and value.__name__ == "format_map" else kwargs
            _Measure(self).vformat(value.__self__, args, named)
            return made(*args, **kwargs)

        return checked

    def check_filters(self) -> None:
        """Replace the filters that pad text by filters that check the result's length first."""

        def percent(text: Any, *args: Any, **kwargs: Any) -> int:
            return padding.of_percent(str(text), kwargs or args)

        filters: dict[str, Any] = self.filters
        for name, least in {**padding.LEAST, "format": percent}.items():
            if name in filters:
                filters[name] = self._checked_filter(filters[name], least)

    def _checked_filter(self, pad: Callable[..., str], least: Callable[..., int]) -> Callable[..., str]:
        """Return a filter that checks how long its result will be before making it.

        Args:
            pad: The filter.
            least: Returns the minimum length of the result, given the filter's arguments.
        """

        def checked(*args: Any, **kwargs: Any) -> str:
            self.check(least(*args, **kwargs))
            return self.bounded(pad(*args, **kwargs))

        return checked


class Sandboxed:
    """A compiled template."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "", most: int = MAX_TEMPLATE_BYTES) -> None:
        """Compile a template.

        Args:
            source: The template.
            bos: Text of the token that begins a prompt.
            eos: Text of the token that ends a turn.
            most: Maximum characters of a text that the template makes; at least MAX_TEMPLATE_BYTES are
                allowed.

        Raises:
            StartupError: The source is not valid Jinja.
        """
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationBlock]
        )
        environment.most = max(MAX_TEMPLATE_BYTES, most)
        environment.filters["tojson"] = _to_json
        environment.check_filters()
        offered: dict[str, Any] = environment.globals
        offered |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        offered |= {"bos_token": bos, "eos_token": eos}
        self._changes_lists = any(f".{method}(" in source for method in _GROWING)
        try:
            self._template: Template = environment.from_string(source)
            self._wanted = meta.find_undeclared_variables(environment.parse(source))
        except _UNREADABLE as error:
            where = f" (line {error.lineno})" if isinstance(error, TemplateSyntaxError) else ""
            raise StartupError(
                f"the model's chat template cannot be read: {error}{where}; "
                "another one can be given with --chat-template-file"
            ) from error

    def wants(self, variable: str) -> bool:
        """Return True if the template reads this variable without setting it."""
        return variable in self._wanted

    def generate(self, variables: Mapping[str, Any]) -> Iterator[str]:
        """Yield the rendered text in pieces. Raises whatever the template raises."""
        return self._template.generate(_deep_copy(variables) if self._changes_lists else variables)


def _deep_copy(value: Any) -> Any:
    """Return the value with all its mappings and lists copied."""
    if isinstance(value, Mapping):
        return {key: _deep_copy(one) for key, one in cast(Mapping[Any, Any], value).items()}
    return [_deep_copy(one) for one in cast(list[Any], value)] if isinstance(value, list) else value


def _to_json(
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
        default=_list_of_iterator,
    )


def _list_of_iterator(value: Any) -> list[Any]:
    """Convert iterators, which filters such as map return, to lists for JSON."""
    if isinstance(value, Iterator):
        return list(cast(Iterator[Any], value))
    raise TypeError(f"{type(value).__name__} is no JSON")


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().astimezone().strftime(format)
