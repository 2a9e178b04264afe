"""Families of models, recognised by their chat templates. Data; docs/models.md says how to add one."""

# ruff: noqa: RUF001 - DeepSeek's markers have wide signs
from __future__ import annotations

from dataclasses import replace

from server.formats.description import Calls, Channels, Family, Thoughts

THINK = Thoughts("<think>", "</think>")
JSON_IN_TAGS = Calls("⟨object⟩", "<tool_call>\n", "\n</tool_call>", "\n", each=True)
FUNCTION_TAGS = Calls(
    "<function=⟨name⟩>\n⟨parameters⟩</function>",
    "<tool_call>\n",
    "\n</tool_call>",
    "\n",
    each=True,
    parameter="<parameter=⟨key⟩>\n⟨value⟩\n</parameter>\n",
)
ARG_TAGS = Calls(
    "⟨name⟩\n⟨parameters⟩",
    "<tool_call>",
    "</tool_call>",
    "\n",
    each=True,
    parameter="<arg_key>⟨key⟩</arg_key>\n<arg_value>⟨value⟩</arg_value>\n",
)
ARG_TAGS_IN_LINE = Calls(
    "⟨name⟩⟨parameters⟩",
    "<tool_call>",
    "</tool_call>",
    each=True,
    parameter="<arg_key>⟨key⟩</arg_key><arg_value>⟨value⟩</arg_value>",
)
DEEPSEEK = Calls(
    "<｜tool▁call▁begin｜>⟨name⟩<｜tool▁sep｜>⟨json⟩<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
)
DEEPSEEK_R1 = Calls(
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>⟨name⟩\n```json\n⟨json⟩\n```<｜tool▁call▁end｜>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "\n",
)
KIMI = Calls(
    "<|tool_call_begin|>⟨named_id⟩<|tool_call_argument_begin|>⟨json⟩<|tool_call_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
)
ATEM = Calls(
    '<atem:function_calls>\n<atem:invoke name="⟨name⟩">\n⟨parameters⟩</atem:invoke>\n</atem:function_calls>',
    between="<|eom|><|start|>assistant",
    parameter='<atem:parameter name="⟨key⟩">⟨value⟩</atem:parameter>\n',
)
LLAMA3 = Calls("⟨object⟩", "<|python_tag|>", between="; ", members=("name", "parameters"), bare=True)
LIST_IN_TAGS = Calls("⟨object⟩", "<tool_calls>·[", "]</tool_calls>", ", ")
COHERE = Calls(
    "⟨object⟩",
    "<|START_ACTION|>·[\n    ",
    "\n]<|END_ACTION|>",
    ",\n    ",
    members=("tool_call_id", "tool_name", "parameters"),
)
LFM = Calls("⟨name⟩(⟨python⟩)", "<|tool_call_start|>·[", "]<|tool_call_end|>", ", ")


def _dsml_calls(section: str) -> Calls:
    """Return the patterns of calls in DeepSeek's DSML tags, with tags named `section` around all calls."""
    return Calls(
        '<｜DSML｜invoke name="⟨name⟩">\n⟨parameters⟩</｜DSML｜invoke>',
        f"<｜DSML｜{section}>\n",
        f"\n</｜DSML｜{section}>",
        "\n",
        parameter='<｜DSML｜parameter name="⟨key⟩" string="⟨string⟩">⟨value⟩</｜DSML｜parameter>\n',
    )


