#!/usr/bin/env bash
# any-llm-sdk 1.40.2, a client of many providers, with its provider `portkey`, which reads thoughts between <think>
# and </think> in the text (`minimax` and `sambanova` share the code).
# Expected: a streamed reply is split into thoughts and answer as the same reply is that is not streamed, with `n: 2`
#           each reply apart; thoughts are taken out of the stream in real time, as the provider's docstring says. The
#           answer is what the model wrote behind the tag.
# Seen:     the replies of a stream share one buffer, so what the second reply says while the first one thinks becomes
#           a thought of the first. A reply that only mentions <think> loses all that follows to the thoughts.
#           Thoughts come in one piece once they have ended. Not streamed, both replies are split rightly, but an
#           answer loses its first indentation and its last line break.
source "$(dirname "$0")/begin.sh"
from_pypi "any-llm-sdk[openai]==1.40.2" openai==3.57.0 httpx==0.28.1
python - <<'PY'
import asyncio
import json
from importlib.metadata import version

import httpx
from any_llm import acompletion

# For each model the pieces of its replies: the number of the reply, and text.
PIECES = {
    "two replies": [(0, "<think>"), (1, "no"), (0, "hm"), (1, ", wait"), (0, "</think>"), (0, "yes"), (1, "!")],
    "mention": [(0, text) for text in ("Write ", "<think>", " first", ", then", " the answer.")],
    "code": [(0, text) for text in ("<think>", "a", " loop", "</think>", "    return n\n")],
}


def reply(request):
    asked = json.loads(request.content)
    pieces = PIECES[asked["model"]]
    numbers = sorted({number for number, _ in pieces})
    head = {"id": "c", "created": 0, "model": "m"}
    if not asked.get("stream"):
        texts = ["".join(text for which, text in pieces if which == number) for number in numbers]
        choices = [
            {"index": number, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for number, text in enumerate(texts)
        ]
        return httpx.Response(200, json=head | {"object": "chat.completion", "choices": choices})
    choices = [{"index": number, "delta": {"content": text}, "finish_reason": None} for number, text in pieces]
    choices += [{"index": number, "delta": {}, "finish_reason": "stop"} for number in numbers]
    chunks = [json.dumps(head | {"object": "chat.completion.chunk", "choices": [choice]}) for choice in choices]
    body = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body.encode())


def said(part):
    return part.content or "", part.reasoning.content if part.reasoning else ""


async def main():
    print("any-llm-sdk", version("any-llm-sdk"))
    http = httpx.AsyncClient(transport=httpx.MockTransport(reply))
    seen = {}
    for model in PIECES:
        asked = {"messages": [{"role": "user", "content": "hi"}], "n": 2 if model == "two replies" else 1}
        asked |= {"client_args": {"http_client": http}, "api_base": "http://server/v1", "api_key": "none"}
        whole = await acompletion(model=model, provider="portkey", **asked)
        stream = await acompletion(model=model, provider="portkey", stream=True, **asked)
        pieces = [(choice.index, *said(choice.delta)) async for chunk in stream for choice in chunk.choices]
        parts = [said(choice.message) for choice in whole.choices]
        streamed = [piece for piece in pieces if piece[1] or piece[2]]
        print(f"{model}: (answer, thoughts) not streamed {parts}; (reply, answer, thoughts) streamed {streamed}")
        seen[model] = parts, streamed
    assert seen["two replies"][0] == [("yes", "hm"), ("no, wait!", "")]
    assert seen["two replies"][1] == [(0, "", "nohm, wait"), (0, "yes", ""), (1, "!", "")], "changed"
    assert seen["mention"][0] == [("Write <think> first, then the answer.", "")]
    assert seen["mention"][1] == [(0, "Write ", ""), (0, "", " first, then the answer.")], "changed"
    assert seen["code"][0] == [("return n", "a loop")], "changed"
    assert seen["code"][1] == [(0, "", "a loop"), (0, "    return n\n", "")], "changed"


asyncio.run(main())
PY
