"""Chat templates of the kinds that are about, short: what they do to a history is what tests need."""

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
