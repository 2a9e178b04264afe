"""Render a conversation as ChatML; must agree with chat_template.jinja."""

import json

TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_TAIL = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def segments(messages, tools=None):
    """A list of (text, trained) pieces; what the assistant says is trained."""
    out = []
    msgs = list(messages)
    system = msgs.pop(0)["content"] if msgs and msgs[0]["role"] == "system" else None
    if tools:
        text = (
            (system + "\n\n" if system else "")
            + TOOLS_HEAD
            + "".join("\n" + json.dumps(t, ensure_ascii=False) for t in tools)
            + TOOLS_TAIL
        )
        out.append((f"<|im_start|>system\n{text}<|im_end|>\n", False))
    elif system is not None:
        out.append((f"<|im_start|>system\n{system}<|im_end|>\n", False))
    for i, m in enumerate(msgs):
        if m["role"] == "tool":
            first = i == 0 or msgs[i - 1]["role"] != "tool"
            last = i + 1 == len(msgs) or msgs[i + 1]["role"] != "tool"
            out.append(
                (
                    ("<|im_start|>user" if first else "")
                    + f"\n<tool_response>\n{m['content']}\n</tool_response>"
                    + ("<|im_end|>\n" if last else ""),
                    False,
                )
            )
        elif m["role"] == "assistant":
            body = m.get("content") or ""
            for c in m.get("tool_calls") or []:
                f = c.get("function", c)
                args = (
                    f["arguments"]
                    if isinstance(f["arguments"], str)
                    else json.dumps(f["arguments"], ensure_ascii=False)
                )
                body += (
                    "\n" if body else ""
                ) + f'<tool_call>\n{{"name": "{f["name"]}", "arguments": {args}}}\n</tool_call>'
            out.append(("<|im_start|>assistant\n", False))
            out.append((body + "<|im_end|>", True))
            out.append(("\n", False))
        else:
            out.append((f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n", False))
    return out


def prompt(messages, tools=None):
    return "".join(t for t, _ in segments(messages, tools)) + "<|im_start|>assistant\n"
