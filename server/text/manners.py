"""In which forms a chat template takes messages: found by rendering small conversations. Pure.

Templates say nowhere what they were made for. So each question is a conversation with marks in it, and the
answer is whether the prompt shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from server.formats.description import Calls
from server.formats.families import JSON_IN_TAGS

Message: TypeAlias = Mapping[str, Any]
Tool: TypeAlias = Mapping[str, Any]
Render: TypeAlias = Callable[[Sequence[Message], Sequence[Tool] | None], str | None]
"""The prompt of these messages and tools, as they are; None if the template refuses them."""

THOUGHT_FIELDS = ("reasoning_content", "thinking")
"""What templates call the thoughts of an earlier reply."""


@dataclass(frozen=True, slots=True)
class Manners:
    """What a template takes, and in which form."""

    no_tools: Sequence[Tool] | None = None  # what stands for having none
    tools: bool = True  # it shows tools
    described: bool = False  # tools and their parameters must have a description
    calls: bool = True  # it shows calls
    results: bool = True  # it shows results of calls
    objects: bool = False  # arguments are objects, not JSON text
    several: bool = True  # a message may have more than one call
    short_ids: bool = False  # ids of calls are nine letters or digits
    null: bool = False  # what stands for no content beside calls is null
    bare: bool = False  # calls have no content beside them
    alone: bool = False  # calls have no content beside them if there are thoughts
    unanswered: bool = True  # the user may follow a call without a result
    orphans: bool = True  # results may stand without a call
    followed: bool = True  # the user may follow a result
    parts: frozenset[str] = frozenset()  # roles whose content may be a list
    thought_parts: bool = False  # thoughts are a part of such a list
    system: bool = True  # it shows a system message at the beginning
    developer: bool = False  # it shows a developer message at the beginning
    joined: bool = False  # it shows only one of such messages at the beginning
    later: frozenset[str] = frozenset(("system",))  # which of these two roles it also shows later, in place
    repeated: bool = True  # messages of one role may follow each other
    begins: bool = True  # the assistant may begin
    empty: bool = True  # an assistant's message may have no content
    syntax: Calls = JSON_IN_TAGS  # how the model writes calls


ONE, OTHER = "probe-one", "probe-other"
_EARLIER = ("probe-first", "probe-second", "probe-third")
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
"""What shows that a list of parts was written as data."""


def manners_of(render: Render, source: str, told: Manners) -> Manners:
    """source: the template's text, which says the roles that it knows. told: what it also tells."""
    found = replace(told, no_tools=() if render([_USER], None) is None else None)
    probe = _Probe(lambda messages, tools: render(messages, tools or found.no_tools), source)
    if not probe.shows([_said("user", ONE)], ONE):
        return found  # one that shows nothing at all, or refuses it, tells nothing
    return probe.of_thoughts(probe.of_parts(probe.of_calls(probe.of_roles(found))))


