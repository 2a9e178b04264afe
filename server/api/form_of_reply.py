"""How a reply to a chat is rendered for, constrained and read: its tools and its thoughts."""

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
from server.api.structured import StructuredFields, constraint, forms
from server.api.tools import Calling, calling
from server.errors import InvalidRequestError
from server.grammar.compiler import Start
from server.grammar.json_schema import Allowance
from server.text.form import Form, Style
from server.text.template import Setting


def setting_of(served: Served, body: ChatRequest) -> Setting:
    """What the template is told besides the messages. Tools that must not be called are shown if the model
    can be kept from calling them: the prompt then is that of other turns, and cached."""
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
    """What of that is told apart."""
    return replace(form, tags=None, thinking=False) if body.reasoning_format == "none" else form


def reply_constraint(served: Served, body: ChatRequest, form: Form) -> Start | None:
    """Makes calls fit their functions: from the reply's beginning if there must be calls, else wherever one
    begins. Lets a model think before a reply in a form. None: any reply, or one of the form that the body
    asks for, from its beginning. Raises InvalidRequestError that names the place. Slow: not for the event
    loop."""
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
    """None: calls cannot be told from text, or their schemas not be kept while nobody insists."""
    answer = _answer(body)
    insists = calls.required or answer is not None or any(one.strict for _, one in calls.functions)
    if served.grammars is None:
        if calls.required:
            raise InvalidRequestError(
                "tool_choice: not supported by this server", param="tool_choice", code="unsupported_parameter"
            )
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
    """Raises InvalidRequestError for a schema that would take too long to look at."""
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
    """The schema of a reply that calls nothing."""
    asked = body.response_format
    if asked is None or asked.type == "text":
        return body.json_schema
    if asked.json_schema is not None:
        return asked.json_schema.definition
    return asked.definition or {"type": "object"}
