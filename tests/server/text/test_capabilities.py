"""The forms in which a template takes messages are found by trying.

Conversations that need another form are still rendered whole.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.text.capabilities import described
from server.text.template import CHATML, ChatTemplate, Message, Setting
from tests import templates

LOOP = "{% for m in messages %}"
END = "{% endfor %}"


def capabilities(source: str) -> Any:
    return ChatTemplate(source).capabilities


def test_known_templates_keep_their_forms():
    kinds = [CHATML, templates.THINKING, templates.LLAMA3_TOOLS, templates.MISTRAL, templates.REASONING]
    found = [capabilities(source) for source in kinds]
    assert [one.tools for one in found] == [False, False, True, True, False]
    assert [one.calls for one in found] == [False, True, True, True, True]
    assert [one.object_arguments for one in found] == [False, True, True, True, False]
    assert [one.several_calls for one in found] == [True, True, False, True, True]
    assert [one.short_ids for one in found] == [False, False, False, True, False]
    drops = [one.null_content or one.drops_content_after_thoughts for one in found]
    assert not any(drops)
    assert not any(one.part_roles or one.thought_parts for one in found)
    assert all(one.system and one.later_roles and one.repeated_roles for one in found)


def test_a_template_that_shows_nothing_tells_nothing():
    assert capabilities("{{ messages | length }}").system
    assert capabilities("{{ raise_exception('never') }}").calls


WRITTEN = LOOP + "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
ARGUMENTS = {
    "{{ c.function.arguments }}": False,
    "{{ c.function.arguments | tojson }}": True,
    "{% set a = c.function.arguments %}{{ a if a is string else a | tojson }}": False,
    "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}": True,
    "{% if c.function.arguments is mapping %}{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}"
    "{% endfor %}{% else %}{{ c.function.arguments }}{% endif %}": True,
}


@pytest.mark.parametrize(("shown", "objects"), ARGUMENTS.items())
def test_arguments_are_objects_where_needed(shown: str, objects: bool):
    found = capabilities(WRITTEN + shown + END + END)
    assert (found.calls, found.object_arguments) == (True, objects)


def test_null_content_beside_calls():
    source = (
        LOOP + "{% if m.content is none %}{% set f = m.tool_calls[0].function %}{{ f.name }}{{ f.arguments }}"
        "{% else %}{{ m.role }}: {{ m.content }}{% endif %}" + END
    )
    assert (capabilities(source).null_content, capabilities(source).drops_content) == (True, True)


def test_template_without_no_tools_word():
    source = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + LOOP + "{{ m.content }}" + END
    assert capabilities(source).no_tools == ()
    assert ChatTemplate(source).render([{"role": "user", "content": "q"}]) == "q"


PARTS = (
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
)


def test_missing_descriptions_are_added():
    source = (
        "{% for t in tools or [] %}{% set f = t.function %}{{ f.name + ': ' + f.description }}"
        "{% for k, p in f.parameters.properties.items() %}{{ k + '=' + p.description }}{% endfor %}"
        "{% endfor %}" + LOOP + "{{ m.role }}: {{ m.content }}" + END
    )
    schema = {"type": "object", "properties": {"x": {"type": "string"}, "y": {"description": "why"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert capabilities(source).needs_descriptions
    assert not capabilities(CHATML).needs_descriptions
    prompt = ChatTemplate(source).render([{"role": "user", "content": "Hi"}], Setting([tool]))
    assert prompt.startswith("f: x=y=why")


def test_existing_description_keeps_place():
    function = {
        "name": "f",
        "description": "why",
        "parameters": {"properties": {"x": {"type": "t", "description": "x"}}},
    }
    assert json.dumps(described([{"type": "function", "function": function}])[0]["function"]) == json.dumps(
        function
    )


def test_lists_are_taken_by_role():
    user_only = "{% if m.role == 'user' %}" + PARTS + "{% else %}{{ m.content }}{% endif %}"
    user_only = LOOP + user_only + END
    assert capabilities(user_only).part_roles == {"user"}
    assert capabilities(LOOP + "{{ m.content | tojson }}" + END).part_roles == frozenset()


def test_thoughts_go_to_field_or_part():
    field = LOOP + "{{ m.thinking }}{{ m.content }}" + END
    assert not capabilities(field).thought_parts
    told: list[Message] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "reasoning_content": "t"},
        {"role": "user", "content": "r"},
    ]
    assert ChatTemplate(field).render(told) == "qtar"
    part = LOOP + PARTS.replace("p.text", "'<' + p.thinking + '>' if p.type == 'thinking' else p.text") + END
    assert capabilities(part).thought_parts
    assert ChatTemplate(part).render(told) == "q<t>ar"


def test_ids_queue_in_template_list():
    """Kimi's templates do this; the immutable sandbox would refuse every history with calls."""
    source = (
        "{% set ns = namespace(ids=[]) %}" + LOOP + "{{ m.role }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments }}"
        "{% set _ = ns.ids.append('functions.' ~ c.function.name) %}{% endfor %}"
        "{% if m.role == 'tool' %}{{ ns.ids.pop(0) }}{% endif %}{{ m.content }};" + END
    )
    call: dict[str, Any] = {"id": "1", "function": {"name": "f", "arguments": "{}"}}
    said: list[Message] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    assert ChatTemplate(source).render(said) == "userq;assistantf{};toolfunctions.fr;"


