#!/usr/bin/env bash
# mcp 2.3.0, the Model Context Protocol's SDK for Python: how a server reads the arguments of a call.
# Expected: a tool whose parameter is `text: str | None` gets the text that the model wrote, as one whose parameter is `text: str`
#           does.
# Seen:     text that is a JSON object or array is parsed first and then refused, since it is no string any more: such a tool
#           cannot write a JSON file or note. The text `null` becomes None, so the tool takes it for an argument left out.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install mcp==2.3.0 pydantic==2.14.4
"$dir/venv/bin/python" - <<'PY'
import asyncio
import logging
from importlib.metadata import version

from mcp.server import MCPServer

logging.disable(logging.CRITICAL)
server = MCPServer("notes")


@server.tool()
def save(text: str) -> str:
    """Save a note."""
    return repr(text)


@server.tool()
def save_optional(text: str | None = None) -> str:
    """Save a note, or an empty one."""
    return repr(text)


async def call(tool, text):
    try:
        result = await server.call_tool(tool, {"text": text})
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())
    return result.content[0].text


for text in ("plain", '{"a": 1}', "null"):
    required, optional = (asyncio.run(call(tool, text)) for tool in ("save", "save_optional"))
    print(f"mcp {version('mcp')}, the model wrote {text!r}: `str` got {required}, `str | None` got {optional}")
    assert required == repr(text), "changed"
    if text == "plain":
        assert optional == repr(text), "changed"
    elif text == "null":
        assert optional == "None", "changed"
    else:
        assert "Input should be a valid string" in optional, "changed"
PY
