"""Constrain replies as a request demands: calls of tools, JSON, grammars, limits on thoughts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from server.api.call_grammar import CallGrammar
from server.api.chat.chat_request import ChatRequest
from server.api.enforceable_schemas import EnforceableSchemas, digest, place
from server.api.generation_fields import GenerationFields
from server.api.services import Services
from server.api.stages.prompted import Prompted
from server.api.stages.render import reads_thoughts
from server.api.structured import StructuredFields, forms, wanted_form
from server.api.tools import Calling, calling
from server.errors import FieldError, InvalidRequestError, UnsupportedFieldError
from server.grammar.compiler import Start
from server.grammar.json_schema import Allowance
from server.grammar.schema_form import Schema
from server.grammar.thinking_budget import ThoughtLimit
from server.text.reply_format import ReplyFormat

MAX_HELD = 512
"""Maximum functions of one grammar: 512 small functions compile in 0.8 s, 1024 fail after 20 s."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Limits of a reply's content: calls of functions, or an answer without calls."""

    calls: Calling
    answer: Schema | str | None
    """JSON schema or grammar rule of a reply without calls; None: any text."""
    place: str
    """Name of the request's field that asks for `answer`; empty if none does."""

    @property
    def as_json(self) -> list[Any]:
        """Return everything that determines the grammar, as a JSON value."""
        functions = [function.as_json for _, function in self.calls.functions]
        return [self.calls.required, self.answer, self.place, functions]


def constrained(services: Services, body: GenerationFields, prompt: Prompted) -> Prompted:
    """Return the prompt with the constraint that the body puts on replies. Slow: not for the event loop.

    Raises:
        InvalidRequestError: A constraint cannot be met; the error names its field.
    """
    instead: Start | None = None
    if isinstance(body, ChatRequest):
        form = prompt.written
        instead = _thinking_within(services, body, form, _reply_constraint(services, body, form))
    return replace(prompt, constraint=instead or constraint_of_fields(services, body))


def _reply_constraint(services: Services, body: ChatRequest, form: ReplyFormat) -> Start | None:
    """Return the grammar for tools, or for thoughts before a structured answer; None if not needed.

    The grammar makes calls fit their functions, excludes calls that the request forbids, or allows thoughts
    before a structured answer. If calls are optional and the answer may be any text, the text before a
    call's marker is free. Slow: not for the event loop.

    Raises:
        InvalidRequestError: A constraint cannot be met; the error names its field.
    """
    calls, grammars, held = calling(body), services.grammars, services.enforceable_schemas
    if grammars is None or held is None:
        if calls is not None and calls.required:
            raise UnsupportedFieldError("tool_choice")
        return None
    if calls is None or (not calls.callable and forms(body)):
        answer, place = _answer_schema(body)
        thinks = form.thinking or (form.thoughts is not None and reads_thoughts(services, body))
        if answer is None or not thinks:
            return None
        constraint_of_fields(services, body)  # raises errors of the schema with its place in the request
        return grammars.lark(CallGrammar(services.vocabulary, form).answer(answer), place)
    if not calls.callable:
        marked = replace(form, calls=services.template.style.family.calls)
        lark = CallGrammar(services.vocabulary, marked).no_calls()
        return None if lark is None else grammars.lark(lark, "tool_choice")
    asked = Asked(calls, *((None, "") if calls.required else _answer_schema(body)))
    return _call_constraint(held, CallGrammar(services.vocabulary, form), form, asked)


def _thinking_within(
    services: Services, body: ChatRequest, form: ReplyFormat, held: Start | None
) -> Start | None:
    """Return the constraint `held`, extended by a limit on thoughts if there is one and the model thinks.

    Args:
        services: What the server offers.
        body: The request.
        form: The format of the reply.
        held: Constraint of the reply; None: use constraint_of_fields().
    """
    thoughts, channels = form.thoughts, form.channels
    most = services.reasoning_budget if body.thinking_budget is None else body.thinking_budget
    if thoughts is None or most < 0:
        return held
    ending = thoughts.close + (channels.start if channels else "")
    limit = ThoughtLimit(most, thoughts.open.strip(), thoughts.close, ending, form.thinking)
    return limit.start(services.vocabulary, held or constraint_of_fields(services, body))


def _call_constraint(
    held: EnforceableSchemas, grammar: CallGrammar, form: ReplyFormat, asked: Asked
) -> Start | None:
    """Return the strictest constraint of calls that compiles.

    Return None if no constraint is possible, and the request demands neither a call nor a structured answer.
    Possible reasons: more than MAX_HELD functions, calls without a marker, or no grammar compiles.

    Args:
        held: Finds the schemas that a grammar can enforce, and keeps the rules of grammars.
        grammar: Writes the rules of calls.
        form: Format of the reply.
        asked: What the reply may contain.

    Raises:
        InvalidRequestError: A strict function's schema does not compile, or the request demands a call or a
            structured answer and no constraint is possible.
    """
    if len(asked.calls.callable) > MAX_HELD:
        if asked.calls.required or asked.answer is not None:
            raise FieldError("tools", f"at most {MAX_HELD} tools can be enforced: use allowed_tools")
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
    held: EnforceableSchemas, key: bytes, grammar: CallGrammar, asked: Asked, functions: Mapping[str, Schema]
) -> Start | None:
    """Compile the grammar of calls and keep its rules. Return None if calls have no marker.

    Args:
        held: Compiles the grammar and keeps the rules.
        key: Digest of everything that determines the grammar.
        grammar: Writes the rules of calls.
        asked: What the reply may contain.
        functions: Schemas of the arguments, by function name.

    Raises:
        InvalidRequestError: The grammar does not compile.
    """
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


def constraint_of_fields(services: Services, body: StructuredFields) -> Start | None:
    """Return the constraint that the body's fields demand; None: any text. Slow: not for the event loop.

    Raises:
        InvalidRequestError: A field cannot be honoured; the error names it.
    """
    form = wanted_form(body)
    if form is None:
        return None
    grammars = services.grammars
    if grammars is None:
        raise UnsupportedFieldError(form.field)
    if form.rule:
        return grammars.lark(f"start: {form.rule}", form.place)
    if form.schema is not None:
        return grammars.json_schema(form.schema, form.place)
    try:
        return (
            grammars.gbnf(form.grammar) if "::=" in form.grammar else grammars.lark(form.grammar, form.place)
        )
    except InvalidRequestError as error:
        error.param = form.place
        raise


def _answer_schema(body: StructuredFields) -> tuple[Schema | str | None, str]:
    """Return the JSON schema or Lark rule of a reply without calls, and the request's field that has it.

    The schema is None if the request has neither; the field is "" if the request demands no form.

    Raises:
        InvalidRequestError: The schema is too large.
    """
    form = wanted_form(body)
    if form is None or form.schema is None:
        return (form.rule or None, form.place) if form else (None, "")
    return json.loads(Allowance().written(form.schema, form.place)), form.place
