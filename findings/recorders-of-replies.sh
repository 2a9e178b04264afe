#!/usr/bin/env bash
# cuesheet 0.2.0, agentape 0.1.0 and cendor-cassette 1.1.1, which record the replies of OpenAI-compatible servers once
# and replay them in tests.
# Expected: what is replayed for a request is what was recorded for it: "same response, byte-for-byte" (cuesheet),
#           "deterministic" (cendor). Another request is another recording.
# Seen:     cuesheet compares roles and stripped texts of messages, so two conversations that differ in the arguments
#           of an earlier call, in an indentation, in `n` or in `stream` get the first one's reply, already while it
#           records: after `pay(bob)` the agent reads that Ann was paid, and the stream is empty. agentape replays the
#           pieces of a stream as dicts, which no code written for OpenAI's SDK reads, and none at all once the same
#           question was recorded without `stream`. cendor-cassette takes every run of 32 letters, digits and hyphens
#           for a secret: the ids of vLLM's calls are all `<redacted>` in replay, and so is a UUID that a tool is to
#           get.
source "$(dirname "$0")/begin.sh"
from_pypi cuesheet==0.2.0 agentape==0.1.0 cendor-cassette==1.1.1 cendor-core==1.21.0 openai==2.54.0 httpx==0.28.1 \
    pytest==8.4.2
python - <<'PY'
import json
from importlib.metadata import version

import agentape
import cuesheet
import httpx
from cendor import cassette
from cendor.core import instrument
from openai import OpenAI

HEAD = {"id": "c", "created": 0, "model": "m"}
asked = []


def call(index, name, arguments, **options):
    # The id is one that vLLM would make.
    id = f"chatcmpl-tool-{index:032x}"
    return {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}, **options}


def reply(request):
    """Tell what was asked; asked for `delete`, call it twice."""
    question = json.loads(request.content)
    asked.append(question)
    last = question["messages"][-1]["content"]
    message = {"role": "assistant", "content": None}
    if last == "delete":
        files = [f"0b5c7d3e-4a12-4f6b-9c8d-00000000000{i}" for i in range(2)]
        message["tool_calls"] = [call(i, "delete", {"file": file}) for i, file in enumerate(files)]
    else:
        done = [c["function"]["arguments"] for m in question["messages"] for c in m.get("tool_calls", [])]
        message["content"] = f"{last}{' after '.join(['', *done])}"
    if not question.get("stream"):
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        return httpx.Response(200, json=HEAD | {"object": "chat.completion", "choices": choices})
    choices = [{"index": 0, "delta": delta, "finish_reason": end} for delta, end in ((message, None), ({}, "stop"))]
    chunks = [json.dumps(HEAD | {"object": "chat.completion.chunk", "choices": [choice]}) for choice in choices]
    body = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body.encode())


def client():
    # Nothing is sent to this host, but cuesheet records only those that it knows.
    http = httpx.Client(transport=httpx.MockTransport(reply))
    return OpenAI(base_url="https://api.openai.com/v1", api_key="none", max_retries=0, http_client=http)


def ask(client, messages, **options):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    answer = client.chat.completions.create(model="m", messages=messages, **options)
    if not options.get("stream"):
        return answer.choices[0].message.content
    chunks = list(answer)
    if any(isinstance(chunk, dict) for chunk in chunks):
        return "dicts"
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def paid(name):
    calls = [call(0, "pay", {"to": name})]
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "ok"}
    return [{"role": "user", "content": "pay"}, {"role": "assistant", "content": None, "tool_calls": calls}, result]


for name in ("cuesheet", "agentape", "cendor-cassette"):
    print(name, version(name))
with cuesheet.cassette("cuesheet.yaml"):
    server = client()
    seen = [ask(server, paid(name)) for name in ("ann", "bob")]
    seen += [ask(server, text) for text in ("return n", "    return n")]
    seen += [ask(server, "return n", **options) for options in ({"n": 2}, {"stream": True})]
print(f"cuesheet: {seen}; the server was asked {len(asked)} times")
ann = 'ok after {"to": "ann"}'
assert seen == [ann, ann, "return n", "return n", "return n", ""] and len(asked) == 2, "changed"

server = agentape.wrap(client())
questions = [("streamed", True), ("both", False), ("both", True)]
seen = []
for mode in (agentape.record, agentape.replay):
    with mode("agentape.yaml"):
        seen.append([ask(server, text, stream=stream) for text, stream in questions])
print(f"agentape: recorded {seen[0]}, replayed {seen[1]}")
assert seen == [["streamed", "both", "both"], ["dicts", "both", ""]], "changed"

server = instrument(client())
seen = []
for _ in range(2):
    with cassette.using("cendor.json"):
        answer = server.chat.completions.create(model="m", messages=[{"role": "user", "content": "delete"}])
    calls = answer.choices[0].message.tool_calls
    seen.append([(call.id, json.loads(call.function.arguments)["file"]) for call in calls])
print(f"cendor-cassette: recorded {seen[0]}, replayed {seen[1]}")
assert len(set(seen[0])) == 2 and seen[1] == 2 * [("<redacted>", "<redacted>")], "changed"
PY
