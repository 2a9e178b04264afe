"""Find out in which forms a chat template takes messages, by rendering probes. Pure.

Templates do not declare what they support. So each probe is a small conversation with markers in it. The
template supports what the probe needs if the rendered prompt shows the markers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from server.formats.description import Calls
from server.formats.families import JSON_IN_TAGS

Message: TypeAlias = Mapping[str, Any]
Tool: TypeAlias = Mapping[str, Any]
Render: TypeAlias = Callable[[Sequence[Message], Sequence[Tool] | None], str | None]
"""A function that renders messages and tools as they are; returns None if the template refuses them."""

THOUGHT_FIELDS = ("reasoning_content", "thinking")
"""Names by which templates read the thoughts of an earlier reply."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The kinds of messages that a chat template takes, and their form."""

    no_tools: Sequence[Tool] | None = None  # value of the variable `tools` that means no tools
    tools: bool = True  # the template shows tools
    needs_descriptions: bool = False  # tools and their parameters must have descriptions
    calls: bool = True  # the template shows calls
    results: bool = True  # the template shows results of calls
    object_arguments: bool = False  # arguments are objects, not JSON text
    several_calls: bool = True  # a message may have several calls
    short_ids: bool = False  # ids of calls are nine letters or digits
    optional_ids: bool = True  # calls and results may lack ids
    null_content: bool = False  # a message with calls has content null, not ""
    drops_content: bool = False  # the template drops content beside calls
    drops_content_after_thoughts: bool = False  # it drops content beside calls if there are thoughts
    drops_thoughts: bool = False  # the template drops thoughts beside calls
    unanswered_calls: bool = True  # a user's message may follow a call without a result
    orphaned_results: bool = True  # results without a call are allowed
    user_after_result: bool = True  # a user's message may follow a result
    part_roles: frozenset[str] = frozenset()  # roles whose content may be a list of parts
    thought_parts: bool = False  # thoughts are one part of such a list
    system: bool = True  # the template shows a system message at the beginning
    developer: bool = False  # the template shows a developer message at the beginning
    system_alone: bool = True  # the template shows a system message that is the only message
    single_instruction: bool = False  # it shows only one system or developer message at the beginning
    # those of the roles system and developer whose messages the template also shows after other messages
    later_roles: frozenset[str] = frozenset(("system",))
    repeated_roles: bool = True  # consecutive messages may have the same role
    assistant_first: bool = True  # the first message may be the assistant's
    empty_replies: bool = True  # an assistant's message may be empty
    syntax: Calls = JSON_IN_TAGS  # how the model writes calls


ONE, OTHER = "probe-one", "probe-other"
_EARLIER = ("probe-first", "probe-second", "probe-third")
_THOUGHT = "probe-thought"
_USER: Message = {"role": "user", "content": "?"}
_ASSISTANT: Message = {"role": "assistant", "content": "."}
_PARTS = [{"type": "text", "text": ONE}, {"type": "text", "text": OTHER}]
_THOUGHT_PARTS = [{"type": "thinking", "thinking": ONE}, {"type": "text", "text": OTHER}]
_TOOL: Tool = {
    "type": "function",
    "function": {"name": "probed", "description": "?", "parameters": {"type": "object", "properties": {}}},
}
_BARE_TOOL: Tool = {
    "type": "function",
    "function": {"name": "probed", "parameters": {"type": "object", "properties": {ONE: {"type": "string"}}}},
}
_TEXT, _OBJECT = '{"probe-key": "probe-value"}', {"probe-key": "probe-value"}
_DATA = ('"type": "text"', '"type":"text"', "'type': 'text'")
"""Texts in a prompt if the template has printed a list of parts as a data structure."""


def capabilities_of(render: Render, source: str, told: Capabilities) -> Capabilities:
    """Return the forms of messages that a template takes.

    Args:
        render: Renders with the template.
        source: The template's text, searched for the roles that it handles.
        told: Capabilities known already, such as from the source.
    """
    found = replace(told, no_tools=() if render([_USER], None) is None else None)
    probe = _Probe(lambda messages, tools: render(messages, tools or found.no_tools), source)
    if not probe.shows([_message_of("user", ONE)], ONE):
        return found  # probes tell nothing if the template shows or accepts no messages at all
    return probe.of_thoughts(probe.of_parts(probe.of_calls(probe.of_roles(found))))


