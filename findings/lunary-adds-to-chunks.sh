#!/usr/bin/env bash
# lunary 1.4.41, which records what a client of OpenAI's SDK asks and gets: `lunary.monitor(client)`.
# Expected: the caller reads what the server sent, as without lunary, and what is recorded is the reply. Its tokens are those of `usage`,
#           which the server sends since the caller asks for it.
# Seen:     lunary keeps the first piece of a call and appends the later ones to it, in the very chunk that the caller has. Who joins
#           the pieces on the first, as much code of clients does, gets `{"room":"a"}"a"}` for `{"room":"a"}`, so the call fails. Text in
#           the first chunk is recorded twice. The tokens that it records are the number of chunks.
source "$(dirname "$0")/begin.sh"
from_pypi lunary==1.4.41 openai==3.57.0
cat > replies.json <<'JSON'
{
  "text": [[{"role": "assistant", "content": "One "}, null], [{"content": "two and three"}, null], [{}, "stop"],
    {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "text", "choices": [],
     "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}}],
  "call": [
    [{"role": "assistant", "content": null}, null],
    [{"tool_calls": [{"index": 0, "id": "x", "type": "function", "function": {"name": "heat", "arguments": "{\"room\":"}}]}, null],
    [{"tool_calls": [{"index": 0, "function": {"arguments": "\"a\"}"}}]}, null],
    [{}, "tool_calls"]]
}
JSON
serve replies.json
python - 2>log <<'PY'
import os
from importlib.metadata import version

import lunary
import openai

lunary.config(app_id="none", api_url="http://127.0.0.1:1")
client = openai.OpenAI(base_url=os.environ["url"], api_key="none")


def ask(name):
    lunary.queue = events = []  # where what is recorded waits to be sent
    text, call, request = "", None, {"messages": [{"role": "user", "content": "hi"}], "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(model=name, stream=True, **request):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for piece in choice.delta.tool_calls or []:
                if call:
                    call.function.arguments += piece.function.arguments
                else:
                    call = piece
    return text or call.function.arguments, [(event["output"]["content"], event["tokensUsage"]["completion"]) for event in events[1:]]


alone = [ask(name) for name in ("text", "call")]
lunary.monitor(client)
seen = [ask(name) for name in ("text", "call")]
print(f"alone: read {alone}; with lunary {version('lunary')}: read and recorded (text, tokens) {seen}")
assert alone == [("One two and three", []), ('{"room":"a"}', [])], alone
assert seen[0] == ("One two and three", [("One One two and three", 4)]), "changed"
assert seen[1] == ('{"room":"a"}"a"}', [(None, 4)]), "changed"
PY
