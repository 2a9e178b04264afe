"""For each parameter of OpenAI's API and Anthropic's a value that shows what becomes of it.

See test_parameters.py."""

from __future__ import annotations

from typing import Any

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
PATHS = {
    "chat": "/v1/chat/completions",
    "completion": "/v1/completions",
    "response": "/v1/responses",
    "message": "/v1/messages",
}
BASES: dict[str, dict[str, Any]] = {
    "chat": {"messages": HELLO, "max_tokens": 40, "temperature": 0},
    "completion": {"prompt": "hello", "max_tokens": 40, "temperature": 0},
    "response": {"input": "hello", "max_output_tokens": 40, "temperature": 0},
    "message": {"messages": HELLO, "max_tokens": 40, "temperature": 0},
}
TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if reasoning_effort is defined %}effort: {{ reasoning_effort }}\n{% endif %}"
    "{% if verbosity is defined %}verbosity: {{ verbosity }}\n{% endif %}"
    "{% if not enable_thinking %}no thoughts\n{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML that knows reasoning_effort and enable_thinking."""
STORED = object()
"""The id of a response that was stored."""
NAMED = object()
"""The id of a conversation with one item."""
KEPT = object()
"""A thread that goes on with a message that was kept."""

HOT: dict[str, Any] = {"temperature": 1, "seed": 5}
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}
FLAT: dict[str, Any] = {"type": "function", "name": "f", "parameters": PARAMETERS}
HERS: dict[str, Any] = {"name": "f", "input_schema": PARAMETERS}
COMPACT_EDIT = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 1}}
MANY: dict[str, Any] = {"tool_choice": "required", "temperature": 1, "seed": 2}

SAMPLING: dict[str, tuple[dict[str, Any], Any]] = {
    "temperature": ({"seed": 5}, 1),
    "top_p": (HOT, 0.01),
    "presence_penalty": ({}, 2),
    "frequency_penalty": ({}, 2),
    "logit_bias": ({}, {str(ord(letter)): -100 for letter in "abcdefghijklm"}),
    "seed": (HOT, 6),
    "stop": ({}, ["e", "a", "o"]),
    "model": ({}, "another"),
    "stream": ({}, True),
    "stream_options": ({"stream": True}, {"include_usage": True}),
    "n": (HOT, 3),
    "best_of": ({**HOT, "n": 1}, 6),
    "max_tokens": ({}, 5),
}
HONOURED: dict[str, dict[str, tuple[dict[str, Any], Any]]] = {
    "chat": {
        **SAMPLING,
        "messages": ({}, [{"role": "user", "content": "something else"}]),
        "max_completion_tokens": ({}, 5),
        "logprobs": ({}, True),
        "top_logprobs": ({"logprobs": True}, 3),
        "response_format": ({}, {"type": "json_object"}),
        "tools": ({}, [TOOL]),
        "tool_choice": ({"tools": [TOOL]}, "required"),
        "parallel_tool_calls": ({**MANY, "tools": [TOOL], "n": 8, "max_tokens": 120}, True),
        "reasoning_effort": ({}, "high"),
        "verbosity": ({}, "low"),
        "service_tier": ({}, "flex"),
        "prompt_cache_options": ({}, {"prewarm": True}),
    },
    "completion": {
        **SAMPLING,
        "prompt": ({}, "something else"),
        "suffix": ({}, "the end"),
        "echo": ({}, True),
        "logprobs": ({}, 2),
    },
    "response": {
        **{name: SAMPLING[name] for name in ("temperature", "top_p", "model", "stream")},
        "input": ({}, "something else"),
        "instructions": ({}, "be brief"),
        "previous_response_id": ({}, STORED),
        "store": ({}, False),
        "background": ({}, True),
        "conversation": ({}, NAMED),
        "metadata": ({}, {"a": "b"}),
        "truncation": ({"max_output_tokens": 1100}, "auto"),
        "max_output_tokens": ({}, 5),
        "include": ({}, ["message.output_text.logprobs"]),
        "service_tier": ({}, "flex"),
        "context_management": ({}, [{"type": "compaction", "compact_threshold": 1}]),
        "prompt_cache_options": ({}, {"prewarm": True}),
        "top_logprobs": ({}, 3),
        "reasoning": ({}, {"effort": "high"}),
        "text": ({}, {"format": {"type": "json_object"}}),
        "tools": ({}, [FLAT]),
        "tool_choice": ({"tools": [FLAT]}, "required"),
        "parallel_tool_calls": ({**MANY, "tools": [FLAT], "max_output_tokens": 120}, True),
    },
    "message": {
        **{name: SAMPLING[name] for name in ("temperature", "top_p", "model", "stream", "max_tokens")},
        "messages": ({}, [{"role": "user", "content": "something else"}]),
        "system": ({}, "be brief"),
        "stop_sequences": ({}, ["e", "a", "o"]),
        "top_k": (HOT, 1),
        "tools": ({}, [HERS]),
        "tool_choice": ({"tools": [HERS]}, {"type": "any"}),
        "thinking": ({}, {"type": "disabled"}),
        "output_config": ({}, {"effort": "high"}),
        "output_format": ({}, {"type": "json_schema", "schema": PARAMETERS}),
        "thread": ({}, KEPT),
        "diagnostics": ({}, {"previous_message_id": "msg_gone"}),
        "context_management": ({}, {"edits": [COMPACT_EDIT]}),
        "compaction": ({}, {"type": "summarize"}),
    },
}
"""By kind and name: what else the body says, and the value that makes a difference."""

REFUSED: dict[str, Any] = {
    "functions": [{"name": "f"}],
    "function_call": {"name": "f"},
    "modalities": ["text", "audio"],
    "audio": {"voice": "alloy", "format": "wav"},
    "web_search_options": {},
    "moderation": {"model": "omni-moderation-latest"},
    "context_management": [{"type": "compaction"}],
    "prompt": {"id": "pmpt_1"},
    "container": "container_1",
    "mcp_servers": [{"type": "url", "name": "a"}],
}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "context_management": ([],),
    "mcp_servers": ([],),
}
"""Values of refused parameters at which they change nothing."""

IGNORED: dict[str, tuple[Any, ...]] = {
    "user": ("anna", ""),
    "safety_identifier": ("anna", "a" * 1000),
    "metadata": ({"a": "b"}, {}),
    "store": (True, False),
    "service_tier": ("auto", "flex", "priority"),
    "prompt_cache_key": ("key", ""),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory", "24h"),
    "access_programs": ([], {}),
    "max_tool_calls": (1,),
    "image": ({},),
    "stream_options": ({"include_obfuscation": False},),
    "cache_control": ({"type": "ephemeral"},),
    "speed": ("fast",),
    "inference_geo": ("eu",),
    "user_profile_id": ("anna",),
    "workspace_id": ("wrkspc_1",),
    "background_options": ({"completion_window": "2h"},),
    "billing_policy": ({"type": "billing_policy", "bill_to": "self"},),
    "fallbacks": ("default", [{"model": "another"}]),
    "fallback_credit_token": ({"token": "t"},),
}