@dataclass(frozen=True, slots=True)
class _Probe:
    """A template under test."""

    render: Render
    source: str

    def shows(self, messages: Sequence[Message], *markers: str, tools: Sequence[Tool] = ()) -> bool:
        """Return True if the prompt shows the markers in this order, and no content as a data structure."""
        return _shows_markers(self.render(messages, tools), *markers)

    def knows(self, role: str) -> bool:
        """Return True if the template's source contains the role's name in quotation marks.

        Rendering a message would not tell: many templates print any role without knowing it.
        """
        return any(f"{quote}{role}{quote}" in self.source for quote in ("'", '"'))

    def of_roles(self, found: Capabilities) -> Capabilities:
        first, second = _message_of("user", ONE), _message_of("user", OTHER)
        empty = [_USER, _message_of("assistant", ""), first]
        return replace(
            self._of_instructions(found),
            repeated_roles=self.shows([first, second, _ASSISTANT, _USER], ONE, OTHER),
            assistant_first=self.shows([_message_of("assistant", ONE), second], ONE, OTHER),
            empty_replies=self.shows(empty, ONE),
            tools=_in_order(self.render([_USER], [_TOOL]), "probed"),
            needs_descriptions=self.render([_USER], [_BARE_TOOL]) is None
            and self.render([_USER], described([_BARE_TOOL])) is not None,
        )

    def _of_instructions(self, found: Capabilities) -> Capabilities:
        """Find out where the template shows system and developer messages; return `found` with the results.

        The results are `system`, `developer`, `system_alone`, `single_instruction` and `later_roles`. Probes
        have a system or developer message at the beginning, alone, followed by a second one, or later.
        """
        system = self._shows_with_tools([_message_of("system", ONE), _USER], ONE)
        developer = self.knows("developer") and self._shows_with_tools(
            [_message_of("developer", ONE), _USER], ONE
        )
        known = [role for role, shown in (("system", system), ("developer", developer)) if shown]
        pairs = (
            [_message_of(one, ONE), _message_of(other, OTHER), _USER] for one in known for other in known
        )
        return replace(
            found,
            system=system,
            developer=developer,
            system_alone=self.shows([_message_of("system", ONE)], ONE),
            single_instruction=not all(self._shows_with_tools(pair, ONE, OTHER) for pair in pairs),
            later_roles=frozenset(role for role in known if self._shows_later(role)),
        )

    def _shows_with_tools(self, messages: Sequence[Message], *markers: str) -> bool:
        """Return True if the prompt shows the markers, without tools and (if it accepts tools) with tools."""
        beside = self.render([_USER], [_TOOL]) is not None
        return self.shows(messages, *markers) and (
            not beside or self.shows(messages, *markers, tools=[_TOOL])
        )

    def _shows_later(self, role: str) -> bool:
        """Return True if messages of this role are shown anywhere in a conversation, not only at its start.

        Such a message must be shown in its own position, and all other messages must be shown too.
        """
        system, user, assistant = map(_message_of, ("system", "user", "assistant"), _EARLIER)
        told, last = _message_of(role, ONE), _message_of("user", OTHER)
        first, asked, said = _EARLIER
        return (
            self.shows([system, user, assistant, told, last], *_EARLIER, ONE, OTHER)
            and self.shows([user, assistant, told, last], asked, said, ONE, OTHER)
            and self.shows([system, user, told, assistant, last], first, asked, ONE, said, OTHER)
            and self.shows([system, user, assistant, last, told], *_EARLIER, OTHER, ONE)
        )

    def of_calls(self, found: Capabilities) -> Capabilities:
        """Find out how calls and their results are shown.

        Templates take a call's arguments as an object (most do) or as JSON text. If a template shows both
        alike, text is chosen, because it keeps what the model wrote.
        """
        for null in (False, True):
            asked = replace(found, null_content=null)
            as_text = self.render(_call_history(asked, _TEXT), [_TOOL])
            as_object = self.render(_call_history(asked, _OBJECT), [_TOOL])
            shows_text = _in_order(as_text, ONE, _TEXT)
            shows_object = _in_order(as_object, ONE, *_OBJECT, *_OBJECT.values()) and not _shows_python(
                as_object
            )
            if shows_text or shows_object:
                return self._of_results(
                    replace(
                        asked, object_arguments=shows_object and not (shows_text and as_text == as_object)
                    )
                )
        result = {**_message_of("tool", ONE), "tool_call_id": "a12345678"}
        known = (found.tools or self.knows("tool")) and self.shows([_USER, _ASSISTANT, result], ONE)
        return replace(found, calls=False, results=known)

    def _of_results(self, found: Capabilities) -> Capabilities:
        arguments = _no_arguments(found)
        calling, beside = _call_history(found, arguments), {"content": OTHER}
        thoughtful = [{**_with_thoughts(one), **beside} if "tool_calls" in one else one for one in calling]
        thinking = [_with_thoughts(one, _THOUGHT) if "tool_calls" in one else one for one in calling]
        both, bare = self.render(thoughtful, [_TOOL]), not self._shows_beside(found)
        asking, asked = [*calling, _message_of("user", OTHER)], _message_of("user", OTHER)
        orphan: Message = {**calling[-1], "content": ONE}
        orphans = ([_USER, _ASSISTANT, orphan, asked], [orphan, asked])
        followed = found.repeated_roles or self.render(asking, [_TOOL]) is not None
        return replace(
            found,
            user_after_result=followed,
            orphaned_results=followed
            and all(_in_order(self.render(one, [_TOOL]), ONE, OTHER) for one in orphans),
            unanswered_calls=_in_order(self.render([*calling[:2], asked], [_TOOL]), ONE, OTHER),
            results=_in_order(self.render(_call_history(found, arguments, content=OTHER), [_TOOL]), OTHER),
            several_calls=_in_order(
                self.render(_call_history(found, arguments, arguments), [_TOOL]), ONE, OTHER
            ),
            drops_content=bare,
            drops_thoughts=not _in_order(self.render(thinking, [_TOOL]), _THOUGHT),
            drops_content_after_thoughts=both is None or not (bare or OTHER in both),
            optional_ids=_in_order(self.render(list(map(_without_id, calling)), [_TOOL]), ONE),
        )

    def _shows_beside(self, found: Capabilities) -> bool:
        """Return True if content before calls is shown, and does not change the prompt after the results."""
        calling = _call_history(found, _no_arguments(found), content=OTHER)
        saying = [{**one, "content": _EARLIER[0]} if "tool_calls" in one else one for one in calling]
        without, text = self.render(calling, [_TOOL]), self.render(saying, [_TOOL])
        if without is None or text is None or not _in_order(text, _EARLIER[0], ONE):
            return False
        return text.rpartition(OTHER)[2] == without.rpartition(OTHER)[2]

    def of_parts(self, found: Capabilities) -> Capabilities:
        nothing = _no_arguments(found)
        beside = [
            {**one, "content": _PARTS} if "tool_calls" in one else one
            for one in _call_history(found, nothing)
        ]
        calling = [beside] * (found.calls and not found.drops_content)
        histories = {
            "system": [[_message_of("system", _PARTS), _USER]],
            "user": [[_message_of("user", _PARTS), _ASSISTANT, _USER]],
            "assistant": [[_USER, _message_of("assistant", _PARTS), _USER], *calling],
            "tool": [_call_history(found, nothing, content=_PARTS)],
        }
        taken = (role for role, of in histories.items() if all(self.shows(one, ONE, OTHER) for one in of))
        return replace(found, part_roles=frozenset(taken))

    def of_thoughts(self, found: Capabilities) -> Capabilities:
        """Find out how the template shows thoughts of earlier replies; return `found` with the result.

        If it shows them from a field of the message, `found` is returned unchanged. If not, `thought_parts`
        is set: True if it shows thoughts as parts of the content.
        """
        calling = _call_history(found, _no_arguments(found))
        calling[1] = _with_thoughts(calling[1], _THOUGHT)
        if any(
            self.shows(history, _THOUGHT)
            for history in ([_USER, _with_thoughts(_ASSISTANT, _THOUGHT)], calling)
        ):
            return found
        history = [_USER, _message_of("assistant", _THOUGHT_PARTS), _USER]
        return replace(found, thought_parts=self.shows(history, ONE, OTHER))