def test_template_changes_stay_local():
    said: list[Message] = [{"role": "user", "content": "q"}, {"role": "user", "content": "r"}]
    tools: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"required": ["a"]}}}]
    source = "{{ messages.pop().content }}{{ tools[0].function.parameters.required.append('b') }}"
    assert ChatTemplate(source).render(said, Setting(tools)).startswith("r")
    assert len(said) == 2
    assert tools[0]["function"]["parameters"]["required"] == ["a"]


def test_thinking_and_date_have_defaults():
    source = LOOP + "{{ m.content }}" + END + "{{ enable_thinking }} {{ date_string }}"
    said: list[Message] = [{"role": "user", "content": "q"}]
    assert ChatTemplate(source).render(said).startswith("qTrue ")
    assert len(ChatTemplate(source).render(said)) == len("qTrue 26 Jul 2024")
    setting = Setting((), {"enable_thinking": False, "date_string": "today"})
    assert ChatTemplate(source).render(said, setting) == "qFalse today"


def test_functions_may_be_text():
    """firefunction's template takes them so."""
    source = LOOP + "{{ m.content }}" + END + "{{ functions }}"
    said: list[Message] = [{"role": "user", "content": "q"}]
    tool = {"type": "function", "function": {"name": "f"}}
    assert ChatTemplate(source).render(said) == "q[]"
    assert ChatTemplate(source).render(said, Setting([tool])) == 'q[\n    {\n        "name": "f"\n    }\n]'
    assert ChatTemplate(source).render(said, Setting([tool], {"functions": "none"})) == "qnone"


def test_mentioned_functions_are_no_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("server.text.template.json", None)
    said: list[Message] = [{"role": "user", "content": "q"}]
    template = ChatTemplate("Call functions. " + LOOP + "{{ m.content }}" + END)
    assert template.render(said) == "Call functions. q"


def test_tool_template_serves_tool_chats():
    plain, other = LOOP + "{{ m.content }}" + END, LOOP + "{{ m.role }} {{ m.content }}" + END
    template = ChatTemplate(plain, with_tools=other + "<tool_call>{{ tools }}")
    said: list[Message] = [{"role": "user", "content": "q"}]
    tool = {"type": "function", "function": {"name": "f"}}
    assert template.render(said) == "q"
    assert template.render(said, Setting([tool])).startswith("user q<tool_call>")
    assert template.source == plain
