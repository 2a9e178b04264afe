"""What messages become for a chat template that takes them in another form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from server.formats.families import LFM
from server.text.adapting import adapted
from server.text.capabilities import Capabilities
from server.text.template import ChatTemplate, Setting

CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
OTHER = {"id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}
SAID: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "So.", "tool_calls": [CALL, OTHER]},
    {"role": "tool", "tool_call_id": "call_1", "content": "one"},
    {"role": "tool", "tool_call_id": "call_2", "content": "two"},
]
THOUGHT = {"role": "assistant", "content": "So.", "reasoning_content": "Hm.", "tool_calls": [CALL]}


def roles(messages: Any) -> list[tuple[str, Any]]:
    return [(one["role"], one["content"]) for one in messages]


def test_fitting_messages_stay_unchanged():
    told: list[str] = []
    assert adapted(SAID, [TOOL], Capabilities(), told.append) == SAID
    assert not told


def test_arguments_as_objects_and_short_ids():
    told = adapted(SAID, [], Capabilities(object_arguments=True, short_ids=True))
    call = told[1]["tool_calls"][0]
    assert call["function"]["arguments"] == {"a": [1]}
    assert len(call["id"]) == 9
    assert call["id"] == told[2]["tool_call_id"]
    assert call["id"].isalnum()
    assert SAID[1]["tool_calls"][0] is CALL


def argued(arguments: str, capabilities: Capabilities) -> Any:
    """Return what the arguments of a call become."""
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    told = adapted([{"role": "assistant", "tool_calls": [call]}], [], capabilities)
    return told[0]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("arguments", ["", " \n", "null", " null "])
def test_no_arguments_are_an_empty_object(arguments: str):
    assert argued(arguments, Capabilities()) == "{}"
    assert argued(arguments, Capabilities(object_arguments=True)) == {}


@pytest.mark.parametrize(
    "arguments", ['{"city": "Par', "[1]", '"a"', "5", "none", '{"a": "\\ud800"}', "[" * 10_000]
)
def test_non_object_arguments_become_member(arguments: str):
    assert argued(arguments, Capabilities()) == arguments
    assert argued(arguments, Capabilities(object_arguments=True)) == {"arguments": arguments}


@pytest.mark.parametrize("id", ["functions.f:0", "0", "a1b2c3d4e", "call_1"])
def test_ids_return_as_written(id: str):
    said = [{**SAID[1], "tool_calls": [{**CALL, "id": id}]}, {**SAID[2], "tool_call_id": id}]
    told = adapted(said, [], Capabilities(object_arguments=True, null_content=True, drops_content=True))
    assert [told[-2]["tool_calls"][0]["id"], told[-1]["tool_call_id"]] == [id, id]


@pytest.mark.parametrize("system", [True, False])
def test_tools_in_words(system: bool):
    capabilities = Capabilities(tools=False, calls=False, results=False, system=system, repeated_roles=False)
    told = adapted(SAID, [TOOL], capabilities)
    assert json.dumps(TOOL) in told[0]["content"]
    assert [one["role"] for one in told] == ["system"] * system + ["user", "assistant", "user"]
    first, second = (
        f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
        for name, arguments in (("f", '{"a": [1]}'), ("g", "{}"))
    )
    assert told[-2]["content"] == f"So.\n{first}\n{second}"
    assert told[-1]["content"] == (
        "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"
    )


def test_hidden_calls_are_written_out():
    capabilities = Capabilities(calls=False, tools=False, syntax=LFM)
    told = adapted(SAID, [TOOL], capabilities)
    assert told[2]["content"] == "So.\n<|tool_call_start|>[f(a=[1]), g()]<|tool_call_end|>"
    assert "<|tool_call_start|>[<function-name>(" in told[0]["content"]
    assert "<tool_call>" not in told[0]["content"]
    assert told[3:] == SAID[2:]


def test_results_stay_where_shown():
    told = adapted(SAID, [], Capabilities(calls=False))
    assert "tool_calls" not in told[1]
    assert told[2:] == SAID[2:]


def test_tools_follow_a_system_prompt():
    told = adapted([{"role": "system", "content": "Be brief."}, *SAID], [TOOL], Capabilities(tools=False))
    assert told[0]["content"].startswith("Be brief.\n\n# Tools")
    assert len(told) == 5


def test_calls_are_shown_singly():
    told = adapted([*SAID[:2], SAID[3], SAID[2]], [], Capabilities(several_calls=False))
    shown = [
        (one["role"], [c["id"] for c in one.get("tool_calls", ())] or one["content"]) for one in told[1:]
    ]
    assert shown == [
        ("assistant", ["call_2"]),
        ("tool", "two"),
        ("assistant", ["call_1"]),
        ("tool", "one"),
    ]
    assert [one["content"] for one in told[1:] if one["role"] == "assistant"] == ["", "So."]


def test_calls_without_results_stay_in_the_history():
    told = adapted([*SAID[:2], {"role": "user", "content": "?"}], [], Capabilities(several_calls=False))
    assert [len(one.get("tool_calls", ())) for one in told] == [0, 1, 1, 0]


def test_hiding_content_becomes_own_message():
    told = adapted(SAID, [], Capabilities(null_content=True, drops_content=True))
    assert roles(told)[:3] == [("user", "q"), ("assistant", "So."), ("assistant", None)]
    assert len(told[2]["tool_calls"]) == 2
    assert roles(adapted([{**SAID[1], "content": ""}], [], Capabilities(null_content=True))) == [
        ("assistant", None)
    ]


def test_thoughts_are_told_under_all_their_names():
    told = adapted([THOUGHT], [], Capabilities())
    assert (told[0]["reasoning_content"], told[0]["thinking"], told[0]["content"]) == ("Hm.", "Hm.", "So.")
    told = adapted([THOUGHT], [], Capabilities(drops_content_after_thoughts=True))
    assert (told[0]["thinking"], told[0]["content"]) == ("Hm.\n\nSo.", "")
    [bare] = adapted([THOUGHT], [], Capabilities(drops_content_after_thoughts=True, drops_thoughts=True))
    assert (bare.get("thinking"), bare["content"]) == (None, "So.")
    told = adapted([THOUGHT], [], Capabilities(thought_parts=True))
    assert told[0]["content"] == [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}]


def test_parts_join_by_line_breaks():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    said = [{"role": "user", "content": parts}, {"role": "assistant", "content": parts}]
    assert roles(adapted(said, [], Capabilities(part_roles=frozenset({"user"})))) == [
        ("user", parts),
        ("assistant", "one\ntwo"),
    ]


def test_roles_that_a_template_does_not_know():
    said = [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": "e"},
    ]
    assert adapted(said, [], Capabilities(developer=True)) == said
    assert roles(adapted(said, [], Capabilities()))[0] == ("system", "d")
    assert roles(adapted(said, [], Capabilities(later_roles=frozenset())))[4] == ("user", "s")
    assert roles(
        adapted(said, [], Capabilities(system=False, later_roles=frozenset(), repeated_roles=False))
    ) == [
        ("user", "d\n\na\n\nb"),
        ("assistant", "c"),
        ("user", "s\n\ne"),
    ]


def test_adaptation_is_logged_once(caplog: pytest.LogCaptureFixture):
    template = ChatTemplate(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    caplog.set_level("INFO", "duo.text")
    for _ in range(2):
        template.render([{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])
    assert [one.getMessage() for one in caplog.records] == [
        "the model's chat template takes no system messages, or only a first one: others become user messages"
    ]


def test_variables_never_replace_own_ones():
    template = ChatTemplate("{{ effort }}{{ messages[0].content }}{{ add_generation_prompt }}")
    setting = Setting((), {"effort": "high ", "messages": [], "add_generation_prompt": "?"})
    assert template.render([{"role": "user", "content": "q"}], setting) == "high qTrue"


def test_required_reply_precedes_the_user():
    follower = {"role": "user", "content": "And now?"}
    told: list[str] = []
    assert roles(
        adapted(
            [*SAID, follower], [], Capabilities(repeated_roles=False, user_after_result=False), told.append
        )
    ) == [
        ("user", "q"),
        ("assistant", "So."),
        ("tool", "one"),
        ("tool", "two"),
        ("assistant", "OK."),
        ("user", "And now?"),
    ]
    assert len(told) == 1
    template = ChatTemplate(ALTERNATING)
    assert not template.capabilities.user_after_result
    assert "And now?" in template.render([*SAID, follower])


ALTERNATING = """\
{%- set ns = namespace(n=0) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) -%}
        {%- if (m.role == 'user') != (ns.n % 2 == 0) -%}{{- raise_exception('alternate') -}}{%- endif -%}
        {%- set ns.n = ns.n + 1 -%}
    {%- endif -%}
    {{- m.role + ': ' + m.content -}}
    {%- for c in m.tool_calls or [] -%}{{- c.function.name + c.function.arguments -}}{%- endfor -%}
{%- endfor -%}
"""


def test_missing_ids_follow_call_order():
    calls = [{**one, "id": ""} for one in SAID[1]["tool_calls"]]
    results = [{"role": "tool", "content": text} for text in ("one", "two", "three")]
    told = adapted([{**SAID[1], "tool_calls": calls}, *results], [], Capabilities(optional_ids=False))
    ids = [call["id"] for call in told[0]["tool_calls"]]
    assert len(set(ids)) == 2
    assert [one["tool_call_id"] for one in told[1:3]] == ids
    assert adapted(results[:1], [], Capabilities(optional_ids=False))[0]["tool_call_id"]
    assert "tool_call_id" not in adapted(results[:1], [], Capabilities())[0]
