"""How a chat prompt is rendered, and its reply constrained and parsed: tools and thoughts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from server.api.call_grammar import CallGrammar
from server.api.chat.chat_request import ChatRequest
from server.api.served import Served
from server.api.structured import StructuredFields, constraint, forms, schema_of
from server.api.tools import Calling, FunctionDefinition, calling
from server.errors import InvalidRequestError, UnsupportedFieldError
from server.grammar.compiler import Compiler, Start
from server.grammar.json_schema import Allowance, tells_no_member
from server.grammar.schema_form import Schema, check_form
from server.grammar.thinking_budget import ThoughtLimit
from server.text.form import Form, Style
from server.text.template import Setting

_ANY_OBJECT: Schema = {"type": "object"}
_NO_MEMBERS: Schema = {"properties": {}, "additionalProperties": False}


def setting_of(served: Served, body: ChatRequest) -> Setting:
    """The template's input beside the messages. Tools that must not be called are shown anyway if a grammar
    can forbid calls: then the prompt has the cached prefix of other turns."""
    calls = calling(body)
    hidden = (
        calls and not calls.callable and (served.grammars is None or not hides_calls(served.template.style))
    )
    tools = (
        [tool.for_template() for tool in calls.tools if not tool.in_message] if calls and not hidden else []
    )
    variables = {**served.template_variables, **body.template_variables}
    return Setting(
        tools, variables, body.continue_final_message is not False, body.add_generation_prompt is not False
    )


def form_of(body: ChatRequest, style: Style) -> Form:
    """What the model may write."""
    calls, family = calling(body), style.family
    form = Form(family.thoughts, channels=family.channels, drops=family.drops)
    if calls is None or not calls.callable or family.calls is None:
        return form
    functions = {function.name: function.schema_of_arguments for _, function in calls.functions}
    most = 1 if style.single_call else calls.most
    return replace(form, calls=family.calls, functions=functions, most_calls=most)


def hides_calls(style: Style) -> bool:
    """Whether a grammar can forbid calls: they have a mark in free text."""
    family = style.family
    return family.calls is not None and not (family.calls.bare or family.channels)


def read_as(served: Served, body: ChatRequest, form: Form) -> Form:
    """The part of the form that is parsed."""
    return form if _reads_thoughts(served, body) else form.without_thoughts


def _reads_thoughts(served: Served, body: ChatRequest) -> bool:
    return (body.reasoning_format or served.reasoning_format) != "none"


def unthinking(served: Served, body: ChatRequest, prompt: str) -> str:
    """The prompt, with the thoughts closed that it opens, where the server wants none and the body says
    nothing of them."""
    thoughts, own = served.template.style.family.thoughts, body.template_variables
    wanted = served.template_variables.get("enable_thinking", True) or "enable_thinking" in own
    if thoughts is None or wanted or body.thinking_budget is not None:
        return prompt
    return prompt + thoughts.close if prompt.rstrip().endswith(thoughts.open.strip()) else prompt


def reply_constraint(served: Served, body: ChatRequest, form: Form) -> Start | None:
    """A grammar that makes calls fit their functions: from the first token if a call is required, else from
    the mark of a call. Allows thoughts before a structured reply. None: no grammar, or only that of the
    body's own fields. Raises InvalidRequestError with the field. Slow: not for the event loop."""
    calls, grammars = calling(body), served.grammars
    if grammars is None:
        if calls is not None and calls.required:
            raise UnsupportedFieldError("tool_choice")
        return None
    if calls is None or (not calls.callable and forms(body)):
        answer = _answer(body)
        thinks = form.thinking or (form.thoughts is not None and _reads_thoughts(served, body))
        if answer is None or not thinks:
            return None
        constraint(served, body)  # a fault of the schema is told by its place there
        return grammars.lark(CallGrammar(served.vocabulary, form).answer(answer), forms(body)[0])
    if not calls.callable:
        marked = replace(form, calls=served.template.style.family.calls)
        lark = CallGrammar(served.vocabulary, marked).no_calls()
        return None if lark is None else grammars.lark(lark, "tool_choice")
    return _calling(grammars, CallGrammar(served.vocabulary, form), calls, _answer(body))


