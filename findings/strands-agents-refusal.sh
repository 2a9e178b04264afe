#!/usr/bin/env bash
# A refusal (`delta.refusal`, in two pieces) in the stream of an OpenAI-compatible server, read by strands-agents 1.62.0,
# @strands-agents/sdk 1.19.0 (TypeScript) and smolagents 1.26.0.
# Expected: the caller can tell that the model refused: its words are the text, as agent-framework-openai 1.17.0 has it, or raise.
# Seen:     all three give an empty reply, like one of a model that had nothing to say; none raises, and the agents of Strands end
#           with `end_turn`, as after an answer.
source "$(dirname "$0")/begin.sh"
from_pypi "strands-agents[openai]==1.62.0" "smolagents[openai]==1.26.0" agent-framework-openai==1.17.0 openai==2.54.0
from_npm @strands-agents/sdk@1.19.0 openai@6.49.0 zod@4.1.12
cat > replies.json <<'JSON'
{
  "text": [[{"role": "assistant", "content": "I can"}, null], [{"content": "not do that"}, null], [{}, "stop"]],
  "refusal": [[{"role": "assistant", "refusal": "I can"}, null], [{"refusal": "not do that"}, null], [{}, "stop"]]
}
JSON
serve replies.json
cat > ask.mjs <<'JS'
import { Agent } from "@strands-agents/sdk";
import { OpenAIModel } from "@strands-agents/sdk/models/openai";
const seen = {};
for (const modelId of ["text", "refusal"]) {
  const model = new OpenAIModel({ api: "chat", modelId, apiKey: "none", clientConfig: { baseURL: process.env.url } });
  const result = await new Agent({ model, printer: false }).invoke("hi");
  seen[modelId] = [result.lastMessage.content.map((block) => block.text).join(""), result.stopReason];
}
console.log(JSON.stringify(seen));
JS
node ask.mjs >typescript.json
python - <<'PY'
import asyncio
import json
import os

from agent_framework.openai import OpenAIChatCompletionClient
from smolagents import ChatMessage
from smolagents import OpenAIModel as SmolModel
from smolagents.models import agglomerate_stream_deltas
from strands import Agent
from strands.models.openai import OpenAIModel

url = os.environ["url"]


def strands(name):
    model = OpenAIModel(client_args={"base_url": url, "api_key": "none"}, model_id=name)
    result = Agent(model=model, callback_handler=None)("hi")
    return ["".join(block["text"] for block in result.message["content"]), result.stop_reason]


def smolagents(name):
    message = ChatMessage(role="user", content=[{"type": "text", "text": "hi"}])
    deltas = list(SmolModel(name, api_base=url, api_key="none").generate_stream([message]))
    return [agglomerate_stream_deltas(deltas).content, None]


async def agent_framework(name):
    stream = OpenAIChatCompletionClient(model=name, base_url=url, api_key="none").as_agent().run("hi", stream=True)
    return ["".join([update.text async for update in stream]), None]


seen = {"@strands-agents/sdk": json.load(open("typescript.json"))}
for read in (strands, smolagents):
    seen[read.__name__] = {name: read(name) for name in ("text", "refusal")}
right = {name: asyncio.run(agent_framework(name)) for name in ("text", "refusal")}
for name, of in {**seen, "agent-framework": right}.items():
    print(name, of)
assert right["text"][0] == right["refusal"][0] == "I cannot do that", right
for of in seen.values():
    assert of["text"][0] == "I cannot do that", of
    assert of["refusal"] == ["", of["text"][1]], "changed"
PY
