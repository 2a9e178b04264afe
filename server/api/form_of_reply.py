"""How a chat prompt is rendered, and its reply constrained and parsed: tools and thoughts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from server.api.call_grammar import (
    Function,
    answer_after_thoughts,
    calls_in_text,
    calls_or_answer,
    no_calls,
    required_calls,
)
from server.api.chat.chat_request import ChatRequest
from server.api.served import Served
from server.api.structured import StructuredFields, constraint, forms, schema_of
from server.api.tools import Calling, calling
from server.errors import InvalidRequestError, UnsupportedFieldError
from server.grammar.compiler import Start
from server.grammar.json_schema import Allowance
from server.text.form import Form, Style
from server.text.template import Setting


def setting_of(served: Served, body: ChatRequest) -> Setting:
    """The template's input beside the messages. Tools that must not be called are shown anyway if a grammar
    can forbid calls: then the prompt has the cached prefix of other turns."""
    calls = calling(body)
    hidden = calls and not calls.callable and (served.grammars is None or served.template.style.syntax.bare)
    tools = [tool.for_template() for tool in calls.tools] if calls and not hidden else []
    return Setting(tools, body.template_variables)


def form_of(body: ChatRequest, style: Style) -> Form:
    """What the model may write."""
    calls = calling(body)
    if calls is None or not calls.callable:
        return Form(style.tags)
    most = 1 if style.single_call else calls.most
    return Form(style.tags, syntax=style.syntax, names=calls.names, most_calls=most)


def read_as(body: ChatRequest, form: Form) -> Form:
    """The part of the form that is parsed."""
    return replace(form, tags=None, thinking=False) if body.reasoning_format == "none" else form


def reply_constraint(served: Served, body: ChatRequest, form: Form) -> Start | None:
    """A grammar that makes calls fit their functions: from the first token if a call is required, else from
    the mark of a call. Allows thoughts before a structured reply. None: no grammar, or only that of the
    body's own fields. Raises InvalidRequestError with the field. Slow: not for the event loop."""
    calls = calling(body)
    if calls is None or (not calls.callable and forms(body)):
        return _thoughtful(served, body, form)
    return _silent(served, form) if not calls.callable else _calling(served, body, form, calls)


def _thoughtful(served: Served, body: ChatRequest, form: Form) -> Start | None:
    answer = _answer(body)
    thinks = form.thinking or (form.tags is not None and body.reasoning_format != "none")
    if answer is None or served.grammars is None or not thinks:
        return None
    constraint(served, body)  # a fault of the schema is told by its place there
    return served.grammars.lark(answer_after_thoughts(served.vocabulary, form, answer), forms(body)[0])


def _calling(served: Served, body: ChatRequest, form: Form, calls: Calling) -> Start | None:
    """None if calls have no mark, or if their schemas cannot be compiled and no field requires that they
    fit."""
    answer = _answer(body)
    insists = calls.required or answer is not None or any(one.strict for _, one in calls.functions)
    if served.grammars is None:
        if calls.required:
            raise UnsupportedFieldError("tool_choice")
        return None
    try:
        functions = _functions(calls)
        lark = _lark(served, form, functions, calls, answer)
        schemas = [(_place(i), function.schema_of_arguments) for i, function in calls.functions]
        return None if lark is None else served.grammars.lark(lark, "tools", schemas)
    except InvalidRequestError:
        if insists:
            raise
        return None


def _silent(served: Served, form: Form) -> Start | None:
    if served.grammars is None:
        return None
    lark = no_calls(served.vocabulary, replace(form, syntax=served.template.style.syntax))
    return None if lark is None else served.grammars.lark(lark, "tool_choice")


def _functions(calls: Calling) -> Sequence[Function]:
    """Raises InvalidRequestError for a schema that is too large."""
    functions: list[Function] = []
    allowance = Allowance()
    for i, function in calls.functions:
        schema = {"type": "object", **function.schema_of_arguments}
        allowance.written(schema, _place(i))
        functions.append(Function(function.name, schema))
    return functions


def _lark(
    served: Served,
    form: Form,
    functions: Sequence[Function],
    calls: Calling,
    answer: dict[str, Any] | None,
) -> str | None:
    if calls.required:
        return required_calls(served.vocabulary, form, functions)
    if answer is not None:
        return calls_or_answer(served.vocabulary, form, functions, answer)
    return calls_in_text(served.vocabulary, form, functions)


def _place(tool: int) -> str:
    return f"tools.{tool}.function.parameters"


def _answer(body: StructuredFields) -> dict[str, Any] | None:
    """The schema of a reply without calls."""
    schema, _ = schema_of(body)
    return {"type": "object"} if schema is None and "response_format" in forms(body) else schema