def thinking_within(served: Served, body: ChatRequest, form: Form, held: Start | None) -> Start | None:
    """The constraint with a limit on thoughts, if there is one and the model thinks. held: the one in
    place of that of the body's own fields."""
    thoughts, channels = form.thoughts, form.channels
    most = served.reasoning_budget if body.thinking_budget is None else body.thinking_budget
    if thoughts is None or most < 0:
        return held
    ending = thoughts.close + (channels.start if channels else "")
    limit = ThoughtLimit(most, thoughts.open.strip(), thoughts.close, ending, form.thinking)
    return limit.start(served.vocabulary, held or constraint(served, body))


def _calling(grammars: Compiler, grammar: CallGrammar, calls: Calling, answer: Schema | None) -> Start | None:
    """None if calls have no mark, or if their grammar cannot be compiled and no field requires that they
    fit. Where no field requires it, any object stands in for a schema that cannot be kept. Raises
    InvalidRequestError for what is no schema in any case."""
    for i, function in calls.functions:
        check_form(function.schema_of_arguments, _place(i))
    try:
        return _compiled(grammars, grammar, calls, answer, _functions(calls))
    except InvalidRequestError:
        if calls.required or answer is not None:
            raise
    try:
        return _compiled(grammars, grammar, calls, None, _kept(grammars, calls))
    except InvalidRequestError:
        if any(one.strict for _, one in calls.functions):
            raise
        return None


def _compiled(
    grammars: Compiler,
    grammar: CallGrammar,
    calls: Calling,
    answer: Schema | None,
    functions: Mapping[str, Schema],
) -> Start | None:
    """functions: schemas of arguments by name. None if calls have no mark. Raises InvalidRequestError."""
    schemas = [(_place(i), functions[function.name]) for i, function in calls.functions]
    if calls.required:
        return grammars.lark(grammar.required(functions), "tools", schemas)
    if answer is not None:
        return grammars.lark(grammar.calls_or_answer(functions, answer), "tools", schemas)
    lark = grammar.calls_in_text(functions)
    return None if lark is None else grammars.lark(lark, "tools")


def _functions(calls: Calling) -> dict[str, Schema]:
    """Schemas of arguments by name. Raises InvalidRequestError for one that is too large."""
    allowance = Allowance()
    return {function.name: _arguments(function, i, allowance) for i, function in calls.functions}


def _kept(grammars: Compiler, calls: Calling) -> dict[str, Schema]:
    """The same, with any object in place of a schema that cannot be kept. Raises InvalidRequestError for one
    of a strict function."""
    allowance = Allowance()
    found: dict[str, Schema] = {}
    for i, function in calls.functions:
        try:
            schema = _arguments(function, i, allowance)
            grammars.check(schema, _place(i))
        except InvalidRequestError:
            if function.strict:
                raise
            schema = _ANY_OBJECT
        found[function.name] = schema
    return found


def _arguments(function: FunctionDefinition, tool: int, allowance: Allowance) -> Schema:
    """What a function's arguments are held to. A function without parameters has no arguments, as OpenAI
    says. Raises InvalidRequestError for a schema that is too large."""
    schema = {**_ANY_OBJECT, **function.schema_of_arguments}
    if tells_no_member(schema):
        schema |= _NO_MEMBERS
    return json.loads(allowance.written(schema, _place(tool)))


def _place(tool: int) -> str:
    return f"tools.{tool}.function.parameters"


def _answer(body: StructuredFields) -> Schema | None:
    """The schema of a reply without calls. Raises InvalidRequestError for one that is too large."""
    schema, place = schema_of(body)
    if schema is None:
        return _ANY_OBJECT if "response_format" in forms(body) else None
    return json.loads(Allowance().written(schema, place))