FAMILIES: tuple[Family, ...] = (
    Family(
        "harmony",  # gpt-oss
        ("<|channel|>", "<|start|>assistant"),
        Thoughts("<|channel|>analysis<|message|>", "<|end|>", anywhere=True),
        Calls("⟨json⟩"),
        Channels(
            "<|start|>assistant",
            "<|message|>",
            " to=functions.⟨name⟩<|channel|>commentary json<|message|>",
            "<|channel|>final<|message|>",
            ("<|end|>", "<|call|>", "<|return|>"),
            thought=r"<\|channel\|>analysis[^<]*$",
            call=r"to=functions\.(?P<name>[\w.:/-]+)",
            silent=r"to=(?!assistant|user)\S",
        ),
    ),
    Family(
        "muse",
        ("<atem:invoke", "to=self"),
        Thoughts(" to=self<|message|>", "<|eom|>", anywhere=True),
        ATEM,
        Channels(
            "<|start|>assistant",
            "<|message|>",
            " to=⟨name⟩<|message|>",
            " to=user<|message|>",
            ("<|eom|>", "<|eot|>"),
            thought=r"to=self\b",
            call=r"to=(?!user\b|self\b)(?P<name>[\w.:/-]+)",
        ),
    ),
    Family(
        "functionary 3.2",
        (">>>all",),
        calls=Calls("⟨json⟩", between=">>>"),
        channels=Channels(">>>", "\n", "⟨name⟩\n", "all\n", call=r"^(?!all$)(?P<name>[\w.:/-]+)$"),
    ),
    Family(
        "kimi k3",
        ("<|open|>", "<|close|>", "argument"),
        Thoughts("<|open|>think<|sep|>", "<|close|>think<|sep|>", anywhere=True),
        Calls(
            '<|open|>call tool="⟨name⟩" index="⟨nth⟩"<|sep|>⟨parameters⟩<|close|>call<|sep|>',
            "<|open|>tools<|sep|>",
            "<|close|>tools<|sep|>",
            parameter='<|open|>argument key="⟨key⟩" type="⟨type⟩"<|sep|>⟨value⟩<|close|>argument<|sep|>',
        ),
        drops=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    Family("kimi k2", ("<|tool_calls_section_begin|>",), THINK, KIMI),
    Family(
        "gemma 4",
        ("<|tool_call>call:", "<|channel>"),
        Thoughts("<|channel>thought", "<channel|>", anywhere=True),
        Calls("<|tool_call>call:⟨name⟩⟨gemma⟩<tool_call|>"),
        drops=("<|channel>", "<channel|>", "<|tool_response>"),
    ),
    Family("deepseek v3.2", ("｜DSML｜", "function_calls"), THINK, _dsml_calls("function_calls")),
    Family("deepseek v4", ("｜DSML｜", "tool_calls"), THINK, _dsml_calls("tool_calls")),
    Family("deepseek r1", ("<｜tool▁calls▁begin｜>", "```json"), THINK, DEEPSEEK_R1),
    Family("deepseek v3.1", ("<｜tool▁calls▁begin｜>",), THINK, DEEPSEEK),
    Family(
        "minimax m3",
        ("]<]minimax[>[", "<mm:think>"),
        Thoughts("<mm:think>", "</mm:think>", anywhere=True),
        Calls(
            ']<]minimax[>[<invoke name="⟨name⟩">⟨parameters⟩]<]minimax[>[</invoke>',
            "]<]minimax[>[<tool_call>\n",
            "\n]<]minimax[>[</tool_call>",
            "\n",
            parameter="]<]minimax[>[<⟨key⟩>⟨nested⟩]<]minimax[>[</⟨key⟩>",
        ),
    ),
    Family(
        "minimax m2",
        ("<minimax:tool_call>",),
        THINK,
        Calls(
            '<invoke name="⟨name⟩">\n⟨parameters⟩</invoke>',
            "<minimax:tool_call>\n",
            "\n</minimax:tool_call>",
            "\n",
            parameter='<parameter name="⟨key⟩">⟨value⟩</parameter>\n',
        ),
    ),
    Family(
        "minimax m1",
        ("<tool_calls>", "<beginning_of_sentence>"),
        THINK,
        Calls("⟨object⟩", "<tool_calls>\n", "\n</tool_calls>", "\n"),
    ),
    Family(
        "seed",
        ("seed:tool_call",),
        Thoughts("<seed:think>", "</seed:think>"),
        Calls(
            "<function=⟨name⟩>\n⟨parameters⟩</function>",
            "<seed:tool_call>\n",
            "\n</seed:tool_call>",
            "\n",
            each=True,
            parameter="<parameter=⟨key⟩>⟨value⟩</parameter>\n",
        ),
    ),
    Family("function tags", ("<tool_call>", "<function=", "<parameter="), THINK, FUNCTION_TAGS),
    Family(
        "hunyuan",
        ("<arg_key{}>", ":opensource"),
        Thoughts("<think:opensource>", "</think:opensource>", anywhere=True),
        Calls(
            "<tool_call:opensource>⟨name⟩<tool_sep:opensource>\n⟨parameters⟩</tool_call:opensource>",
            "<tool_calls:opensource>\n",
            "\n</tool_calls:opensource>",
            "\n",
            parameter="<arg_key:opensource>⟨key⟩</arg_key:opensource>\n"
            "<arg_value:opensource>⟨value⟩</arg_value:opensource>\n",
        ),
    ),
    Family("glm 4.7", ("<arg_key>", "</arg_key><arg_value>"), THINK, ARG_TAGS_IN_LINE),
    Family("glm", ("<arg_key>", "<arg_value>"), THINK, ARG_TAGS),
    Family(
        "minicpm 5",
        ("<function name=", "<param name="),
        THINK,
        Calls(
            '<function name="⟨name⟩">⟨parameters⟩</function>',
            between="\n",
            parameter='<param name="⟨key⟩">⟨cdata⟩</param>',
        ),
    ),
    Family(
        "lfm",
        (("<|tool_call_start|>", "<|tool_list_start|>", "<|tool_response_start|>", "List of tools: ["),),
        THINK,
        LFM,
    ),
    Family(
        "apertus",
        ("<|tools_prefix|>",),
        Thoughts("<|inner_prefix|>", "<|inner_suffix|>", anywhere=True),
        Calls('{"⟨name⟩": ⟨json⟩}', "<|tools_prefix|>·[", "]<|tools_suffix|>", ", "),
    ),
    Family(
        "solar open",
        ("<|tool_call:begin|>",),
        Thoughts("<|think|>", "<|end|>", anywhere=True),
        Calls(
            "<|tool_call:begin|>⟨id⟩<|tool_call:name|>⟨name⟩<|tool_call:args|>⟨json⟩<|tool_call:end|>",
            "<|tool_calls|>",
            "<|calls|>",
        ),
        drops=("<|begin|>assistant", "<|content|>", "<|end|>"),
    ),
    Family(
        "command a",
        ("<|START_ACTION|>",),
        Thoughts("<|START_THINKING|>", "<|END_THINKING|>", anywhere=True),
        COHERE,
        drops=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    Family(
        "command r+",
        ("<|CHATBOT_TOKEN|>", "Action:"),
        calls=Calls(
            "⟨object⟩",
            "Action:\n```json\n[\n    ",
            "\n]\n```",
            ",\n    ",
            members=("tool_name", "parameters"),
        ),
        drops=("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    ),
    Family(
        "mistral 3.2",
        ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
        Thoughts("[THINK]", "[/THINK]"),
        Calls("[TOOL_CALLS]⟨name⟩[CALL_ID]⟨id⟩⟦[ARGS]⟧⟨json⟩"),
    ),
    Family(
        "mistral",
        ("[TOOL_CALLS]", "[ARGS]"),
        Thoughts("[THINK]", "[/THINK]"),
        Calls("[TOOL_CALLS]⟨name⟩⟦[CALL_ID]⟨id⟩⟧⟦[ARGS]⟧⟨json⟩"),
    ),
    Family(
        "mistral lists",
        ("[TOOL_CALLS]",),
        Thoughts("[THINK]", "[/THINK]"),
        Calls("⟨object⟩", "[TOOL_CALLS]·[", "]", ", ", members=("name", "arguments", "id")),
    ),
    Family("nemotron 2", ("<TOOLCALL>",), THINK, Calls("⟨object⟩", "<TOOLCALL>·[", "]</TOOLCALL>", ", ")),
    Family(
        "apriel 1.6",
        ("[BEGIN FINAL RESPONSE]", "<tool_calls>"),
        Thoughts("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
        LIST_IN_TAGS,
    ),
    Family("lists in tags", ("<tool_calls>[",), Thoughts("<thinking>", "</thinking>"), LIST_IN_TAGS),
    Family("gigachat 3.1", ("<|function_call|>",), THINK, Calls("<|function_call|>⟨object⟩")),
    Family(
        "gigachat",
        ("<|message_sep|>", "function call"),
        calls=Calls("<|message_sep|>\n\nfunction call<|role_sep|>\n⟨object⟩"),
    ),
    Family("firefunction", ("functools[",), calls=Calls("⟨object⟩", " functools[", "]", ", ")),
    Family("json in tags", ("<tool_call>",), THINK, JSON_IN_TAGS),
    Family(
        "granite 3",
        ("<|start_of_role|>", "<|tool_call|>"),
        THINK,
        Calls("⟨object⟩", "<|tool_call|>·[", "]", ", "),
    ),
    Family("functionary", ("<function=", "</function>"), THINK, Calls("<function=⟨name⟩>⟨json⟩</function>")),
    Family(
        "llama 3",
        (("<|python_tag|>", '"parameters"'), ("<|python_tag|>", "<|start_header_id|>")),
        THINK,
        LLAMA3,
    ),
)

UNKNOWN = Family("unknown", (), None, JSON_IN_TAGS)


_THOUGHTS = tuple(
    dict.fromkeys(family.thoughts for family in FAMILIES if family.thoughts and not family.thoughts.anywhere)
)


def family_of(source: str) -> Family:
    """Return the first family whose signs a chat template's source contains, UNKNOWN if none fits.

    Families with the most specific signs come first, because a template may contain signs of other families.
    A family whose thoughts may occur anywhere in a reply is returned unchanged. Any other family gets the
    first thought markers that the template contains: its own, else another family's, else none.
    """
    found = next((family for family in FAMILIES if family.fits(source)), UNKNOWN)
    if found.thoughts and found.thoughts.anywhere:
        return found
    own = [found.thoughts] if found.thoughts else []
    mentioned = (one for one in (*own, *_THOUGHTS) if one.open in source or one.close in source)
    return replace(found, thoughts=next(mentioned, None))
