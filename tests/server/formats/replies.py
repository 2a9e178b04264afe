"""Made-up replies of all families: a call of f with a = 1, and then one of g with s and b as well."""

# ruff: noqa: RUF001 - DeepSeek's marks have wide signs
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from server.formats.families import FAMILIES
from server.text.reply_format import ReplyFormat

FUNCTIONS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "g": {
        "type": "object",
        "properties": {"s": {"type": "string"}, "b": {"type": "boolean"}},
        "required": ["s"],
        "additionalProperties": False,
    },
}
TEXT = 'it\'s <b>\n"1"'
F, G = '{"a": 1}', '{"s": "it\'s <b>\\n\\"1\\"", "b": true}'


@dataclass(frozen=True)
class Reply:
    """How a family writes a call of f (`one`), and that beside a call of g (`two`).

    headed: as in ReplyFormat.
    """

    family: str
    one: str
    two: str
    headed: bool = True

    @property
    def form(self) -> ReplyFormat:
        family = next(family for family in FAMILIES if family.name == self.family)
        return ReplyFormat(
            family.thoughts,
            calls=family.calls,
            functions=FUNCTIONS,
            channels=family.channels,
            headed=self.headed,
            drops=family.drops,
        )


def _object(name: str, arguments: str, key: str = "arguments") -> str:
    return f'{{"name": "{name}", "{key}": {arguments}}}'


def _around(family: str, begin: str, calls: Sequence[str], end: str, between: str = "") -> Reply:
    return Reply(family, begin + calls[0] + end, begin + between.join(calls) + end)


def _listed(family: str, begin: str, end: str, between: str = ", ") -> Reply:
    return _around(family, begin, (_object("f", F), _object("g", G)), end, between)


def _tagged(key: str, value: str, end: str, *, true: str = "true") -> tuple[str, str]:
    """Return the parameters of f and of g."""

    def one(name: str, text: str) -> str:
        return f"{key.replace('K', name)}{value}{text}{end}"

    return one("a", "1"), one("s", TEXT) + one("b", true)


def _in_function_tags(family: str, open: str, close: str, line: str) -> Reply:
    f, g = _tagged("<parameter=K>", line, f"{line}</parameter>\n")
    one, two = (
        f"{open}\n<function={name}>\n{inner}</function>\n{close}" for name, inner in (("f", f), ("g", g))
    )
    return Reply(family, one, f"{one}\n{two}")


def _in_arg_tags(family: str, line: str) -> Reply:
    f, g = _tagged("<arg_key>K</arg_key>", f"{line}<arg_value>", f"</arg_value>{line}")
    one, two = f"<tool_call>f{line}{f}</tool_call>", f"<tool_call>g{line}{g}</tool_call>"
    return Reply(family, one, one + line + two)


def _dsml(family: str, section: str) -> Reply:
    head, end = "<｜DSML｜parameter name=", "</｜DSML｜parameter>\n"
    f = f'{head}"a" string="false">1{end}'
    g = f'{head}"s" string="true">{TEXT}{end}{head}"b" string="false">true{end}'
    one, two = (f'<｜DSML｜invoke name="{n}">\n{inner}</｜DSML｜invoke>' for n, inner in (("f", f), ("g", g)))
    return _around(family, f"<｜DSML｜{section}>\n", (one, two), f"\n</｜DSML｜{section}>", "\n")


def _invoked(prefix: str, name: str) -> str:
    head = f'<{prefix}parameter name="K">'
    f, g = _tagged(head, "", f"</{prefix}parameter>\n")
    return f'<{prefix}invoke name="{name}">\n{f if name == "f" else g}</{prefix}invoke>'


def _kimi(name: str, arguments: str, nth: int) -> str:
    begin, middle = "<|tool_call_begin|>", "<|tool_call_argument_begin|>"
    return f"{begin}functions.{name}:{nth}{middle}{arguments}<|tool_call_end|>"


def _k3(name: str, nth: int, *parameters: tuple[str, str, str]) -> str:
    inner = "".join(
        f'<|open|>argument key="{key}" type="{kind}"<|sep|>{value}<|close|>argument<|sep|>'
        for key, kind, value in parameters
    )
    return f'<|open|>call tool="{name}" index="{nth}"<|sep|>{inner}<|close|>call<|sep|>'


def _m3(name: str, *parameters: tuple[str, str]) -> str:
    mark = "]<]minimax[>["
    inner = "".join(f"{mark}<{key}>{value}{mark}</{key}>" for key, value in parameters)
    return f'{mark}<invoke name="{name}">{inner}{mark}</invoke>'


def _hunyuan(name: str, *parameters: tuple[str, str]) -> str:
    inner = "".join(
        f"<arg_key:opensource>{key}</arg_key:opensource>\n<arg_value:opensource>{value}</arg_value:opensource>\n"
        for key, value in parameters
    )
    return f"<tool_call:opensource>{name}<tool_sep:opensource>\n{inner}</tool_call:opensource>"


def _solar(id: str, name: str, arguments: str) -> str:
    return f"<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}<|tool_call:end|>"


_ATEM = "<atem:function_calls>\n{}\n</atem:function_calls>"
_GEMMA = "<|tool_call>call:f{a:1}<tool_call|>"
_TIMES = f"functions.f<|channel|>commentary json<|message|>{F}"