@dataclass(frozen=True, slots=True)
class _Probe:
    render: Render
    source: str

    def shows(self, messages: Sequence[Message], *marks: str, tools: Sequence[Tool] = ()) -> bool:
        """Whether the marks are in the prompt, in this order, and none of it is data."""
        return _shown(self.render(messages, tools), *marks)

    def knows(self, role: str) -> bool:
        """Many write any role as it comes, which says nothing of the model."""
        return any(f"{quote}{role}{quote}" in self.source for quote in ("'", '"'))

    def of_roles(self, found: Manners) -> Manners:
        first, second = _said("user", ONE), _said("user", OTHER)
        empty = [_USER, _said("assistant", ""), first]
        return replace(
            self._of_instructions(found),
            repeated=self.shows([first, second, _ASSISTANT, _USER], ONE, OTHER),
            begins=self.shows([_said("assistant", ONE), second], ONE, OTHER),
            empty=self.shows(empty, ONE),
            tools=_in_order(self.render([_USER], [_TOOL]), "probed"),
            described=self.render([_USER], [_BARE_TOOL]) is None
            and self.render([_USER], described([_BARE_TOOL])) is not None,
        )

    def _of_instructions(self, found: Manners) -> Manners:
        """How system and developer messages are shown: alone, together, and later."""
        system = self._shows_with_tools([_said("system", ONE), _USER], ONE)
        developer = self.knows("developer") and self._shows_with_tools([_said("developer", ONE), _USER], ONE)
        known = [role for role, shown in (("system", system), ("developer", developer)) if shown]
        pairs = ([_said(one, ONE), _said(other, OTHER), _USER] for one in known for other in known)
        return replace(
            found,
            system=system,
            developer=developer,
            joined=not all(self._shows_with_tools(pair, ONE, OTHER) for pair in pairs),
            later=frozenset(role for role in known if self._shows_later(role)),
        )

    def _shows_with_tools(self, messages: Sequence[Message], *marks: str) -> bool:
        """Whether it shows the marks without tools, and with them if it takes any."""
        beside = self.render([_USER], [_TOOL]) is not None
        return self.shows(messages, *marks) and (not beside or self.shows(messages, *marks, tools=[_TOOL]))

    def _shows_later(self, role: str) -> bool:
        """Whether it shows messages of this role where they stand, wherever that is, and what was before."""
        system, user, assistant = map(_said, ("system", "user", "assistant"), _EARLIER)
        told, last = _said(role, ONE), _said("user", OTHER)
        first, asked, said = _EARLIER
        return (
            self.shows([system, user, assistant, told, last], *_EARLIER, ONE, OTHER)
            and self.shows([user, assistant, told, last], asked, said, ONE, OTHER)
            and self.shows([system, user, told, assistant, last], first, asked, ONE, said, OTHER)
            and self.shows([system, user, assistant, last, told], *_EARLIER, OTHER, ONE)
        )

    def of_calls(self, found: Manners) -> Manners:
        """Objects are what most templates are made for. Where both forms look alike, the text is taken, since
        it shows what the model wrote."""
        for null in (False, True):
            asked = replace(found, null=null)
            as_text = self.render(_called(asked, _TEXT), [_TOOL])
            as_object = self.render(_called(asked, _OBJECT), [_TOOL])
            shows_text = _in_order(as_text, ONE, _TEXT)
            shows_object = _in_order(as_object, ONE, *_OBJECT, *_OBJECT.values()) and not _python(as_object)
            if shows_text or shows_object:
                return self._of_results(
                    replace(asked, objects=shows_object and not (shows_text and as_text == as_object))
                )
        result = {**_said("tool", ONE), "tool_call_id": "a12345678"}
        known = (found.tools or self.knows("tool")) and self.shows([_USER, _ASSISTANT, result], ONE)
        return replace(found, calls=False, results=known)

    def _of_results(self, found: Manners) -> Manners:
        arguments = _nothing(found)
        calling, beside = _called(found, arguments), {"content": "."}
        thoughtful = [{**_thinking(one), **beside} if "tool_calls" in one else one for one in calling]
        asking, asked = [*calling, _said("user", OTHER)], _said("user", OTHER)
        orphan: Message = {**calling[-1], "content": ONE}
        orphans = ([_USER, _ASSISTANT, orphan, asked], [orphan, asked])
        followed = found.repeated or self.render(asking, [_TOOL]) is not None
        return replace(
            found,
            followed=followed,
            orphans=followed and all(_in_order(self.render(one, [_TOOL]), ONE, OTHER) for one in orphans),
            unanswered=_in_order(self.render([*calling[:2], asked], [_TOOL]), ONE, OTHER),
            results=_in_order(self.render(_called(found, arguments, content=OTHER), [_TOOL]), OTHER),
            several=_in_order(self.render(_called(found, arguments, arguments), [_TOOL]), ONE, OTHER),
            bare=not self._shows_beside(found),
            alone=self.render(thoughtful, [_TOOL]) is None,
        )

    def _shows_beside(self, found: Manners) -> bool:
        """Whether it shows content before the calls of its message, and goes on as it does without it."""
        calling = _called(found, _nothing(found), content=OTHER)
        saying = [{**one, "content": _EARLIER[0]} if "tool_calls" in one else one for one in calling]
        without, text = self.render(calling, [_TOOL]), self.render(saying, [_TOOL])
        if without is None or text is None or not _in_order(text, _EARLIER[0], ONE):
            return False
        return text.rpartition(OTHER)[2] == without.rpartition(OTHER)[2]

    def of_parts(self, found: Manners) -> Manners:
        nothing = _nothing(found)
        beside = [
            {**one, "content": _PARTS} if "tool_calls" in one else one for one in _called(found, nothing)
        ]
        calling = [beside] * (found.calls and not found.bare)
        histories = {
            "system": [[_said("system", _PARTS), _USER]],
            "user": [[_said("user", _PARTS), _ASSISTANT, _USER]],
            "assistant": [[_USER, _said("assistant", _PARTS), _USER], *calling],
            "tool": [_called(found, nothing, content=_PARTS)],
        }
        taken = (role for role, of in histories.items() if all(self.shows(one, ONE, OTHER) for one in of))
        return replace(found, parts=frozenset(taken))

    def of_thoughts(self, found: Manners) -> Manners:
        """Parts are tried where the template has no field for thoughts."""
        calling = _called(found, _nothing(found))
        calling[1] = _thinking(calling[1], "probe-thought")
        if any(
            self.shows(history, "probe-thought")
            for history in ([_USER, _thinking(_ASSISTANT, "probe-thought")], calling)
        ):
            return found
        history = [_USER, _said("assistant", _THOUGHT_PARTS), _USER]
        return replace(found, thought_parts=self.shows(history, ONE, OTHER))


