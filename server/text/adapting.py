"""Convert messages to the form that a chat template takes. Pure.

If a template does not know tools, then tools, calls and results become text. Calls are written as the model
writes them, or in Hermes' style, which models without training for tools understand best.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any, TypeAlias, cast

from server.formats.description import Calls
from server.formats.families import JSON_IN_TAGS
from server.formats.spelling import written
from server.text.call_ids import short_id, with_ids
from server.text.capabilities import THOUGHT_FIELDS, Capabilities, Message, Tool
from server.text.guard import NO_CONTROLS, ClientTexts

Tell: TypeAlias = Callable[[str], None]
"""Receives one sentence about what the template cannot show, and what is done instead."""

_INSTRUCTIONS = ("system", "developer")
_GO_ON: Message = {"role": "user", "content": "Go on."}
_NO_RESULT = "There is no result."

INSTRUCTIONS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, {how}"""
_IN_TAGS = """\
return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
"""This text and INSTRUCTIONS are those that Qwen's models were trained with."""
_EXAMPLE = {"function": {"name": "<function-name>", "arguments": '{"<argument>": "<value>"}'}}


def adapted(
    messages: Sequence[Message],
    tools: Sequence[Tool],
    takes: Capabilities,
    log: Tell = lambda _: None,
    texts: ClientTexts = NO_CONTROLS,
) -> list[Message]:
    """Return the messages in the form that the template takes, with guards (guard.py) in their texts.

    Args:
        messages: As the client has sent them.
        tools: Tools of the request, with guards.
        takes: Forms of messages that the template takes.
        log: Called with a sentence about each adaptation that the template makes necessary.
        texts: Guards the texts that the client has written.
    """
    named = messages if takes.optional_ids else list(with_ids(messages))
    told = [_adapt_message(message, takes, log, texts) for message in named]
    told = told if takes.empty_replies else [message for message in told if not _is_empty(message)]
    if tools and not takes.tools:
        log("no tools: they are described to the model in words")
        told = _describe_tools(told, tools, takes)
    if takes.single_instruction:
        told = _join_instructions(told, log)
    told = _without_system(told, takes, log)
    told = _with_calls(told, takes, log)
    told = told if takes.assistant_first else _begun_by_user(told, log)
    return told if takes.repeated_roles else _join_repeated_roles(told, log)


def _with_calls(messages: list[Message], takes: Capabilities, log: Tell) -> list[Message]:
    """Return the messages with calls and results in the form that the template takes."""
    told = messages
    if not takes.calls or not takes.results:
        return _written_out(told, takes)
    told = told if takes.orphaned_results else list(_without_orphans(told, log))
    told = told if takes.unanswered_calls else list(_all_answered(told, log))
    if takes.drops_content or takes.null_content:
        told = list(_split_off_content(told, takes, log))
    told = told if takes.several_calls else list(_one_by_one(told, log))
    return told if takes.user_after_result else list(_insert_replies(told, log))


def text_of(content: Any) -> str:
    """Return a message's content as text, its parts joined by line breaks."""
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "")) for part in cast(list[Message], content))
    return str(content or "")


def _adapt_message(message: Message, takes: Capabilities, log: Tell, texts: ClientTexts) -> Message:
    """Adapt one message: its role, content, thoughts, calls and ids. Neighbours are not considered."""
    role = message["role"]
    guarded = {key: value for key, value in message.items() if key not in ("role", "tool_calls")}
    new = {**message, **texts.of(guarded, role)}
    new["content"] = new.get("content") or ""
    if role == "developer" and not takes.developer:
        new["role"] = "system"
    if isinstance(new["content"], list) and new["role"] not in takes.part_roles:
        log("no lists as content: their parts are joined by line breaks")
        new["content"] = text_of(new["content"])
    if message.get("reasoning_content"):
        new = _place_thoughts(new, takes)
    if message.get("tool_calls"):
        new["tool_calls"] = [_adapt_call(call, takes, texts) for call in message["tool_calls"]]
    if takes.short_ids and new.get("tool_call_id"):
        new["tool_call_id"] = short_id(new["tool_call_id"])
    return new


def _place_thoughts(message: dict[str, Any], takes: Capabilities) -> dict[str, Any]:
    """Put a message's thoughts where the template reads them: into its fields, or a part of its content."""
    thought, content = message["reasoning_content"], message.get("content")
    if takes.thought_parts:
        del message["reasoning_content"]
        return {**message, "content": [{"type": "thinking", "thinking": thought}, *_as_parts(content)]}
    if takes.drops_content_after_thoughts and message.get("tool_calls") and content:
        if takes.drops_thoughts:
            return {key: value for key, value in message.items() if key != THOUGHT_FIELDS[0]}
        thought, message["content"] = f"{thought}\n\n{text_of(content)}", ""
    return {**message, **dict.fromkeys(THOUGHT_FIELDS, thought)}