REPLIES = (
    Reply("harmony", f" to={_TIMES}", f" to={_TIMES}<|call|><|start|>assistant to={_TIMES}", headed=False),
    Reply(
        "muse",
        " to=f<|message|>" + _ATEM.format(_invoked("atem:", "f")),
        " to=f<|message|>"
        + _ATEM.format(_invoked("atem:", "f"))
        + "<|eom|><|start|>assistant to=g<|message|>"
        + _ATEM.format(_invoked("atem:", "g")),
        headed=False,
    ),
    Reply("functionary 3.2", f"f\n{F}", f"f\n{F}>>>g\n{G}", headed=False),
    _around(
        "kimi k3",
        "<|open|>tools<|sep|>",
        (_k3("f", 1, ("a", "number", "1")), _k3("g", 2, ("s", "string", TEXT), ("b", "boolean", "true"))),
        "<|close|>tools<|sep|>",
    ),
    _around(
        "kimi k2",
        "<|tool_calls_section_begin|>",
        (_kimi("f", F, 0), _kimi("g", G, 1)),
        "<|tool_calls_section_end|>",
    ),
    Reply("gemma 4", _GEMMA, f'{_GEMMA}<|tool_call>call:g{{b:true,s:<|"|>{TEXT}<|"|>}}<tool_call|>'),
    _dsml("deepseek v3.2", "function_calls"),
    _dsml("deepseek v4", "tool_calls"),
    _around(
        "deepseek r1",
        "<｜tool▁calls▁begin｜>",
        [
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
            for name, arguments in (("f", F), ("g", G))
        ],
        "<｜tool▁calls▁end｜>",
        "\n",
    ),
    _around(
        "deepseek v3.1",
        "<｜tool▁calls▁begin｜>",
        [
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>"
            for name, arguments in (("f", F), ("g", G))
        ],
        "<｜tool▁calls▁end｜>",
    ),
    _around(
        "minimax m3",
        "]<]minimax[>[<tool_call>\n",
        (_m3("f", ("a", "1")), _m3("g", ("s", TEXT), ("b", "true"))),
        "\n]<]minimax[>[</tool_call>",
        "\n",
    ),
    _around(
        "minimax m2",
        "<minimax:tool_call>\n",
        (_invoked("", "f"), _invoked("", "g")),
        "\n</minimax:tool_call>",
        "\n",
    ),
    _listed("minimax m1", "<tool_calls>\n", "\n</tool_calls>", "\n"),
    _in_function_tags("seed", "<seed:tool_call>", "</seed:tool_call>", ""),
    _in_function_tags("function tags", "<tool_call>", "</tool_call>", "\n"),
    _around(
        "hunyuan",
        "<tool_calls:opensource>\n",
        (_hunyuan("f", ("a", "1")), _hunyuan("g", ("s", TEXT), ("b", "true"))),
        "\n</tool_calls:opensource>",
        "\n",
    ),
    _in_arg_tags("glm 4.7", ""),
    _in_arg_tags("glm", "\n"),
    Reply(
        "minicpm 5",
        '<function name="f"><param name="a">1</param></function>',
        '<function name="f"><param name="a">1</param></function>\n'
        f'<function name="g"><param name="s">{TEXT}</param><param name="b">true</param></function>',
    ),
    _around(
        "lfm",
        "<|tool_call_start|>[",
        ("f(a=1)", 'g(s="it\'s <b>\\n\\"1\\"", b=True)'),
        "]<|tool_call_end|>",
        ", ",
    ),
    _around("apertus", "<|tools_prefix|>[", (f'{{"f": {F}}}', f'{{"g": {G}}}'), "]<|tools_suffix|>", ", "),
    _around(
        "solar open",
        "<|tool_calls|>",
        (_solar("a12345678", "f", F), _solar("b12345678", "g", G)),
        "<|calls|>",
    ),
    _around(
        "command a",
        "<|START_ACTION|>[\n    ",
        (
            f'{{"tool_call_id": "0", "tool_name": "f", "parameters": {F}}}',
            f'{{"tool_call_id": "1", "tool_name": "g", "parameters": {G}}}',
        ),
        "\n]<|END_ACTION|>",
        ",\n    ",
    ),
    _around(
        "command r+",
        "Action:\n```json\n[\n    ",
        (f'{{"tool_name": "f", "parameters": {F}}}', f'{{"tool_name": "g", "parameters": {G}}}'),
        "\n]\n```",
        ",\n    ",
    ),
    Reply(
        "mistral 3.2",
        f"[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{F}",
        f"[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{F}[TOOL_CALLS]g[CALL_ID]abcdefgh2[ARGS]{G}",
    ),
    Reply("mistral", f"[TOOL_CALLS]f[ARGS]{F}", f"[TOOL_CALLS]f[ARGS]{F}[TOOL_CALLS]g[ARGS]{G}"),
    _around(
        "mistral lists",
        "[TOOL_CALLS][",
        (
            f'{{"name": "f", "arguments": {F}, "id": "abcdefgh1"}}',
            f'{{"name": "g", "arguments": {G}, "id": "abcdefgh2"}}',
        ),
        "]",
        ", ",
    ),
    _listed("nemotron 2", "<TOOLCALL>[", "]</TOOLCALL>"),
    _listed("apriel 1.6", "<tool_calls>[", "]</tool_calls>"),
    _listed("lists in tags", "<tool_calls>[", "]</tool_calls>"),
    _listed("gigachat 3.1", "<|function_call|>", "", "<|function_call|>"),
    _listed(
        "gigachat",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n",
        "",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n",
    ),
    _listed("firefunction", " functools[", "]"),
    _listed("json in tags", "<tool_call>\n", "\n</tool_call>", "\n</tool_call>\n<tool_call>\n"),
    _listed("granite 3", "<|tool_call|>[", "]"),
    Reply(
        "functionary",
        f"<function=f>{F}</function>",
        f"<function=f>{F}</function><function=g>{G}</function>",
    ),
    Reply(
        "llama 3",
        _object("f", F, "parameters"),
        f"{_object('f', F, 'parameters')}; {_object('g', G, 'parameters')}",
    ),
)
