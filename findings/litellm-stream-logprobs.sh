#!/usr/bin/env bash
# litellm 1.110.2, whose stream_chunk_builder joins the chunks of a streamed chat completion, as its proxy and callbacks do.
# Expected: what is joined has what the chunks have, so choices with `logprobs` in each chunk have those of all tokens.
# Seen:     text and finish reason are joined, `logprobs` are gone without a word: whoever scores a reply by them behind
#           such a proxy must not stream. The chunks themselves keep them.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" --quiet --disable-pip-version-check install litellm==1.110.2
LITELLM_LOCAL_MODEL_COST_MAP=True "$dir/venv/bin/python" - <<'PY'
from importlib.metadata import version

import litellm
from litellm.types.utils import ModelResponseStream


def chunk(delta, finish=None, logprobs=None):
    choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return ModelResponseStream(**head, choices=[choice])


def token(text, logprob):
    return {"content": [{"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}]}


chunks = [
    chunk({"role": "assistant", "content": "Hel"}, logprobs=token("Hel", -0.1)),
    chunk({"content": "lo"}, logprobs=token("lo", -0.2)),
    chunk({}, "stop"),
]
joined = litellm.stream_chunk_builder(chunks, messages=[{"role": "user", "content": "hi"}]).choices[0]
seen = {
    "chunks with logprobs": sum(one.choices[0].logprobs is not None for one in chunks),
    "text": joined.message.content,
    "finish_reason": joined.finish_reason,
    "logprobs": getattr(joined, "logprobs", None),
}
print(f"litellm {version('litellm')}:", seen)
assert seen == {"chunks with logprobs": 2, "text": "Hello", "finish_reason": "stop", "logprobs": None}, "it has changed"
PY