def _as_parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return cast(list[Any], content)
    return [{"type": "text", "text": content}] if content else []


def _adapt_call(call: Mapping[str, Any], takes: Capabilities, texts: ClientTexts) -> dict[str, Any]:
    """Adapt one call: its arguments and its id."""
    given = call["function"]["arguments"]
    guarded: dict[str, Any] = texts.of({**call, "function": {**call["function"], "arguments": ""}})
    function = {**guarded["function"], "arguments": _adapt_arguments(given, takes, texts)}
    new: dict[str, Any] = {**guarded, "function": function}
    if takes.short_ids and new.get("id"):
        new["id"] = short_id(new["id"])
    return new


def _adapt_arguments(given: str, takes: Capabilities, texts: ClientTexts) -> Any:
    """Return a call's arguments in the template's form; empty text and null mean no arguments."""
    text = "{}" if given.strip() in ("", "null") else given
    if not takes.object_arguments:
        return texts.of(text)
    try:
        return texts.of(_parse_arguments(text))
    except RecursionError:
        return {"arguments": texts.of(text)}


def _parse_arguments(text: str) -> dict[str, Any]:
    """Parse a call's arguments as a JSON object.

    Return {"arguments": text} if the text is anything else, or an object that a prompt cannot show, such as
    one with a lone surrogate.
    """
    try:
        value = json.loads(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return {"arguments": text}
    return cast(dict[str, Any], value) if isinstance(value, dict) else {"arguments": text}


def _written_out(messages: Sequence[Message], takes: Capabilities) -> list[Message]:
    """Turn calls and results into text if the template cannot show them.

    Calls move into the assistant's content. Consecutive results become one user message.
    """
    told: list[Message] = []
    apart = takes.calls and (takes.drops_content or takes.null_content)
    messages = list(_split_off_content(messages, takes, lambda _: None)) if apart else messages
    for of_tools, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        if of_tools and not takes.results:
            told.append(_as_users(run))
        else:
            spell = not takes.calls
            told += [
                _spell_calls(one, takes.syntax) if spell and one.get("tool_calls") else one for one in run
            ]
    return told


def _as_users(results: Iterable[Message]) -> Message:
    """Join tool results into one user message."""
    each = (f"<tool_response>\n{text_of(one.get('content'))}\n</tool_response>" for one in results)
    return {"role": "user", "content": "\n".join(each)}


def _is_empty(message: Message) -> bool:
    """Return True for an assistant's message without content, calls and thoughts."""
    said = (message.get("content"), message.get("tool_calls"), message.get(THOUGHT_FIELDS[0]))
    return message["role"] == "assistant" and not any(said)


def _without_orphans(messages: Sequence[Message], log: Tell) -> Iterator[Message]:
    """Turn results that no call precedes into user messages."""
    called = False
    for of_tools, run in groupby(messages, key=lambda message: message["role"] == "tool"):
        if of_tools and not called:
            log("no results without a call: they become user messages")
            yield _as_users(run)
            continue
        for message in run:
            called = of_tools or bool(message.get("tool_calls"))
            yield message


def _all_answered(messages: Sequence[Message], log: Tell) -> Iterator[Message]:
    """Add a result for each call that has none, after the results that exist."""
    open = dict[str, None]()
    for message in [*messages, None]:
        if message is not None and message["role"] == "tool":
            open.pop(message.get("tool_call_id") or next(iter(open), ""), None)
        elif open and message is not None:
            log("no calls without a result: a result that says so is added")
            yield from ({"role": "tool", "tool_call_id": id, "content": _NO_RESULT} for id in open)
            open.clear()
        if message is not None:
            open.update(dict.fromkeys(call.get("id", "") for call in message.get("tool_calls") or ()))
            yield message


def _spell_calls(message: Message, syntax: Calls) -> Message:
    """Return a message with its calls written out in its content."""
    said = filter(None, (text_of(message.get("content")), written(message["tool_calls"], syntax)))
    rest = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**rest, "content": "\n".join(said)}


