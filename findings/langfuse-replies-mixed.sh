#!/usr/bin/env bash
# langfuse 5.2.0, whose `langfuse.openai` records what a client of OpenAI's SDK asks and gets, with `n=2` or a refusal, streamed.
# Expected: it tracks "all prompts/completions with support for streaming", so what is recorded is what was streamed. `index` tells to
#           which reply a chunk belongs. Where nothing is streamed, it records each reply apart. A refusal is the reply's text.
# Seen:     chunks are joined in the order in which they come: the replies `yes, do` and `no, wait` are recorded as `yes,no, wait do`.
#           The calls of two replies become one call, with the id of the second and arguments that are no JSON. A refusal leaves no
#           output at all.
source "$(dirname "$0")/begin.sh"
from_pypi langfuse==5.2.0 openai==3.57.0 opentelemetry-sdk==1.45.2
python - <<'PY'
import json


def chunk(index, delta, reason=None):
    choices = [{"index": index, "delta": {"role": "assistant", **delta}, "finish_reason": reason}]
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": choices}


def call(id, arguments):
    return {"tool_calls": [{"index": 0, "id": id, "type": "function", "function": {"name": "heat", "arguments": arguments}}]}


replies = {
    "text": [chunk(i, {"content": part}) for i, part in ((0, "yes,"), (1, "no,"), (1, " wait"), (0, " do"))],
    "calls": [chunk(0, call("x", '{"room":"a"}')), chunk(1, call("y", '{"room":"b"}'))],
    "refusal": [chunk(0, {"refusal": part}) for part in ("I can", "not.")] + [chunk(0, {}, "stop")],
}
replies["text"] += [chunk(0, {}, "stop"), chunk(1, {}, "length")]
replies["calls"] += [chunk(0, {}, "tool_calls"), chunk(1, {}, "tool_calls")]
json.dump(replies, open("replies.json", "w"))
PY
serve replies.json
python - 2>log <<'PY'
import json
import os
from importlib.metadata import version

from langfuse import Langfuse
from langfuse.openai import OpenAI
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

spans = InMemorySpanExporter()
langfuse = Langfuse(public_key="none", secret_key="none", base_url="http://127.0.0.1:1", span_exporter=spans)
client = OpenAI(base_url=os.environ["url"], api_key="none")
print("langfuse", version("langfuse"))
seen = {}
for model in ("text", "calls", "refusal"):
    spans.clear()
    read = {}
    request = {"model": model, "messages": [{"role": "user", "content": "hi"}], "n": 1 if model == "refusal" else 2}
    for chunk in client.chat.completions.create(stream=True, **request):
        for choice in chunk.choices:
            text, calls = choice.delta.content or choice.delta.refusal or "", choice.delta.tool_calls or []
            read[choice.index] = read.get(choice.index, "") + text + "".join(call.function.arguments for call in calls)
    langfuse.flush()
    (span,) = spans.get_finished_spans()
    seen[model] = list(read.values()), span.attributes.get("langfuse.observation.output")
    print(f"{model}: read {seen[model][0]}, recorded {seen[model][1]}")
assert seen["text"] == (["yes, do", "no, wait"], "yes,no, wait do"), "changed"
(call,) = json.loads(seen["calls"][1])["tool_calls"]
assert seen["calls"][0] == ['{"room":"a"}', '{"room":"b"}'], seen
assert (call["id"], call["function"]["arguments"]) == ("y", '{"room":"a"}{"room":"b"}'), "changed"
assert seen["refusal"] == (["I cannot."], None), "changed"
PY