def described(tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools with an empty description wherever one is missing."""
    return [{**tool, "function": _with_one(_describe_function(tool["function"]))} for tool in tools]


def _describe_function(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function["parameters"]
    if not isinstance(properties := parameters.get("properties"), Mapping):
        return dict(function)
    told = {key: _with_one(one) for key, one in cast(Mapping[str, Any], properties).items()}
    return {**function, "parameters": {**parameters, "properties": told}}


def _with_one(schema: Any) -> Any:
    """Return the schema with a description, empty if it had none.

    The other keys keep their order, because templates print them in that order.
    """
    if not isinstance(schema, Mapping):
        return schema
    known = cast(Mapping[str, Any], schema)
    return {**known, "description": known.get("description", "")}


def _shows_markers(prompt: str | None, *markers: str) -> bool:
    return _in_order(prompt, *markers) and not any(sign in str(prompt) for sign in _DATA)


def _shows_python(prompt: str | None) -> bool:
    """Return True if the prompt shows the probe's arguments in Python's notation."""
    return str(_OBJECT) in str(prompt)


def _in_order(prompt: str | None, *markers: str) -> bool:
    at = 0
    for marker in markers:
        at = (prompt or "").find(marker, at)
        if at < 0:
            return False
    return prompt is not None


def _message_of(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def _with_thoughts(message: Message, thought: str = ".") -> Message:
    return {**message, **dict.fromkeys(THOUGHT_FIELDS, thought)}


def _without_id(message: Message) -> Message:
    """Return a message without ids: without those of its calls, or without a result's `tool_call_id`."""
    rest = {key: value for key, value in message.items() if key != "tool_call_id"}
    calls = [{**call, "id": ""} for call in message.get("tool_calls") or ()]
    return {**rest, "tool_calls": calls} if calls else rest


def _no_arguments(found: Capabilities) -> Any:
    return {} if found.object_arguments else "{}"


def _call_history(found: Capabilities, *arguments: Any, content: Any = "!") -> list[Message]:
    """Return a history with one message that has a call for each of `arguments`. Each result is `content`."""
    calls = [
        {"id": f"a1234567{n}", "type": "function", "function": {"name": name, "arguments": given}}
        for n, (name, given) in enumerate(zip((ONE, OTHER), arguments, strict=False))
    ]
    results = [{**_message_of("tool", content), "tool_call_id": call["id"]} for call in calls]
    return [
        _USER,
        {**_message_of("assistant", None if found.null_content else ""), "tool_calls": calls},
        *results,
    ]