def _split_off_content(messages: Sequence[Message], takes: Capabilities, log: Tell) -> Iterator[Message]:
    """Move content beside calls to a separate message if the template would not show both."""
    for message in messages:
        content = message.get("content")
        if not message.get("tool_calls") or (content and not takes.drops_content):
            yield message
            continue
        if content:
            log("no content beside calls: the content becomes a separate message")
            yield {"role": message["role"], "content": content}
            if not takes.repeated_roles:
                yield _GO_ON
        yield {**message, "content": None if takes.null_content else ""}


def _one_by_one(messages: Sequence[Message], log: Tell) -> Iterator[Message]:
    """Split a message with several calls: one message for each call, each followed by its result."""
    waiting: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls") or ()
        if message["role"] == "tool" and waiting:
            id = message.get("tool_call_id")
            call = next((one for one in waiting if one["tool_calls"][0].get("id") == id), waiting[0])
            waiting.remove(call)
            yield call
        else:
            yield from waiting
            waiting.clear()
        if len(calls) > 1:
            log("only one call in a message: further calls become separate messages")
            rest = {"role": "assistant", "content": message.get("content") and ""}
            waiting = [{**(rest if n else message), "tool_calls": [call]} for n, call in enumerate(calls)]
        else:
            yield message
    yield from waiting


def _insert_replies(messages: Sequence[Message], log: Tell) -> Iterator[Message]:
    """Insert a short reply between a tool's result and a user's message."""
    last = ""
    for message in messages:
        if (last, message["role"]) == ("tool", "user"):
            log("no user message after a tool's result: a one-word reply is put between them")
            yield {"role": "assistant", "content": "OK."}
        last = message["role"]
        yield message


def _describe_tools(messages: list[Message], tools: Sequence[Tool], takes: Capabilities) -> list[Message]:
    """Append a description of the tools to the system prompt."""
    shown = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    other = f"write:\n{written([_EXAMPLE], takes.syntax)}"
    text = INSTRUCTIONS.format(tools=shown, how=_IN_TAGS if takes.syntax is JSON_IN_TAGS else other)
    if not messages or messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    first, *rest = messages
    return [{**first, "content": _join_paragraphs(first.get("content"), text)}, *rest]


def _join_instructions(messages: Sequence[Message], log: Tell) -> list[Message]:
    """Join all system and developer messages at the beginning into one."""
    first = list(takewhile(lambda message: message["role"] in _INSTRUCTIONS, messages))
    if len(first) < 2:
        return list(messages)
    log("only one system or developer message at the beginning: several are joined")
    content = _join_paragraphs(*(message.get("content") for message in first))
    return [{**first[0], "content": content}, *messages[len(first) :]]


def _without_system(messages: Sequence[Message], takes: Capabilities, log: Tell) -> list[Message]:
    """Change the roles of system and developer messages that the template would not show where they are."""
    told = list(messages)
    n_first = len(list(takewhile(lambda message: message["role"] in _INSTRUCTIONS, messages)))
    if told and n_first == len(told) and not takes.system_alone:
        log("no system message without another message: the last one becomes a user message")
        return [*told[:-1], {**told[-1], "role": "user"}]
    known = {"system": takes.system, "developer": takes.developer}
    later = [role for role, is_known in known.items() if is_known and role in takes.later_roles]
    for i, message in enumerate(told):
        role = message["role"]
        if role in known and not (known[role] and (i < n_first or role in later)):
            log("no system messages, or only a first one: others become user messages")
            told[i] = {**message, "role": later[0] if later else "user"}
    return told


def _begun_by_user(messages: list[Message], log: Tell) -> list[Message]:
    """If the assistant's message is the first after instructions, insert a short user message before it."""
    first = next((i for i, message in enumerate(messages) if message["role"] not in _INSTRUCTIONS), None)
    if first is None or messages[first]["role"] != "assistant":
        return messages
    log("no assistant message first: a user message is put before it")
    return [*messages[:first], _GO_ON, *messages[first:]]


def _join_repeated_roles(messages: Sequence[Message], log: Tell) -> list[Message]:
    """Join consecutive messages of one role, except for calls and results."""
    told: list[Message] = []
    for message in messages:
        last = told[-1] if told else {}
        plain = message["role"] in ("user", "assistant") and not message.get("tool_calls")
        if plain and last.get("role") == message["role"] and not last.get("tool_calls"):
            log("no consecutive messages of one role: they are joined")
            content = _join_paragraphs(last.get("content"), message.get("content"))
            told[-1] = {**last, **message, "content": content}
        else:
            told.append(message)
    return told


def _join_paragraphs(*contents: Any) -> str:
    return "\n\n".join(filter(None, map(text_of, contents)))
