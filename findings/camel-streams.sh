#!/usr/bin/env bash
# camel-ai 0.2.90 (CAMEL), a framework for agents, with an OpenAI-compatible server: `ChatAgent.step`, streamed and
# not.
# Expected: what `step` tells does not depend on `stream`: a call of an external tool comes as a request, so that the
#           caller can run it; a reply that `max_tokens` cut ends with `length`; what the model says before a call
#           stays in the conversation; of two calls of which the limit cut the second, none is passed over in silence.
# Seen:     streamed, calls of external tools are lost without a word: no request, nothing in the memory. Every reply
#           ends with `stop`, also one that was cut. What was said before a call is not in the next request. Of two
#           calls the one that was cut is left out and the other runs; without streaming the same reply raises. Where
#           vLLM tells usage in every chunk, the numbers are added up. Not streamed, the first three are as expected.
source "$(dirname "$0")/begin.sh"
from_pypi camel-ai==0.2.90 mcp==1.12.0 openai==3.57.0 httpx==0.28.1
python - <<'PY'
import json
import logging
import warnings
from importlib.metadata import version

import httpx
from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.toolkits import FunctionTool
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter
from openai import OpenAI

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
HEAD = {"id": "c", "created": 0, "model": "m"}


def call(index, name, arguments):
    return {"index": index, "id": f"id{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


# For each model the deltas of its reply and its finish reason.
REPLIES = {
    "external": ([{"tool_calls": [call(0, "ask", '{"text":"a"}')]}], "tool_calls"),
    "cut": ([{"content": "once upon"}], "length"),
    "text and call": ([{"content": "I look."}, {"tool_calls": [call(0, "heat", '{"room":"a"}')]}], "tool_calls"),
    "cut call": (
        [{"tool_calls": [call(0, "heat", '{"room":"a"}')]}, {"tool_calls": [call(1, "heat", '{"ro')]}],
        "length",
    ),
    "usage": ([{"content": text} for text in ("a", "b", "c")], "stop"),
}
requests = []


def answer(request):
    asked = json.loads(request.content)
    requests.append(asked["messages"])
    ran = asked["messages"][-1]["role"] == "tool"
    deltas, reason = ([{"content": "done"}], "stop") if ran else REPLIES[asked["model"]]
    usage = {"prompt_tokens": 4, "completion_tokens": len(deltas), "total_tokens": 4 + len(deltas)}
    if not asked.get("stream"):
        text = "".join(delta.get("content", "") for delta in deltas)
        message = {"role": "assistant", "content": text or None}
        if calls := [part for delta in deltas for part in delta.get("tool_calls", [])]:
            message["tool_calls"] = calls
        choices = [{"index": 0, "message": message, "finish_reason": reason}]
        return httpx.Response(200, json=HEAD | {"object": "chat.completion", "choices": choices, "usage": usage})
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks += [{"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}, {"choices": [], "usage": usage}]
    if asked["model"] == "usage":
        for i, chunk in enumerate(chunks[:3], 1):
            chunk["usage"] = {"prompt_tokens": 4, "completion_tokens": i, "total_tokens": 4 + i}
    events = [json.dumps(HEAD | {"object": "chat.completion.chunk"} | chunk) for chunk in chunks]
    body = "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"])
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body.encode())


class Letters(BaseTokenCounter):
    """Counts letters, since the usual counter downloads its vocabulary."""

    def count_tokens_from_messages(self, messages):
        return sum(len(str(message)) for message in messages)

    def encode(self, text):
        return list(text.encode())

    def decode(self, token_ids):
        return bytes(token_ids).decode()


def step(model, stream):
    ran = []

    def heat(room: str) -> str:
        """Heat a room.

        Args:
            room (str): The room.
        """
        ran.append(room)
        return "ok"

    def ask(text: str) -> str:
        """Ask the person.

        Args:
            text (str): The question.
        """

    server = OpenAI(
        base_url="http://server/v1",
        api_key="none",
        max_retries=0,
        http_client=httpx.Client(transport=httpx.MockTransport(answer)),
    )
    backend = ModelFactory.create(
        model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
        model_type=model,
        url="http://server/v1",
        api_key="none",
        client=server,
        token_counter=Letters(),
        model_config_dict={"stream": True, "stream_options": {"include_usage": True}} if stream else {},
    )
    agent = ChatAgent("Be brief.", model=backend, tools=[FunctionTool(heat)], external_tools=[FunctionTool(ask)])
    requests.clear()
    try:
        reply = agent.step("hi")
        info = [part.info for part in reply][-1:] if stream else [reply.info]
    except json.JSONDecodeError:
        return {"error": "JSONDecodeError", "ran": ran}
    info = info[0] if info else {}
    asked = [request.tool_name for request in info.get("external_tool_call_requests") or []]
    reasons = info.get("finish_reasons") or info.get("termination_reasons")
    kept = [message["content"] for message in requests[-1] if message["role"] == "assistant"]
    used = (info.get("usage") or {}).get("completion_tokens")
    remembered = len(agent.memory.get_context()[0])
    return {"external": asked, "end": reasons, "ran": ran, "said": kept, "used": used, "messages": remembered}


print("camel-ai", version("camel-ai"))
seen = {(model, stream): step(model, stream) for model in REPLIES for stream in (False, True)}
for (model, stream), told in seen.items():
    print(f"{model}, {'streamed' if stream else 'whole'}: {told}")
assert seen["external", False]["external"] == ["ask"] and seen["external", False]["messages"] == 3
assert seen["external", True]["external"] == [] and seen["external", True]["messages"] == 2, "changed"
assert seen["cut", False]["end"] == ["length"]
assert seen["cut", True]["end"] == ["stop"], "changed"
assert seen["text and call", False]["said"] == ["I look."]
assert seen["text and call", True]["said"] == [""], "changed"
assert seen["cut call", False] == {"error": "JSONDecodeError", "ran": []}
assert seen["cut call", True]["ran"] == ["a"] and seen["cut call", True]["end"] == ["stop"], "changed"
assert seen["usage", False]["used"] == 3
assert seen["usage", True]["used"] == 9, "changed"
PY
