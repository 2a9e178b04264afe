#!/usr/bin/env bash
# chatlas 0.23.0, a chat client for OpenAI-compatible servers and others, streaming a reply with `reasoning_content`.
# Expected: `stream()` yields the whole answer, wherever the chunks end. A server that sends several tokens at once (speculative
#           decoding, vLLM's `--stream-interval`) may put the last thoughts and the first words of the answer into one chunk.
# Seen:     the answer's words in this chunk are not yielded, so a terminal or a page shows `lo` of `hello`. The turn that is
#           kept afterwards has all of it.
source "$(dirname "$0")/begin.sh"
from_pypi chatlas==0.23.0 openai==3.57.0
cat > replies.json <<'JSON'
{
  "apart": [[{"role": "assistant", "reasoning_content": "I think"}, null], [{"content": "hel"}, null], [{"content": "lo"}, "stop"]],
  "together": [[{"role": "assistant", "reasoning_content": "I "}, null],
               [{"reasoning_content": "think", "content": "hel"}, null], [{"content": "lo"}, "stop"]]
}
JSON
serve replies.json
python - <<'PY'
import os
from importlib.metadata import version

from chatlas import ChatOpenAICompletions

seen = {}
for model in ("apart", "together"):
    chat = ChatOpenAICompletions(base_url=os.environ["url"], api_key="none", model=model)
    seen[model] = "".join(chat.stream("hi")), chat.get_last_turn().text
    print(f"chatlas {version('chatlas')}, thoughts and answer {model}: streamed {seen[model][0]!r}, kept {seen[model][1]!r}")
assert seen["apart"][0] == "hello", seen
assert seen["together"][0] == "lo" and "hello" in seen["together"][1], "changed"
PY
