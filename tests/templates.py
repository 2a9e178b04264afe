"""Chat templates of the kinds that are about, short: what they do to a history is what tests need."""

# ruff: noqa: RUF001 - DeepSeek's marks have wide signs
from __future__ import annotations

LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)

TRIMMING = (
    "{% for m in messages %}"
    "{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('no such role') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content | trim + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

THINKING = r"""
{%- set ns = namespace(asked=-1) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {%- set text = m.content or '' -%}
    {%- if m.role == 'tool' -%}
        {{- '<|im_start|>user\n<tool_response>\n' + text + '\n</tool_response><|im_end|>\n' -}}
    {%- elif m.role == 'assistant' -%}
        {%- if loop.index0 < ns.asked -%}
            {%- set text = text.split('</think>')[-1].lstrip('\n') -%}
        {%- endif -%}
        {{- '<|im_start|>assistant\n' + text -}}
        {%- for call in m.tool_calls or [] -%}
            {%- set f = call.function -%}
            {{- '\n<tool_call>\n' + {'name': f.name, 'arguments': f.arguments} | tojson + '\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- else -%}
        {{- '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""Thoughts before the last question are dropped; tool calls are written as JSON, whatever the model wrote."""

LLAMA3_TOOLS = r"""
{{- bos_token -}}
{%- for m in messages -%}
    {%- if m.role == 'tool' -%}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' + m.content + '<|eot_id|>' -}}
    {%- elif m.tool_calls -%}
        {%- if m.tool_calls | length != 1 -%}
            {{- raise_exception('This model only supports single tool-calls at once!') -}}
        {%- endif -%}
        {%- set f = m.tool_calls[0].function -%}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
        {{- '{"name": "' + f.name + '", "parameters": ' + f.arguments | tojson + '}<|eot_id|>' -}}
    {%- else -%}
        {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' -}}
        {%- if loop.first and tools is not none -%}
            {{- 'Respond with {"name": function name, "parameters": arguments}.\n\n' -}}
            {%- for tool in tools -%}{{- tool | tojson(indent=4) + '\n\n' -}}{%- endfor -%}
        {%- endif -%}
        {{- m.content | trim + '<|eot_id|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""
"""One call in a reply, its arguments as an object."""

MISTRAL = r"""
{%- if tools -%}{{- '[AVAILABLE_TOOLS] ' + tools | tojson + '[/AVAILABLE_TOOLS]' -}}{%- endif -%}
{%- for m in messages -%}
    {%- if m.role == 'tool' -%}
        {%- if m.tool_call_id | length != 9 -%}{{- raise_exception('ids have length 9') -}}{%- endif -%}
        {{- '[TOOL_RESULTS] {"content": ' + m.content | tojson + ', "call_id": "' + m.tool_call_id + '"}' -}}
        {{- '[/TOOL_RESULTS]' -}}
    {%- elif m.tool_calls -%}
        {{- '[TOOL_CALLS] [' -}}
        {%- for call in m.tool_calls -%}
            {{- call.function | tojson | replace('}}', '}, "id": "' + call.id + '"}') -}}
            {{- '' if loop.last else ', ' -}}
        {%- endfor -%}
        {{- ']' + eos_token -}}
    {%- elif m.role == 'assistant' -%}
        {{- ' ' + m.content + eos_token -}}
    {%- else -%}
        {{- '[INST] ' + m.content + '[/INST]' -}}
    {%- endif -%}
{%- endfor -%}
"""
"""Ids of calls are part of the history."""

REASONING = r"""
{%- set ns = namespace(asked=-1) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
    {{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' -}}
    {%- if m.role == 'assistant' and m.reasoning_content and loop.index0 > ns.asked -%}
        {{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' -}}
    {%- endif -%}
    {{- m.content -}}
    {%- for call in m.tool_calls or [] -%}
        {{- '<tool_call>\n{"name": "' + call.function.name -}}
        {{- '", "arguments": ' + call.function.arguments + '}' -}}
        {{- '\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\n' + ('<think>\n' if enable_thinking | default(true) else '') -}}
{%- endif -%}
"""
"""The prompt opens the thoughts; those since the last question are shown."""

KIMI = r"""
{%- set ns = namespace(ids=[], n=0, asked=-1) -%}
{%- for m in messages -%}
    {%- if m.role == 'user' -%}{%- set ns.asked = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}{{- '<|im_system|>tools<|im_middle|>' + tools | tojson + '<|im_end|>' -}}{%- endif -%}
{%- for m in messages -%}
    {{- '<|im_' + m.role + '|>' + m.role + '<|im_middle|>' -}}
    {%- if m.role == 'assistant' -%}
        {{- '<think>' + (m.reasoning_content or '' if loop.index0 > ns.asked else '') + '</think>' -}}
    {%- endif -%}
    {%- if m.role == 'tool' -%}{{- '## ' + ns.ids.pop(0) + '\n' -}}{%- endif -%}
    {{- m.content -}}
    {%- if m.tool_calls -%}
        {{- '<|tool_calls_section_begin|>' -}}
        {%- for call in m.tool_calls -%}
            {%- set id = 'functions.' + call.function.name + ':' ~ ns.n -%}
            {%- set ns.n = ns.n + 1 -%}
            {%- set _ = ns.ids.append(id) -%}
            {{- '<|tool_call_begin|>' + id + '<|tool_call_argument_begin|>' -}}
            {{- call.function.arguments + '<|tool_call_end|>' -}}
        {%- endfor -%}
        {{- '<|tool_calls_section_end|>' -}}
    {%- endif -%}
    {{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
"""
"""Ids of calls are counted; a list of them is changed while rendering."""

HARMONY = r"""
{%- for m in messages -%}
    {%- if m.role == 'assistant' -%}
        {%- if m.tool_calls -%}
            {%- if m.content and m.thinking -%}{{- raise_exception('one of both') -}}{%- endif -%}
            {%- set thought = m.content or m.thinking -%}
            {%- if thought -%}
                {{- '<|start|>assistant<|channel|>analysis<|message|>' + thought + '<|end|>' -}}
            {%- endif -%}
            {%- set f = m.tool_calls[0].function -%}
            {{- '<|start|>assistant to=functions.' + f.name + '<|channel|>commentary json<|message|>' -}}
            {{- f.arguments | tojson + '<|call|>' -}}
        {%- else -%}
            {{- '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' -}}
        {%- endif -%}
    {%- elif m.role == 'tool' -%}
        {{- '<|start|>functions to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' -}}
    {%- else -%}
        {{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{%- if tools -%}{%- endif -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""
"""Channels: one call in a message, thoughts under another name, dropped in later turns."""

DEEPSEEK = r"""
{%- for m in messages -%}
    {%- if m.role == 'assistant' and m.content is none -%}
        {{- '<｜Assistant｜><｜tool▁calls▁begin｜>' -}}
        {%- for call in m.tool_calls -%}
            {{- '<｜tool▁call▁begin｜>' + call.function.name + '<｜tool▁sep｜>' -}}
            {{- call.function.arguments + '<｜tool▁call▁end｜>' -}}
        {%- endfor -%}
        {{- '<｜tool▁calls▁end｜><｜end▁of▁sentence｜>' -}}
    {%- elif m.role == 'assistant' -%}
        {{- '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<｜end▁of▁sentence｜>' -}}
    {%- elif m.role == 'tool' -%}
        {{- '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' -}}
    {%- else -%}
        {{- ('<｜User｜>' if m.role == 'user' else '') + m.content -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<｜Assistant｜>' -}}{%- endif -%}
"""
"""Calls where the content is null; tools are not shown."""

QWEN_CODER = r"""
{%- for m in messages -%}
    {%- if m.role == 'tool' -%}
        {%- if loop.previtem.role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
        {{- '\n<tool_response>\n' + m.content + '\n</tool_response>' -}}
        {%- if loop.last or loop.nextitem.role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
    {%- else -%}
        {{- '<|im_start|>' + m.role + '\n' + m.content | trim -}}
        {%- for call in m.tool_calls or [] -%}
            {{- '\n<tool_call>\n<function=' + call.function.name + '>\n' -}}
            {%- for key, value in call.function.arguments | items -%}
                {{- '<parameter=' + key + '>\n' -}}
                {{- (value if value is string else value | tojson) + '\n</parameter>\n' -}}
            {%- endfor -%}
            {{- '</function>\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|im_end|>\n' -}}
    {%- endif -%}
{%- endfor -%}
{%- if tools -%}{%- endif -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""Parameters in tags of their own; results that follow each other are one message."""

LFM = r"""
{%- if tools -%}{{- 'List of tools: [' + tools | tojson + ']\n' -}}{%- endif -%}
{%- for m in messages -%}
    {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}
"""
"""Tools and results are shown, calls are not."""

GEMMA = r"""
{%- for m in messages -%}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{- raise_exception('roles must alternate') -}}
    {%- endif -%}
    {{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\n' -}}
    {{- m.content | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
"""
"""Neither a system message nor tools; roles alternate."""
