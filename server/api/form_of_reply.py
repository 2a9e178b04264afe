"""Decide how a chat prompt is rendered and its reply constrained and read: tools and thoughts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from server.api.call_grammar import CallGrammar
from server.api.chat.chat_request import ChatRequest
from server.api.held_schemas import HeldSchemas, digest, place
from server.api.served import Served
from server.api.structured import StructuredFields, constraint, forms, wanted_form
from server.api.tools import Calling, calling
from server.errors import FieldError, InvalidRequestError, UnsupportedFieldError
from server.grammar.compiler import Start
from server.grammar.json_schema import Allowance
from server.grammar.schema_form import Schema
from server.grammar.thinking_budget import ThoughtLimit
from server.text.form import Form, Style
from server.text.template import Setting

MAX_HELD = 512
"""Maximum functions of one grammar: 512 small ones compile in 0.8 s, 1024 fail after 20 s."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The forms that a reply may have: calls, or an answer."""

    calls: Calling
    answer: Schema | str | None
    """Schema or rule of a reply without calls; None: any text."""
    place: str
    """Field of the request that asks for it."""

    @property
    def as_json(self) -> list[Any]:
        """Return all of it."""
        functions = [function.as_json for _, function in self.calls.functions]
        return [self.calls.required, self.answer, self.place, functions]


def setting_of(served: Served, body: ChatRequest) -> Setting:
    """Return what the template gets besides the messages.

    Tools that must not be called are shown all the same if a grammar can forbid calls: then the prompt shares
    the cached prefix of other turns.
    """
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
    """Return the form that the model may write."""
    calls, family = calling(body), style.family
    form = Form(family.thoughts, channels=family.channels, drops=family.drops, stops=style.stops)
    if calls is None or not calls.callable or family.calls is None:
        return form
    functions = {function.name: function.schema_of_arguments for _, function in calls.functions}
    # a model that was not trained for tools repeats a call that it must make until its reply is full
    repeats = style.in_words and calls.required and not body.parallel_tool_calls
    single = style.single_call or repeats
    most = 1 if single else calls.most
    return replace(form, calls=family.calls, functions=functions, most_calls=most)


def hides_calls(style: Style) -> bool:
    """Return True if a grammar can forbid calls: they have a mark in free text."""
    family = style.family
    return family.calls is not None and not (family.calls.bare or family.channels)


def read_as(served: Served, body: ChatRequest, form: Form) -> Form:
    """Return the part of the form that is read."""
    return form if _reads_thoughts(served, body) else form.without_thoughts


def _reads_thoughts(served: Served, body: ChatRequest) -> bool:
    return (body.reasoning_format or served.reasoning_format) != "none"


def unthinking(served: Served, body: ChatRequest, prompt: str) -> str:
    """Close the thoughts that the prompt opens, if the server wants none and the body says nothing."""
    thoughts, own = served.template.style.family.thoughts, body.template_variables
    wanted = served.template_variables.get("enable_thinking", True) or "enable_thinking" in own
    if thoughts is None or wanted or body.thinking_budget is not None:
        return prompt
    return prompt + thoughts.close if prompt.rstrip().endswith(thoughts.open.strip()) else prompt


def reply_constraint(served: Served, body: ChatRequest, form: Form) -> Start | None:
    """Return a grammar that makes calls fit their functions, None if only the body's own fields constrain.

    It starts at the first token if a call is required, else at the mark of a call. Thoughts may precede a
    structured reply. Slow: not for the event loop.

    Raises:
        InvalidRequestError: Names the field.
    """
    calls, grammars, held = calling(body), served.grammars, served.held_schemas
    if grammars is None or held is None:
        if calls is not None and calls.required:
            raise UnsupportedFieldError("tool_choice")
        return None
    if calls is None or (not calls.callable and forms(body)):
        answer, place = _answer_schema(body)
        thinks = form.thinking or (form.thoughts is not None and _reads_thoughts(served, body))
        if answer is None or not thinks:
            return None
        constraint(served, body)  # a fault of the schema is told by its place there
        return grammars.lark(CallGrammar(served.vocabulary, form).answer(answer), place)
    if not calls.callable:
        marked = replace(form, calls=served.template.style.family.calls)
        lark = CallGrammar(served.vocabulary, marked).no_calls()
        return None if lark is None else grammars.lark(lark, "tool_choice")
    asked = Asked(calls, *((None, "") if calls.required else _answer_schema(body)))
    return _call_constraint(held, CallGrammar(served.vocabulary, form), form, asked)


def thinking_within(served: Served, body: ChatRequest, form: Form, held: Start | None) -> Start | None:
    """Return the constraint with a limit on thoughts, if there is one and the model thinks.

    Args:
        served: What the server offers.
        body: The request.
        form: The form of the reply.
        held: Replaces the constraint of the body's own fields.
    """
    thoughts, channels = form.thoughts, form.channels
    most = served.reasoning_budget if body.thinking_budget is None else body.thinking_budget
    if thoughts is None or most < 0:
        return held
    ending = thoughts.close + (channels.start if channels else "")
    limit = ThoughtLimit(most, thoughts.open.strip(), thoughts.close, ending, form.thinking)
    return limit.start(served.vocabulary, held or constraint(served, body))


def _call_constraint(held: HeldSchemas, grammar: CallGrammar, form: Form, asked: Asked) -> Start | None:
    """Return a constraint of calls as strict as can be compiled.

    None if calls have no mark, or if their grammar does not compile and nothing requires that they fit.

    Raises:
        InvalidRequestError: A schema of a strict function, or the grammar of a required form, does not
            compile.
    """
    if len(asked.calls.callable) > MAX_HELD:
        if asked.calls.required or asked.answer is not None:
            raise FieldError("tools", f"a reply can be held to at most {MAX_HELD} tools: use allowed_tools")
        return None
    key = digest([repr(replace(form, functions={})), *asked.as_json])
    if (known := held.rules.get(key)) is not None:
        return held.grammars.lark(known, "tools") if known else None
    functions = held.arguments(asked.calls)
    try:
        return _compile_calls(held, key, grammar, asked, functions)
    except InvalidRequestError:
        held.learn(asked.calls, functions, grammar.one_call)
    try:
        return _compile_calls(held, key, grammar, asked, held.arguments(asked.calls))
    except InvalidRequestError:
        strict = any(function.strict for _, function in asked.calls.functions)
        if strict or asked.calls.required or asked.answer is not None:
            raise
        return None


def _compile_calls(
    held: HeldSchemas, key: bytes, grammar: CallGrammar, asked: Asked, functions: Mapping[str, Schema]
) -> Start | None:
    """Compile the grammar, and keep its rules; None if calls have no mark. Raises InvalidRequestError."""
    schemas = [(place(i), functions[function.name]) for i, function in asked.calls.functions]
    if asked.calls.required:
        lark = grammar.required(functions)
    elif asked.answer is not None:
        lark = grammar.calls_or_answer(functions, asked.answer)
        schemas += [] if isinstance(asked.answer, str) else [(asked.place, asked.answer)]
    else:
        lark, schemas = grammar.calls_in_text(functions) or "", []
    start = held.grammars.lark(lark, "tools", schemas) if lark else None
    held.keep_rules(key, lark)
    return start


def _answer_schema(body: StructuredFields) -> tuple[Schema | str | None, str]:
    """Return the schema or rule of a reply without calls, and the field that asks for it.

    Raises:
        InvalidRequestError: The schema is too large.
    """
    form = wanted_form(body)
    if form is None or form.schema is None:
        return (form.rule or None, form.place) if form else (None, "")
    return json.loads(Allowance().written(form.schema, form.place)), form.place