def described(tools: Sequence[Tool]) -> list[Tool]:
    """The tools, with an empty description where they or their parameters have none."""
    return [{**tool, "function": _with_one(_described(tool["function"]))} for tool in tools]


def _described(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function["parameters"]
    if not isinstance(properties := parameters.get("properties"), Mapping):
        return dict(function)
    told = {key: _with_one(one) for key, one in cast(Mapping[str, Any], properties).items()}
    return {**function, "parameters": {**parameters, "properties": told}}


def _with_one(schema: Any) -> Any:
    """Where it has one already, its place stays: templates write objects in their order."""
    if not isinstance(schema, Mapping):
        return schema
    known = cast(Mapping[str, Any], schema)
    return {**known, "description": known.get("description", "")}


def _shown(prompt: str | None, *marks: str) -> bool:
    return _in_order(prompt, *marks) and not any(sign in str(prompt) for sign in _DATA)


def _python(prompt: str | None) -> bool:
    """Whether it shows the object as Python would write it."""
    return str(_OBJECT) in str(prompt)


def _in_order(prompt: str | None, *marks: str) -> bool:
    at = 0
    for mark in marks:
        at = (prompt or "").find(mark, at)
        if at < 0:
            return False
    return prompt is not None


def _said(role: str, content: Any) -> Message:
    return {"role": role, "content": content}


def _thinking(message: Message, thought: str = ".") -> Message:
    return {**message, **dict.fromkeys(THOUGHT_FIELDS, thought)}


def _nothing(found: Manners) -> Any:
    return {} if found.objects else "{}"


def _called(found: Manners, *arguments: Any, content: Any = "!") -> list[Message]:
    """A history with a call for each of these arguments, all answered with this content."""
    calls = [
        {"id": f"a1234567{n}", "type": "function", "function": {"name": name, "arguments": given}}
        for n, (name, given) in enumerate(zip((ONE, OTHER), arguments, strict=False))
    ]
    results = [{**_said("tool", content), "tool_call_id": call["id"]} for call in calls]
    return [_USER, {**_said("assistant", None if found.null else ""), "tool_calls": calls}, *results]
