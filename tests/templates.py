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
