"""Chat templates: what Hugging Face's renderer offers, a sandbox, prefill, and refusals."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest

from server.errors import ContextOverflowError, InvalidRequestError, StartupError, TimeLimitError
from server.text.room import ANY, Room
from server.text.template import ChatTemplate, Message
from tests.templates import REASONING

HELLO: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
LLAMA_LIKE = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def render(source: str, messages: list[Message] | None = None) -> str:
    return ChatTemplate(source, bos="<s>", eos="</s>").render(HELLO if messages is None else messages)


def test_without_a_template_it_is_chatml():
    assert ChatTemplate(None).render(HELLO) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_bos_and_eos_are_the_models():
    assert render(LLAMA_LIKE) == "<s>[system]s</s>[user]hi</s>[assistant]"


def test_a_last_assistant_message_is_continued():
    begun: list[Message] = [*HELLO, {"role": "assistant", "content": "It is "}]
    assert ChatTemplate(None).render(begun).endswith("<|im_start|>assistant\nIt is ")
    assert render(LLAMA_LIKE, begun).endswith("</s>[assistant]It is ")


def test_begun_reply_stays_as_written():
    parts = [{"type": "text", "text": "It"}, {"type": "text", "text": "is "}]
    assert render(LLAMA_LIKE, [*HELLO, {"role": "assistant", "content": parts}]).endswith(
        "[assistant]It\nis "
    )


def test_begun_thoughts_are_continued():
    begun: list[Message] = [*HELLO, {"role": "assistant", "content": "", "reasoning_content": "They ask"}]
    assert render(REASONING, begun).endswith("assistant\n<think>\nThey ask")
    hidden = "<think>{% for m in messages %}{{ m.content }}{% endfor %}{{ '>' if add_generation_prompt }}"
    assert render(hidden, begun) == "<think>shi><think>They ask"
    assert render(hidden.replace("'>'", "'<think>'"), begun) == "<think>shi<think>They ask"


def test_dropped_beginning_follows_generation_prompt():
    source = (
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}|{{ add_generation_prompt }}"
    )
    assert render(source, [*HELLO, {"role": "assistant", "content": "x"}]) == "shi|Truex"


def test_user_may_write_prefill_mark():
    mark = "\ue000prefill\ue001"
    messages: list[Message] = [{"role": "user", "content": mark}, {"role": "assistant", "content": "ok"}]
    assert ChatTemplate(None).render(messages).startswith(f"<|im_start|>user\n{mark}<|im_end|>")
    assert ChatTemplate(None).render(messages).endswith("ok")


def test_blocks_leave_no_lines_behind():
    assert render("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}") == (
        "system\nuser\n"
    )


def test_tojson_escapes_no_html():
    assert render("{{ {'b': '<é>', 'a': 1} | tojson }}") == '{"b": "<é>", "a": 1}'
    assert render("{{ {'b': 'é', 'a': 1} | tojson(sort_keys=true, ensure_ascii=true) }}") == (
        '{"a": 1, "b": "\\u00e9"}'
    )
    assert render("{{ [1] | tojson(indent=1) }}{{ [1, 2] | tojson(separators=(',', ':')) }}") == (
        "[\n 1\n][1,2]"
    )


def test_expected_template_functions_exist():
    assert render("{{ tools is none and documents is none }}") == "True"
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == len("2000-01-01")
    assert render("{% for m in messages %}{% break %}{% endfor %}x") == "x"
    assert render("a{% generation %}b{{ 1 }}{% endgeneration %}c") == "ab1c"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.nothing.there }}",
        "{{ 1 // 0 }}",
        "{{ range(10 ** 9) | list }}",
        "{{ messages[9]['role'] }}",
        "{{ ''.__class__.__mro__ }}",
        r"{{ '\ud800' }}",
        "{{ messages.extend([1]) }}",
        "{{ messages[0].update(a=1) }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_refuses_the_messages(source: str):
    with pytest.raises(InvalidRequestError, match="template refuses") as caught:
        render(source)
    assert caught.value.status == 400
    assert caught.value.param == "messages"


def test_the_reason_of_a_refusal_is_told():
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


def test_non_jinja_template_fails_start():
    with pytest.raises(StartupError, match=r"line 2.*--chat-template-file"):
        ChatTemplate("\n{% if %}")


LOOPS = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOPS + "{% endfor %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(90) }}",
        "{{ range(9999) | map('string') | join | list | sort | batch(1) | map('list') | list }}"
        + LOOPS
        + "{% set x = a ~ b %}{% endfor %}{% endfor %}{% endfor %}",
    ],
)
def test_endless_template_is_stopped(source: str):
    with pytest.raises(TimeLimitError, match=r"0\.05 s"):
        ChatTemplate(source, room=replace(ANY, render_s=0.05)).render(HELLO)


DOUBLING = {
    "+": "{% set ns.x = ns.x + ns.x %}",
    "~": "{% set ns.x = ns.x ~ ns.x %}",
    "*": "{% set ns.x = 2 * ns.x %}",
    "block": "{% set x %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = x %}",
    "call": "{% set ns.x = ns.x.replace('a', 'aa') %}",
    "macro": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns.x = m(ns.x) %}",
    "list": "{% set ns.l = ns.l + ns.l %}",
    "tuple": "{% set ns.t = ns.t + ns.t %}",
    "bytes": "{% set ns.b = ns.b + ns.b %}",
    "once": "{% set ns.x = 'a' * 10 ** 12 %}",
}


@pytest.mark.parametrize("step", DOUBLING.values(), ids=DOUBLING)
def test_growing_template_is_stopped(step: str):
    source = (
        "{% set ns = namespace(x='a', l=[1], t=(1,), b='a'.encode()) %}{% for i in range(60) %}"
        + step
        + "{% endfor %}"
    )
    template = ChatTemplate(source + "{{ messages[0].content }}", room=Room(1000, 5))
    with pytest.raises(InvalidRequestError, match="more than 4194304 bytes"):
        template.render(HELLO)


WIDE = 600_000_000
PADDED = {
    "center": f"{{{{ 'a' | center({WIDE}) }}}}",
    "center, later": f"{{% for one in ['a'] | map('center', {WIDE}) %}}{{{{ one }}}}{{% endfor %}}",
    "center, named": f"{{{{ 'a' | center(width={WIDE}) }}}}",
    "indent": f"{{{{ 'a\nb' | indent({WIDE}, true) }}}}",
    "indent, often": "{{ ('a\n' * 1000000) | indent(600) }}",
    "tojson": f"{{{{ [1] | tojson(indent={WIDE}) }}}}",
    "format": f"{{{{ '%{WIDE}d' | format(1) }}}}",
    "%": f"{{{{ '%{WIDE}d' % 1 }}}}",
    "%, together": "{{ ('%4000000d' * 150) % ((1,) * 150) }}",
    "%, precision": f"{{{{ '%.{WIDE}f' % 1 }}}}",
    "%, star": f"{{{{ '%*d' % (-{WIDE}, 1) }}}}",
    "%, precision star": f"{{{{ '%5.*f' % ({WIDE}, 1) }}}}",
    "%, named": f"{{{{ '%(a(b))-{WIDE}d' % {{'a(b)': 1}} }}}}",
    "%, bytes": f"{{{{ ('%{WIDE}d'.encode()) % 1 }}}}",
    "str.format": f"{{{{ '{{:>{WIDE}}}'.format(1) }}}}",
    "str.format, nested": f"{{{{ '{{:{{}}}}'.format(1, '{WIDE}') }}}}",
    "str.format, together": "{{ ('{:4000000}' * 150).format(*range(150)) }}",
    "str.format, safe": f"{{{{ ('{{:>{WIDE}}}' | safe).format(1) }}}}",
    "str.format_map": f"{{{{ '{{a:>{WIDE}}}'.format_map({{'a': 1}}) }}}}",
    "ljust": f"{{{{ 'a'.ljust({WIDE}) }}}}",
    "rjust": f"{{{{ 'a'.rjust({WIDE}) }}}}",
    "zfill": f"{{{{ 'a'.zfill({WIDE}) }}}}",
    "str.center": f"{{{{ ('a' | safe).center({WIDE}) }}}}",
    "expandtabs": "{{ ('\t' * 1000).expandtabs(600000) }}",
    "bytes": f"{{{{ 'a'.encode().ljust({WIDE}) }}}}",
    "to_bytes": f"{{{{ (1).to_bytes({WIDE}, 'big') }}}}",
    "* of a tuple": f"{{{{ (1,) * {WIDE} }}}}",
}


@pytest.mark.parametrize("source", PADDED.values(), ids=PADDED)
def test_excessive_padding_is_refused(source: str):
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequestError, match="more than 4194304 bytes"):
            ChatTemplate(source, room=Room(1000, 5)).render(HELLO)
        assert tracemalloc.get_traced_memory()[1] < WIDE // 10
    finally:
        tracemalloc.stop()


def test_texts_are_padded_as_jinja_does_it():
    assert render("{{ 'a' | center(3) }}{{ 'a'.ljust(3) }}{{ 'a'.zfill(2) }}|") == " a a  0a|"
    assert render("{{ 'a\nb' | indent(2) }}{{ 'a\nb' | indent('> ', first=true) }}") == "a\n  b> a\n> b"
    assert render("{{ '%3d %s' % (1, 9999999) }}{{ '%3d %s' | format(1, 'x') }}") == "  1 9999999  1 x"
    assert render("{{ '**%d**' % 5000000000 }}{{ '%*d' % (3, 5) }}") == "**5000000000**  5"
    assert render("{{ '%(a)s 5000000000 of them' % {'a': 1} }}") == "1 5000000000 of them"
    assert (
        render("{{ '{:>3} {a}'.format(1, a=5000000000) }}{{ '{a}'.format_map({'a': 2}) }}")
        == "  1 50000000002"
    )
    assert render("{{ [1] | tojson(indent=2) }}") == "[\n  1\n]"


def test_joined_template_text_is_text():
    assert (
        render("{{ 'a' ~ 1 ~ messages | length ~ none }}{{ 'b' + 'c' * 2 }}{{ '%d' % 3 }}") == "a12Nonebcc3"
    )


def test_endless_template_fails_start():
    source = LOOPS + "{% endfor %}{% endfor %}{% endfor %}"
    with pytest.raises(StartupError, match=r"does not end.*--chat-template-file"):
        ChatTemplate(source, room=replace(ANY, render_s=0.05)).check()
    with pytest.raises(StartupError, match="does not end"):
        ChatTemplate("{{ messages }}", with_tools=source, room=replace(ANY, render_s=0.05)).check()
    ChatTemplate("{{ raise_exception('not alone') }}").check()


def test_overlong_rendering_stops_early():
    again = "{% for m in messages %}{% for a in range(9999) %}{{ m.content }}{% endfor %}{% endfor %}"
    with pytest.raises(ContextOverflowError, match="at least 10 tokens") as caught:
        ChatTemplate(again, room=Room(10, 5)).render(HELLO)
    assert caught.value.param == "messages"


def test_growing_template_fails_start():
    source = LOOPS + "{{ messages[0].content }}{% endfor %}{% endfor %}{% endfor %}"
    with pytest.raises(StartupError, match="does not end"):
        ChatTemplate(source, room=Room(10, 5)).check()
    with pytest.raises(ContextOverflowError):
        ChatTemplate(source, room=Room(10, 5)).render(HELLO)


def test_the_room_is_in_bytes():
    source, content = "{{ messages[0].content }}", "é" * 25
    ask = [{"role": "user", "content": content}]
    assert ChatTemplate(source, room=Room(11, 5)).render(ask) == content
    with pytest.raises(ContextOverflowError, match="at least 10 tokens"):
        ChatTemplate(source, room=Room(10, 5)).render(ask)


def test_stopped_template_renders_nothing():
    template = ChatTemplate(None)
    assert template.render(HELLO)
    template.stop()
    with pytest.raises(TimeLimitError):
        template.render(HELLO)
